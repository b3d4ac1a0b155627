//! The exponential function of many values at once.

use crate::simd::{Kernel, Lanes};

/// Adding and subtracting it rounds a number below 2^22 to an integer, half to even.
const ROUND: f32 = 12_582_912.0;
/// ln 2 as a number of few bits, whose products with small integers are exact, and the rest.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
/// Coefficients of (e^r - 1 - r) / r^2 for |r| <= ln 2 / 2, the highest power first, as in Moshier's
/// Cephes library.
const SERIES: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1];

/// Replaces each value by its exponential. None is above 0; below -87, where the result would be
/// a subnormal number, it is 0. NaN stays NaN.
///
/// The bits are the same on every SIMD level: no operation is fused, and the loop has no branches,
/// so that the compiler computes it in lanes.
pub(super) struct Exp<'a>(pub &'a mut [f32]);

impl Kernel for Exp<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        for x in self.0 {
            *x = exp(*x);
        }
    }
}

#[inline(always)]
fn exp(x: f32) -> f32 {
    // e^x = 2^n e^r, with r = x - n ln 2.
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN_2[0] - n * LN_2[1];
    let mut sum = SERIES[0];
    for coefficient in &SERIES[1..] {
        sum = sum * r + coefficient;
    }
    let power = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    let value = (sum * r * r + r + 1.0) * f32::from_bits(power);
    if x < -87.0 { 0.0 } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Level;

    #[test]
    fn it_is_within_two_units_of_the_last_place_on_every_simd_level() {
        let values: Vec<f32> = (0..870_007).map(|i| -1e-4 * i as f32).collect();
        let results = Level::available().map(|level| {
            let mut results = values.clone();
            level.run(Exp(&mut results));
            results
        });
        let results: Vec<Vec<f32>> = results.collect();
        for (&x, &found) in values.iter().zip(&results[0]) {
            let expected = if x < -87.0 { 0.0 } else { f64::from(x).exp() };
            assert!((f64::from(found) - expected).abs() <= 2.4e-7 * expected, "{x}: {found} for {expected}");
        }
        assert!(results.iter().all(|other| *other == results[0]));
    }

    #[test]
    fn infinity_gives_0_and_nan_stays() {
        let mut values = [f32::NEG_INFINITY, f32::NAN, 0.0];
        Level::current().run(Exp(&mut values));
        assert!(values[0] == 0.0 && values[1].is_nan() && values[2] == 1.0, "{values:?}");
    }
}
