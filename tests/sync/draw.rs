//! Random choices that every rank makes alike.
//!
//! Each purpose has a stream of its own, keyed by seed, case and place. So a
//! rank can draw another rank's samples without having drawn its own first.

use chacha20::ChaCha8Rng;
use chacha20::rand_core::{Rng, SeedableRng};

/// What is drawn.
#[derive(Debug, Clone, Copy)]
pub enum Purpose {
    /// The configuration of a case.
    Case = 0,
    /// Values of the module before the first step.
    Values = 1,
    /// The samples of a micro-batch.
    Samples = 2,
    /// The way through the module.
    Route = 3,
}

/// One stream of random choices.
pub struct Draw(ChaCha8Rng);

impl Draw {
    /// The choices of `purpose` at `place` in case `index` of `seed`.
    pub fn of(seed: u64, index: u64, purpose: Purpose, place: [u16; 4]) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&index.to_le_bytes());
        key[16] = purpose as u8;
        for (bytes, part) in key[24..].chunks_exact_mut(2).zip(place) {
            bytes.copy_from_slice(&part.to_le_bytes());
        }
        Self(ChaCha8Rng::from_seed(key))
    }

    /// A whole number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        ((u64::from(self.0.next_u32()) * n as u64) >> 32) as usize
    }

    /// A whole number from `low` to `high`, both included.
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

    /// One of `choices`, each as likely.
    pub fn one_of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    /// A random order of `0..n`: Fisher and Yates.
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }
}
