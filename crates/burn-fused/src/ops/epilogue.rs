//! Epilogues (the ReLU and pooling after an operator) composed of Burn's operators.

use burn::tensor::module::max_pool2d;
use burn::tensor::ops::MaxPoolOptions;
use burn::tensor::{Tensor, activation};

use crate::kernels::epilogue::Epilogue;

impl Epilogue {
    /// Applies the epilogue to `x` with Burn's operators. Pooling expects `x` as
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
