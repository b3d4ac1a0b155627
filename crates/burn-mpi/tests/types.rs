//! Parameters of every float type, and tied parameters: ranks that are threads train to the results of plain
//! Burn on the samples of all ranks.

use std::error::Error;

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData};
use burn_mpi::threads::{Options, run};
use burn_mpi::{
    Backend, GradientSync, LocalOptions, LocalUpdates, MicroBatch, Reduction, ShardedOptimizer, Signals,
    SyncOptions, Transport, World, broadcast_module, check_equal_weights, connect, tie_parameters,
};

const TOKENS: usize = 7;
const WIDTH: usize = 4;
const STEPS: usize = 6;

/// A language model in small: the output layer has the weights of the embedding.
#[derive(Module, Debug)]
struct Net {
    embedding: Embedding,
    hidden: Linear,
    output: Param<Tensor<2>>,
}

impl Net {
    fn new(dtype: FloatDType, seed: u64) -> Self {
        let device = Device::flex().autodiff();
        let embedding = EmbeddingConfig::new(TOKENS, WIDTH).init(&device);
        let hidden = LinearConfig::new(WIDTH, WIDTH).init(&device);
        let drawn = Self { output: embedding.weight.clone(), embedding, hidden };
        tie_parameters(drawn.map(&mut Begin { dtype, next: seed as f32 }))
    }

    /// The mean loss of the samples with these numbers.
    fn loss(&self, samples: &[usize]) -> Tensor<1> {
        let device = self.hidden.weight.device();
        let token = |factor: usize| {
            let tokens: Vec<i64> = samples.iter().map(|sample| (sample * factor % TOKENS) as i64).collect();
            Tensor::<1, Int>::from_data(&tokens[..], &device)
        };
        let x = self.embedding.forward(token(3).unsqueeze::<2>()).reshape([samples.len(), WIDTH]);
        let scores = self.hidden.forward(x).tanh().matmul(self.output.val().transpose());
        let wanted = token(5).one_hot::<2>(TOKENS).float().cast(scores.dtype());
        (scores - wanted).powi_scalar(2).mean()
    }

    fn values(&self) -> Vec<f64> {
        [self.embedding.weight.val(), self.hidden.weight.val(), self.output.val()]
            .iter()
            .flat_map(|tensor| tensor.to_data().iter::<f64>().collect::<Vec<_>>())
            .collect()
    }
}

/// Sets the parameters to fixed values of a type.
struct Begin {
    dtype: FloatDType,
    next: f32,
}

impl ModuleMapper for Begin {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        let values: Vec<f32> = (0..tensor.shape().num_elements())
            .map(|_| {
                self.next += 1.0;
                (self.next * 1.7).sin() / 2.0
            })
            .collect();
        let data = TensorData::new(values, tensor.shape());
        let tensor = Tensor::<D>::from_data(data, (&tensor.device(), DType::from(self.dtype)));
        Param::from_mapped_value(id, tensor.require_grad(), mapper)
    }
}

/// The samples of a step, from 1 to 11, so that ranks have different numbers of samples, or none.
fn samples(step: usize) -> Vec<usize> {
    (0..1 + 10 * (step % 2)).map(|at| 20 * step + at).collect()
}

/// Trains with plain Burn on the samples of all ranks.
fn plain(dtype: FloatDType, optimizer: ModuleOptimizer) -> Vec<f64> {
    let (mut net, mut optimizer) = (Net::new(dtype, 0), optimizer);
    for step in 0..STEPS {
        let gradients = GradientsParams::from_grads(net.loss(&samples(step)).backward(), &net);
        net = tie_parameters(optimizer.step(0.05, net, gradients));
    }
    net.values()
}

