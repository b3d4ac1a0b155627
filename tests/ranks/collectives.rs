//! What ranks exchange: gradients, running statistics, and what all ranks must agree on.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Tensor};
use burn_fused::loss::cross_entropy;
use burn_mpi::{
    Backend, Collective, CommError, GradientSync, MicroBatch, Operation, ParamLayout, Reached, Reduction,
    Signals, SyncOptions, Wire, WireType, World, threads,
};
use data::generate::noise;
use data::{Normalizer, Split};
use mpiburn::model::{ModelKind, Network, inputs};
use mpiburn::options::RunConfig;
use mpiburn::train::{LabelledBytes, Learner, Position, Recorder, Setup, Tally, Trainer, Watch};
use run_record::{EpochRow, Start};

use crate::harness::*;

fn connect(world: &World) -> anyhow::Result<Box<dyn Collective>> {
    Ok(burn_mpi::connect(world, Backend::Mpi, &Default::default())?)
}

fn config(model: &str) -> RunConfig {
    RunConfig::read(["--model", model]).expect("a valid configuration")
}

#[test]
fn sixteen_bit_gradients_reach_the_accuracy_of_f32() {
    let lab = Lab::new();
    let [wide, bf16, f16] = ["f32", "bf16", "f16"].map(|dtype| {
        let run = lab.train(2, dtype, &["--epochs", "2", "--lr", "2e-3", "--grad-dtype", dtype]);
        run["test_accuracy"].as_f64().unwrap()
    });
    assert!(wide > 80.0, "{wide}");
    // One of 500 test samples is 0.2 points.
    assert!((bf16 - wide).abs() <= 1.0 && (f16 - wide).abs() <= 1.0, "f32 {wide}, bf16 {bf16}, f16 {f16}");
}

#[test]
fn running_statistics_are_averaged_over_ranks() {
    set_up();
    for ranks in [1, 2, 3] {
        threads::run(ranks, &options(), averages_statistics).unwrap();
    }
}

/// Checks the average of batch norm's running statistics, which gradients do not change.
fn averages_statistics(world: &World) -> anyhow::Result<()> {
    const BATCH: usize = 16;
    let config = config("mlp");
    let dimensions = ModelKind::Mlp.dimensions();
    let source = noise(dimensions.input, dimensions.classes, BATCH * world.size());
    let network = Network::init(config.model, config.model.dimensions(), 1, &Device::flex().autodiff());
    let mut learner = Learner::new(world, &config, network, None, connect(world)?)?;

    // Each rank has different samples, and so different statistics.
    let mut bytes = Vec::new();
    source.for_each_sample(Split::Train, usize::MAX, &mut |sample, image| {
        if sample % world.size() == world.rank() {
            bytes.extend_from_slice(image);
        }
    })?;
    let labels = source.labels(Split::Train, BATCH)?;
    let normalizer = Normalizer::new(source.description());
    let samples = LabelledBytes { bytes: (&bytes).into(), labels: &labels, normalizer: &normalizer };
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
    let mean_of = |term: &dyn Fn(&[f32]) -> f64| {
        of_ranks.iter().map(|values| term(values)).sum::<f64>() / world.size() as f64
    };
    let channels = after.len() / 2;
    for channel in 0..channels {
        let mean = mean_of(&|values| f64::from(values[channel]));
        // The mean variance, and the variance between the means.
        let variance = mean_of(&|values| {
            f64::from(values[channels + channel]) + (f64::from(values[channel]) - mean).powi(2)
        });
        for (found, expected) in [(after[channel], mean), (after[channels + channel], variance)] {
            let apart = (f64::from(found) - expected).abs();
            assert!(apart <= 1e-6 * expected.abs().max(1e-3), "{found} is not {expected}");
        }
    }
    let equal: Vec<Vec<f32>> = world.gather(&after)?;
    assert!(equal.iter().all(|values| *values == equal[0]), "all ranks have the same");

    // The next step continues from the averaged statistics, and does not reset them.
    learner.step(&samples, BATCH * world.size(), false)?;
    assert_ne!(all(&layout.read(&learner.network.valid())), after);
    Ok(())
}

