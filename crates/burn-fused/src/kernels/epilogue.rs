//! The epilogue of an operator: applied to its output before the output is stored.

/// Applied to an operator's output before the output is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Epilogue {
    /// The output is stored as it is.
    Identity,
    /// ReLU.
    Relu,
    /// ReLU, then 2x2 max pooling with stride 2.
    ReluPool,
}

impl Epilogue {
    /// Height and width of the result, in pixels, for an output of this height and width.
    pub fn size(self, [height, width]: [usize; 2]) -> [usize; 2] {
        match self {
            Self::Identity | Self::Relu => [height, width],
            Self::ReluPool => [height / 2, width / 2],
        }
    }
}

/// Stored as the argmax of a 2x2 square if no pixel of the square gets a gradient: ReLU set the square's
/// maximum to zero, or fake quantization clipped it.
pub(crate) const NO_MAXIMUM: u32 = 4;

/// ReLU. NaN stays NaN.
#[inline(always)]
pub(crate) fn relu(x: f32) -> f32 {
    if passes(x) { x } else { 0.0 }
}

/// Whether ReLU passes `x` and its gradient: true for positive numbers and NaN.
#[inline(always)]
pub(crate) fn passes(x: f32) -> bool {
    x > 0.0 || x.is_nan()
}
