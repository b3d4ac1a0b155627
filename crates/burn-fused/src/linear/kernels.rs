//! Kernels of a linear layer with few outputs: the outputs are the lanes of a
//! vector, so each input is read once for all of them.

use std::borrow::Cow;

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;

use crate::memory::Buffer;
use crate::simd::{Lanes, MAX_LANES, Scalars, add_products, kernel, load, store};

/// Sizes of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Samples.
    pub batch: usize,
    /// Features of a sample.
    pub inputs: usize,
    /// Outputs of a sample.
    pub outputs: usize,
}

impl Sizes {
    /// Of inputs `[..., inputs]` and weights `[inputs, outputs]`; none if the weights are empty.
    pub fn of(x: &FlexTensor, weights: &FlexTensor) -> Option<Self> {
        let [inputs, outputs] = weights.shape().dims();
        let batch = x.shape().num_elements().checked_div(inputs)?;
        (outputs > 0).then_some(Self { batch, inputs, outputs })
    }

    /// The shape of the output for these inputs.
    pub fn output_shape(self, x: &FlexTensor) -> Vec<usize> {
        let mut shape = x.shape().to_vec();
        shape.pop();
        shape.push(self.outputs);
        shape
    }
}

kernel! {
    /// The outputs `[batch, outputs]`.
    pub(super) fn forward<S>(
        simd: S,
        sizes: Sizes,
        // `[batch, inputs]`.
        input: &[f32],
        // Weights `[inputs, outputs]`, and biases.
        parameters: [&[f32]; 2],
    ) -> Buffer {
        let Sizes { batch, inputs, outputs } = sizes;
        let [weights, bias] = parameters;
        let input = Scalars { values: input, first: 0, term_step: 1, row_step: inputs };
        Panel::new(simd, weights, outputs).multiply(simd, [batch, inputs], input, bias)
    }
}

kernel! {
    /// The gradients of input, weights and biases.
    pub(super) fn backward<S>(
        simd: S,
        sizes: Sizes,
        // `[batch, inputs]`.
        input: &[f32],
        // `[inputs, outputs]`.
        weights: &[f32],
        // Of the outputs, `[batch, outputs]`.
        gradient: &[f32],
        // Whether the input's gradient is requested.
        of_input: bool,
    ) -> (Option<Buffer>, Buffer, Vec<f32>) {
        let Sizes { batch, inputs, outputs } = sizes;
        let gradients = Panel::new(simd, gradient, outputs);
        let mut of_bias = vec![0.0; outputs];
        for (first, of_bias) in of_bias.chunks_mut(S::F32_LANES).enumerate() {
            let mut sum = simd.splat_f32s(0.0);
            for row in gradients.values.chunks_exact(gradients.stride) {
                sum = simd.add_f32s(sum, load(simd, &row[first * S::F32_LANES..][..S::F32_LANES]));
            }
            simd.partial_store_f32s(of_bias, sum);
        }
        let input = Scalars { values: input, first: 0, term_step: inputs, row_step: 1 };
        let of_weights = gradients.multiply(simd, [inputs, batch], input, &[]);
        let mut found = None;
        if of_input {
            let gradient = Scalars { values: gradient, first: 0, term_step: 1, row_step: outputs };
            let weights = Panel::transposed(simd, weights, outputs);
            found = Some(weights.multiply(simd, [batch, outputs], gradient, &[]));
        }
        (found, of_weights, of_bias)
    }
}

/// A matrix whose rows are whole vectors.
struct Panel<'a> {
    values: Cow<'a, [f32]>,
    /// Columns.
    width: usize,
    /// Length of a row, a multiple of the lanes.
    stride: usize,
}

