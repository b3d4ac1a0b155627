//! Minimum and maximum of values, and their moving averages over batches. Quantization parameters are
//! computed from these averages.

use super::{Int8Error, QParams, Scheme};
use crate::kernels::simd::{Level, kernel};

/// Returns the minimum and maximum of `values`. -0 is returned as 0.
///
/// # Errors
/// If `values` is empty or contains NaN or infinite values.
///
/// ```
/// assert_eq!(burn_fused::int8::min_max(&[0.5, -2.0, 1.0]), Ok([-2.0, 1.0]));
/// ```
pub fn min_max(values: &[f32]) -> Result<[f32; 2], Int8Error> {
    extremes(Level::current(), values).range()
}

/// Returns the minimum and maximum for each of `channels` equal parts of `values`.
///
/// # Errors
/// If `values` is empty or contains NaN or infinite values.
///
/// # Panics
/// If `channels` is 0 or does not divide the number of values.
pub fn min_max_by_channel(values: &[f32], channels: usize) -> Result<Vec<[f32; 2]>, Int8Error> {
    let divides = channels > 0 && values.len().is_multiple_of(channels);
    assert!(divides, "{} values cannot be divided into {channels} channels of equal length", values.len());
    if values.is_empty() {
        return Err(Int8Error::NoValues);
    }
    values.chunks_exact(values.len() / channels).map(min_max).collect()
}

kernel! {
    fn extremes<S>(_simd: S, values: &[f32]) -> Extremes {
        let mut found = Extremes::new();
        found.include(values, 1, 1);
        found
    }
}

/// Minimum and maximum of values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extremes {
    range: [f32; 2],
    finite: bool,
}

impl Extremes {
    /// Returns the extremes of no values.
    pub fn new() -> Self {
        Self { range: [f32::INFINITY, f32::NEG_INFINITY], finite: true }
    }

    /// Includes the values of the first `images` images. `values` consists of groups of `lanes` values, with
    /// one value of each image in a group. `lanes` is a power of two up to 32.
    #[inline(always)]
    pub fn include(&mut self, values: &[f32], lanes: usize, images: usize) {
        // Partial minima and maxima are independent of one another, so that the compiler computes them in
        // vectors.
        const PARTS: usize = 32;
        let (mut min, mut max) = ([f32::INFINITY; PARTS], [f32::NEG_INFINITY; PARTS]);
        // x · 0 is NaN if x is not finite, and NaN propagates through the sum.
        let mut check = [0.0; PARTS];
        let mut add = |i: usize, value: f32| {
            min[i] = if value < min[i] { value } else { min[i] };
            max[i] = if value > max[i] { value } else { max[i] };
            check[i] += value * 0.0;
        };
        let (parts, rest) = values.as_chunks::<PARTS>();
        for part in parts {
            for (i, &value) in part.iter().enumerate() {
                add(i, value);
            }
        }
        for (i, &value) in rest.iter().enumerate() {
            add(i, value);
        }
        for i in (0..PARTS).filter(|i| i % lanes < images) {
            self.range = [self.range[0].min(min[i]), self.range[1].max(max[i])];
            self.finite &= check[i] == 0.0;
        }
    }

    /// Returns the extremes of the values of both.
    pub fn and(self, other: Self) -> Self {
        let [min, max] = [self.range[0].min(other.range[0]), self.range[1].max(other.range[1])];
        Self { range: [min, max], finite: self.finite && other.finite }
    }

    /// Returns the minimum and the maximum. -0 is returned as 0.
    ///
    /// # Errors
    /// If there are no values, or one is NaN or infinite.
    pub fn range(self) -> Result<[f32; 2], Int8Error> {
        match self {
            Self { finite: false, .. } => Err(Int8Error::NonFinite),
            Self { range: [min, max], .. } if min > max => Err(Int8Error::NoValues),
            Self { range, .. } => Ok(range.map(|end| end + 0.0)),
        }
    }
}

/// Moving averages of minimum and maximum, as in PyTorch's `MovingAverageMinMaxObserver`. The first batch
/// sets the averages. Each later batch moves them towards its own minimum and maximum by
/// [`Observer::CONSTANT`] times the difference.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Observer {
    range: Option<[f32; 2]>,
}

impl Observer {
    /// The part of the difference by which a batch moves the averages.
    pub const CONSTANT: f32 = 0.01;

    /// Makes an observer that continues from the averages `range` (minimum and maximum), for example from a
    /// checkpoint. With `None`, it starts before the first batch.
    pub fn from_range(range: Option<[f32; 2]>) -> Self {
        Self { range }
    }

    /// Returns the averages of the minimum and the maximum, or `None` before the first batch.
    pub fn range(&self) -> Option<[f32; 2]> {
        self.range
    }

    /// Updates the averages with the minimum and maximum of a batch. All processes of a training must pass
    /// the same minimum and maximum.
    ///
    /// # Errors
    /// If `min` or `max` is NaN or infinite. The averages are then unchanged.
    pub fn observe(&mut self, [min, max]: [f32; 2]) -> Result<(), Int8Error> {
        if !(min.is_finite() && max.is_finite()) {
            return Err(Int8Error::NonFinite);
        }
        self.range = Some(match self.range {
            None => [min, max],
            Some([low, high]) => [low + Self::CONSTANT * (min - low), high + Self::CONSTANT * (max - high)],
        });
        Ok(())
    }

    /// Returns the quantization parameters for the averaged range.
    ///
    /// # Errors
    /// [`Int8Error::NotCalibrated`] before the first batch, and the errors of [`Scheme::parameters`].
    pub fn parameters(&self, scheme: Scheme) -> Result<QParams, Int8Error> {
        let [min, max] = self.range.ok_or(Int8Error::NotCalibrated)?;
        scheme.parameters(min, max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::Random;

    #[test]
    fn ranges_equal_those_of_a_plain_loop_on_every_level() {
        let mut random = Random(5);
        for level in Level::available() {
            let _held = level.hold();
            for len in [1, 2, 63, 64, 65, 200, 1031] {
                let values = random.floats(len, 3.0);
                let plain = values.iter().fold([f32::MAX, f32::MIN], |[a, b], &x| [a.min(x), b.max(x)]);
                assert_eq!(min_max(&values), Ok(plain), "{level}, {len}");
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut values = values.clone();
                    values[len / 2] = bad;
                    assert_eq!(min_max(&values), Err(Int8Error::NonFinite), "{level}, {len}");
                }
            }
            assert_eq!(min_max(&[-0.0]).map(|[a, b]| [a.to_bits(), b.to_bits()]), Ok([0, 0]));
        }
        assert_eq!(min_max(&[]), Err(Int8Error::NoValues));
        assert_eq!(min_max_by_channel(&[1.0, 2.0, 3.0, 5.0], 2), Ok(vec![[1.0, 2.0], [3.0, 5.0]]));
    }

    #[test]
    fn averages_move_by_a_hundredth() {
        let mut observer = Observer::default();
        assert_eq!(observer.parameters(Scheme::Affine), Err(Int8Error::NotCalibrated));
        observer.observe([-1.0, 2.0]).unwrap();
        assert_eq!(observer.range(), Some([-1.0, 2.0]));
        observer.observe([-2.0, 1.0]).unwrap();
        assert_eq!(observer.range(), Some([-1.0 - 0.01, 2.0 - 0.01]));
        assert_eq!(observer.observe([f32::NAN, 1.0]), Err(Int8Error::NonFinite));
        assert_eq!(Observer::from_range(observer.range()), observer);
        assert_eq!(observer.parameters(Scheme::Affine), Scheme::Affine.parameters(-1.01, 1.99));
    }
}