/// Trains on this rank's samples, and averages gradients.
fn averaged(world: &World, dtype: FloatDType, options: SyncOptions) -> Result<Vec<f64>, Box<dyn Error>> {
    let mut net = broadcast_module(world, Net::new(dtype, 3 * world.rank() as u64))?;
    let collective = connect(world, Backend::Mpi, &Transport::default())?;
    let mut sync = GradientSync::of_module(world, collective, &net, options);
    let mut optimizer = AdamConfig::new().init();
    let mut shares = ShardedOptimizer::new(AdamConfig::new().build())?;
    for step in 0..STEPS {
        let all = samples(step);
        let own: Vec<usize> = all.iter().copied().skip(world.rank()).step_by(world.size()).collect();
        if !own.is_empty() {
            sync.backward(&net.loss(&own), &net, own.len(), all.len(), MicroBatch::Last)?;
        }
        if options.shard {
            sync.reduce(Signals::default())?;
            net = shares.step(0.05, net, &mut sync)?;
        } else {
            let gradients = sync.finish(&net)?;
            let of_hidden = gradients.get::<2>(net.hidden.weight.id).ok_or("no gradient")?;
            assert_eq!(of_hidden.dtype(), DType::from(dtype));
            net = tie_parameters(optimizer.step(0.05, net, gradients));
        }
        assert_eq!(net.output.val().dtype(), DType::from(dtype));
    }
    check_equal_weights(world, &net)?;
    Ok(net.values())
}

fn apart(one: &[f64], other: &[f64]) -> f64 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn parameters_of_every_type_and_tied_ones_train_as_on_one_process() {
    for (dtype, tolerance) in
        [(FloatDType::F32, 2e-6), (FloatDType::F64, 1e-6), (FloatDType::F16, 4e-3), (FloatDType::BF16, 4e-2)]
    {
        let expected = plain(dtype, AdamConfig::new().init());
        assert!(apart(&expected, &Net::new(dtype, 0).values()) > 0.1, "{dtype:?}: nothing was trained");
        for (ranks, seed) in (1..=4).flat_map(|ranks| (0..5).map(move |seed| (ranks, seed))) {
            for shard in [false, true] {
                if shard && dtype == FloatDType::F64 {
                    continue;
                }
                let options = SyncOptions::default()
                    .with_shard(shard)
                    .with_reduction(Reduction::Ordered)
                    .with_bucket_bytes(64)
                    .with_first_bucket_bytes(64);
                let found = run(ranks, &Options::default().with_seed(seed), |world| {
                    averaged(world, dtype, options).map_err(|error| error.to_string())
                });
                for found in found.unwrap() {
                    let apart = apart(&found, &expected);
                    assert!(apart <= tolerance, "{dtype:?}, {ranks} ranks, shard {shard}: {apart}");
                }
            }
        }
    }
}

/// A network that learns from frozen clones of itself, before and after it in visit order.
#[derive(Module, Debug)]
struct Distilled {
    before: Option<Linear>,
    student: Linear,
    after: Linear,
}

impl Distilled {
    fn new(rank: usize, has_before: bool) -> Self {
        let device = Device::flex().autodiff();
        // Clones of a parameter that has not been drawn yet share whether it gets gradients.
        let weight = Param::from_tensor(Tensor::full([2, 2], 0.5 + rank as f32, &device));
        let student = Linear { weight, bias: None };
        let before = has_before.then(|| student.clone().no_grad());
        Self { before, after: student.clone().no_grad(), student }
    }

    fn loss(&self, rank: usize) -> Tensor<1> {
        let x = Tensor::<2>::from_data([[1.0 + rank as f32, -1.0]], &self.student.weight.device());
        let wanted = self.before.as_ref().unwrap_or(&self.after).forward(x.clone());
        (self.student.forward(x.clone()) - wanted - self.after.forward(x) - 1.0).powi_scalar(2).mean()
    }

    /// The weights, and whether they get gradients.
    fn weights(&self) -> Vec<(TensorData, bool)> {
        let linears = self.before.iter().chain([&self.student, &self.after]);
        linears.map(|linear| (linear.weight.val().into_data(), linear.weight.is_require_grad())).collect()
    }
}

#[derive(Debug, Clone, Copy)]
enum Trained {
    InShares,
    Locally,
    ByBurn,
}

