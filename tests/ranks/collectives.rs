//! What ranks exchange: gradients in 16 bits, running statistics, and what they have to agree on.

use burn::module::Module;
use burn::tensor::Device;
use burn_mpi::{Backend, Transport, World, connect, threads};
use clap::Parser;
use mpiburn::cli::{Cli, Command};
use mpiburn::config::RunConfig;
use mpiburn::data::generate::Synthetic;
use mpiburn::data::{self, Normalizer, SampleSource, Split};
use mpiburn::model::{ModelKind, Network};
use mpiburn::train::{CrossEntropy, LabelledBytes, Learner, Setup, Trainer, Untraced};

use crate::harness::*;

fn config(model: &str) -> RunConfig {
    let Command::Train(args) = Cli::parse_from(["mpiburn", "train", "--model", model]).command else {
        unreachable!("the command is train")
    };
    RunConfig::try_from(args.as_ref()).expect("a valid configuration")
}

#[test]
fn sixteen_bit_gradients_reach_the_accuracy_of_f32() {
    let lab = Lab::new();
    let [wide, bf16, f16] = ["f32", "bf16", "f16"].map(|dtype| {
        let run = lab.train(2, dtype, &["--epochs", "2", "--lr", "2e-3", "--grad-dtype", dtype]);
        run["test_accuracy"].as_f64().unwrap()
    });
    assert!(wide > 80.0, "{wide}");
    // Of 500 test samples, one is 0.2 points.
    assert!((bf16 - wide).abs() <= 1.0 && (f16 - wide).abs() <= 1.0, "f32 {wide}, bf16 {bf16}, f16 {f16}");
}

#[test]
fn running_statistics_are_averaged_over_ranks() {
    set_up();
    for ranks in [1, 2, 3] {
        threads::run(ranks, &options(), averages_statistics).unwrap();
    }
}

/// Averages batch norm's running statistics, which no gradient touches.
fn averages_statistics(world: &World) -> anyhow::Result<()> {
    const BATCH: usize = 16;
    const CLASSES: usize = 20;
    let config = config("mlp");
    let source = Synthetic::new(ModelKind::Mlp.input_shape(), CLASSES, BATCH * world.size());
    let network = Network::init(config.model, CLASSES, 1, &Device::flex().autodiff());
    let collective = connect(world, Backend::Mpi, &Transport::default())?;
    let mut learner =
        Learner::new(world, &config.train_options(), network, CrossEntropy::default(), collective)?;

    // Each rank sees other samples, so its statistics are its own.
    let mut bytes = Vec::new();
    source.for_each_image(Split::Train, usize::MAX, &mut |sample, image| {
        if sample % world.size() == world.rank() {
            bytes.extend_from_slice(image);
        }
    })?;
    let labels = source.labels(Split::Train, BATCH)?;
    let normalizer = Normalizer::new(source.description());
    let samples = LabelledBytes { bytes: &bytes, labels: &labels, normalizer: &normalizer };
    for _ in 0..3 {
        learner.step(&samples, BATCH * world.size(), false)?;
    }

    let layout = learner.layout().clone();
    let buffers: Vec<_> =
        layout.specs().iter().filter(|spec| !spec.trainable).map(|s| s.range.clone()).collect();
    assert_eq!(buffers.len(), 2, "a running mean and a running variance");
    let all =
        |values: &[f32]| -> Vec<f32> { buffers.iter().flat_map(|r| values[r.clone()].to_vec()).collect() };

    let own = all(&layout.read(&learner.network.valid()));
    let of_ranks: Vec<Vec<f32>> = world.gather(&own)?;
    assert!(world.size() == 1 || of_ranks[0] != of_ranks[1], "statistics differ before");
    learner.average_buffers()?;
    let after = all(&layout.read(&learner.network.valid()));
    assert_eq!(after, all(&learner.params), "the network and what is saved agree");
    for (index, value) in after.iter().enumerate() {
        let mean = of_ranks.iter().map(|values| values[index]).sum::<f32>() / world.size() as f32;
        assert!((value - mean).abs() <= 1e-6 * mean.abs().max(1e-3), "{value} is not the mean {mean}");
    }
    let equal: Vec<Vec<f32>> = world.gather(&after)?;
    assert!(equal.iter().all(|values| *values == equal[0]), "all ranks have the same");

    // They move on from there, and no step resets them.
    learner.step(&samples, BATCH * world.size(), false)?;
    assert_ne!(all(&layout.read(&learner.network.valid())), after);
    Ok(())
}

#[test]
fn ranks_with_different_options_or_data_are_rejected_by_field_and_rank() {
    let lab = Lab::new();
    let with = |name: &str, options: &[&str]| lab.command(1, name, options);
    let jobs = [with("run", &["--lr", "1e-3"]), with("run", &["--lr", "2e-3"])];
    refused(side_by_side(&[&jobs[0], &jobs[1]]), 1, &["--lr differs", "rank 1"]);
    let other = side_by_side(&[&with("run", &[]), &with("elsewhere", &[])]);
    refused(other, 1, &["--out differs", "elsewhere"]);

    for seed in ["7", "8"] {
        let words = ["data", "digits", "--train", "64", "--test", "20", "--seed", seed, "--out"];
        succeeds(job(1).args(words).arg(lab.path(seed)));
    }
    let failure = threads::run(2, &options(), |world| {
        let config = config("convnet");
        let source = data::open(&lab.path(["7", "8"][world.rank()]))?;
        let network = Network::init(config.model, 10, 1, &Device::flex().autodiff());
        let collective = connect(world, Backend::Mpi, &Transport::default())?;
        let setup =
            Setup { source, network, quantizer: None, collective, stop: Default::default(), trace: Untraced };
        anyhow::Ok(drop(Trainer::new(world, &config.train_options(), setup)?))
    });
    let error = failure.unwrap_err().error;
    assert!(error.contains("training set's digest differs") && error.contains("rank 1"), "{error}");
}
