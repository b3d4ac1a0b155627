//! [`GradientSync::clip_norm`]: clips by the norm of all averaged gradients together.
//!
//! The sum of the squares is exact, so it does not depend on an order of additions. A norm has the same bits
//! on every rank, whether the gradients are sharded or not, and for every bucket plan. The method is Neal's
//! large superaccumulator ("Fast exact summation using small and large superaccumulators", 2015): the square
//! of an f32 is a 48-bit integer times a power of two, and an integer for each exponent sums such squares.

use crate::ddp::gradient_sync::GradientSync;
use crate::{CommError, Reduction, Wire};

/// Number of independent sums for each exponent. Successive values often have the same exponent, and with a
/// single sum each addition would wait for the previous one.
const LANES: usize = 4;
/// Number of squares below 2^48 that a u64 can sum.
const ROOM: usize = 1 << 16;
/// Number of 32-bit digits of the total. The square of the largest f32 ends at bit 506 + 48, counted from the
/// lowest bit of the smallest square; the other bits are room for 2^80 of them.
const DIGITS: usize = 20;
/// Exponent of the lowest bit of the square of the smallest f32.
const LOWEST: i32 = -298;

/// The exact sum of the squares of f32 values.
struct SquareSum {
    /// Sums of squares, by exponent field of the value.
    sums: Box<[[u64; 256]; LANES]>,
    /// Number of squares that each sum has room for.
    room: usize,
    /// Digits of the total without `sums`, base 2^32, lowest first.
    digits: [u64; DIGITS],
    has_nan: bool,
    has_infinity: bool,
}

impl SquareSum {
    fn new() -> Self {
        let sums = Box::new([[0; 256]; LANES]);
        Self { sums, room: ROOM, digits: [0; DIGITS], has_nan: false, has_infinity: false }
    }

    fn add(&mut self, mut values: &[f32]) {
        while !values.is_empty() {
            if self.room == 0 {
                self.flush();
            }
            let (block, rest) = values.split_at(values.len().min(self.room * LANES));
            let (whole, last) = block.as_chunks::<LANES>();
            for chunk in whole {
                for (sums, value) in self.sums.iter_mut().zip(chunk) {
                    add_square(sums, *value);
                }
            }
            self.sums.iter_mut().zip(last).for_each(|(sums, value)| add_square(sums, *value));
            if self.sums.iter().any(|sums| sums[255] > 0) {
                self.has_nan |= block.iter().any(|value| value.is_nan());
                self.has_infinity |= block.iter().any(|value| value.is_infinite());
                self.sums.iter_mut().for_each(|sums| sums[255] = 0);
            }
            self.room -= block.len().div_ceil(LANES);
            values = rest;
        }
    }

    /// Moves `sums` into `digits`.
    fn flush(&mut self) {
        for sums in self.sums.iter_mut() {
            for (exponent, sum) in sums.iter_mut().enumerate().filter(|(_, sum)| **sum > 0) {
                let bit = 2 * (exponent - 1);
                let shifted = u128::from(std::mem::take(sum)) << (bit % 32);
                for (digit, part) in self.digits[bit / 32..].iter_mut().zip(0..3) {
                    *digit += u64::from((shifted >> (32 * part)) as u32);
                }
            }
        }
        self.room = ROOM;
        self.carry();
    }

    /// Makes every digit smaller than 2^32.
    fn carry(&mut self) {
        let mut carry = 0;
        for digit in &mut self.digits {
            carry += *digit;
            *digit = u64::from(carry as u32);
            carry >>= 32;
        }
    }

    /// Returns the total as numbers, whose sums over ranks are exact in f64 in any order: integers below
    /// 2^32.
    fn take_numbers(&mut self) -> Vec<f64> {
        self.flush();
        let flags = [self.has_nan, self.has_infinity].map(|flag| f64::from(u8::from(flag)));
        self.digits.iter().map(|digit| *digit as f64).chain(flags).collect()
    }

    /// Takes the total from sums of [`take_numbers`](Self::take_numbers).
    fn set_numbers(&mut self, numbers: &[f64]) {
        self.digits.iter_mut().zip(numbers).for_each(|(digit, number)| *digit = *number as u64);
        self.carry();
        [self.has_nan, self.has_infinity] = [DIGITS, DIGITS + 1].map(|flag| numbers[flag] > 0.0);
    }

    /// Returns the total within a few units in the last place: NaN if a value is NaN, infinite if a value is.
    fn total(&mut self) -> f64 {
        self.flush();
        match (self.has_nan, self.has_infinity) {
            (true, _) => f64::NAN,
            (false, true) => f64::INFINITY,
            _ => {
                let digits = self.digits.iter().rev();
                digits.fold(0.0, |sum, digit| sum * 2f64.powi(32) + *digit as f64) * 2f64.powi(LOWEST)
            }
        }
    }
}

#[inline(always)]
fn add_square(sums: &mut [u64; 256], value: f32) {
    let bits = value.to_bits();
    let field = (bits >> 23) & 0xff;
    // Subnormal values have the exponent of the smallest normal ones, without the leading bit.
    let mantissa = u64::from((bits & 0x7f_ffff) | (u32::from(field > 0) << 23));
    sums[field.max(1) as usize] += mantissa * mantissa;
}

