//! [`ShardedOptimizer`]: one of Burn's optimizers, whose state is divided among the ranks.

use burn::backend::Flex;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{LearningRate, Optimizer, RecordState, StateSink};
use burn::tensor::{Bytes, DType, Device, Tensor, TensorData};

use crate::ddp::buckets::{Buckets, values_in};
use crate::ddp::buffers::{BucketPlan, Part};
use crate::ddp::collector::to_flex;
use crate::ddp::gradient_sync::{GradientSync, PANICKED};
use crate::ddp::optimizer_state::ids_of;
use crate::{CommError, tensors};

/// One of Burn's optimizers, such as Adam, with its state divided among the ranks: ZeRO stage 1 (Rajbhandari
/// et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020).
///
/// The [`GradientSync`] must have [`SyncOptions::shard`](crate::SyncOptions::shard). Each rank then gets the
/// averaged gradients of its share of the parameters, updates this share with its part of the optimizer's
/// state, and receives the updated values of the other ranks. A rank's state is about `1 / world size` of the
/// whole state. With [`Reduction::Ordered`](crate::Reduction::Ordered), the weights have the same bits as
/// without `shard`; with [`Reduction::Native`](crate::Reduction::Native), they differ by rounding. Without
/// `shard`, every rank updates all parameters.
///
/// ```no_run
/// # use burn::optim::{AdamConfig, LearningRate};
/// # use burn::tensor::Tensor;
/// # use burn_mpi::{Backend, CommError, GradientSync, MicroBatch, ShardedOptimizer, Signals, SyncOptions};
/// # use burn_mpi::{Transport, World, connect};
/// # use burn::nn::Linear;
/// # fn train(world: &World, mut model: Linear, x: Tensor<2>) -> Result<Linear, CommError> {
/// let options = SyncOptions::default().with_shard(true);
/// let collective = connect(world, Backend::Mpi, &Transport::default())?;
/// let mut sync = GradientSync::of_module(world, collective, &model, options);
/// let mut optimizer = ShardedOptimizer::new(AdamConfig::new().build())?;
/// for _ in 0..100 {
///     let loss = model.forward(x.clone()).mean();
///     sync.backward(&loss, &model, 8, 8 * world.size(), MicroBatch::Last)?;
///     sync.reduce(Signals::default())?;
///     sync.clip_norm(1.0)?; // optional
///     model = optimizer.step(1e-3, model, &mut sync)?;
/// }
/// # Ok(model)
/// # }
/// ```
///
/// Shares cut tensors anywhere, so each element must be updated independently of the others: Adam, AdamW,
/// SGD, RMSprop, AdaGrad, Adan, Lion and the optimizers of burn-fused work. Optimizers that use a norm or the
/// shape of a tensor, such as LAMB, Muon and Adafactor, do not. [`new`](Self::new) rejects them. The gradient
/// clipping of Burn's `ModuleOptimizer` clips each tensor, and is not available here:
/// [`GradientSync::clip_norm`] clips by the norm of all gradients.
pub struct ShardedOptimizer<O: Optimizer> {
    pub(super) optimizer: O,
    /// The parts of parameters that this rank updates, in visit order.
    pub(super) parts: Vec<Part>,
    /// The plan that `parts` are from, which is equal on all ranks; `Some(None)` if every rank updates all
    /// parameters, `None` before the shares are known.
    pub(super) plan: Option<Option<BucketPlan>>,
    /// The state of each part; `None` before the part's first step.
    pub(super) states: Vec<Option<O::State<1>>>,
    /// A whole record, of which the next step takes this rank's share.
    pub(super) loaded: Option<Bytes>,
    /// Whether a step has begun. The first step compares the weights of the ranks.
    has_begun: bool,
}

impl<O: Optimizer> ShardedOptimizer<O> {
    /// Makes a sharded optimizer from the optimizer of one parameter, which `build` of its configuration
    /// returns.
    ///
    /// # Errors
    /// [`CommError::Sharded`] if the update of an element depends on other elements. To find this out, the
    /// optimizer makes two steps on a small tensor and on its parts.
    ///
    /// # Panics
    /// If the optimizer panics on a tensor of one dimension, as Muon does.
    pub fn new(optimizer: O) -> Result<Self, CommError> {
        check_elementwise(&optimizer)?;
        let (parts, states) = (Vec::new(), Vec::new());
        Ok(Self { optimizer, parts, plan: None, states, loaded: None, has_begun: false })
    }

