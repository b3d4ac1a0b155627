//! A test case: a random module, and what each rank does with it in each of five steps. Seed and index of the
//! case determine it.

use super::draw::{Draw, Purpose};
use super::plan::Plan;
use burn_mpi::{GlooAlgorithm, Reduction, SyncOptions, Transport, WireType};
use mpiburn::train::BackendKind;

/// Steps of a case. The first step determines the order of the gradients' buckets; the others use it.
const STEPS: usize = 5;

/// A case: the configuration of all ranks.
#[derive(Debug)]
pub struct Case {
    pub backend: BackendKind,
    pub gloo_algorithm: GlooAlgorithm,
    pub options: SyncOptions,
    /// True if Burn recomputes activations in backward (gradient checkpointing), which changes its graph.
    pub checkpointing: bool,
    pub optimizer: Optimizer,
    pub rate: f64,
    pub steps: Vec<Step>,
    pub plan: Plan,
}

/// Burn's optimizers.
#[derive(Debug, Clone, Copy)]
pub enum Optimizer {
    Sgd,
    Momentum,
    Adam,
}

#[derive(Debug)]
pub struct Step {
    /// What each rank does in the step.
    pub ranks: Vec<Part>,
    /// True if the ranks average their running statistics after the step.
    pub average_buffers: bool,
}

/// What one rank does in a step.
#[derive(Debug)]
pub struct Part {
    /// Micro-batches; empty if the rank has no samples.
    pub chunks: Vec<Chunk>,
    /// True if the rank calls `average`, false if it calls `backward` and `finish`.
    pub average: bool,
}

/// One micro-batch.
#[derive(Debug, Clone, Copy)]
pub struct Chunk {
    pub samples: usize,
    /// True if the rank declares this micro-batch to be the last one of the step. The declaration may be
    /// wrong.
    pub last: bool,
}

/// How the samples of a step are distributed over ranks.
#[derive(Debug, Clone, Copy)]
enum Spread {
    Even,
    Random,
    /// Each rank has no samples with probability 0.5.
    Sparse,
    /// Only one rank has samples.
    One,
    /// Rank 0 has no samples.
    NoRoot,
}

impl Case {
    /// Case `index` of `seed` in a world of that size.
    pub fn draw(seed: u64, index: u64, world_size: usize) -> Self {
        let draw = &mut Draw::for_case(seed, index, Purpose::Case, [world_size as u16, 0, 0, 0]);
        let mut backends = vec![BackendKind::Mpi];
        if cfg!(feature = "gloo") {
            backends.push(BackendKind::Gloo);
        }
        Self {
            backend: draw.one_of(&backends),
            gloo_algorithm: draw.one_of(&GlooAlgorithm::ALL),
            // Every third case.
            options: options(draw).with_shard(index % 3 == 1),
            checkpointing: draw.happens(0.1),
            optimizer: draw.one_of(&[Optimizer::Sgd, Optimizer::Momentum, Optimizer::Adam]),
            rate: f64::from(draw.between(0.002, 0.05)),
            steps: steps(draw, world_size),
            plan: Plan::draw(draw, seed, index),
        }
    }

    pub fn transport(&self) -> Transport {
        Transport::default().with_gloo_algorithm(self.gloo_algorithm)
    }
}

impl Step {
    /// Number of samples of all ranks.
    pub fn total(&self) -> usize {
        self.ranks.iter().flat_map(|part| &part.chunks).map(|chunk| chunk.samples).sum()
    }
}

fn options(draw: &mut Draw) -> SyncOptions {
    // 25 MiB, or log-uniform from 1 KiB to 24 MiB.
    let mut bytes =
        || if draw.happens(0.15) { 25.0 * 1024.0 * 1024.0 } else { 1024.0 * draw.between(0.0, 10.1).exp() };
    let (bucket_bytes, first_bucket_bytes) = (bytes() as usize, bytes() as usize);
    SyncOptions::default()
        .with_reduction(draw.one_of(&[Reduction::Native, Reduction::Ordered]))
        .with_wire(draw.one_of(&[WireType::F32, WireType::F32, WireType::Bf16, WireType::F16]))
        .with_overlap(draw.happens(0.7))
        .with_bucket_bytes(bucket_bytes)
        .with_first_bucket_bytes(first_bucket_bytes)
}

fn steps(draw: &mut Draw, world_size: usize) -> Vec<Step> {
    let usual = draw.one_of(&[
        Spread::Even,
        Spread::Random,
        Spread::Random,
        Spread::Sparse,
        Spread::One,
        Spread::NoRoot,
    ]);
    let most = draw.one_of(&[1, 4, 9, 24]);
    let micro = draw.within(1, 4);
    let orderly = draw.happens(0.6);
    let mut step = |number: usize| {
        let spread = if draw.happens(0.3) {
            draw.one_of(&[Spread::Random, Spread::Sparse, Spread::One, Spread::NoRoot])
        } else {
            usual
        };
        let even = draw.within(1, most);
        let one = draw.below(world_size);
        // Rarely, all ranks are without samples.
        let nothing = draw.happens(0.02);
        let ranks = (0..world_size).map(|rank| {
            let samples = match spread {
                _ if nothing => 0,
                Spread::Even => even,
                Spread::Random => draw.within(0, most),
                Spread::Sparse => draw.within(0, most) * draw.below(2),
                Spread::One if rank == one => even,
                Spread::NoRoot if rank > 0 => draw.within(1, most),
                Spread::One | Spread::NoRoot => 0,
            };
            let chunks = if draw.happens(0.7) { micro } else { draw.within(1, 4) };
            Part::draw(draw, samples, chunks, orderly)
        });
        let ranks = ranks.collect();
        Step { ranks, average_buffers: number + 1 == STEPS || draw.happens(0.25) }
    };
    (0..STEPS).map(&mut step).collect()
}

impl Part {
    fn draw(draw: &mut Draw, samples: usize, chunks: usize, orderly: bool) -> Self {
        let count = chunks.min(samples);
        // Each micro-batch has one sample; the others are distributed at random.
        let mut sizes = vec![1; count];
        for _ in count..samples {
            sizes[draw.below(count)] += 1;
        }
        let never = draw.happens(0.3);
        let mut chunks: Vec<Chunk> =
            (0..count).map(|chunk| Chunk { samples: sizes[chunk], last: chunk + 1 == count }).collect();
        if !orderly && draw.happens(0.5) {
            chunks.iter_mut().for_each(|chunk| chunk.last = !never && draw.happens(0.5));
        }
        // `average` does one backward, and declares it the last one.
        let average = draw.happens(0.3) && chunks.len() <= 1 && chunks.iter().all(|chunk| chunk.last);
        Self { chunks, average }
    }
}
