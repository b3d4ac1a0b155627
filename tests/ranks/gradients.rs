//! Averaged gradients against Burn's own.
//!
//! The network is small, the buckets are tiny, so that many of them travel.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use burn_fused::loss::cross_entropy;
use burn_mpi::{
    Backend, GradientSync, MicroBatch, ParamLayout, Reduction, Signals, SyncOptions, Transport, WireType,
    World, connect, threads,
};
use mpiburn::data::generate::Synthetic;
use mpiburn::data::{Normalizer, SampleSource, Split};
use mpiburn::model::{Model, ModelKind, Network};

use crate::harness::{options, set_up};

const SAMPLES: usize = 24;

struct Check<'w> {
    world: &'w World,
    device: Device,
    network: Network,
    layout: ParamLayout,
    images: Vec<u8>,
    labels: Vec<u8>,
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
    let whole = check.burns_own(0..SAMPLES);
    for reduction in [Reduction::Native, Reduction::Ordered] {
        let ways = [(true, 1), (false, 1), (true, 3), (false, 2)];
        let results: Vec<Vec<f32>> = ways
            .iter()
            .map(|&(overlap, parts)| check.averaged(reduction, overlap, WireType::F32, parts))
            .collect::<Result<_, _>>()?;
        // Overlap changes when buckets travel, and no bit of them.
        if world.size() <= 2 || reduction == Reduction::Ordered {
            assert_eq!(results[0], results[1], "{reduction:?}: overlap on and off");
        }
        for (result, (overlap, parts)) in results.iter().zip(ways) {
            let worst = relative(result, &whole);
            assert!(
                worst < 1e-5,
                "{reduction:?}, overlap {overlap}, {parts} parts: {worst:e} from one batch's"
            );
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
        let source = Synthetic::new([1, 28, 28], 10, SAMPLES);
        let mut images = Vec::new();
        source.for_each_image(Split::Train, SAMPLES, &mut |_, bytes| images.extend_from_slice(bytes))?;
        let device = Device::flex().autodiff();
        let network = Network::init(ModelKind::Convnet, 10, 5, &device);
        Ok(Self {
            world,
            layout: ParamLayout::of(&network),
            labels: source.labels(Split::Train, SAMPLES)?,
            normalizer: Normalizer::new(source.description()),
            device,
            network,
            images,
        })
    }

    fn loss(&self, samples: impl Iterator<Item = usize>) -> Tensor<1> {
        let samples: Vec<usize> = samples.collect();
        let images: Vec<u8> =
            samples.iter().flat_map(|i| self.images[i * 784..(i + 1) * 784].to_vec()).collect();
        let labels: Vec<u8> = samples.iter().map(|&i| self.labels[i]).collect();
        let images = self.normalizer.images(&images, &self.device);
        cross_entropy(self.network.forward(images), &labels).loss
    }

    /// All gradients of one batch on this rank alone.
    fn burns_own(&self, samples: std::ops::Range<usize>) -> Vec<f32> {
        let mut visitor = Own { gradients: self.loss(samples).backward(), values: Vec::new() };
        self.network.visit(&mut visitor);
        visitor.values
    }

    /// The same, averaged over ranks that have a part of the batch each. The
    /// second step counts: the first one learns the order.
    fn averaged(
        &self,
        reduction: Reduction,
        overlap: bool,
        wire: WireType,
        parts: usize,
    ) -> anyhow::Result<Vec<f32>> {
        let own: Vec<usize> = (self.world.rank()..SAMPLES).step_by(self.world.size()).collect();
        let collective = connect(self.world, Backend::Mpi, &Transport::default())?;
        let options =
            SyncOptions { reduction, wire, overlap, bucket_bytes: 1 << 10, first_bucket_bytes: 1 << 8 };
        let mut sync = GradientSync::new(self.world, collective, &self.layout, options);
        for _step in 0..2 {
            let chunks: Vec<&[usize]> = own.chunks(own.len().div_ceil(parts)).collect();
            for (part, samples) in chunks.iter().enumerate() {
                let loss = self.loss(samples.iter().copied());
                let which = if part + 1 == chunks.len() { MicroBatch::Last } else { MicroBatch::More };
                sync.backward(&loss, &self.network, samples.len(), SAMPLES, which)?;
            }
            sync.reduce(Signals::default())?;
        }
        let mut all = Vec::new();
        for param in 0..self.layout.specs().len() {
            all.extend_from_slice(sync.gradient(param)?);
        }
        Ok(all)
    }
}

struct Own {
    gradients: burn::tensor::Gradients,
    values: Vec<f32>,
}

impl ModuleVisitor for Own {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = param.val().grad_remove(&mut self.gradients).expect("every parameter has a gradient");
        self.values.extend(gradient.into_data().try_into_vec::<f32>().expect("f32"));
    }
}

/// Largest difference, relative to the largest value.
fn relative(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    let difference = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    difference.fold(0.0, f32::max) / largest
}
