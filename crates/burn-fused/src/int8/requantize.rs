//! Requantization: the fixed-point formula from a 32-bit accumulator to 8 bits.
//!
//! The ratio r = input scale · weight scale / output scale is rounded to m / 2^s, with a multiplier m and a
//! shift s:
//!
//! ```text
//! q = clamp(zero point + floor((accumulator · m + 2^(s-1)) / 2^s), lowest, 255)
//! ```
//!
//! The product has 64 bits. Results are rounded to nearest, ties up. `lowest` is the zero point if ReLU
//! follows, and 0 if not. The shift is 13 to 54. The multiplier has 31 bits, 2^30 <= m < 2^31, except for
//! ratios that would need a shift above 54: such ratios have s = 54 and a smaller multiplier.

use super::layer::Geometry;
use super::words::Words;
use super::{Int8Error, Weights};

/// Smallest and largest shift.
const SHIFTS: [u8; 2] = [13, 54];
/// Smallest shift for which the result does not depend on the lower 32 bits of the product.
const NARROW: u8 = 33;
/// A shift below [`NARROW`] means a ratio of at least 1/4. An accumulator of this magnitude then gives a
/// result outside of 0..=255, whatever the zero point, so accumulators can be clamped to it.
const WIDE: i32 = 2048;

/// Returns multiplier and shift of a ratio of scales.
///
/// # Errors
/// [`Int8Error::ScaleOverflow`] if the ratio is NaN or at most 2^-55, or if the ratio rounded to 31 bits is
/// at least 2^18.
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
    // Both steps are exact: reading the exponent from the bits of the IEEE-754 number, and multiplying by a
    // power of two.
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

/// The formula of [this module](self) as kernels compute it in 32-bit lanes: clamp the accumulator, shift
/// left, take the high 32 bits of the product, add, shift right, and take the maximum with `lowest`.
///
/// Kernels use only the high 32 bits of the product, so a shift has to be at least [`NARROW`]. If the shift
/// is smaller, the accumulator is shifted left by the difference. The accumulator is first clamped to the
/// range beyond which the result saturates, so that the shift left does not overflow.
#[derive(Debug, Clone)]
pub(super) struct Requantization {
    /// Whether at least one output needs the clamp and the shift left.
    wide: bool,
    /// The numbers of each output, in this order: lowest accumulator, highest accumulator, shift left,
    /// multiplier, addend, and shift right. The addend is added to the high half of the product before the
    /// shift right. It contains the zero point and the rounding. Additional outputs fill the last vector of
    /// 16 outputs.
    pub outputs: Vec<[i32; NUMBERS]>,
    lowest: u8,
}

/// Length of an element of [`Requantization::outputs`].
pub(super) const NUMBERS: usize = 6;

impl Requantization {
    /// Computes the numbers of a layer. The result of each additional output is the zero point if ReLU
    /// follows, and 0 if not.
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

    /// Applies the formula to a vector of accumulators. Returns results that are not clamped to 255 yet. Lane
    /// `i` of `sum` belongs to an output, and lane `i` of the vector `numbers[n]` is number `n` of this
    /// output.
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

    /// Smallest multiplier with 31 bits.
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
        // The multiplier is rounded up to 2^31, the next power of two.
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
