//! Epilogues: ReLU and max pooling that an operator applies to its own output, to save a pass over memory.

/// What an operator applies to its output before it stores the output.
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
    /// Returns the height and width after the epilogue, from the height and width before it. All are in
    /// pixels.
    pub fn size(self, [height, width]: [usize; 2]) -> [usize; 2] {
        match self {
            Self::Identity | Self::Relu => [height, width],
            Self::ReluPool => [height / 2, width / 2],
        }
    }
}

/// The argmax of a 2x2 square is the index of its largest pixel, 0 to 3. `NO_MAXIMUM` replaces the argmax if
/// no pixel of the square gets a gradient, because ReLU set the maximum to zero or fake quantization clipped
/// the maximum.
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