impl GradientSync {
    /// Clips the averaged gradients by the norm of all of them together, as PyTorch's `clip_grad_norm_` does:
    /// multiplies them by `max / (norm + 1e-6)` if this factor is below 1. Returns the norm before. Burn's
    /// clipping, in contrast, clips each tensor by its own norm.
    ///
    /// The norm has the same bits on every rank, and with [`SyncOptions::shard`](crate::SyncOptions::shard)
    /// the same bits as without it if the gradients have the same bits. If a gradient is NaN, all gradients
    /// become NaN. If a gradient is infinite, it becomes NaN and the finite gradients become 0. If `max` is
    /// infinite, no gradient changes.
    ///
    /// Call it on all ranks with the same `max`, after [`reduce`](Self::reduce) and before
    /// [`gradients`](Self::gradients), [`pieces`](Self::pieces) or the step of a
    /// [`ShardedOptimizer`](crate::ShardedOptimizer).
    ///
    /// ```no_run
    /// # use burn::module::Module;
    /// # use burn::optim::GradientsParams;
    /// # use burn_mpi::{CommError, GradientSync, Signals};
    /// # fn example<M: Module>(sync: &mut GradientSync, model: &M) -> Result<GradientsParams, CommError> {
    /// sync.reduce(Signals::default())?;
    /// let norm = sync.clip_norm(1.0)?;
    /// let gradients = sync.gradients(model)?;
    /// # Ok(gradients)
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`CommError::NoGradient`] if no step has ended. [`CommError::OnRank`] if `max` is NaN or negative, or if
    /// [`finish`](Self::finish) or [`gradients`](Self::gradients) has returned the gradients of the step, which
    /// would not change. If the transport fails, which every later step returns again.
    pub fn clip_norm(&mut self, max: f64) -> Result<f64, CommError> {
        self.reduced()?;
        if max.is_nan() || max < 0.0 {
            return Err(self.world.wrong(format!("clips to a norm of {max:?}: use 0 or more")));
        }
        if self.given {
            let reason = "clips gradients that it has already taken: call reduce, clip_norm and gradients, in this \
                          order, instead of finish";
            return Err(self.world.wrong(reason.to_owned()));
        }
        let mut squares = SquareSum::new();
        self.reduced()?.gradients_of_parts().into_iter().for_each(|(.., gradient)| squares.add(gradient));
        if self.options.shard && self.world.size() > 1 {
            let mut numbers = Wire::F64(squares.take_numbers());
            let buckets = self.reduced()?;
            let began = buckets.clock.now();
            let summed = buckets.collective.all_reduce(&mut numbers, Reduction::Native);
            buckets.times.exposed += buckets.clock.now() - began;
            summed.inspect_err(|error| self.broken = Some(error.clone()))?;
            if let Wire::F64(sums) = numbers {
                squares.set_numbers(&sums);
            }
        }
        let norm = squares.total().sqrt();
        let factor = max / (norm + 1e-6);
        if max < f64::INFINITY && (factor < 1.0 || factor.is_nan()) {
            for (.., gradient) in self.reduced()?.gradients_of_parts() {
                gradient.iter_mut().for_each(|value| *value *= factor as f32);
            }
        }
        Ok(norm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(parts: &[&[f32]]) -> f64 {
        let mut sums: Vec<f64> = Vec::new();
        for part in parts {
            let mut sum = SquareSum::new();
            sum.add(part);
            let numbers = sum.take_numbers();
            sums.resize(numbers.len(), 0.0);
            sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
        }
        let mut whole = SquareSum::new();
        whole.set_numbers(&sums);
        whole.total()
    }

    #[test]
    fn squares_of_every_size_are_summed_exactly() {
        let tiny = f32::from_bits(1);
        let square = |value: f32| f64::from(value) * f64::from(value);
        for value in [1.0, -3.5, tiny, f32::MIN_POSITIVE, f32::from_bits(0x7f_ffff), f32::MAX, 0.0] {
            assert_eq!(total(&[&[value]]), square(value), "{value:e}");
        }
        // The small squares would be lost in a sum in f64.
        let mut values = vec![1e-9; 1 << 20];
        values.push(1.0);
        assert_eq!(total(&[&values]), 1.0 + square(1e-9) * f64::from(1 << 20));
        assert_eq!(total(&[&vec![f32::MAX; 1_000_000]]), square(f32::MAX) * 1e6);
    }

    #[test]
    fn the_total_does_not_depend_on_order_and_parts() {
        let values: Vec<f32> = (0..300_000u32)
            .map(|at| f32::from_bits(at.wrapping_mul(2_654_435_761) & 0xbfff_ffff))
            .filter(|value| value.is_finite())
            .collect();
        let reversed: Vec<f32> = values.iter().rev().copied().collect();
        let expected = total(&[&values]);
        for cut in [0, 1, 7, 100_001, values.len()] {
            let (left, right) = values.split_at(cut);
            assert_eq!(total(&[right, left]).to_bits(), expected.to_bits(), "{cut}");
        }
        assert_eq!(total(&[&reversed]).to_bits(), expected.to_bits());
    }

    #[test]
    fn nan_and_infinite_values_are_kept() {
        assert!(total(&[&[1.0, f32::NAN], &[f32::INFINITY]]).is_nan());
        assert_eq!(total(&[&[1.0], &[f32::NEG_INFINITY, 2.0]]), f64::INFINITY);
    }
}
