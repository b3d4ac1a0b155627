//! Modules that exchange values between ranks.

use burn::module::{Flag, Module, Param, RunningState};
use burn::nn::{BatchNorm, BatchNormConfig};
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

use crate::calling::calling;
use crate::exchange::Reverse;
use crate::module::digest;
use crate::{CommError, World};

/// Batch normalisation with the statistics of the samples of all ranks (`torch.nn.SyncBatchNorm`).
///
/// Its output, gradients and running statistics are those of Burn's [`BatchNorm`] in one process on the
/// samples of all ranks. It has the fields and records of [`BatchNorm`], and each of the two loads the other's
/// records.
///
/// In training, all ranks must call [`forward`](Self::forward) of the same layers in the same order, and run
/// backward. Each of the two makes two small exchanges for each layer, or three if ranks have different
/// numbers of samples, over the transport of this thread's [`World`]. A rank without samples in a step calls
/// [`join`](Self::join) instead. In inference, and in a program without a `World`, the layer makes no
/// exchanges.
///
/// The loss must be the mean over the samples of a rank, as [`GradientSync`](crate::GradientSync) expects, and
/// the first dimension of the input must be these samples. So a loss over samples of all ranks, gathered by
/// [`World::all_gather`], has the right gradients only if all ranks have the same number of samples. A step may
/// have several micro-batches, if all ranks have the same number of them. The output must be part of the loss
/// on every rank. A forward on another thread than that of the `World` makes no exchanges.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use burn_mpi::nn::SyncBatchNorm;
/// use burn_mpi::threads::{Options, run};
///
/// let means = run(2, &Options::default(), |world| {
///     let device = Device::flex().autodiff();
///     let norm: SyncBatchNorm = burn::nn::BatchNormConfig::new(1).with_momentum(1.0).init(&device).into();
///     // Rank 0 has the samples 0 and 1, rank 1 has 10 and 11.
///     let start = 10.0 * world.rank() as f32;
///     norm.forward(Tensor::<2>::from_data([[start], [start + 1.0]], &device));
///     Ok::<_, String>(norm.running_mean.value_sync().into_scalar::<f32>())
/// });
/// assert_eq!(means.unwrap(), [5.5, 5.5]);
/// ```
#[derive(Module, Debug)]
pub struct SyncBatchNorm {
    /// The scale γ, of shape `[channels]`.
    pub gamma: Param<Tensor<1>>,
    /// The offset β, of shape `[channels]`.
    pub beta: Param<Tensor<1>>,
    /// Whether the layer uses and updates the statistics of its input. If false, it uses the running
    /// statistics.
    pub training: Param<Flag>,
    /// The running mean, of shape `[channels]`.
    pub running_mean: RunningState<Tensor<1>>,
    /// The running variance, of shape `[channels]`.
    pub running_var: RunningState<Tensor<1>>,
    /// Weight of a batch in the running statistics.
    pub momentum: f64,
    /// Added to the variance before its root.
    pub epsilon: f64,
}

impl From<BatchNorm> for SyncBatchNorm {
    fn from(norm: BatchNorm) -> Self {
        let BatchNorm { gamma, beta, training, running_mean, running_var, momentum, epsilon } = norm;
        Self { gamma, beta, training, running_mean, running_var, momentum, epsilon }
    }
}

impl From<SyncBatchNorm> for BatchNorm {
    fn from(norm: SyncBatchNorm) -> Self {
        let SyncBatchNorm { gamma, beta, training, running_mean, running_var, momentum, epsilon } = norm;
        Self { gamma, beta, training, running_mean, running_var, momentum, epsilon }
    }
}

impl SyncBatchNorm {
    /// Makes a layer for this number of channels, with the defaults of [`BatchNormConfig`].
    ///
    /// # Panics
    /// If `channels` is 0.
    pub fn new(channels: usize, device: &Device) -> Self {
        BatchNormConfig::new(channels).init(device).into()
    }