fn distill(world: &World, how: Trained, has_before: bool) -> Result<Distilled, Box<dyn Error>> {
    let mut net = broadcast_module(world, Distilled::new(world.rank(), has_before))?;
    check_equal_weights(world, &net)?;
    let collective = connect(world, Backend::Mpi, &Transport::default())?;
    let mut sgd = SgdConfig::new().init();
    if let Trained::Locally = how {
        let mut local = LocalUpdates::of_module(world, collective, &net, LocalOptions::default())?;
        for _ in 0..3 {
            let gradients = GradientsParams::from_grads(local.backward(&net.loss(world.rank())), &net);
            net = local.step_module(sgd.step(0.1, net, gradients), 1)?;
        }
        return Ok(local.finish_module(net)?);
    }
    let options = SyncOptions::default().with_shard(matches!(how, Trained::InShares));
    let mut sync = GradientSync::of_module(world, collective, &net, options);
    let mut shares = ShardedOptimizer::new(SgdConfig::new().build())?;
    for _ in 0..3 {
        sync.backward(&net.loss(world.rank()), &net, 1, world.size(), MicroBatch::Last)?;
        if options.shard {
            sync.reduce(Signals::default())?;
            net = shares.step(0.1, net, &mut sync)?;
        } else {
            let gradients = sync.finish(&net)?;
            net = tie_parameters(sgd.step(0.1, net, gradients));
        }
    }
    Ok(net)
}

#[test]
fn a_frozen_clone_is_not_tied() {
    let began = Distilled::new(0, false).weights().swap_remove(0).0;
    for ranks in 1..=3 {
        for (how, has_before) in [
            (Trained::InShares, true),
            (Trained::InShares, false),
            (Trained::Locally, false),
            (Trained::ByBurn, false),
        ] {
            let found = run(ranks, &Options::default(), |world| {
                let net = distill(world, how, has_before).map_err(|error| error.to_string())?;
                check_equal_weights(world, &net).map_err(|error| error.to_string())?;
                Ok::<_, String>(net.weights())
            });
            for weights in found.unwrap() {
                for (weight, trains) in weights {
                    assert_eq!(trains, weight != began, "{how:?}, {ranks} ranks, before: {has_before}");
                }
            }
        }
    }
}

#[test]
fn a_frozen_clone_before_the_parameter_is_named() {
    for how in [Trained::Locally, Trained::ByBurn] {
        let failure = run(2, &Options::default(), |world| {
            distill(world, how, true).map(drop).map_err(|error| error.to_string())
        });
        let line = failure.unwrap_err().to_string();
        let told = "before.weight is a frozen clone of student.weight, and comes first";
        assert!(line.contains(told), "{how:?}: {line}");
    }
}

#[test]
fn a_broadcast_ties_on_every_rank() {
    let outputs = run(3, &Options::default(), |world| {
        let mut net = Net::new(FloatDType::F32, 0);
        if world.is_root() {
            net.output = net.output.map(|x| (x.inner() * 2.0).autodiff().require_grad());
        }
        let net = broadcast_module(world, net)?;
        check_equal_weights(world, &net)?;
        Ok::<_, burn_mpi::CommError>((net.output.val().into_data(), net.embedding.weight.val().into_data()))
    });
    for (output, embedding) in outputs.unwrap() {
        assert_eq!(output, embedding);
    }
}

#[test]
fn norms_that_are_no_bound_are_refused() {
    for (max, shard) in [(-1.0, false), (f64::NAN, false), (f64::NEG_INFINITY, true)] {
        let failure = run(2, &Options::default(), |world| -> Result<(), Box<dyn Error>> {
            let net = broadcast_module(world, Net::new(FloatDType::F32, 0))?;
            let collective = connect(world, Backend::Mpi, &Transport::default())?;
            let options = SyncOptions::default().with_shard(shard);
            let mut sync = GradientSync::of_module(world, collective, &net, options);
            sync.backward(&net.loss(&[1, 2]), &net, 2, 4, MicroBatch::Last)?;
            sync.reduce(Signals::default())?;
            sync.clip_norm(max)?;
            Ok(())
        });
        let text = failure.unwrap_err().to_string();
        assert!(text.contains(&format!("clips to a norm of {max:?}: use 0 or more")), "{text}");
    }
}

