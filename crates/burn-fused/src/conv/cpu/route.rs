//! Which algorithm computes which shape.

use super::Shape;
use crate::conv::Algorithm;

/// The algorithm of one convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// [`super::direct`].
    Direct,
    /// [`super::im2col`].
    Gemm,
    /// [`super::winograd`].
    Winograd,
}

impl Route {
    /// The fastest of those that `algorithm` allows.
    pub fn of(shape: Shape, algorithm: Algorithm) -> Self {
        if shape.is_small() {
            return Self::Direct;
        }
        match algorithm {
            Algorithm::Winograd if suits_winograd(shape) => Self::Winograd,
            Algorithm::Winograd | Algorithm::Gemm => Self::Gemm,
        }
    }
}

/// Whether Winograd is faster than im2col + GEMM.
fn suits_winograd(shape: Shape) -> bool {
    shape.inputs >= 16
}