    /// Updates the parameters of `module` at learning rate `lr`, after [`GradientSync::reduce`]. Returns the
    /// module with the same bits on every rank. A parameter that is frozen, or without a gradient on any
    /// rank, is unchanged, as with Burn's optimizers. All ranks must call it.
    ///
    /// # Errors
    /// - [`CommError::NoGradient`] if [`GradientSync::reduce`] was not called after the last step, or if a
    ///   trainable parameter was frozen, had another shape or did not exist when the `GradientSync` was made.
    /// - [`SharedError::Diverged`](crate::SharedError::Diverged) in the first step, if ranks begin with
    ///   different weights.
    /// - [`CommError::Sharded`] if the shares have changed since the last step, by
    ///   [`GradientSync::adopt`] or because `sync` is another one, or if a loaded record does not fit
    ///   `module`.
    /// - If the transport fails. Every later step returns the same error.
    pub fn step<M: Module>(
        &mut self,
        lr: LearningRate,
        module: M,
        sync: &mut GradientSync,
    ) -> Result<M, CommError> {
        sync.reduced()?;
        if !std::mem::replace(&mut self.has_begun, true) {
            sync.check_weights(&module);
            sync.reduced()?;
        }
        let values = Values::of(&module, sync)?;
        self.begin(&module, sync)?;
        let result = self.update(lr, &values, sync).and_then(|()| {
            let updated: Vec<bool> = values.iter().map(Option::is_some).collect();
            // A parameter is written in place only if nothing else refers to its old values.
            drop(values);
            gather(module, &updated, sync)
        });
        let module = result.inspect_err(|error| sync.broken = Some(error.clone()))?;
        sync.averaged = false;
        Ok(module)
    }

    /// Finds out what this rank updates, and loads its share of a record.
    fn begin<M: Module>(&mut self, module: &M, sync: &GradientSync) -> Result<(), CommError> {
        let buckets = sync.buckets.as_deref().ok_or(PANICKED)?;
        if self.plan.is_some() && !self.is_of(buckets) {
            return Err(CommError::Sharded(
                "the shares of the ranks have changed since its last step, because of GradientSync::adopt or \
                 another GradientSync; call to_record before and load_record after the change"
                    .into(),
            ));
        }
        self.parts = buckets.parts().to_vec();
        self.states.resize_with(self.parts.len(), || None);
        if self.plan.is_none() && sync.arrival.is_some() {
            self.plan = Some(sync.options.shard.then(|| buckets.plan.clone()));
        }
        match self.loaded.take() {
            Some(record) => {
                // Each rank's module may have other ids, but the record has only one set of them.
                let ids = sync.world.broadcast(&ids_of(module))?;
                sync.world.agree(self.take_share(record, &ids, sync))
            }
            None => Ok(()),
        }
    }

    /// Returns whether the ranks have the same shares of `buckets` as of the buckets of the last step.
    pub(super) fn is_of(&self, buckets: &Buckets) -> bool {
        let plan = buckets.options.shard.then_some(&buckets.plan);
        self.plan.as_ref().is_some_and(|known| known.as_ref() == plan)
    }

    /// Updates this rank's parts in their buckets.
    fn update(
        &mut self,
        lr: LearningRate,
        values: &[Option<Tensor<1>>],
        sync: &mut GradientSync,
    ) -> Result<(), CommError> {
        let buckets = sync.reduced()?;
        for (part, state) in self.parts.iter().zip(&mut self.states) {
            let Some(value) = &values[part.param] else { continue };
            let gradient = buckets.part_tensor(part).ok_or(PANICKED)?;
            let device = value.device();
            let gradient = Tensor::<1>::from_primitive::<Flex>(gradient).to_device(&device);
            let old = state.take().map(|state| O::to_device(state, &device));
            let value = value.clone().slice([part.range.clone()]);
            let gradient =
                if gradient.dtype() == value.dtype() { gradient } else { gradient.cast(value.dtype()) };
            let (value, new) = self.optimizer.step(lr, value, gradient, old);
            *state = new;
            buckets.copying(|buckets| {
                let slots = buckets.part_mut(part).ok_or(PANICKED)?;
                slots.copy_from_slice(values_in(&to_flex(value)));
                Ok::<_, CommError>(())
            })?;
        }
        Ok(())
    }
}

/// Gathers the parameters that are `updated` into `module`, one bucket after the other.
fn gather<M: Module>(module: M, updated: &[bool], sync: &mut GradientSync) -> Result<M, CommError> {
    let mut module = Some(module);
    sync.reduced()?.gather(&mut |buckets, gathered| {
        let is_taken = |param: usize| {
            updated[param] && buckets.plan.place(param).is_some_and(|(bucket, _)| gathered.contains(&bucket))
        };
        let values = |param| buckets.gradient(param).filter(|_| is_taken(param));
        module = module.take().map(|module| tensors::overwrite(module, &values));
    })?;
    module.map(|module| sync.layout.tie(module)).ok_or(PANICKED)
}

/// Collects the values of the parameters that a step updates.
struct Values<'a> {
    sync: &'a GradientSync,
    values: Vec<Option<Tensor<1>>>,
    failure: Option<CommError>,
}

