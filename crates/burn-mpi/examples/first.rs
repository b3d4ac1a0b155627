//! A training loop over MPI, and the same loop under `cargo test`.

use std::error::Error;
use std::process::ExitCode;

use burn::data::dataset::InMemDataset;
use burn::nn::LinearConfig;
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use burn_mpi::{
    Backend, GradientSync, MicroBatch, ShardedDataset, SyncOptions, Transport, World, broadcast_module,
    connect, run,
};

/// Learns y = 2x + 1, and returns the slope that it has learned.
fn train(world: &World) -> Result<f32, Box<dyn Error>> {
    let device = Device::flex().autodiff();
    let mut model = broadcast_module(world, LinearConfig::new(1, 1).init(&device))?; // rank 0's weights
    let collective = connect(world, Backend::Mpi, &Transport::default())?;
    let mut sync = GradientSync::of_module(world, collective, &model, SyncOptions::default());
    let mut optimizer = SgdConfig::new().init();
    let points = (0..100).map(|at| at as f32 / 100.0).collect();
    let mut data = ShardedDataset::new(world, InMemDataset::new(points), 4)?; // batches of 4 on each rank
    for epoch in 0..100 {
        data.shuffle(world, 1, epoch)?; // the same permutation on all ranks
        for batch in data.batches() {
            let batch = batch?;
            if !batch.is_empty() {
                let x = Tensor::<1>::from_floats(&batch.items[..], &device).reshape([batch.len(), 1]);
                let loss = (model.forward(x.clone()) - x * 2.0 - 1.0).powi_scalar(2).mean();
                sync.backward(&loss, &model, batch.len(), batch.total, MicroBatch::Last)?;
            }
            let gradients = sync.finish(&model)?; // averaged over the samples of all ranks
            model = optimizer.step(0.1, model, gradients);
        }
    }
    Ok(model.weight.val().into_scalar())
}

fn main() -> ExitCode {
    run(|world| {
        println!("rank {} of {} has learned {:.3}", world.rank(), world.size(), train(world)?);
        Ok(())
    })
}

#[test]
fn three_ranks_learn_what_one_learns() {
    use burn_mpi::threads::{Options, run};
    let slopes = |ranks| {
        run(ranks, &Options::default(), |world| train(world).map_err(|error| error.to_string())).unwrap()
    };
    for slope in [slopes(1), slopes(3)].concat() {
        assert!((slope - 2.0).abs() < 0.01, "{slope}");
    }
}
