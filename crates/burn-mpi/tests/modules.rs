//! Checks user-defined modules on ranks that are threads: the checks that `check_modules` makes over MPI and
//! gloo, and differences between ranks that are errors.

use std::error::Error;

use burn::module::{Module, ModuleMapper, Param, ParamId, Quantizer};
use burn::nn::{Gelu, Initializer, Linear, LinearConfig, Relu};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::quantization::{Calibration, QuantScheme, QuantValue};
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use burn_mpi::threads::{Failure, Options, run};
use burn_mpi::{
    Backend, CommError, GradientSync, MicroBatch, ShardedOptimizer, Signals, SyncOptions, Transport, World,
    broadcast_module, check_equal_weights, connect, load_record, save_record,
};

#[path = "programs/check_modules/compressed.rs"]
mod compressed;
#[path = "programs/check_modules/missing.rs"]
mod missing;
#[path = "programs/check_modules/own_module.rs"]
mod own_module;
#[path = "programs/check_modules/sharded.rs"]
mod sharded;
#[path = "programs/check_modules/types.rs"]
mod types;

const SEEDS: u64 = 20;

/// A check of each rank.
type Check = fn(&World, Backend) -> Result<(), Box<dyn Error>>;

fn passes(check: Check) {
    for (ranks, seed) in (1..=4).flat_map(|ranks| (0..SEEDS).map(move |seed| (ranks, seed))) {
        let options = Options::default().with_seed(seed);
        run(ranks, &options, |world| check(world, Backend::Mpi)).unwrap();
    }
}

#[test]
fn a_missing_gradient_is_an_error_that_names_the_parameter() {
    passes(missing::check);
}

#[test]
fn custom_modules_may_differ_between_steps_and_ranks() {
    passes(own_module::check);
}

#[test]
fn a_state_in_shares_has_the_results_of_the_whole() {
    passes(sharded::check);
}

#[test]
fn gradients_that_were_taken_are_not_clipped() {
    let failure = run(2, &Options::default(), |world| -> Result<(), Box<dyn Error>> {
        let device = Device::flex().autodiff();
        let net = broadcast_module(world, LinearConfig::new(3, 2).init(&device))?;
        let collective = connect(world, Backend::Mpi, &Transport::default())?;
        let mut sync = GradientSync::of_module(world, collective, &net, SyncOptions::default());
        for _ in 0..2 {
            let loss = net.forward(Tensor::<2>::ones([4, 3], &device)).powi_scalar(2).mean();
            sync.contribute(GradientsParams::from_grads(loss.backward(), &net), &net, 4, 8)?;
            sync.reduce(Signals::default())?;
            sync.clip_norm(1.0)?;
            sync.gradients(&net)?;
        }
        sync.clip_norm(1.0)?;
        Ok(())
    });
    let line = failure.unwrap_err().to_string();
    assert!(line.contains("call reduce, clip_norm and gradients, in this order"), "{line}");
}

#[test]
fn tensors_of_every_type_are_broadcast_and_compared() {
    passes(types::check);
}

#[test]
fn what_a_compression_does_not_deliver_is_in_its_memory() {
    passes(compressed::check);
}

#[derive(Module, Debug)]
struct Net {
    hidden: Linear,
    out: Linear,
}

/// Converts the parameters to f64.
struct Double;

impl ModuleMapper for Double {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| {
            let device = tensor.device();
            Tensor::from_data(tensor.into_data().convert_dtype(DType::F64), (&device, DType::F64))
                .require_grad()
        })
    }
}

/// Trains some steps. `odd` says what this rank does differently; empty if nothing.
fn train(world: &World, odd: &str, broadcasts: bool) -> Result<(), CommError> {
    let device = Device::flex().autodiff();
    device.seed(1);
    let linear = |from, to| LinearConfig::new(from, to).init(&device);
    let mut net = Net { hidden: linear(4, 64), out: linear(64, 1) };
    let mut x = Tensor::<2>::ones([8, 4], &device);
    match odd {
        "frozen" => net.out = net.out.no_grad(),
        "double" => (net, x) = (net.map(&mut Double), x.cast(FloatDType::F64)),
        _ => {}
    }
    if broadcasts {
        net = broadcast_module(world, net)?;
    }
    // Small limits give several buckets.
    let options = SyncOptions::default().with_bucket_bytes(256).with_first_bucket_bytes(256);
    let collective = connect(world, Backend::Mpi, &Transport::default())?;
    let mut sync = GradientSync::of_module(world, collective, &net, options);
    for step in 0..6 {
        let loss = net.out.forward(net.hidden.forward(x.clone())).mean();
        let samples = if odd == "samples" && step == 3 { 800 } else { 8 };
        sync.average(&loss, &net, samples, 8 * world.size())?;
    }
    Ok(())
}