    /// Normalises `input` of shape `[samples, channels, …]` over the samples of all ranks and all dimensions
    /// after the channels.
    ///
    /// # Panics
    /// If `input` has fewer than two dimensions or other channels, or if the exchange fails: the layers or
    /// channels of ranks differ, or the transport fails. The panic ends the job.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let device = input.device();
        let world = if device.is_autodiff() && self.training.is_enabled() { World::current() } else { None };
        let Some(world) = world.filter(|world| world.size() > 1) else {
            return BatchNorm::from(self.clone()).forward(input);
        };
        let [channels] = self.gamma.val().dims();
        let dims = input.dims();
        assert!(
            D > 1 && dims[1] == channels,
            "the input has the shape {dims:?}, but the layer {channels} channels"
        );

        let others: Vec<usize> = (0..D).filter(|&dim| dim != 1).collect();
        let mut along = [1; D];
        along[1] = channels;
        let dtype = input.dtype();
        let precision = if dtype == DType::F64 { FloatDType::F64 } else { FloatDType::F32 };
        let input = input.cast(precision);
        let own_mean = input.clone().mean_dims(&others);
        let centered = input - own_mean.clone();
        let squares = centered.clone().square().sum_dims(&others);
        let own = Tensor::cat(vec![own_mean.clone().reshape([channels]), squares.reshape([channels])], 0);
        // With a leaf that needs a gradient, the backward makes its exchange also if the input needs none. All
        // ranks must make it, and `join` cannot see whether the inputs of other ranks need gradients.
        let leaf = Tensor::<1>::zeros([2 * channels], (&device, own.dtype())).require_grad();
        let own = own + leaf;
        let counts = Counts { samples: dims[0], values: dims.iter().product::<usize>() / channels, channels };
        let merged = Merged::of(&world, &self.digest(), counts, &own.to_data())
            .unwrap_or_else(|error| panic!("{error}"));
        self.update(&merged);
        let result = TensorData::new([&merged.mean[..], &merged.variance].concat(), [2 * channels]);
        let result = result.convert_dtype(own.dtype());
        let all: Tensor<1> = world.linked(own, result, true, Reverse::Statistics(merged));
        let [mean, variance] =
            [0, channels].map(|start| all.clone().narrow(0, start, channels).reshape(along));

