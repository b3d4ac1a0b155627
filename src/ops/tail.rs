//! What an operator does to its output before storing it.

use burn::backend::Backend;
use burn::backend::tensor::FloatTensor;

/// What is done to an output before it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// Nothing.
    Nothing,
    /// ReLU.
    Relu,
    /// ReLU, and the largest of each square of 2x2.
    ReluPool,
}

impl Tail {
    /// Height and width of what it makes of images of this height and width.
    pub fn size(self, [height, width]: [usize; 2]) -> [usize; 2] {
        match self {
            Self::Nothing | Self::Relu => [height, width],
            Self::ReluPool => [height / 2, width / 2],
        }
    }

    /// The same by Burn's operators; pooling wants four dimensions.
    pub(super) fn composed<B: Backend>(self, x: FloatTensor<B>) -> FloatTensor<B> {
        match self {
            Self::Nothing => x,
            Self::Relu => B::relu(x),
            Self::ReluPool => B::max_pool2d(B::relu(x), [2, 2], [2, 2], [0, 0], [1, 1], false),
        }
    }
}