/// Returns, for each seed, how a job of three ranks fails if rank 1 does what `odd` says.
fn failures(odd: &str, broadcasts: bool) -> impl Iterator<Item = Failure> {
    (0..SEEDS).map(move |seed| {
        let of_rank = |rank: usize| if rank == 1 { odd } else { "" };
        let options = Options::default().with_seed(seed);
        run(3, &options, |world| train(world, of_rank(world.rank()), broadcasts)).unwrap_err()
    })
}

#[test]
fn a_parameter_that_one_rank_freezes_is_named() {
    for failure in failures("frozen", false) {
        let named = "has out.weight [64, 1] F32 without gradient, rank 0 has out.weight [64, 1] F32";
        assert!(failure.error.contains(&format!("rank 1 on node0 {named}")), "{failure}");
    }
}

/// The error comes before any tensor or gradient is sent.
#[test]
fn a_parameter_of_another_type_on_one_rank_is_named() {
    for failure in [false, true].into_iter().flat_map(|broadcasts| failures("double", broadcasts)) {
        let named = "rank 1 on node0 has hidden.weight [4, 64] F64, rank 0 has hidden.weight [4, 64] F32";
        assert!(failure.error.contains(named), "{failure}");
    }
}

/// Only one rank gets the error from its `GradientSync`, inside a step.
#[test]
fn an_error_inside_a_step_on_one_rank_ends_the_job() {
    for failure in failures("samples", true) {
        let facts = ["rank 1 on node0 ", " 800 samples ", " 24 samples "];
        assert!(facts.iter().all(|fact| failure.error.contains(fact)), "{failure}");
    }
}

/// Each tensor is broadcast in one call, whether it is empty or has 36 MB.
#[test]
fn tensors_of_any_size_are_broadcast() {
    let sizes = [0, 1, 3, 4_100_000, 7, 9_000_001, 0, 5, 100];
    let value = |rank: usize, tensor: usize, at: usize| ((rank + 1) * (at % 1009) + tensor) as f32;
    let check = |world: &World| -> Result<(), CommError> {
        let tensors = |rank: usize| -> Vec<Param<Tensor<1>>> {
            let values = |(tensor, &size): (usize, &usize)| {
                TensorData::new((0..size).map(|at| value(rank, tensor, at)).collect::<Vec<_>>(), [size])
            };
            let tensor = |data| Param::initialized(ParamId::new(), Tensor::from_data(data, &Device::flex()));
            sizes.iter().enumerate().map(values).map(tensor).collect()
        };
        let found = broadcast_module(world, tensors(world.rank()))?;
        for (found, expected) in found.iter().zip(tensors(0)) {
            assert!(found.val().into_data() == expected.val().into_data());
        }
        Ok(())
    };
    for ranks in 1..4 {
        run(ranks, &Options::default(), check).unwrap();
    }
}

#[test]
fn a_quantized_module_is_broadcast_and_compared() {
    let check = |world: &World| -> Result<(), CommError> {
        let device = Device::flex();
        let linear = |value: f64| {
            let config = LinearConfig::new(32, 8).with_initializer(Initializer::Constant { value });
            let scheme = QuantScheme::default().with_value(QuantValue::Q8S);
            config.init(&device).quantize_weights(&mut Quantizer::new(Calibration::MinMax, scheme))
        };
        let mine = linear(1.0 + world.rank() as f64);
        assert!(matches!(mine.weight.val().dtype(), DType::QFloat(_)));
        let compared = check_equal_weights(world, &mine);
        if world.size() > 1 {
            let line = compared.unwrap_err().to_string();
            assert!(line.contains("quantized parameter weight ") && line.contains("rank 1 on "), "{line}");
        }
        let module = broadcast_module(world, mine)?;
        check_equal_weights(world, &module)?;
        let [found, expected] =
            [module, linear(1.0)].map(|module| module.weight.val().dequantize().into_data());
        assert_eq!(found, expected);
        Ok(())
    };
    for ranks in 1..4 {
        run(ranks, &Options::default(), check).unwrap();
    }
}

