//! Computes quantization parameters, which are a scale and a zero point, from the range of the values. The
//! formula is that of PyTorch's `calculate_qparams`.

use serde::{Deserialize, Serialize};

use super::Int8Error;

/// Smallest scale, 2^-23, as in PyTorch. A range of width 0 gets this scale.
pub const SMALLEST_SCALE: f32 = f32::EPSILON;

/// How real values are mapped to 8 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// Weights: i8, -127 to 127, zero point 0.
    Symmetric,
    /// Activations: u8, 0 to 255, zero point from 0 to 255.
    Affine,
}

impl Scheme {
    /// Smallest and largest quantized value, qmin and qmax.
    pub const fn bounds(self) -> [i32; 2] {
        match self {
            Self::Symmetric => [-127, 127],
            Self::Affine => [0, 255],
        }
    }

    /// Returns the parameters for values from `min` to `max`, in f32 as PyTorch computes them. The range is
    /// first extended to contain 0, and the scale is at least [`SMALLEST_SCALE`].
    ///
    /// - symmetric: scale = max(-min, max) / 127, zero point = 0.
    /// - affine: scale = (max - min) / 255, zero point = clamp(0 - round(min / scale), 0, 255), rounding half
    ///   to even.
    ///
    /// # Errors
    /// If an end is NaN or infinite, if `min` is above `max`, or if the width of an affine range overflows
    /// f32.
    pub fn parameters(self, min: f32, max: f32) -> Result<QParams, Int8Error> {
        if !(min.is_finite() && max.is_finite()) {
            return Err(Int8Error::NonFinite);
        }
        if min > max {
            return Err(Int8Error::EmptyRange { min, max });
        }
        let (min, max) = (min.min(0.0), max.max(0.0));
        let [qmin, qmax] = self.bounds();
        let steps = (qmax - qmin) as f32;
        let scale = match self {
            Self::Symmetric => max.max(-min) / (steps / 2.0),
            Self::Affine => (max - min) / steps,
        };
        if !scale.is_finite() {
            return Err(Int8Error::ScaleOverflow { ratio: f64::from(scale) });
        }
        let scale = scale.max(SMALLEST_SCALE);
        let zero_point = match self {
            Self::Symmetric => 0,
            Self::Affine => (qmin - (min / scale).round_ties_even() as i32).clamp(qmin, qmax),
        };
        Ok(QParams { scale, zero_point })
    }
}

/// Scale and zero point. A quantized value q stands for the real number (q - zero point) · scale.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct QParams {
    /// The difference between the real numbers of two neighbouring quantized values.
    pub scale: f32,
    /// The quantized value of the real number 0.
    pub zero_point: i32,
}

impl QParams {
    /// Checks that the scale is positive, finite and not subnormal, that its inverse is finite, and that the
    /// zero point is allowed: 0 if `scheme` is symmetric, and 0 to 255 if it is affine.
    ///
    /// # Errors
    /// If a check fails.
    pub fn check(self, scheme: Scheme) -> Result<Self, Int8Error> {
        let Self { scale, zero_point } = self;
        let [qmin, qmax] = scheme.bounds();
        let zero = match scheme {
            Scheme::Symmetric => zero_point == 0,
            Scheme::Affine => (qmin..=qmax).contains(&zero_point),
        };
        if scale.is_normal() && scale > 0.0 && (1.0 / scale).is_finite() && zero {
            Ok(self)
        } else {
            Err(Int8Error::Parameters { scale, zero_point })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_those_of_pytorch() {
        // The values were computed by hand from the formula of `calculate_qparams`. In f32, 1 / (2 / 255) is
        // below 127.5, so a range from -1 to 1 has the zero point 127.
        let affine = |min, max| Scheme::Affine.parameters(min, max).unwrap();
        assert_eq!(affine(0.1, 1.0), QParams { scale: 1.0 / 255.0, zero_point: 0 });
        assert_eq!(affine(-1.0, -0.5), QParams { scale: 1.0 / 255.0, zero_point: 255 });
        assert_eq!(affine(-1.0, 1.0), QParams { scale: 2.0 / 255.0, zero_point: 127 });
        assert_eq!(affine(-3.0, 252.0), QParams { scale: 1.0, zero_point: 3 });
        // Half is rounded to even: -min / scale is 0.5 and 1.5.
        assert_eq!(affine(-0.5, 254.5).zero_point, 0);
        assert_eq!(affine(-1.5, 253.5).zero_point, 2);
        assert_eq!(affine(0.0, 0.0), QParams { scale: SMALLEST_SCALE, zero_point: 0 });
        let symmetric = Scheme::Symmetric.parameters(-2.54, 1.0).unwrap();
        assert_eq!(symmetric, QParams { scale: 2.54 / 127.0, zero_point: 0 });
        assert_eq!(SMALLEST_SCALE, 2f32.powi(-23));
    }

    #[test]
    fn ranges_without_parameters_are_errors() {
        for scheme in [Scheme::Symmetric, Scheme::Affine] {
            assert_eq!(scheme.parameters(f32::NAN, 1.0), Err(Int8Error::NonFinite));
            assert_eq!(scheme.parameters(0.0, f32::INFINITY), Err(Int8Error::NonFinite));
            assert_eq!(scheme.parameters(2.0, 1.0), Err(Int8Error::EmptyRange { min: 2.0, max: 1.0 }));
        }
        let wide = Scheme::Affine.parameters(f32::MIN, f32::MAX);
        assert!(matches!(wide, Err(Int8Error::ScaleOverflow { .. })));
        assert!(QParams { scale: 0.0, zero_point: 0 }.check(Scheme::Affine).is_err());
        assert!(QParams { scale: 0.1, zero_point: 256 }.check(Scheme::Affine).is_err());
        assert!(QParams { scale: 0.1, zero_point: 1 }.check(Scheme::Symmetric).is_err());
        assert!(QParams { scale: f32::MIN_POSITIVE / 2.0, zero_point: 0 }.check(Scheme::Symmetric).is_err());
    }
}