        let [gamma, beta] = [&self.gamma, &self.beta].map(|param| param.val().cast(precision).reshape(along));
        let scale = gamma / (variance + self.epsilon).sqrt();
        let offset = (own_mean - mean) * scale.clone() + beta;
        (centered * scale + offset).cast(dtype)
    }

    /// Takes part in the exchanges of a step for a rank without samples: of the forward of `layers`, and of
    /// their backward. `layers` has each layer as often as the other ranks call it, in the same order. Updates
    /// the running statistics as on the other ranks. With one rank, or without a [`World`], does nothing. If
    /// the other ranks have several micro-batches, call it once for each.
    ///
    /// ```no_run
    /// # use burn::{module::Module, tensor::Tensor};
    /// # use burn_mpi::nn::SyncBatchNorm;
    /// # use burn_mpi::{CommError, GradientSync, MicroBatch};
    /// # #[derive(Module, Debug)]
    /// # struct Model { norm1: SyncBatchNorm, norm2: SyncBatchNorm }
    /// # fn step(
    /// #     (own, total): (usize, usize), model: &Model, sync: &mut GradientSync, loss_of: fn(&Model) -> Tensor<1>,
    /// # ) -> Result<(), CommError> {
    /// if own == 0 {
    ///     SyncBatchNorm::join(&[&model.norm1, &model.norm2])?;
    /// } else {
    ///     sync.backward(&loss_of(model), model, own, total, MicroBatch::Last)?;
    /// }
    /// let gradients = sync.finish(model)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the other ranks call other layers, or in another order, or the transport fails.
    pub fn join(layers: &[&Self]) -> Result<(), CommError> {
        let Some(world) = World::current().filter(|world| world.size() > 1) else { return Ok(()) };
        // In inference, a layer makes no exchange.
        let trains = |layer: &&&Self| layer.training.is_enabled() && layer.gamma.val().device().is_autodiff();
        let layers: Vec<_> = layers.iter().filter(trains).collect();
        for layer in &layers {
            let none = TensorData::new(Vec::<f64>::new(), [0]);
            let merged = Merged::of(&world, &layer.digest(), Counts::default(), &none)?;
            world.next_exchange();
            if merged.values > 0.0 {
                layer.update(&merged);
            }
        }
        for _ in layers {
            exchange(&world, Pass::Backward(None), Counts::default(), Vec::new())?;
        }
        Ok(())
    }

    /// Returns a digest of the parameters, the running statistics and the options, which are equal on all
    /// ranks. It shows whether ranks are in different layers, or have other statistics.
    fn digest(&self) -> String {
        let parameters = [&self.gamma, &self.beta].map(|param| param.val().inner());
        let statistics = [&self.running_mean, &self.running_var].map(RunningState::value_sync);
        let tensors = parameters.into_iter().chain(statistics);
        let mut bytes: Vec<u8> = tensors.flat_map(|tensor| tensor.into_data().as_bytes().to_vec()).collect();
        bytes.extend([self.momentum, self.epsilon].map(f64::to_le_bytes).as_flattened());
        digest(&bytes)
    }

    /// Updates the running statistics, as Burn's batch norm does.
    fn update(&self, merged: &Merged) {
        for (running, new) in [(&self.running_mean, &merged.mean), (&self.running_var, &merged.variance)] {
            let old = running.value_sync();
            let new = TensorData::new(new.clone(), [new.len()]);
            let new = Tensor::<1>::from_data(new, (&old.device(), old.dtype()));
            running.update(old.mul_scalar(1.0 - self.momentum).add(new.mul_scalar(self.momentum)).detach());
            // Burn updates the value that records have at the next access, which may be after saving.
            running.value_sync();
        }
    }
}

/// What a rank brings to an exchange; zeros on a rank without samples.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    samples: usize,
    /// Number of values of each channel.
    values: usize,
    channels: usize,
}

/// The statistics of all ranks, and what their backward needs.
#[derive(Debug, Clone)]
pub(crate) struct Merged {
    counts: Counts,
    /// Number of values of each channel on all ranks.
    values: f64,
    mean: Vec<f64>,
    /// The variance of the values, with divisor n.
    variance: Vec<f64>,
    /// For each channel, by how much this rank's mean exceeds that of all ranks.
    excess: Vec<f64>,
}

impl Merged {
    /// Merges the statistics of all ranks, in rank order. `own` are this rank's: the mean of each channel, and
    /// then the sum of squared differences from it. (Chan, Golub, LeVeque, "Updating formulae and a pairwise
    /// algorithm for computing sample variances", 1979.)
    fn of(world: &World, layer: &str, counts: Counts, own: &TensorData) -> Result<Self, CommError> {
        let ranks = exchange(world, Pass::Forward(layer), counts, own.iter::<f64>().collect())?;
        let channels = ranks.iter().map(|(_, statistics)| statistics.len() / 2).max().unwrap_or_default();
        let with_values = || ranks.iter().filter(|(counts, _)| counts.values > 0);
        let values: f64 = with_values().map(|(counts, _)| counts.values as f64).sum();
        let weighted = |term: &dyn Fn(&[f64], f64) -> f64| {
            with_values().map(|(counts, own)| term(own, counts.values as f64)).sum::<f64>() / values
        };
        let means: Vec<f64> = (0..channels).map(|at| weighted(&|own, count| own[at] * count)).collect();
        let variance =
            |at: usize| weighted(&|own, count| own[channels + at] + count * (own[at] - means[at]).powi(2));
        let variance = (0..channels).map(variance).collect();
        let excess = own.iter::<f64>().zip(&means).map(|(own, mean)| own - mean).collect();
        Ok(Self { counts, values, mean: means, variance, excess })
    }

