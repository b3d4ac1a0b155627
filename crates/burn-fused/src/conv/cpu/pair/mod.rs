//! Two convolutions of few channels, each with ReLU and pooling, fused: a block of
//! images stays in SIMD lanes and in the cache between them.

mod backward;
mod forward;

pub(super) use backward::PairBackward;
pub use backward::PairGradients;
pub(super) use forward::PairForward;
pub use forward::Parameters;

use super::Shape;
use super::scratch::Kept;

/// Sizes of two convolutions, the second of which takes the output of the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairShape {
    /// Of the first.
    pub first: Shape,
    /// Output channels of the second.
    pub outputs: usize,
}

impl PairShape {
    /// Whether the pair is supported: few channels, and height and width multiples
    /// of 4, so that 2x2 pooling covers both images.
    pub fn fits(self) -> bool {
        let [height, width] = [self.first.height, self.first.width];
        self.first.is_small()
            && self.second().is_small()
            && height.is_multiple_of(4)
            && width.is_multiple_of(4)
    }

    /// Sizes of the second.
    pub fn second(self) -> Shape {
        let Shape { batch, outputs, height, width, .. } = self.first;
        Shape { batch, inputs: outputs, outputs: self.outputs, height: height / 2, width: width / 2 }
    }
}

/// Weights and biases of one of them.
#[derive(Debug, Clone, Copy)]
pub struct Layer<'a> {
    /// `[outputs, inputs, 3, 3]`.
    pub weights: &'a [f32],
    /// One for each output channel.
    pub bias: &'a [f32],
}

/// Saved by forward for backward, in the layout of its SIMD level.
#[derive(Debug, Default)]
pub struct Between {
    /// Input of the second: bordered planes in lanes.
    middle: Kept,
    /// Argmax of the first, and of the second.
    argmax: [Vec<u8>; 2],
}
