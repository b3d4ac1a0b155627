//! Modules of a user's own on ranks that are threads: what `check_modules` checks over MPI and gloo, and what
//! ranks may not have of their own.

use std::error::Error;

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, FloatDType, Tensor};
use burn_mpi::threads::{Failure, Options, run};
use burn_mpi::{Backend, CommError, GradientSync, SyncOptions, Transport, World, broadcast_module, connect};

#[path = "../examples/check_modules/missing.rs"]
mod missing;
#[path = "../examples/check_modules/own_module.rs"]
mod own_module;
#[path = "../examples/check_modules/types.rs"]
mod types;

const SEEDS: u64 = 20;

/// A check of each rank.
type Check = fn(&World, Backend) -> Result<(), Box<dyn Error>>;

fn passes(check: Check) {
    for (ranks, seed) in (1..=4).flat_map(|ranks| (0..SEEDS).map(move |seed| (ranks, seed))) {
        let options = Options { seed, ..Options::default() };
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
fn tensors_of_every_type_are_broadcast_and_compared() {
    passes(types::check);
}

#[derive(Module, Debug)]
struct Net {
    hidden: Linear,
    out: Linear,
}

/// The same parameters in f64.
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

/// Steps of a rank that does what `odd` says.
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
    // Several buckets.
    let options = SyncOptions { bucket_bytes: 256, first_bucket_bytes: 256, ..SyncOptions::default() };
    let collective = connect(world, Backend::Mpi, &Transport::default())?;
    let mut sync = GradientSync::of_module(world, collective, &net, options);
    for step in 0..6 {
        let loss = net.out.forward(net.hidden.forward(x.clone())).mean();
        let samples = if odd == "samples" && step == 3 { 800 } else { 8 };
        sync.average(&loss, &net, samples, 8 * world.size())?;
    }
    Ok(())
}

/// How three ranks fail of which rank 1 is `odd`, for each seed.
fn failures(odd: &str, broadcasts: bool) -> impl Iterator<Item = Failure> {
    (0..SEEDS).map(move |seed| {
        let of_rank = |rank: usize| if rank == 1 { odd } else { "" };
        let options = Options { seed, ..Options::default() };
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

/// Told before anything is sent.
#[test]
fn a_parameter_of_another_type_on_one_rank_is_named() {
    for failure in [false, true].into_iter().flat_map(|broadcasts| failures("double", broadcasts)) {
        let named = "rank 1 on node0 has hidden.weight [4, 64] F64, rank 0 has hidden.weight [4, 64] F32";
        assert!(failure.error.contains(named), "{failure}");
    }
}

/// An error that one rank alone gets from its `GradientSync`, inside a step.
#[test]
fn an_error_inside_a_step_on_one_rank_ends_the_job() {
    for failure in failures("samples", false) {
        assert_eq!(failure.error, "rank 1 on node0 has 800 samples of a step of 24 samples on all ranks");
    }
}