    /// Returns the gradient of this rank's statistics. `gradient` is the gradient of the merged statistics on
    /// this rank: of the means, and then of the variances.
    ///
    /// The loss of a step is the mean over the samples of all ranks, so the gradients of ranks are weighted by
    /// samples. The result is divided by this rank's weight, by which
    /// [`GradientSync`](crate::GradientSync) multiplies it. `number` is the number of the exchange of forward.
    pub(crate) fn reverse(
        &self,
        world: &World,
        number: u64,
        gradient: &TensorData,
    ) -> Result<TensorData, CommError> {
        let samples = self.counts.samples as f64;
        // A rank without values has no part in the loss, and its gradient may be NaN.
        let has_values = self.counts.values > 0;
        let weighted = gradient.iter::<f64>().filter(|_| has_values).map(|value| value * samples).collect();
        let ranks = exchange(world, Pass::Backward(Some(number)), self.counts, weighted)?;
        let of_all = |at: usize| {
            let sum: f64 = ranks.iter().filter_map(|(_, values)| values.get(at)).sum();
            sum / samples
        };
        let (channels, share) = (self.counts.channels, self.counts.values as f64 / self.values);
        let of_mean = |at: usize| of_all(at) * share + of_all(channels + at) * 2.0 * share * self.excess[at];
        let of_squares = |at: usize| of_all(channels + at) / self.values;
        let gradients = (0..channels).map(of_mean).chain((0..channels).map(of_squares));
        let found = TensorData::new(gradients.collect::<Vec<f64>>(), [2 * channels]);
        Ok(found.convert_dtype(gradient.dtype()))
    }
}

/// A pass of a layer, and what shows that ranks are in the same layer.
#[derive(Clone, Copy)]
enum Pass<'a> {
    /// The digest of the layer.
    Forward(&'a str),
    /// The number of the exchange of forward; `None` in [`SyncBatchNorm::join`], which contributes nothing to
    /// any of them.
    Backward(Option<u64>),
}

/// Gathers two values for each channel of every rank, in rank order; zeros of a rank without samples. `values`
/// are this rank's.
fn exchange(
    world: &World,
    pass: Pass<'_>,
    counts: Counts,
    mut values: Vec<f64>,
) -> Result<Vec<(Counts, Vec<f64>)>, CommError> {
    let (name, what, layer) = match pass {
        Pass::Forward(digest) => (
            "forward",
            "the layer (ranks call the same layers in the same order, also in SyncBatchNorm::join, and have equal \
             parameters, options and running statistics)",
            Some(format!("digest {digest}")),
        ),
        Pass::Backward(number) => (
            "backward",
            "the layer in backward (with graphs of different depths, Burn may run layers in different orders)",
            number.map(|number| format!("exchange {number} with gradients")),
        ),
    };
    let _calling = calling(format!("the {name} of SyncBatchNorm"));
    let mine = (layer, [counts.samples, counts.values, counts.channels]);
    let (layers, ranks): (Vec<Option<String>>, Vec<[usize; 3]>) = world.gather(&mine)?.into_iter().unzip();
    let channels = ranks.iter().map(|rank| rank[2]).max().unwrap_or_default();
    let mut named = layers.into_iter().enumerate().filter_map(|(rank, layer)| Some((rank, layer?)));
    if let Some((_, expected)) = named.next()
        && let Some((rank, found)) = named.find(|(_, layer)| *layer != expected)
    {
        return Err(world.diverged(what, rank, found, expected));
    }
    let length = 2 * channels;
    values.resize(length, 0.0);
    let mut all = vec![0f64; length * world.size()];
    if length > 0 {
        let (mine, all) = (bytemuck::cast_slice(&values), bytemuck::cast_slice_mut(&mut all));
        world.control().borrow_mut().all_gather(mine, all)?;
    }
    let of_rank = |(rank, [samples, values, channels]): (usize, [usize; 3])| {
        (Counts { samples, values, channels }, all[rank * length..][..length].to_vec())
    };
    Ok(ranks.into_iter().enumerate().map(of_rank).collect())
}
