//! Requantization: the fixed-point formula from a 32-bit accumulator to 8 bits.
//!
//! With the ratio r = input scale · weight scale / output scale, as a multiplier m and
//! a shift s so that r = m / 2^s:
//!
//! ```text
//! q = clamp(zero point + floor((accumulator · m + 2^(s-1)) / 2^s), lowest, 255)
//! ```
//!
//! with a 64-bit product: rounding to nearest, ties up. `lowest` is the zero point
//! after ReLU, else 0. The multiplier has 31 bits, 2^30 <= m < 2^31, where s <= 54,
//! and fewer below; s is at least 13.

use super::layer::Geometry;
use super::words::Words;
use super::{Int8Error, Weights};

/// Smallest and largest shift.
const SHIFTS: [u8; 2] = [13, 54];
/// From this shift on, rounding needs none of the product's lower 32 bits.
const NARROW: u8 = 33;
/// A ratio of at least 1/4 takes an accumulator of this size out of 0..=255, for any
/// zero point.
const WIDE: i32 = 2048;

/// Multiplier and shift of a ratio of scales.
///
/// # Errors
/// [`Int8Error::ScaleOverflow`] if the ratio is 2^18 or more, 2^-55 or less, or NaN.
///
/// ```
/// assert_eq!(burn_fused::int8::fixed_point(0.75), Ok((3 << 29, 31)));
/// ```
pub fn fixed_point(ratio: f64) -> Result<(i32, u8), Int8Error> {
    let overflow = Int8Error::ScaleOverflow { ratio };
    if !(ratio.is_normal() && ratio > 0.0) {
        return Err(overflow);
    }
    let [least, most] = SHIFTS.map(i32::from);
    // Exact: IEEE-754 exponents, and powers of two.
    let exponent = ((ratio.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    let mut shift = (30 - exponent).min(most);
    let mut multiplier = (ratio * 2f64.powi(shift)).round_ties_even();
    if multiplier >= 2f64.powi(31) {
        multiplier /= 2.0;
        shift -= 1;
    }
    if multiplier < 1.0 || shift < least {
        return Err(overflow);
    }
    Ok((multiplier as i32, shift as u8))
}

/// The formula, as kernels compute it in 32-bit lanes: clamp, shift left, the high 32
/// bits of the product, add, shift right, and the lowest result.
///
/// Shifts below [`NARROW`] are increased to at least that by a shift left, before
/// which the accumulator is clamped to where the result saturates.
#[derive(Debug, Clone)]
pub(super) struct Requantization {
    /// Whether clamp and shift left are needed.
    wide: bool,
    /// Of each output, in multiples of 16, the lowest and the highest accumulator, the shift left, the
    /// multiplier, zero point and rounding, shifted like the product, and the shift of its high half.
    pub outputs: Vec<[i32; NUMBERS]>,
    lowest: u8,
}

/// Numbers of an output.
pub(super) const NUMBERS: usize = 6;

impl Requantization {
    /// The formula for a layer. Additional outputs become the zero point after ReLU, else 0.
    pub fn new(Geometry { outputs, output, relu, .. }: Geometry, weights: &Weights) -> Self {
        let Weights { multipliers, shifts, .. } = weights;
        let zero_point = output.zero_point as u8;
        let mut numbers = vec![[i32::MIN, i32::MAX, 0, 0, 0, 0]; outputs.next_multiple_of(16)];
        for (o, [low, high, left, multiplier, addend, right]) in numbers.iter_mut().take(outputs).enumerate()
        {
            let channel = if multipliers.len() == 1 { 0 } else { o };
            let shift = shifts[channel].max(NARROW);
            *multiplier = multipliers[channel];
            *right = i32::from(shift - 32);
            *addend = (i32::from(zero_point) << (shift - 32)) + (1 << (shift - NARROW));
            if shifts[channel] < NARROW {
                (*low, *high, *left) = (-WIDE, WIDE - 1, i32::from(NARROW - shifts[channel]));
            }
        }
        let wide = shifts.iter().any(|&shift| shift < NARROW);
        Self { wide, outputs: numbers, lowest: if relu { zero_point } else { 0 } }
    }

    /// The result of `sum`, which is not clamped to 255 yet, with the numbers of its outputs.
    #[inline(always)]
    pub fn apply<W: Words>(&self, words: W, mut sum: W::Word, numbers: [W::Word; NUMBERS]) -> W::Word {
        let [low, high, left, multiplier, addend, right] = numbers;
        if self.wide {
            sum = words.shift_left(words.min(words.max(sum, low), high), left);
        }
        words.max(words.scale(sum, multiplier, addend, right), words.splat(self.lowest.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::Random;

    /// Multipliers with 31 bits are at least this.
    const FULL: i32 = 1 << 30;

    /// Whether the formula is defined for this multiplier and shift.
    fn is_valid(multiplier: i32, shift: u8) -> bool {
        let [least, most] = SHIFTS;
        multiplier >= 1 && (least..=most).contains(&shift) && (shift == most || multiplier >= FULL)
    }

    #[test]
    fn multipliers_have_31_bits_of_the_ratio() {
        assert_eq!(fixed_point(1.0), Ok((FULL, 30)));
        assert_eq!(fixed_point(2f64.powi(-24)), Ok((FULL, 54)));
        assert_eq!(fixed_point(2f64.powi(-30)), Ok((1 << 24, 54)));
        assert_eq!(fixed_point(2f64.powi(-54)), Ok((1, 54)));
        // Rounded up to the next power of two.
        assert_eq!(fixed_point(1.0 - 2f64.powi(-40)), Ok((FULL, 30)));
        for ratio in [2f64.powi(18), 2f64.powi(-56), 0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(fixed_point(ratio), Err(Int8Error::ScaleOverflow { .. })), "{ratio}");
        }
        let mut random = Random(8);
        for _ in 0..10_000 {
            let ratio = f64::from(random.float(1.0).abs() + 1e-9) * 2f64.powi(random.below(40) as i32 - 24);
            let Ok((multiplier, shift)) = fixed_point(ratio) else {
                assert!(ratio >= 2f64.powi(17), "{ratio}");
                continue;
            };
            assert!(is_valid(multiplier, shift));
            let error = (f64::from(multiplier) / 2f64.powi(shift.into()) - ratio).abs();
            assert!(error <= ratio * 2f64.powi(-31) || error <= 2f64.powi(-55), "{ratio}: {error}");
        }
    }
}
