//! Random numbers of one generated sample.

use chacha20::ChaCha8Rng;
use chacha20::rand_core::{Rng, SeedableRng};

use crate::Split;

/// Random stream of a generator, independent of the others.
#[derive(Debug, Clone, Copy)]
pub enum Stream {
    /// Samples of [`super::digits`].
    Digits = 0,
    /// Samples of [`super::objects`].
    Objects = 1,
    /// Samples of [`super::features`].
    Features = 2,
    /// The parameters that all samples of [`super::features`] share.
    FeatureSpace = 3,
}

/// A random stream. Floats are computed here from the generator's integers, so that
/// the bytes do not depend on another crate's conversion.
pub struct Chance(ChaCha8Rng);

impl Chance {
    /// The stream of sample `index` of `split`.
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

    /// A uniform integer below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        ((u64::from(self.0.next_u32()) * n as u64) >> 32) as usize
    }

    /// Uniform over `low..high`.
    pub fn between(&mut self, low: f32, high: f32) -> f32 {
        let unit = (self.0.next_u32() >> 8) as f32 / (1 << 24) as f32;
        low + (high - low) * unit
    }

    /// True with probability `share`.
    pub fn happens(&mut self, share: f32) -> bool {
        self.between(0.0, 1.0) < share
    }

    /// Irwin-Hall approximation of a normal distribution (sum of three uniform draws)
    /// with mean 0 and the given standard deviation, within three of them. It needs no
    /// logarithm, which would differ between systems.
    pub fn normal(&mut self, deviation: f32) -> f32 {
        let sum = self.between(-1.0, 1.0) + self.between(-1.0, 1.0) + self.between(-1.0, 1.0);
        deviation * sum
    }
}
