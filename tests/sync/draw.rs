//! Random numbers that are the same on every rank.
//!
//! Each purpose has its own stream of random numbers, which seed, case and micro-batch determine. A rank can
//! therefore draw another rank's samples without drawing its own samples first.

use chacha20::ChaCha8Rng;
use chacha20::rand_core::{Rng, SeedableRng};

/// What a stream is for.
#[derive(Debug, Clone, Copy)]
pub enum Purpose {
    /// The configuration of a case.
    Case = 0,
    /// Values of the module before the first step.
    Values = 1,
    /// The samples of a micro-batch.
    Samples = 2,
    /// The choice of branches through the module.
    Route = 3,
}

/// A random stream.
pub struct Draw(ChaCha8Rng);

impl Draw {
    /// The stream of `purpose` and `indices` in case `index` of `seed`.
    pub fn for_case(seed: u64, index: u64, purpose: Purpose, indices: [u16; 4]) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&index.to_le_bytes());
        key[16] = purpose as u8;
        for (bytes, part) in key[24..].chunks_exact_mut(2).zip(indices) {
            bytes.copy_from_slice(&part.to_le_bytes());
        }
        Self(ChaCha8Rng::from_seed(key))
    }

    /// A uniform integer below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        ((u64::from(self.0.next_u32()) * n as u64) >> 32) as usize
    }

    /// A uniform integer from `low` to `high`, both included.
    pub fn within(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high + 1 - low)
    }

    /// Uniform over `low..high`.
    pub fn between(&mut self, low: f32, high: f32) -> f32 {
        let unit = (self.0.next_u32() >> 8) as f32 / (1 << 24) as f32;
        low + (high - low) * unit
    }

    /// True with probability `p`.
    pub fn happens(&mut self, p: f32) -> bool {
        self.between(0.0, 1.0) < p
    }

    /// One of `choices`, with equal probability.
    pub fn one_of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    /// A random permutation of `0..n` (Fisher-Yates).
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }
}
