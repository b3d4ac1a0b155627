//! Activation functions on rows of values, and their gradients.
//!
//! The slope of an activation is its derivative. The forward pass computes and stores the slope together with
//! the value, because the value and the slope share most of their arithmetic. The backward pass multiplies
//! the gradient by the stored slope. For ReLU, no slope is stored, because the output determines it.

use crate::kernels::epilogue::{passes, relu};
use crate::kernels::simd::math::{normal, tanh};
use crate::kernels::simd::{Level, kernel};
use crate::runtime::threads::each;

/// An activation that an operator applies to its own output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivationFunction {
    /// No activation.
    Identity,
    /// ReLU. NaN stays NaN.
    Relu,
    /// GELU, `x Φ(x)`: Hendrycks and Gimpel, "Gaussian error linear units" (2016).
    Gelu,
    /// GELU with the tanh approximation of Φ.
    GeluApproximate,
}

/// sqrt(2 / pi).
const ROOT: f32 = 0.797_884_6;
/// The coefficient of x³ in the tanh approximation of GELU.
const CUBIC: f32 = 0.044_715;

impl ActivationFunction {
    /// Whether the output determines the slope. If so, the backward pass reads the output instead of a stored
    /// slope.
    pub(crate) fn is_known_by_output(self) -> bool {
        matches!(self, Self::Identity | Self::Relu)
    }
}

/// Returns the value and the slope of `activation` at `x`.
#[inline(always)]
fn function(activation: ActivationFunction, x: f32) -> [f32; 2] {
    match activation {
        ActivationFunction::Identity => [x, 1.0],
        ActivationFunction::Relu => [relu(x), f32::from(u8::from(passes(x)))],
        ActivationFunction::Gelu => {
            let [below, density] = normal(x);
            [x * below, below + x * density]
        }
        ActivationFunction::GeluApproximate => {
            let tanh = tanh(ROOT * (x + CUBIC * x * x * x));
            let inner = ROOT * (1.0 + 3.0 * CUBIC * x * x);
            [0.5 * x * (1.0 + tanh), 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * inner]
        }
    }
}

/// Approximate number of values in an item for a thread.
const ITEM: usize = 1 << 13;

/// Adds `bias`, which may be empty, to each row of `inner`, and applies the activation. If `output` is
/// `None`, the results replace the values of `inner`. Otherwise, the results are written to `output`, and the
/// slopes replace the values of `inner`.
///
/// A row has `width` values. Without a bias, the last row may be shorter. `source` are rows that are copied
/// into `inner` first; `None` if `inner` has the rows already.
pub(crate) fn activate_rows(
    level: Level,
    activation: ActivationFunction,
    width: usize,
    bias: &[f32],
    source: Option<&[f32]>,
    inner: &mut [f32],
    output: Option<&mut [f32]>,
) {
    let size = (ITEM / width).max(1) * width;
    // The exponential functions take most of the time.
    let time = if activation.is_known_by_output() { inner.len() / 8 } else { inner.len() };
    let mut output = output.map(|output| output.chunks_mut(size));
    let items = inner.chunks_mut(size).enumerate().map(|(item, inner)| {
        let source = source.map(|source| &source[item * size..][..inner.len()]);
        (source, inner, output.as_mut().and_then(Iterator::next))
    });
    each(time, items, |(source, inner, output)| {
        activate_part(level, activation, width, bias, source, inner, output);
    });
}

kernel! {
    /// Does the work of [`activate_rows`] for some rows.
    fn activate_part<S>(
        _simd: S,
        activation: ActivationFunction,
        width: usize,
        bias: &[f32],
        source: Option<&[f32]>,
        inner: &mut [f32],
        output: Option<&mut [f32]>,
    ) {
        use ActivationFunction::{Gelu, GeluApproximate, Identity, Relu};
        match activation {
            Identity => rows(width, bias, source, inner, output, |x| function(Identity, x)),
            Relu => rows(width, bias, source, inner, output, |x| function(Relu, x)),
            Gelu => rows(width, bias, source, inner, output, |x| function(Gelu, x)),
            GeluApproximate => rows(width, bias, source, inner, output, |x| function(GeluApproximate, x)),
        }
    }
}

/// Does the work of [`activate_part`]. `function` returns the value and the slope of the activation at `x`.
#[inline(always)]
fn rows(
    width: usize,
    bias: &[f32],
    source: Option<&[f32]>,
    inner: &mut [f32],
    mut output: Option<&mut [f32]>,
    function: impl Fn(f32) -> [f32; 2],
) {
    for (row, inner) in inner.chunks_mut(width).enumerate() {
        let row = row * width..row * width + inner.len();
        if let Some(source) = source {
            inner.copy_from_slice(&source[row.clone()]);
        }
        for (inner, bias) in inner.iter_mut().zip(bias) {
            *inner += bias;
        }
        match &mut output {
            Some(output) => {
                output[row].iter_mut().zip(inner).for_each(|(y, x)| [*y, *x] = function(*x));
            }
            None => inner.iter_mut().for_each(|x| *x = function(*x)[0]),
        }
    }
}

kernel! {
    /// Backward of [`activate_rows`]: turns the gradient of the output into the gradient of the input.
    /// `activation` must not be the identity. The identity leaves gradients unchanged, so callers skip this
    /// function.
    pub(crate) fn apply_slopes<S>(
        _simd: S,
        activation: ActivationFunction,
        // What the forward pass stored: the slopes, or the outputs if they determine the slopes.
        known: &[f32],
        // Gradient of the output, which becomes the gradient of the input.
        gradient: &mut [f32],
    ) {
        let values = gradient.iter_mut().zip(known);
        if activation.is_known_by_output() {
            // This is not a product, because an infinite gradient times a slope of 0 would be NaN.
            values.for_each(|(gradient, output)| *gradient = if passes(*output) { *gradient } else { 0.0 });
        } else {
            values.for_each(|(gradient, slope)| *gradient *= slope);
        }
    }
}

/// Number of rows in a block. Each block is summed separately, and its sum is added to the total. This is
/// more accurate than one long chain of additions.
pub(crate) const ROWS: usize = 64;

kernel! {
    /// Writes the sum of each column of `rows` to `sums`.
    pub(crate) fn sum_rows<S>(_simd: S, rows: &[f32], sums: &mut [f32]) {
        sums.fill(0.0);
        for row in rows.chunks_exact(sums.len()) {
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
    }
}