#[derive(Module, Debug)]
enum Activation {
    Relu(Relu),
    Gelu(Gelu),
}

#[derive(Module, Debug)]
struct Activated {
    linear: Linear,
    activation: Activation,
}

/// A call of each rank with its module.
type Call = fn(&World, Activated) -> Result<(), CommError>;

/// The tensors are equal on all ranks: only the comparison of fields shows the difference.
#[test]
fn another_variant_of_an_enum_on_one_rank_is_named() {
    let activated = |world: &World| Activated {
        linear: LinearConfig::new(4, 4).with_initializer(Initializer::Ones).init(&Device::flex().autodiff()),
        activation: match world.rank() {
            1 => Activation::Gelu(Gelu::new()),
            _ => Activation::Relu(Relu::new()),
        },
    };
    let calls: [Call; 3] = [
        |world, module| broadcast_module(world, module).map(drop),
        |world, module| check_equal_weights(world, &module),
        |world, module| {
            let collective = connect(world, Backend::Mpi, &Transport::default())?;
            let mut sync = GradientSync::of_module(world, collective, &module, SyncOptions::default());
            let loss = module.linear.forward(Tensor::<2>::ones([1, 4], &Device::flex().autodiff())).mean();
            sync.average(&loss, &module, 1, world.size()).map(drop)
        },
    ];
    for call in calls {
        let failure = run(3, &Options::default(), |world| call(world, activated(world))).unwrap_err();
        let named = "rank 1 on node0 has activation.Gelu of Enum:Activation, rank 0 has activation.Relu of \
                     Enum:Activation";
        assert!(failure.error.contains(named), "{failure}");
    }
}

#[test]
fn a_record_of_rank_0s_optimizer_fits_the_modules_of_all_ranks() {
    let path = std::env::temp_dir().join(format!("burn-mpi-rollback-{}", std::process::id()));
    let train = |world: &World| -> Result<(), Box<dyn Error>> {
        let device = Device::flex().autodiff();
        let mut net = broadcast_module(world, LinearConfig::new(3, 2).init(&device))?;
        let collective = connect(world, Backend::Mpi, &Transport::default())?;
        let mut sync = GradientSync::of_module(world, collective, &net, SyncOptions::default());
        let mut optimizer = AdamConfig::new().init();
        for step in 0..4 {
            if step == 2 {
                // The module is not loaded: only the optimizer goes back.
                save_record(world, &path, optimizer.to_record())?;
                optimizer = optimizer.load_record(load_record(world, &path)?);
            }
            let x = Tensor::<2>::full([2, 3], 1.0 + (step + world.rank()) as f32, &device);
            let loss = net.forward(x).powi_scalar(2).mean();
            let gradients = sync.average(&loss, &net, 2, 2 * world.size())?;
            net = optimizer.step(0.1, net, gradients);
        }
        Ok(check_equal_weights(world, &net)?)
    };
    for ranks in 1..=3 {
        run(ranks, &Options::default(), |world| train(world).map_err(|error| error.to_string())).unwrap();
    }
    for suffix in ["bpk", "bpk.sha256"] {
        std::fs::remove_file(path.with_extension(suffix)).unwrap();
    }
}

#[test]
fn a_state_of_16_bits_is_not_saved() {
    let failure = run(2, &Options::default(), |world| -> Result<(), Box<dyn Error>> {
        let device = Device::flex().autodiff();
        let net = LinearConfig::new(3, 2).init(&device).map(&mut Halve);
        let mut net = broadcast_module(world, net)?;
        let collective = connect(world, Backend::Mpi, &Transport::default())?;
        let options = SyncOptions::default().with_shard(true);
        let mut sync = GradientSync::of_module(world, collective, &net, options);
        let mut optimizer = ShardedOptimizer::new(AdamConfig::new().build())?;
        let x = Tensor::<2>::ones([2, 3], (&device, DType::BF16));
        sync.backward(&net.forward(x).mean(), &net, 2, 4, MicroBatch::Last)?;
        sync.reduce(Signals::default())?;
        net = optimizer.step(0.1, net, &mut sync)?;
        Ok(optimizer.to_record(&sync, &net).map(drop)?)
    });
    let line = failure.unwrap_err().to_string();
    assert!(line.contains("the state of weight is in BF16, which Burn loads as F32"), "{line}");
}

/// Casts parameters to bf16.
struct Halve;

impl ModuleMapper for Halve {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|x| x.inner().cast(FloatDType::BF16).autodiff().require_grad())
    }
}
