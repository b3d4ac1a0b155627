//! How a user tests a data-parallel loop with `cargo test`: ranks are threads, without MPI and mpirun. `cargo
//! test --no-default-features` builds burn-mpi without MPI.

use burn::data::dataset::InMemDataset;
use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor, TensorData};
use burn_mpi::threads::{Options, run};
use burn_mpi::{
    Backend, CommError, GradientSync, MicroBatch, ShardedDataset, SyncOptions, Transport, World,
    broadcast_module, connect,
};

/// Fits y = 2 x - 1. `total_of` maps a rank's samples and the right total to the total that the loop passes.
fn fit(world: &World, total_of: fn(usize, usize) -> usize) -> Result<Vec<f32>, Box<dyn std::error::Error>> {
    let device = Device::flex().autodiff();
    let module = LinearConfig::new(1, 1).init(&device).map(&mut Begin);
    let mut model: Linear = broadcast_module(world, module)?;
    let collective = connect(world, Backend::Mpi, &Transport::default())?;
    let mut sync = GradientSync::of_module(world, collective, &model, SyncOptions::default());
    let mut optimizer = SgdConfig::new().init();
    // A step has 12 samples, whatever the number of ranks; the last step has fewer.
    let points = InMemDataset::new((0..67).map(|n| n as f32 / 67.0).collect::<Vec<f32>>());
    let data = ShardedDataset::new(world, points, 12 / world.size())?;
    for batch in (0..20).flat_map(|_| data.batches()) {
        let batch = batch?;
        if !batch.is_empty() {
            let x = Tensor::<2>::from_data(TensorData::new(batch.items.clone(), [batch.len(), 1]), &device);
            let error = model.forward(x.clone()) - (x.mul_scalar(2.0) - 1.0);
            let total = total_of(batch.len(), batch.total);
            sync.backward(&error.powi_scalar(2).mean(), &model, batch.len(), total, MicroBatch::Last)?;
        }
        let gradients = sync.finish(&model)?;
        model = optimizer.step(0.3, model, gradients);
    }
    let bias = model.bias.expect("it has a bias").val();
    Ok(vec![model.weight.val().into_scalar::<f32>(), bias.into_scalar::<f32>()])
}

/// Sets the same initial weights in each job.
struct Begin;

impl ModuleMapper for Begin {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| Tensor::full(value.dims(), 0.5, &value.device()).require_grad())
    }
}

#[test]
fn ranks_learn_what_one_learns_in_any_order() {
    let weights_of = |ranks: usize, seed: u64| {
        run(ranks, &Options::default().with_seed(seed), |world| fit(world, |_, total| total)).unwrap()
    };
    let one = weights_of(1, 0).remove(0);
    assert!((one[0] - 2.0).abs() < 0.1 && (one[1] + 1.0).abs() < 0.1, "{one:?}");
    for ranks in [2, 3, 4] {
        for seed in 0..20 {
            for weights in weights_of(ranks, seed) {
                let apart = weights.iter().zip(&one).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(apart < 1e-5, "{ranks} ranks, seed {seed}: {weights:?} and {one:?}");
            }
        }
    }
}

#[test]
fn a_wrong_total_is_found() {
    let failure = run(3, &Options::default(), |world| fit(world, |own, _| own)).unwrap_err();
    assert!(failure.to_string().contains("3.000 times"), "{failure}");
}

#[test]
fn a_rank_without_its_file_ends_the_others() {
    let failure = run(3, &Options::default(), |world| {
        if world.rank() == 2 {
            std::fs::read("no such file").map_err(|error| error.to_string())?;
        }
        world.barrier().map_err(|error: CommError| error.to_string())
    });
    let text = failure.unwrap_err().to_string();
    assert!(text.starts_with("rank 2 on node0: No such file"), "{text}");
}
