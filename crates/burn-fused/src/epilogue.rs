//! The epilogue of an operator: applied to its output before the output is stored.

use burn::tensor::module::max_pool2d;
use burn::tensor::ops::MaxPoolOptions;
use burn::tensor::{Tensor, activation};

/// Applied to an operator's output before the output is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Epilogue {
    /// None.
    Identity,
    /// ReLU.
    Relu,
    /// ReLU, then 2x2 max pooling with stride 2.
    ReluPool,
}

impl Epilogue {
    /// Height and width of the result for images of this height and width, in
    /// pixels.
    pub fn size(self, [height, width]: [usize; 2]) -> [usize; 2] {
        match self {
            Self::Identity | Self::Relu => [height, width],
            Self::ReluPool => [height / 2, width / 2],
        }
    }

    /// `x` with the epilogue, composed of Burn's operators; pooling expects
    /// `[batch, channels, height, width]`.
    pub(crate) fn composed<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Identity => x,
            Self::Relu => activation::relu(x),
            Self::ReluPool => {
                let x = Tensor::<4>::from_dispatch(activation::relu(x).into_dispatch());
                Tensor::from_dispatch(max_pool2d(x, MaxPoolOptions::new([2, 2])).into_dispatch())
            }
        }
    }
}

/// Argmax of a 2x2 square whose maximum ReLU sets to zero: no pixel gets its
/// gradient.
pub(crate) const NO_MAXIMUM: u32 = 4;

/// ReLU, which propagates NaN.
#[inline(always)]
pub(crate) fn relu(x: f32) -> f32 {
    if passes(x) { x } else { 0.0 }
}

/// Whether ReLU passes `x` on.
#[inline(always)]
pub(crate) fn passes(x: f32) -> bool {
    x > 0.0 || x.is_nan()
}

/// Maximum of a square of two pixels of two rows, and its argmax: the first of equal values, the last NaN.
#[inline(always)]
pub(crate) fn largest(upper: &[f32], lower: &[f32]) -> (f32, u8) {
    let (mut largest, mut at) = (upper[0], 0);
    for (p, x) in [(1, upper[1]), (2, lower[0]), (3, lower[1])] {
        let wins = x > largest || x.is_nan();
        largest = if wins { x } else { largest };
        at = if wins { p } else { at };
    }
    (largest, at)
}

/// ReLU of the [`largest`] of each 2x2 square of two rows, and its argmax.
#[inline(always)]
pub(crate) fn pool_row(upper: &[f32], lower: &[f32], output: &mut [f32], argmax: &mut [u8]) {
    let squares = upper.chunks_exact(2).zip(lower.chunks_exact(2));
    for (((upper, lower), output), index) in squares.zip(output).zip(argmax) {
        let (largest, at) = largest(upper, lower);
        *output = relu(largest);
        *index = if passes(largest) { at } else { NO_MAXIMUM as u8 };
    }
}

/// Backward of [`pool_row`]: each gradient at its argmax, and zeros elsewhere.
#[inline(always)]
pub(crate) fn spread_row(gradients: &[f32], argmax: &[u8], upper: &mut [f32], lower: &mut [f32]) {
    let squares = upper.chunks_exact_mut(2).zip(lower.chunks_exact_mut(2));
    for (((upper, lower), &gradient), &index) in squares.zip(gradients).zip(argmax) {
        upper[0] = if index == 0 { gradient } else { 0.0 };
        upper[1] = if index == 1 { gradient } else { 0.0 };
        lower[0] = if index == 2 { gradient } else { 0.0 };
        lower[1] = if index == 3 { gradient } else { 0.0 };
    }
}