#[test]
fn tied_parameters_that_came_apart_are_named() {
    for contributes in [false, true] {
        let failure = run(2, &Options::default(), |world| -> Result<(), Box<dyn Error>> {
            let mut net = broadcast_module(world, Net::new(FloatDType::F32, 0))?;
            let collective = connect(world, Backend::Mpi, &Transport::default())?;
            let mut sync = GradientSync::of_module(world, collective, &net, SyncOptions::default());
            for _ in 0..2 {
                if contributes {
                    let gradients = GradientsParams::from_grads(net.loss(&[1, 2]).backward(), &net);
                    sync.contribute(gradients, &net, 2, 4)?;
                } else {
                    sync.backward(&net.loss(&[1, 2]), &net, 2, 4, MicroBatch::Last)?;
                }
                let gradients = sync.finish(&net)?;
                net = SgdConfig::new().init().step(0.1, net, gradients);
            }
            Ok(())
        });
        let text = failure.unwrap_err().to_string();
        let told = ["output is tied to embedding.weight, but is another tensor", "burn_mpi::tie_parameters"];
        assert!(told.iter().all(|part| text.contains(part)), "{text}");
    }
}

#[test]
fn local_updates_refuse_double_precision() {
    let failure = run(2, &Options::default(), |world| {
        let net = broadcast_module(world, Net::new(FloatDType::F64, 0))?;
        let collective = connect(world, Backend::Mpi, &Transport::default())?;
        LocalUpdates::of_module(world, collective, &net, LocalOptions::default()).map(drop)
    });
    let text = failure.unwrap_err().to_string();
    assert!(text.contains("embedding.weight is F64"), "{text}");
}

#[test]
fn double_precision_is_not_sent_in_shares() {
    let options = SyncOptions::default().with_shard(true);
    let failure = run(2, &Options::default(), |world| {
        averaged(world, FloatDType::F64, options).map_err(|error| error.to_string())
    });
    let text = failure.unwrap_err().to_string();
    assert!(text.contains("embedding.weight is F64"), "{text}");
}

#[test]
fn local_updates_keep_types_and_ties() {
    for (dtype, every) in
        [(FloatDType::F32, 1), (FloatDType::F32, 4), (FloatDType::F16, 2), (FloatDType::BF16, 2)]
    {
        let train = |world: &World| -> Result<Vec<f64>, Box<dyn Error>> {
            let mut net = broadcast_module(world, Net::new(dtype, 0))?;
            let collective = connect(world, Backend::Mpi, &Transport::default())?;
            let options = LocalOptions::default().with_every(every);
            let mut local = LocalUpdates::of_module(world, collective, &net, options)?;
            let mut optimizer = SgdConfig::new().init();
            for step in 0..STEPS {
                let loss = net.loss(&[step, 3 * step + world.rank()]);
                let gradients = GradientsParams::from_grads(local.backward(&loss), &net);
                net = local.step_module(optimizer.step(0.05, net, gradients), 2)?;
                assert_eq!(net.output.val().into_data(), net.embedding.weight.val().into_data());
            }
            let net = local.finish_module(net)?;
            check_equal_weights(world, &net)?;
            assert_eq!(net.output.val().dtype(), DType::from(dtype));
            assert_eq!(net.output.val().into_data(), net.embedding.weight.val().into_data());
            Ok(net.values())
        };
        let found = run(3, &Options::default(), |world| train(world).map_err(|error| error.to_string()));
        let change = apart(&found.unwrap()[2], &Net::new(dtype, 0).values());
        assert!(change > 0.01, "{dtype:?}: nothing was trained");
    }
}
