//! Checks that batch norm's running statistics, which no gradient touches, are
//! averaged over ranks: `mpirun -n N target/release/examples/check_buffers`.

use burn::module::Module;
use burn::tensor::Device;
use burn_mpi::{MpiCollective, World, end_the_job_on_panic};
use clap::Parser;
use mpiburn::cli::{Cli, Command};
use mpiburn::config::RunConfig;
use mpiburn::data::generate::Synthetic;
use mpiburn::data::{Normalizer, SampleSource, Split};
use mpiburn::model::{ModelKind, Network};
use mpiburn::train::{CrossEntropy, LabelledBytes, Learner};

const BATCH: usize = 16;
const CLASSES: usize = 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    end_the_job_on_panic();
    let world = World::init()?;
    let Command::Train(args) = Cli::parse_from(["mpiburn", "train", "--model", "mlp"]).command else {
        unreachable!()
    };
    let config = RunConfig::try_from(args.as_ref())?;
    let source = Synthetic::new(ModelKind::Mlp.input_shape(), CLASSES, BATCH * world.size());
    let network = Network::init(config.model, CLASSES, 1, &Device::flex().autodiff());
    let collective = Box::new(MpiCollective::new(&world)?);
    let mut learner =
        Learner::new(&world, &config.train_options(), network, CrossEntropy::default(), collective)?;

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
    println!("rank {}: running statistics are averaged", world.rank());
    Ok(())
}