impl<'a> Panel<'a> {
    /// `matrix`, of rows of `width`: itself if they are whole vectors, a copy padded with
    /// zeros otherwise.
    #[inline(always)]
    fn new<S: Lanes>(_simd: S, matrix: &'a [f32], width: usize) -> Self {
        let stride = width.next_multiple_of(S::F32_LANES);
        if stride == width {
            return Self { values: Cow::Borrowed(matrix), width, stride };
        }
        let mut padded = vec![0.0; matrix.len() / width * stride];
        for (target, row) in padded.chunks_exact_mut(stride).zip(matrix.chunks_exact(width)) {
            target[..width].copy_from_slice(row);
        }
        Self { values: Cow::Owned(padded), width, stride }
    }

    /// `matrix`, of rows of `height`, transposed.
    #[inline(always)]
    fn transposed<S: Lanes>(_simd: S, matrix: &[f32], height: usize) -> Self {
        let width = matrix.len() / height;
        let stride = width.next_multiple_of(S::F32_LANES);
        let mut values = vec![0.0; height * stride];
        for (column, row) in matrix.chunks_exact(height).enumerate() {
            for (target, &value) in values[column..].iter_mut().step_by(stride).zip(row) {
                *target = value;
            }
        }
        Self { values: Cow::Owned(values), width, stride }
    }

    /// The product of a matrix of scalars, of this many rows and columns, and the panel. Sums begin with
    /// `start`, one for each column, or with zeros if there are none.
    ///
    /// # Panics
    /// If there are fewer scalars, or rows of the panel than columns.
    #[inline(always)]
    fn multiply<S: Lanes>(
        &self,
        simd: S,
        [rows, terms]: [usize; 2],
        scalars: Scalars<'_>,
        start: &[f32],
    ) -> Buffer {
        let mut output = Buffer::new(rows * self.width);
        for first in (0..self.stride).step_by(2 * S::F32_LANES) {
            let factor = (rows, terms, scalars);
            // Sixteen registers: eight sums, two vectors, a scalar.
            match (self.stride - first > S::F32_LANES, rows, S::F32_LANES) {
                (false, 8.., _) => self.store::<S, 1, 8>(simd, first, factor, start, &mut output),
                (false, 4.., _) => self.store::<S, 1, 4>(simd, first, factor, start, &mut output),
                (false, ..) => self.store::<S, 1, 1>(simd, first, factor, start, &mut output),
                (true, 8.., MAX_LANES) => self.store::<S, 2, 8>(simd, first, factor, start, &mut output),
                (true, 4.., _) => self.store::<S, 2, 4>(simd, first, factor, start, &mut output),
                (true, ..) => self.store::<S, 2, 1>(simd, first, factor, start, &mut output),
            }
        }
        output
    }

    /// Stores the products of `N` vectors of columns from `first` on, for `R` rows at a time; there are at
    /// least `R` rows.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "the index names a register")]
    fn store<S: Lanes, const N: usize, const R: usize>(
        &self,
        simd: S,
        first: usize,
        (rows, terms, scalars): (usize, usize, Scalars<'_>),
        start: &[f32],
        output: &mut [f32],
    ) {
        let columns = first..self.width.min(first + N * S::F32_LANES);
        let vectors = (&self.values[first..], self.stride);
        let mut starts = [simd.splat_f32s(0.0); N];
        if !start.is_empty() {
            for (vector, values) in starts.iter_mut().zip(start[columns.clone()].chunks(S::F32_LANES)) {
                *vector = simd.partial_load_f32s(values);
            }
        }
        for row in (0..rows).step_by(R) {
            // The last block overlaps the one before if `R` does not divide the rows.
            let row = row.min(rows - R);
            let scalars = Scalars { first: row * scalars.row_step, ..scalars };
            let sums = add_products::<S, R, N>(simd, terms, scalars, vectors, [starts; R]);
            // By index, because an iterator over an array passes registers through memory twice.
            for r in 0..R {
                let target = &mut output[(row + r) * self.width..][columns.clone()];
                for n in 0..N {
                    let end = target.len().min((n + 1) * S::F32_LANES);
                    store(simd, &mut target[n * S::F32_LANES..end], sums[r][n]);
                }
            }
        }
    }
}
