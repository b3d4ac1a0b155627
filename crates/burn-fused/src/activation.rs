//! Activations, as the epilogue of an operator.

use burn::tensor::{Tensor, activation};

use crate::epilogue::{passes, relu};
use crate::simd::math::{normal, tanh};
use crate::simd::{Kernel, Lanes};

/// A function of each output of an operator, which computes it where the output is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// None.
    Identity,
    /// ReLU, which passes NaN on.
    Relu,
    /// GELU, `x Φ(x)`: Hendrycks and Gimpel, "Gaussian error linear units" (2016).
    Gelu,
    /// GELU with the approximation of Φ by tanh.
    GeluApproximate,
}

/// sqrt(2 / pi).
const ROOT: f32 = 0.797_884_6;
const CUBIC: f32 = 0.044_715;

impl Activation {
    /// Of `x`, composed of Burn's operators.
    pub(crate) fn composed<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Identity => x,
            Self::Relu => activation::relu(x),
            Self::Gelu => activation::gelu(x),
            Self::GeluApproximate => activation::gelu_approximate(x),
        }
    }

    /// Whether the slope is that at the output, so that backward needs no input.
    pub(crate) fn is_known_by_output(self) -> bool {
        matches!(self, Self::Identity | Self::Relu)
    }
}

/// `activation(x)`.
#[inline(always)]
fn value(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Identity => x,
        Activation::Relu => relu(x),
        Activation::Gelu => x * normal(x)[0],
        Activation::GeluApproximate => 0.5 * x * (1.0 + tanh(ROOT * (x + CUBIC * x * x * x))),
    }
}

/// The slope of `activation` at `x`, or at the output `x` if it is known by that.
#[inline(always)]
fn slope(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Identity => 1.0,
        Activation::Relu => f32::from(u8::from(passes(x))),
        Activation::Gelu => {
            let [below, density] = normal(x);
            below + x * density
        }
        Activation::GeluApproximate => {
            let tanh = tanh(ROOT * (x + CUBIC * x * x * x));
            let inner = ROOT * (1.0 + 3.0 * CUBIC * x * x);
            0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * inner
        }
    }
}

/// Adds `bias`, which may be empty, to each row of `inner`, and applies the activation: into `output` if there is
/// one, or in place.
pub(crate) struct Forward<'a> {
    pub activation: Activation,
    /// Values of a row.
    pub width: usize,
    pub bias: &'a [f32],
    pub inner: &'a mut [f32],
    pub output: Option<&'a mut [f32]>,
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        match self.activation {
            Activation::Identity => self.rows(|x| x),
            Activation::Relu => self.rows(|x| value(Activation::Relu, x)),
            Activation::Gelu => self.rows(|x| value(Activation::Gelu, x)),
            Activation::GeluApproximate => self.rows(|x| value(Activation::GeluApproximate, x)),
        }
    }
}

impl Forward<'_> {
    #[inline(always)]
    fn rows(self, value: impl Fn(f32) -> f32) {
        let Self { width, bias, inner, mut output, .. } = self;
        for (row, inner) in inner.chunks_exact_mut(width).enumerate() {
            for (inner, bias) in inner.iter_mut().zip(bias) {
                *inner += bias;
            }
            match &mut output {
                Some(output) => {
                    let output = &mut output[row * width..][..width];
                    output.iter_mut().zip(inner).for_each(|(output, inner)| *output = value(*inner));
                }
                None => inner.iter_mut().for_each(|inner| *inner = value(*inner)),
            }
        }
    }
}

/// The gradient of [`Forward`]'s input, `gradient` times the slope, into `of_inner`, and of its bias.
pub(crate) struct Backward<'a> {
    pub activation: Activation,
    /// Values of a row.
    pub width: usize,
    /// The input with its bias, or the output if the slope is known by that.
    pub inner: &'a [f32],
    pub gradient: &'a [f32],
    /// Empty for [`Activation::Identity`], whose gradient is that of the output.
    pub of_inner: &'a mut [f32],
    /// Zeros, or empty without a bias.
    pub of_bias: &'a mut [f32],
}

/// Rows that are summed before the sum is added to that of all, for its accuracy.
const ROWS: usize = 64;

impl Kernel for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        match self.activation {
            Activation::Identity => self.rows(|_| 1.0),
            Activation::Relu => self.rows(|x| slope(Activation::Relu, x)),
            Activation::Gelu => self.rows(|x| slope(Activation::Gelu, x)),
            Activation::GeluApproximate => self.rows(|x| slope(Activation::GeluApproximate, x)),
        }
    }
}

impl Backward<'_> {
    #[inline(always)]
    fn rows(self, slope: impl Fn(f32) -> f32) {
        let Self { width, inner, gradient, of_inner, of_bias, .. } = self;
        let mut sums = vec![0.0f32; of_bias.len()];
        for (block, gradient) in gradient.chunks(ROWS * width).enumerate() {
            for (row, gradient) in gradient.chunks_exact(width).enumerate() {
                let row = match of_inner.is_empty() {
                    true => gradient,
                    false => {
                        let at = (block * ROWS + row) * width;
                        let (of_inner, inner) = (&mut of_inner[at..][..width], &inner[at..][..width]);
                        for ((of_inner, inner), gradient) in of_inner.iter_mut().zip(inner).zip(gradient) {
                            *of_inner = gradient * slope(*inner);
                        }
                        of_inner
                    }
                };
                sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
            for (total, sum) in of_bias.iter_mut().zip(&mut sums) {
                *total += std::mem::take(sum);
            }
        }
    }
}
