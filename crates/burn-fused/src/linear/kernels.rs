//! Kernels of a linear layer with few outputs: the outputs are the lanes of a
//! vector, so each input is read once for all of them.

use std::mem::MaybeUninit;

use crate::memory::uninit::Uninit;
use crate::simd::{Kernel, Lanes, load, store};

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

/// The outputs `[batch, outputs]`.
pub(super) struct Forward<'a> {
    pub sizes: Sizes,
    /// `[batch, inputs]`.
    pub input: &'a [f32],
    /// `[inputs, outputs]`.
    pub weights: &'a [f32],
    /// One for each output.
    pub bias: &'a [f32],
}

impl Kernel for Forward<'_> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) -> Vec<f32> {
        let Sizes { batch, inputs, outputs } = self.sizes;
        assert_eq!(
            (self.input.len(), self.weights.len(), self.bias.len()),
            (batch * inputs, inputs * outputs, outputs),
            "lengths of {:?}",
            self.sizes
        );
        let mut output = Uninit::new(batch * outputs);
        for first in (0..outputs).step_by(S::F32_LANES) {
            let count = S::F32_LANES.min(outputs - first);
            let weights = columns(simd, self.weights, outputs, first, count);
            let bias = simd.partial_load_f32s(&self.bias[first..][..count]);
            let mut rows = self.input.chunks_exact(inputs);
            let mut targets = output.values().chunks_exact_mut(outputs).map(|row| &mut row[first..][..count]);
            loop {
                let eight: [Option<&[f32]>; 8] = std::array::from_fn(|_| rows.next());
                let Some(some) = eight[0] else { break };
                // A partial last block repeats its first row.
                let block = eight.map(|row| row.unwrap_or(some));
                let mut sums = [bias; 8];
                for (k, &weight) in weights.iter().enumerate() {
                    for (sum, row) in sums.iter_mut().zip(block) {
                        // SAFETY: a row is a chunk of `inputs` values, and `weights` has one vector
                        // for each of the `inputs` rows of a matrix whose length was checked.
                        let x = simd.splat_f32s(unsafe { *row.get_unchecked(k) });
                        *sum = simd.fma(x, weight, *sum);
                    }
                }
                for (sum, _) in sums.into_iter().zip(eight.iter().flatten()) {
                    if let Some(target) = targets.next() {
                        store(simd, target, sum);
                    }
                }
            }
        }
        // SAFETY: `input` has `batch` rows, as was checked, and `output` as many; of each, the values
        // of all groups of columns were stored, which together are all `outputs`.
        unsafe { output.assume_init() }
    }
}

/// The gradients of input, weights and biases.
pub(super) struct Backward<'a> {
    pub sizes: Sizes,
    /// `[batch, inputs]`.
    pub input: &'a [f32],
    /// `[inputs, outputs]`.
    pub weights: &'a [f32],
    /// Of the outputs, `[batch, outputs]`.
    pub gradient: &'a [f32],
    /// Whether the input's gradient is requested.
    pub of_input: bool,
}

impl Kernel for Backward<'_> {
    type Output = (Option<Vec<f32>>, Vec<f32>, Vec<f32>);

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) -> Self::Output {
        let Sizes { batch, inputs, outputs } = self.sizes;
        assert_eq!(
            (self.input.len(), self.weights.len(), self.gradient.len()),
            (batch * inputs, inputs * outputs, batch * outputs),
            "lengths of {:?}",
            self.sizes
        );
        let mut of_weights = Uninit::new(inputs * outputs);
        let mut of_bias = vec![0.0; outputs];
        for first in (0..outputs).step_by(S::F32_LANES) {
            let count = S::F32_LANES.min(outputs - first);
            let gradients = columns(simd, self.gradient, outputs, first, count);
            let sum = gradients.iter().fold(simd.splat_f32s(0.0), |sum, &g| simd.add_f32s(sum, g));
            simd.partial_store_f32s(&mut of_bias[first..][..count], sum);
            match inputs >= 8 {
                true => self.weight_columns::<S, 8>(simd, &gradients, first, of_weights.values()),
                false => self.weight_columns::<S, 1>(simd, &gradients, first, of_weights.values()),
            }
        }
        // SAFETY: for each group of columns, `weight_columns` has stored the values of all inputs in
        // blocks that cover them, and the groups together are all `outputs`.
        let of_weights = unsafe { of_weights.assume_init() };
        (self.of_input.then(|| self.input_gradient(simd)), of_weights, of_bias)
    }
}

