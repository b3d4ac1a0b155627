//! Kernels of a linear layer with few outputs: the outputs are the lanes of a
//! vector, so each input is read once for all of them.

use std::borrow::Cow;
use std::mem::MaybeUninit;

use crate::memory::uninit::Uninit;
use crate::simd::{Kernel, Lanes, MAX_LANES, load, store};

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
        let weights = Panel::new(simd, self.weights, outputs);
        let mut output = Uninit::new(batch * outputs);
        let values = output.values();
        for first in (0..weights.stride).step_by(2 * S::F32_LANES) {
            match (weights.stride - first > S::F32_LANES, S::F32_LANES) {
                (false, _) => self.columns::<S, 1, 8>(simd, &weights, first, values),
                (true, MAX_LANES) => self.columns::<S, 2, 8>(simd, &weights, first, values),
                // Sixteen registers: eight sums, two weights, an input.
                (true, _) => self.columns::<S, 2, 4>(simd, &weights, first, values),
            }
        }
        // SAFETY: `input` has `batch` rows, as was checked, and `output` as many; `columns` stored
        // the values of each group of columns, which together are all `outputs`.
        unsafe { output.assume_init() }
    }
}

impl Forward<'_> {
    /// The outputs of `N` vectors of columns from `first` on, for `ROWS` samples at a time.
    #[inline(always)]
    fn columns<S: Lanes, const N: usize, const ROWS: usize>(
        &self,
        simd: S,
        weights: &Panel<'_>,
        first: usize,
        output: &mut [MaybeUninit<f32>],
    ) {
        let Sizes { inputs, outputs, .. } = self.sizes;
        let last = outputs.min(first + N * S::F32_LANES);
        let mut bias = [simd.splat_f32s(0.0); N];
        for (bias, values) in bias.iter_mut().zip(self.bias[first..last].chunks(S::F32_LANES)) {
            *bias = simd.partial_load_f32s(values);
        }
        let mut rows = self.input.chunks_exact(inputs);
        let mut targets = output.chunks_exact_mut(outputs).map(|row| &mut row[first..last]);
        loop {
            let some: [Option<&[f32]>; ROWS] = std::array::from_fn(|_| rows.next());
            let Some(one) = some[0] else { break };
            // A partial last block repeats its first row.
            let block = some.map(|row| row.unwrap_or(one));
            let mut sums = [bias; ROWS];
            for (k, row) in weights.values.chunks_exact(weights.stride).enumerate() {
                let weights = vectors::<S, N>(simd, row, first);
                for (sums, row) in sums.iter_mut().zip(block) {
                    // SAFETY: a row is a chunk of `inputs` values, and `weights` has one row for each
                    // of the `inputs` rows of a matrix whose length was checked.
                    let x = simd.splat_f32s(unsafe { *row.get_unchecked(k) });
                    for (sum, weight) in sums.iter_mut().zip(weights) {
                        *sum = simd.fma(x, weight, *sum);
                    }
                }
            }
            for (sums, _) in sums.into_iter().zip(some.iter().flatten()) {
                if let Some(target) = targets.next() {
                    for (target, sum) in target.chunks_mut(S::F32_LANES).zip(sums) {
                        store(simd, target, sum);
                    }
                }
            }
        }
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
        let gradients = Panel::new(simd, self.gradient, outputs);
        let mut of_weights = Uninit::new(inputs * outputs);
        let mut of_bias = vec![0.0; outputs];
        for first in (0..gradients.stride).step_by(S::F32_LANES) {
            let mut sum = simd.splat_f32s(0.0);
            for row in gradients.values.chunks_exact(gradients.stride) {
                let [row] = vectors::<S, 1>(simd, row, first);
                sum = simd.add_f32s(sum, row);
            }
            simd.partial_store_f32s(&mut of_bias[first..outputs.min(first + S::F32_LANES)], sum);
        }
        let values = of_weights.values();
        for first in (0..gradients.stride).step_by(2 * S::F32_LANES) {
            match (inputs >= 8, gradients.stride - first > S::F32_LANES, S::F32_LANES) {
                (false, false, _) => self.weight_columns::<S, 1, 1>(simd, &gradients, first, values),
                (false, true, _) => self.weight_columns::<S, 2, 1>(simd, &gradients, first, values),
                (true, false, _) => self.weight_columns::<S, 1, 8>(simd, &gradients, first, values),
                (true, true, MAX_LANES) => self.weight_columns::<S, 2, 8>(simd, &gradients, first, values),
                (true, true, _) => self.weight_columns::<S, 2, 4>(simd, &gradients, first, values),
            }
        }
        // SAFETY: for each group of columns, `weight_columns` has stored the values of all inputs in
        // blocks that cover them, and the groups together are all `outputs`.
        let of_weights = unsafe { of_weights.assume_init() };
        // A match, because a closure may be compiled apart, without the SIMD level.
        let of_input = match self.of_input {
            true => Some(self.input_gradient(simd)),
            false => None,
        };
        (of_input, of_weights, of_bias)
    }
}

