//! The random choices of one generated sample.

use chacha20::ChaCha8Rng;
use chacha20::rand_core::{Rng, SeedableRng};

use crate::data::Split;

/// Which generator draws: each has random numbers of its own.
#[derive(Debug, Clone, Copy)]
pub enum Stream {
    /// Samples of [`super::digits`].
    Digits = 0,
    /// Samples of [`super::objects`].
    Objects = 1,
    /// Samples of [`super::features`].
    Features = 2,
    /// What all samples of [`super::features`] have in common.
    FeatureSpace = 3,
}

/// A stream of random choices. Floats are made from the generator's words here,
/// so that no other crate's way of doing it decides the bytes.
pub struct Chance(ChaCha8Rng);

impl Chance {
    /// The choices of sample `index` of `split`, and of no other.
    pub fn of_sample(stream: Stream, seed: u64, split: Split, index: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&index.to_le_bytes());
        key[16] = match split {
            Split::Train => 0,
            Split::Test => 1,
        };
        key[17] = stream as u8;
        Self(ChaCha8Rng::from_seed(key))
    }

    /// A whole number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        ((u64::from(self.0.next_u32()) * n as u64) >> 32) as usize
    }

    /// Uniform in `low..high`.
    pub fn between(&mut self, low: f32, high: f32) -> f32 {
        let unit = (self.0.next_u32() >> 8) as f32 / (1 << 24) as f32;
        low + (high - low) * unit
    }

    /// True in `share` of all cases.
    pub fn happens(&mut self, share: f32) -> bool {
        self.between(0.0, 1.0) < share
    }

    /// Irwin-Hall approximation of a normal distribution around 0 with the given
    /// standard deviation: a sum of three uniform draws, which needs no logarithm
    /// and stays within three deviations.
    pub fn bell(&mut self, deviation: f32) -> f32 {
        let sum = self.between(-1.0, 1.0) + self.between(-1.0, 1.0) + self.between(-1.0, 1.0);
        deviation * sum
    }
}
