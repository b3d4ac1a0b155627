//! Dropout masks. Masks are not stored: forward and backward compute the same mask from a key.

use crate::kernels::simd::kernel;

/// The factors of a tensor's values under dropout. Each factor is 0 or `1 / (1 - probability)`.
///
/// The mask is a function of a key and of the value's index. Any part of it can therefore be computed at any
/// time, with the same result on every SIMD level. The mask repeats after 2^32 values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DropoutMask {
    key: [u32; 2],
    /// A value is kept if its random number is below this limit.
    limit: u32,
    /// The factor of kept values.
    scale: f32,
}

/// Applies the last step of SplitMix64 (Steele et al. 2014) to `key`. The results for two similar keys differ
/// as much as the results for two random keys.
fn mix(key: u64) -> u64 {
    let key = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let key = (key ^ (key >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    key ^ (key >> 31)
}

impl DropoutMask {
    /// Makes the mask of `key`, which drops values with probability `prob`.
    ///
    /// # Panics
    /// If `prob` is not in the range [0, 1).
    pub fn new(prob: f64, key: u64) -> Self {
        let message = "Dropout probability must be finite and in the range [0, 1), but got";
        assert!((0.0..1.0).contains(&prob), "{message} {prob}");
        let keep = 1.0 - prob;
        // If `prob` is 0, the product is 2^32, and the conversion to an integer saturates at `u32::MAX`. One
        // of 2^32 values is then dropped nevertheless.
        let limit = (keep * 2f64.powi(32)).round() as u32;
        let key = mix(key);
        Self { key: [key as u32, (key >> 32) as u32], limit, scale: (1.0 / keep) as f32 }
    }

    /// Returns the factor of the value at `index`.
    #[inline(always)]
    pub fn factor(self, index: usize) -> f32 {
        // The constants are those of the hash `lowbias32` (Wellons, hash-prospector): each bit of the index
        // changes each bit of the result with a probability near 1/2. The second half of the key enters in
        // the middle. If it entered at the beginning, the masks of two keys would be permutations of each
        // other.
        let mut x = index as u32 ^ self.key[0];
        x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
        x = (x ^ (x >> 15) ^ self.key[1]).wrapping_mul(0x846c_a68b);
        x ^= x >> 16;
        if x < self.limit { self.scale } else { 0.0 }
    }

    /// Writes the factors of the values from index `first` on.
    #[inline(always)]
    pub fn factors(self, first: usize, factors: &mut [f32]) {
        for (at, factor) in factors.iter_mut().enumerate() {
            *factor = self.factor(first.wrapping_add(at));
        }
    }
}

/// The samples that one process computes in one training step. The processes divide the batch of a step among
/// themselves.
///
/// The dropout mask that a layer's `forward_at` applies is a function of the seed, the step and the sample's
/// index. A sample's mask is therefore the same with any number of processes, and in a training that was
/// interrupted and resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchPlace {
    /// The seed of the masks. Two layers with the same seed have the same masks.
    pub seed: u64,
    /// Number of steps before this one.
    pub step: u64,
    /// Index of the process's first sample in the batch of the step.
    pub first: usize,
    /// Distance between the indices of the process's consecutive samples, for example the number of
    /// processes.
    pub stride: usize,
}

impl BatchPlace {
    /// Returns one mask for each of `batch` samples.
    ///
    /// # Panics
    /// If `prob` is not in the range [0, 1).
    pub(crate) fn masks(&self, prob: f64, batch: usize) -> Vec<DropoutMask> {
        // `next` adds the increment of SplitMix64 before it calls `mix`, because `mix` maps a key of 0 to 0.
        let next = |key: u64, part: u64| mix(key.wrapping_add(0x9e37_79b9_7f4a_7c15)) ^ part;
        let key = |sample: usize| {
            let index = self.first + sample * self.stride;
            next(next(self.seed, self.step), index as u64)
        };
        (0..batch).map(|sample| DropoutMask::new(prob, key(sample))).collect()
    }
}

kernel! {
    /// Computes `target = x * mask + residual`, or `target = x + residual` if `mask` is `None`.
    pub(crate) fn drop_part<S>(
        _simd: S,
        mask: Option<DropoutMask>,
        // Index of the first value in the mask.
        first: usize,
        // The values `x`. `None` if they are in `target`.
        x: Option<&[f32]>,
        // `residual` has the length of `target`. If there is a mask, `residual` may also be empty, and
        // nothing is added.
        residual: &[f32],
        target: &mut [f32],
    ) {
        if let (Some(mask), true) = (mask, residual.is_empty()) {
            return each(x, target, |at, x| x * mask.factor(first + at));
        }
        // A slice as long as the target saves a check of each index.
        let residual = &residual[..target.len()];
        match mask {
            Some(mask) => each(x, target, |at, x| x * mask.factor(first + at) + residual[at]),
            None => each(x, target, |at, x| x + residual[at]),
        }
    }
}

#[inline(always)]
fn each(x: Option<&[f32]>, target: &mut [f32], value: impl Fn(usize, f32) -> f32) {
    match x {
        Some(x) => target.iter_mut().zip(x).enumerate().for_each(|(at, (y, x))| *y = value(at, *x)),
        None => target.iter_mut().enumerate().for_each(|(at, y)| *y = value(at, *y)),
    }
}