#[allow(clippy::needless_range_loop, reason = "the index names a register")]
impl Backward<'_> {
    /// The weights' gradients for `N` vectors of outputs from `first` on, `INPUTS` inputs at
    /// a time; there are at least `INPUTS` inputs.
    #[inline(always)]
    fn weight_columns<S: Lanes, const N: usize, const INPUTS: usize>(
        &self,
        simd: S,
        gradients: &Panel<'_>,
        first: usize,
        of_weights: &mut [MaybeUninit<f32>],
    ) {
        let Sizes { inputs, outputs, .. } = self.sizes;
        let last = outputs.min(first + N * S::F32_LANES);
        for from in (0..inputs).step_by(INPUTS) {
            // The last block overlaps the one before if `INPUTS` does not divide the inputs.
            let from = from.min(inputs - INPUTS);
            let mut sums = [[simd.splat_f32s(0.0); N]; INPUTS];
            let samples =
                self.input.chunks_exact(inputs).zip(gradients.values.chunks_exact(gradients.stride));
            for (row, gradient) in samples {
                let gradient = vectors::<S, N>(simd, gradient, first);
                let row: &[f32; INPUTS] = row[from..].first_chunk().expect("a block of inputs");
                for (sums, &x) in sums.iter_mut().zip(row) {
                    let x = simd.splat_f32s(x);
                    for (sum, gradient) in sums.iter_mut().zip(gradient) {
                        *sum = simd.fma(x, gradient, *sum);
                    }
                }
            }
            // By index, because an iterator over an array passes registers through memory twice.
            for i in 0..INPUTS {
                let target = &mut of_weights[(from + i) * outputs..][first..last];
                for n in 0..N {
                    let end = target.len().min((n + 1) * S::F32_LANES);
                    store(simd, &mut target[n * S::F32_LANES..end], sums[i][n]);
                }
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

/// A matrix of few columns whose rows are whole vectors.
struct Panel<'a> {
    values: Cow<'a, [f32]>,
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
            return Self { values: Cow::Borrowed(matrix), stride };
        }
        let mut padded = vec![0.0; matrix.len() / width * stride];
        for (target, row) in padded.chunks_exact_mut(stride).zip(matrix.chunks_exact(width)) {
            target[..width].copy_from_slice(row);
        }
        Self { values: Cow::Owned(padded), stride }
    }
}

/// The `N` vectors of `row` at `from`.
#[inline(always)]
fn vectors<S: Lanes, const N: usize>(simd: S, row: &[f32], from: usize) -> [S::f32s; N] {
    let mut vectors = [simd.splat_f32s(0.0); N];
    // A loop, because a closure for an array may be compiled apart, without the SIMD level.
    for (vector, values) in vectors.iter_mut().zip(row[from..][..N * S::F32_LANES].chunks_exact(S::F32_LANES))
    {
        *vector = load(simd, values);
    }
    vectors
}