impl<'a> Values<'a> {
    /// Returns the values of each float parameter of `module`, without autodiff; `None` for a parameter that
    /// is not updated.
    fn of<M: Module>(module: &M, sync: &'a GradientSync) -> Result<Vec<Option<Tensor<1>>>, CommError> {
        let mut visitor = Values { sync, values: Vec::new(), failure: None };
        module.visit(&mut visitor);
        visitor.failure.map_or(Ok(visitor.values), Err)
    }
}

impl ModuleVisitor for Values<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let is_updated = if param.is_require_grad() {
            self.sync.has_gradient(self.values.len(), &param.val().dims())
        } else {
            Ok(false)
        };
        let is_updated = is_updated.unwrap_or_else(|error| {
            self.failure.get_or_insert(error);
            false
        });
        self.values.push(is_updated.then(|| {
            let value = param.val().inner();
            let length = value.dims().iter().product::<usize>();
            value.reshape([length])
        }));
    }
}

/// Checks that `optimizer` updates each element independently of the others: steps on a tensor of two
/// dimensions must have the results of steps on its parts, which are of one dimension.
fn check_elementwise<O: Optimizer>(optimizer: &O) -> Result<(), CommError> {
    const LENGTH: usize = 24;
    const CUT: usize = 7;
    // The parts have weights and gradients of other magnitudes, so a norm of a part is not that of the
    // tensor.
    let scales = |at: usize| if at < CUT { (0.01, 10.0) } else { (1.0, 0.1) };
    let device = Device::flex();
    let tensor = |value: &dyn Fn(usize) -> f32| {
        let values: Vec<f32> = (0..LENGTH).map(value).collect();
        Tensor::<1>::from_data(TensorData::new(values, [LENGTH]), &device)
    };
    let weights = tensor(&|at| scales(at).0 * ((at * 7 % 13) as f32 - 5.5));
    let gradients = [5, 3].map(|factor| tensor(&|at| scales(at).1 * ((at * factor % 11) as f32 - 4.5)));
    let rate = 0.01;
    let mut whole = (weights.clone().reshape([4, LENGTH / 4]), None);
    for gradient in &gradients {
        whole = optimizer.step::<2>(rate, whole.0, gradient.clone().reshape([4, LENGTH / 4]), whole.1);
    }
    let mut parts = Vec::new();
    for range in [0..CUT, CUT..LENGTH] {
        let mut part = (weights.clone().slice([range.clone()]), None);
        for gradient in &gradients {
            part = optimizer.step::<1>(rate, part.0, gradient.clone().slice([range.clone()]), part.1);
        }
        let mut state = StateSink::default();
        part.1.inspect(|part| part.state_flatten("", &mut state));
        if let Some((name, data)) =
            state.tensors.iter().find(|(_, data)| data.shape().num_elements() != range.len())
        {
            return Err(CommError::Sharded(format!(
                "{name} of its state has the shape {:?} for a tensor of {} elements, but one value for each \
                 element is required",
                data.shape(),
                range.len()
            )));
        }
        parts.extend(values_of(part.0));
    }
    let (weights, whole) = (values_of(weights), values_of(whole.0.reshape([LENGTH])));
    let most = whole.iter().zip(&weights).map(|(new, old)| (new - old).abs()).fold(0.0, f32::max);
    let apart = whole.iter().zip(&parts).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
    if apart <= 1e-4 * most {
        return Ok(());
    }
    Err(CommError::Sharded(
        "its update of an element depends on other elements of the tensor, and a rank has only a part of a tensor; \
         use an element-wise optimizer, such as Adam, AdamW or SGD, or SyncOptions without shard"
            .into(),
    ))
}

fn values_of(tensor: Tensor<1>) -> Vec<f32> {
    tensor.into_data().convert_dtype(DType::F32).try_to_vec::<f32>().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::optim::{
        AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, AdanConfig, LambConfig, LionConfig,
        RmsPropConfig, SgdConfig,
    };

    #[test]
    fn optimizers_that_are_not_element_wise_are_rejected() {
        check_elementwise(&AdamConfig::new().with_amsgrad(true).build()).unwrap();
        check_elementwise(&AdamWConfig::new().build()).unwrap();
        check_elementwise(&SgdConfig::new().build()).unwrap();
        check_elementwise(&RmsPropConfig::new().build()).unwrap();
        check_elementwise(&AdaGradConfig::new().build()).unwrap();
        check_elementwise(&AdanConfig::new().build()).unwrap();
        check_elementwise(&LionConfig::new().build()).unwrap();
        for rejected in [
            check_elementwise(&LambConfig::new().build()),
            check_elementwise(&AdafactorConfig::new().build()),
        ] {
            let line = rejected.unwrap_err().to_string();
            assert!(line.contains("depends on other elements"), "{line}");
        }
    }
}