/// Ignores the progress of a training.
struct Unwatched;

impl Watch for Unwatched {
    fn step(&mut self, _: &Position, _: &Tally) {}
    fn line(&mut self, _: &Position, _: &Tally) {}
    fn test(&mut self, _: &Position, _: &Tally) {}
    fn target(&mut self, _: f64, _: &Reached) {}
    fn epoch(&mut self, _: &EpochRow) {}
}

/// A transport that adds 1 to the first value of each sum, if it `spoils` them.
struct Spoilt {
    inner: Box<dyn Collective>,
    spoils: bool,
}

impl Spoilt {
    fn spoilt(&self, mut sum: Wire) -> Wire {
        if let (true, Wire::F32(values)) = (self.spoils, &mut sum) {
            values[0] += 1.0;
        }
        sum
    }
}

impl Collective for Spoilt {
    fn transport(&self) -> &str {
        "spoilt"
    }

    fn world_size(&self) -> usize {
        self.inner.world_size()
    }

    fn start(&mut self, operation: Operation, buffer: Wire) -> Result<(), CommError> {
        self.inner.start(operation, buffer)
    }

    fn poll(&mut self) -> Result<usize, CommError> {
        self.inner.poll()
    }

    fn is_done(&self, bucket: usize) -> bool {
        self.inner.is_done(bucket)
    }

    fn wait(&mut self, bucket: usize) -> Result<Wire, CommError> {
        let sum = self.inner.wait(bucket)?;
        Ok(self.spoilt(sum))
    }
}

#[test]
fn weights_that_differ_between_ranks_end_the_training() {
    let failure = threads::run(3, &options(), |world| {
        let config = RunConfig::read(["--epochs=1", "--train-samples=64", "--test-samples=20"])?;
        let source = data::open(digits())?;
        let network = Network::init(config.model, config.model.dimensions(), 1, &Device::flex().autodiff());
        let collective = Box::new(Spoilt { inner: connect(world)?, spoils: world.rank() == 1 });
        let setup = Setup { source, network, quantizer: None, collective, stop: Default::default() };
        let mut recorder = Recorder::open(world, None, Start::default())?;
        Trainer::new(world, &config, setup)?.run(&mut recorder, &mut Unwatched)?;
        anyhow::Ok(())
    });
    let error = failure.unwrap_err().error;
    assert!(error.contains("weights' digest") && error.contains("rank 1"), "{error}");
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
        let network = Network::init(config.model, config.model.dimensions(), 1, &Device::flex().autodiff());
        let collective = connect(world)?;
        let setup = Setup { source, network, quantizer: None, collective, stop: Default::default() };
        Trainer::new(world, &config, setup)?;
        anyhow::Ok(())
    });
    let error = failure.unwrap_err().error;
    assert!(error.contains("training set's digest") && error.contains("rank 1"), "{error}");
}

const SAMPLES: usize = 24;

/// Compares averaged gradients with Burn's own. The network is small, and the buckets are tiny, so many
/// buckets are in flight at the same time.
struct Check<'w> {
    world: &'w World,
    device: Device,
    network: Network,
    layout: ParamLayout,
    images: Vec<u8>,
    labels: Vec<u16>,
    normalizer: Normalizer,
}

#[test]
fn averaged_gradients_equal_those_of_one_batch() {
    set_up();
    for ranks in [1, 2, 3, 4] {
        threads::run(ranks, &options(), are_right).unwrap();
    }
}

