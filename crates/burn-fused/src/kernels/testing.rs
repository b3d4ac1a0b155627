//! Random numbers for tests.

/// Returns random numbers from -1 to 1.
pub fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(next).collect()
}

/// A linear congruential generator (Knuth, MMIX), sufficient for tests.
pub(crate) struct Random(pub u64);

impl Random {
    /// Returns an integer below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound
    }

    /// Returns a number from -`size` to `size`.
    pub fn float(&mut self, size: f32) -> f32 {
        (self.below(1 << 24) as f32 / (1 << 23) as f32 - 1.0) * size
    }

    pub fn floats(&mut self, len: usize, size: f32) -> Vec<f32> {
        (0..len).map(|_| self.float(size)).collect()
    }
}
