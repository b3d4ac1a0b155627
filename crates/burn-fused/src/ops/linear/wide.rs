//! A linear layer in f32 with its activation.
//!
//! Forward computes one matrix product, then bias and activation in one pass. Backward multiplies the
//! gradient by the activation's slopes and, in the same pass, sums its rows into the gradient of the bias.
//! Then it computes two matrix products.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::DType;

use super::Sizes;
use crate::kernels::activation::{ActivationFunction, ROWS, activate_rows, apply_slopes, sum_rows};
use crate::kernels::half::MatmulPrecision;
use crate::kernels::matrix::Matrix;
use crate::kernels::simd::Level;
use crate::ops::extension::{Backward, Saved};
use crate::ops::flex_tensor::{contiguous, unshared, values};
use crate::runtime::memory::Buffer;
use crate::runtime::poll::Poll;
use crate::runtime::threads::each;

/// Returns the sizes of the operator if all tensors are f32 and the weights are not empty.
pub fn sizes_of(tensors: [&FlexTensor; 3]) -> Option<Sizes> {
    let f32s = tensors.iter().all(|tensor| tensor.dtype() == DType::F32);
    f32s.then(|| Sizes::from_tensors(tensors[0], tensors[1]))?
}

/// Returns the output after the activation, and its backward. The tensors are inputs, weights and biases.
pub fn forward(
    [x, weights, bias]: [FlexTensor; 3],
    sizes: Sizes,
    (activation, precision): (ActivationFunction, MatmulPrecision),
    backward: bool,
) -> (FlexTensor, Backward<impl Saved, 3>) {
    let (x, weights, bias, level) = (contiguous(x), as_stored(weights), contiguous(bias), Level::current());
    let Sizes { batch, inputs, outputs } = sizes;
    let mut inner = Buffer::new(batch * outputs);
    precision.multiply(level, Matrix::new(values(&x), [batch, inputs]), matrix(&weights), &mut inner);
    let separate = backward && !activation.is_known_by_output();
    let mut output = separate.then(|| Buffer::new(inner.len()));
    let target = output.as_deref_mut();
    activate_rows(level, activation, outputs, values(&bias), None, &mut inner, target);
    // From now on, `inner` is what backward needs to apply the activation's slopes: the outputs of ReLU, or
    // the slopes of GELU. It is `None` without backward, and for the identity.
    let (output, inner) = match output {
        Some(output) => {
            (output.into_tensor(&sizes.output_shape(&x)), Some(inner.into_tensor(&[batch, outputs])))
        }
        None => {
            let output = inner.into_tensor(&sizes.output_shape(&x));
            let known = (backward && activation != ActivationFunction::Identity).then(|| output.clone());
            (output, known)
        }
    };
    let has_bias = !values(&bias).is_empty();
    let backward = Backward::new(move |gradient, of_input| {
        let poll = Poll::current();
        let mut of_bias = Buffer::zeroed(if has_bias { outputs } else { 0 });
        let gradient = before_activation(level, activation, gradient, inner, &mut of_bias, outputs);
        poll.call();
        let g = values(&gradient);
        let g = Matrix::new(g, [batch, outputs]);
        let mut of_weights = Buffer::new(inputs * outputs);
        precision.multiply(level, Matrix::new(values(&x), [batch, inputs]).transpose(), g, &mut of_weights);
        poll.call();
        let of_x = of_input.then(|| {
            let mut of_x = Buffer::new(batch * inputs);
            precision.multiply(level, g, matrix(&weights).transpose(), &mut of_x);
            poll.call();
            of_x.into_tensor(&x.shape())
        });
        let of_bias = has_bias.then(|| of_bias.into_tensor(&[outputs]));
        [of_x, Some(of_weights.into_tensor(&[inputs, outputs])), of_bias]
    });
    (output, backward)
}

/// Returns the gradient of the activation's input, and adds the sum of its rows to `of_bias`, which may be
/// empty. `known` has the outputs of ReLU or the slopes of GELU; `None` stands for the identity.
fn before_activation(
    level: Level,
    activation: ActivationFunction,
    gradient: FlexTensor,
    known: Option<FlexTensor>,
    of_bias: &mut [f32],
    outputs: usize,
) -> FlexTensor {
    let (poll, part, len) = (Poll::current(), ROWS * outputs, values(&gradient).len());
    let mut sums = Buffer::new(len.div_ceil(part) * of_bias.len());
    let mut of_parts = sums.chunks_mut(outputs);
    let mut of_part = || of_parts.next().unwrap_or_default();
    let sum = |gradient: &[f32], sums: &mut [f32]| {
        if !sums.is_empty() {
            sum_rows(level, gradient, sums);
        }
        poll.call();
    };
    let gradient = match known {
        Some(known) => {
            let mut gradient = unshared(gradient);
            let parts = values(&known).chunks(part).zip(gradient.storage_mut().chunks_mut(part));
            each(len / 8, parts.map(|parts| (parts, of_part())), |((known, gradient), sums)| {
                apply_slopes(level, activation, known, gradient);
                sum(gradient, sums);
            });
            gradient
        }
        None => {
            let parts = values(&gradient).chunks(part).map(|gradient| (gradient, of_part()));
            each(len / 16, parts, |(gradient, sums)| sum(gradient, sums));
            gradient
        }
    };
    for sums in sums.chunks_exact(outputs) {
        of_bias.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
    }
    gradient
}

/// Returns weights that fill their buffer by row or by column unchanged. Other views are copied.
fn as_stored(weights: FlexTensor) -> FlexTensor {
    let (layout, length) = (weights.layout(), weights.layout().num_elements() * size_of::<f32>());
    let by_column = *layout.strides() == [1, weights.shape()[0] as isize];
    if by_column && layout.start_offset() == 0 && weights.bytes().len() == length {
        weights
    } else {
        contiguous(weights)
    }
}

/// Returns the matrix of weights that are [stored by row or by column](as_stored).
fn matrix(weights: &FlexTensor) -> Matrix<'_> {
    let [rows, columns] = weights.shape().dims();
    if weights.is_contiguous() {
        Matrix::new(values(weights), [rows, columns])
    } else {
        Matrix::new(weights.storage(), [columns, rows]).transpose()
    }
}