#[allow(clippy::needless_range_loop, reason = "the index names a register")]
impl Backward<'_> {
    /// The weights' gradients for the outputs from `first` on, `N` inputs at a
    /// time; there are at least `N` inputs.
    #[inline(always)]
    fn weight_columns<S: Lanes, const N: usize>(
        &self,
        simd: S,
        gradients: &[S::f32s],
        first: usize,
        of_weights: &mut [MaybeUninit<f32>],
    ) {
        let Sizes { inputs, outputs, .. } = self.sizes;
        let count = S::F32_LANES.min(outputs - first);
        for from in (0..inputs).step_by(N) {
            // The last block overlaps the one before if `N` does not divide the inputs.
            let from = from.min(inputs - N);
            let mut sums = [simd.splat_f32s(0.0); N];
            for (row, &gradient) in self.input.chunks_exact(inputs).zip(gradients) {
                let row = &row[from..from + N];
                for n in 0..N {
                    sums[n] = simd.fma(simd.splat_f32s(row[n]), gradient, sums[n]);
                }
            }
            for (n, &sum) in sums.iter().enumerate() {
                store(simd, &mut of_weights[(from + n) * outputs + first..][..count], sum);
            }
        }
    }

    #[inline(always)]
    fn input_gradient<S: Lanes>(&self, simd: S) -> Vec<f32> {
        let Sizes { batch, inputs, outputs } = self.sizes;
        let blocks = inputs.div_ceil(4 * S::F32_LANES);
        // The weights of each output as a row, padded to a multiple of four vectors.
        let mut transposed = vec![0.0; outputs * blocks * 4 * S::F32_LANES];
        for (input, weights) in self.weights.chunks_exact(outputs).enumerate() {
            for (output, &weight) in weights.iter().enumerate() {
                transposed[output * blocks * 4 * S::F32_LANES + input] = weight;
            }
        }
        let mut of_input = Uninit::new(batch * inputs);
        let rows = self.gradient.chunks_exact(outputs).zip(of_input.values().chunks_exact_mut(inputs));
        for (gradient, target) in rows {
            for (block, target) in target.chunks_mut(4 * S::F32_LANES).enumerate() {
                let mut sums = [simd.splat_f32s(0.0); 4];
                for (output, &g) in gradient.iter().enumerate() {
                    let g = simd.splat_f32s(g);
                    let weights =
                        &transposed[(output * blocks + block) * 4 * S::F32_LANES..][..4 * S::F32_LANES];
                    for n in 0..4 {
                        let weights = &weights[n * S::F32_LANES..][..S::F32_LANES];
                        let weights = bytemuck::pod_read_unaligned(bytemuck::cast_slice(weights));
                        sums[n] = simd.fma(g, weights, sums[n]);
                    }
                }
                for (target, sum) in target.chunks_mut(S::F32_LANES).zip(sums) {
                    store(simd, target, sum);
                }
            }
        }
        // SAFETY: `gradient` has `batch` rows, as was checked, so that all rows of `of_input` were
        // visited; each was stored in chunks, the last of which may be short.
        unsafe { of_input.assume_init() }
    }
}

/// `count` columns from `first` on of a matrix with rows of `width`, one vector for
/// each row.
#[inline(always)]
fn columns<S: Lanes>(simd: S, matrix: &[f32], width: usize, first: usize, count: usize) -> Vec<S::f32s> {
    let mut vectors = Vec::with_capacity(matrix.len() / width);
    // A loop, because a closure for an iterator may be compiled apart, without the SIMD level.
    for row in matrix.chunks_exact(width) {
        vectors.push(load(simd, &row[first..][..count]));
    }
    vectors
}
