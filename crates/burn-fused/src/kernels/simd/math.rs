//! Functions of f32: exponential, sigmoid, hyperbolic tangent and the normal distribution.
//!
//! The functions have no branches, so that the compiler vectorises loops that call them. They use no fused
//! multiply-add, so that every SIMD level computes the same bits.

use super::kernel;

/// 1.5 * 2^23. Adding and then subtracting it rounds a number of magnitude below 2^22 to an integer, ties to
/// even.
const ROUND: f32 = 12_582_912.0;
/// ln 2 as a sum of two numbers. The first has few bits, so that its products with small integers are exact.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
/// Coefficients of (e^r - 1 - r) / r^2 for |r| <= ln 2 / 2, the highest power first, as in Moshier's
/// Cephes library.
const SERIES: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1];

/// Returns e^x for x from -87 to 88. Below -87, where e^x is almost subnormal, it returns 0. Above 88 the
/// result is meaningless. NaN stays NaN.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
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

/// 1 / (1 + e^-x).
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    // The exponential of -|x| cannot overflow.
    let power = exp(-x.abs());
    let small = power / (1.0 + power);
    if x < 0.0 { small } else { 1.0 - small }
}

/// The hyperbolic tangent, with a relative error below 6e-7.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let power = exp(-2.0 * x.abs());
    let far = ((1.0 - power) / (1.0 + power)).copysign(x);
    // Near 0, the subtraction above loses digits, and five terms of the Taylor series are exact to f32.
    let square = x * x;
    let series = ((62.0 / 2835.0 * square - 17.0 / 315.0) * square + 2.0 / 15.0) * square - 1.0 / 3.0;
    let near = x + x * square * series;
    if x.abs() < 0.2 { near } else { far }
}

/// Returns the cumulative distribution function of the standard normal distribution at `x`, and its density.
///
/// The error of the distribution function is below 2.5e-7: formula 7.1.26 of Abramowitz and Stegun, "Handbook
/// of mathematical functions" (1964).
#[inline(always)]
pub(crate) fn normal(x: f32) -> [f32; 2] {
    const SERIES: [f32; 5] = [1.061_405_4, -1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6];
    let power = exp(-0.5 * x * x);
    let t = 1.0 / (1.0 + 0.327_591_1 * std::f32::consts::FRAC_1_SQRT_2 * x.abs());
    let mut sum = SERIES[0];
    for coefficient in &SERIES[1..] {
        sum = sum * t + coefficient;
    }
    let tail = 0.5 * sum * t * power;
    let below = if x < 0.0 { tail } else { 1.0 - tail };
    // 1 / sqrt(2 pi).
    [below, 0.398_942_3 * power]
}

kernel! {
    /// Replaces each value by its [exponential](exp).
    pub(crate) fn exp_each<S>(_simd: S, values: &mut [f32]) {
        for x in values {
            *x = exp(*x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::simd::Level;

    #[test]
    fn exp_is_within_two_units_of_the_last_place_on_every_simd_level() {
        let values: Vec<f32> = (0..870_007).map(|i| -1e-4 * i as f32).collect();
        let results = Level::available().map(|level| {
            let mut results = values.clone();
            exp_each(level, &mut results);
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
        exp_each(Level::current(), &mut values);
        assert!(values[0] == 0.0 && values[1].is_nan() && values[2] == 1.0, "{values:?}");
        for function in [sigmoid, tanh, |x| normal(x)[0]] {
            assert!(function(f32::NAN).is_nan());
        }
        assert_eq!([sigmoid(f32::INFINITY), sigmoid(f32::NEG_INFINITY)], [1.0, 0.0]);
        assert_eq!([tanh(f32::INFINITY), tanh(f32::NEG_INFINITY), tanh(0.0)], [1.0, -1.0, 0.0]);
        assert_eq!([normal(f32::INFINITY), normal(f32::NEG_INFINITY)], [[1.0, 0.0], [0.0, 0.0]]);
    }

    #[test]
    fn the_others_are_near_their_definitions() {
        // 2 / sqrt(pi) times the integral of e^(-t^2), by its Taylor series.
        let erf = |x: f64| {
            let (mut term, mut sum) = (x, x);
            for n in 1..200 {
                term *= -x * x / f64::from(n);
                sum += term / f64::from(2 * n + 1);
            }
            sum * std::f64::consts::FRAC_2_SQRT_PI
        };
        for at in -6000..=6000 {
            let x = at as f32 / 1000.0;
            let wide = f64::from(x);
            let checks = [
                (sigmoid(x), 1.0 / (1.0 + (-wide).exp()), 1.5e-7),
                (tanh(x), wide.tanh(), 6e-7 * wide.tanh().abs()),
                (normal(x)[0], 0.5 * (1.0 + erf(wide / 2f64.sqrt())), 2.5e-7),
                (normal(x)[1], (-0.5 * wide * wide).exp() / std::f64::consts::TAU.sqrt(), 1e-7),
            ];
            for (which, (found, expected, most)) in checks.into_iter().enumerate() {
                let error = (f64::from(found) - expected).abs();
                assert!(error <= most, "{which} of {x}: {found} for {expected}");
            }
        }
    }
}