fn are_right(world: &World) -> anyhow::Result<()> {
    let check = Check::new(world)?;
    let whole = check.burns_own();
    for reduction in [Reduction::Native, Reduction::Ordered] {
        let ways = [(true, 1), (false, 1), (true, 3), (false, 2)];
        let averaged = |(overlap, parts)| check.averaged(reduction, overlap, WireType::F32, parts);
        let results = ways.into_iter().map(averaged).collect::<Result<Vec<_>, _>>()?;
        // Overlap changes when buckets are reduced, but no bit of the result.
        if world.size() <= 2 || reduction == Reduction::Ordered {
            assert_eq!(results[0], results[1], "{reduction:?}: overlap on and off");
        }
        for (result, (overlap, parts)) in results.iter().zip(ways) {
            let worst = relative(result, &whole);
            assert!(worst < 1e-5, "{reduction:?}, overlap {overlap}, {parts} parts: {worst:e}");
        }
    }
    if world.size() == 1 {
        let same = check.averaged(Reduction::Native, true, WireType::F32, 1)?;
        assert_eq!(same, whole, "alone, the hook hands over Burn's own gradients, to the bit");
        return Ok(());
    }
    for (wire, limit) in [(WireType::Bf16, 2e-2), (WireType::F16, 2e-3)] {
        let narrow = check.averaged(Reduction::Native, true, wire, 1)?;
        let worst = relative(&narrow, &whole);
        assert!(worst > 0.0 && worst < limit, "{wire:?}: {worst:e}");
    }
    Ok(())
}

impl<'w> Check<'w> {
    fn new(world: &'w World) -> anyhow::Result<Self> {
        let source = noise([1, 28, 28], 10, SAMPLES);
        let mut images = Vec::new();
        source.for_each_sample(Split::Train, SAMPLES, &mut |_, bytes| images.extend_from_slice(bytes))?;
        let device = Device::flex().autodiff();
        let network = Network::init(ModelKind::Convnet, ModelKind::Convnet.dimensions(), 5, &device);
        Ok(Self {
            world,
            layout: network.parameters(),
            labels: source.labels(Split::Train, SAMPLES)?,
            normalizer: Normalizer::new(source.description()),
            device,
            network,
            images,
        })
    }

    fn loss(&self, samples: &[usize]) -> Tensor<1> {
        let images: Vec<u8> =
            samples.iter().flat_map(|i| self.images[i * 784..(i + 1) * 784].to_vec()).collect();
        let labels: Vec<u16> = samples.iter().map(|&i| self.labels[i]).collect();
        let images = inputs(self.normalizer.values(&images), self.normalizer.shape(), &self.device);
        cross_entropy(self.network.forward(images), &labels).loss
    }

    /// The gradients of the whole batch, computed on this rank alone.
    fn burns_own(&self) -> Vec<f32> {
        let all: Vec<usize> = (0..SAMPLES).collect();
        let mut visitor = Own { gradients: self.loss(&all).backward(), values: Vec::new() };
        self.network.visit(&mut visitor);
        visitor.values
    }

    /// The gradients of the same batch, averaged over ranks that each have a part of it. They are taken from
    /// the second step, because the first step learns the order of gradients.
    fn averaged(
        &self,
        reduction: Reduction,
        overlap: bool,
        wire: WireType,
        parts: usize,
    ) -> anyhow::Result<Vec<f32>> {
        let own: Vec<usize> = (self.world.rank()..SAMPLES).step_by(self.world.size()).collect();
        let collective = connect(self.world)?;
        let options = SyncOptions::default()
            .with_reduction(reduction)
            .with_wire(wire)
            .with_overlap(overlap)
            .with_bucket_bytes(1 << 10)
            .with_first_bucket_bytes(1 << 8);
        let mut sync = GradientSync::new(self.world, collective, &self.layout, options);
        for _step in 0..2 {
            let chunks: Vec<&[usize]> = own.chunks(own.len().div_ceil(parts)).collect();
            for (part, samples) in chunks.iter().enumerate() {
                let loss = self.loss(samples);
                let which = if part + 1 == chunks.len() { MicroBatch::Last } else { MicroBatch::More };
                sync.backward(&loss, &self.network, samples.len(), SAMPLES, which)?;
            }
            sync.reduce(Signals::default())?;
        }
        Ok((0..self.layout.specs().len()).map(|i| sync.gradient(i)).collect::<Result<Vec<_>, _>>()?.concat())
    }
}

struct Own {
    gradients: Gradients,
    values: Vec<f32>,
}

impl ModuleVisitor for Own {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = param.val().grad_remove(&mut self.gradients).expect("every parameter has a gradient");
        self.values.extend(gradient.into_data().try_into_vec::<f32>().expect("f32"));
    }
}

/// The largest difference between two lists, relative to the largest expected value.
fn relative(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    let difference = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    difference.fold(0.0, f32::max) / largest
}
