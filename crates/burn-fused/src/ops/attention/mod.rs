//! Scaled dot-product attention as one operator: Vaswani et al., "Attention is all you need" (2017).
//!
//! The operator reads queries, keys and values in the layout that linear layers write,
//! `[batch, sequence, heads * width]`, and writes the context (the weighted sums of values) in this layout,
//! so nothing is transposed. The operator computes the scores of a few queries at a time, so that the scores
//! fit in the processor's cache. Of each softmax, forward saves only the maximum and the reciprocal of the
//! sum, from which backward computes the weights again (Dao et al., "FlashAttention", 2022). Memory therefore
//! grows with the length of a sequence, not with its square.
//!
//! The work is divided into parts and blocks. A part is some heads of one sample, and one thread computes it.
//! A block is some queries of one head. If masks hide a key from all queries of a block, as in a causal
//! model, the block leaves the key out, provided that the key's weight would be exactly 0.

mod backward;
mod forward;
mod masks;
mod softmax;
#[cfg(test)]
mod tests;

use std::ops::Range;

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::activation::{quiet_softmax, softmax};
use burn::tensor::{Bool, DType, Device, Tensor};

use self::masks::Masks;
use crate::kernels::attention::{Multiply, PANEL, View, all_finite};
use crate::kernels::dropout::DropoutMask;
use crate::kernels::simd::{Level, MAX_LANES};
use crate::ops::dropout::dropout;
use crate::ops::extension::{on_flex, unsupported_tensors};
use crate::runtime::memory::Buffer;

/// The options of attention, and its masks.
pub(crate) struct Attention {
    /// Number of heads of queries.
    pub heads: usize,
    /// Number of heads of keys and values. Each of them serves `heads / kv_heads` heads of queries.
    pub kv_heads: usize,
    /// Factor for the products of queries and keys.
    pub scale: f64,
    /// The score of a masked key.
    pub min_float: f64,
    /// Whether softmax adds 1 to its denominator.
    pub quiet_softmax: bool,
    /// Probability that dropout sets an attention weight to zero; 0 if dropout is inactive.
    pub dropout: f64,
    /// Each mask is `true` at the keys that it hides. Its shape is `[batch, queries, keys]`. The first or
    /// second size is 1 if the mask is the same for all samples or all queries.
    pub masks: Vec<Tensor<3, Bool>>,
}

impl Attention {
    /// Returns the context `[batch, queries, heads * width]`, and the weights `[batch, heads, queries, keys]`
    /// after dropout. The weights may be `None` if `wants_weights` is false.
    ///
    /// Queries have the shape of the context. Keys and values have the shape
    /// `[batch, keys, kv_heads * width]`.
    ///
    /// # Panics
    /// If the shapes of queries, keys, values and masks do not fit each other.
    pub fn run(&self, [q, k, v]: [Tensor<3>; 3], wants_weights: bool) -> (Tensor<3>, Option<Tensor<4>>) {
        let device = q.device();
        let factors = [q.clone(), k.clone()].map(Tensor::into_dispatch);
        let mut of_weights = None;
        let setup = |tensors: [&FlexTensor; 3]| self.setup(tensors, &device);
        let forward = |tensors, setup, _| {
            let (of_context, found) = forward::forward(tensors, setup, wants_weights);
            of_weights = found;
            of_context
        };
        match on_flex([q, k, v].map(Tensor::into_dispatch), setup, forward) {
            Ok(context) => {
                // The weights are the output of a second operator, which does no work in forward. Its
                // backward runs only if the program uses the weights.
                let weights = on_flex(factors, |_| of_weights, |_, of_weights, _| of_weights);
                (Tensor::from_dispatch(context), weights.ok().map(Tensor::from_dispatch))
            }
            Err(tensors) => {
                let tensors = unsupported_tensors("attention", tensors);
                let (context, weights) = self.composed(tensors.map(Tensor::from_dispatch));
                (context, Some(weights))
            }
        }
    }

    /// Returns the setup of the operator if it supports these queries, keys and values, and the masks.
    fn setup(&self, tensors: [&FlexTensor; 3], device: &Device) -> Option<Setup> {
        let sizes = Sizes::from_tensors(tensors, self.heads, self.kv_heads)?;
        let masks = Masks::from_tensors(&self.masks, &sizes)?;
        let (dropout, level) = (DropoutMask::draw(self.dropout, device), Level::current());
        let (scale, fill, quiet) = (self.scale as f32, self.min_float as f32, self.quiet_softmax);
        let split = if rayon::current_num_threads() > sizes.batch { sizes.kv_heads } else { 1 };
        Some(Setup { sizes, scale, fill, quiet, masks, dropout, level, split })
    }

    /// Computes context and weights with Burn's operators.
    fn composed(&self, [q, k, v]: [Tensor<3>; 3]) -> (Tensor<3>, Tensor<4>) {
        let [batch, queries, _] = q.dims();
        let heads = |x: Tensor<3>, heads: usize| {
            let [_, length, width] = x.dims();
            let width = width / heads;
            let x: Tensor<4> = x.reshape([batch, length, heads, width]).swap_dims(1, 2);
            if heads == self.heads {
                return x;
            }
            let times = self.heads / heads;
            x.reshape([batch, heads, 1, length, width])
                .expand([batch, heads, times, length, width])
                .reshape([batch, heads * times, length, width])
        };
        let (q, k, v) = (heads(q, self.heads), heads(k, self.kv_heads), heads(v, self.kv_heads));
        let mut scores = q.matmul(k.transpose()).mul_scalar(self.scale);
        for mask in &self.masks {
            scores = scores.mask_fill(mask.clone().unsqueeze_dim(1), self.min_float);
        }
        let weights = if self.quiet_softmax { quiet_softmax(scores, 3) } else { softmax(scores, 3) };
        let weights = dropout(weights, self.dropout);
        let context: Tensor<4> = weights.clone().matmul(v).swap_dims(1, 2);
        let width = self.heads * context.dims()[3];
        (context.reshape([batch, queries, width]), weights)
    }
}

/// Sizes of queries, keys and values.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    batch: usize,
    queries: usize,
    keys: usize,
    heads: usize,
    kv_heads: usize,
    /// Width of one head.
    width: usize,
}

impl Sizes {
    /// Reads the sizes. Returns `None` if a type is not f32, shapes do not fit each other, or a tensor is
    /// empty.
    fn from_tensors(tensors: [&FlexTensor; 3], heads: usize, kv_heads: usize) -> Option<Self> {
        let [[batch, queries, all], k, v] = tensors.map(|tensor| tensor.shape().dims::<3>());
        let (keys, width) = (k[1], all.checked_div(heads)?);
        let fits = k == v && k == [batch, keys, kv_heads * width] && all == heads * width;
        let fits = fits && kv_heads > 0 && heads.is_multiple_of(kv_heads);
        let f32s = tensors.iter().all(|tensor| tensor.dtype() == DType::F32);
        let all = batch * queries * keys * width;
        (fits && f32s && all > 0).then_some(Self { batch, queries, keys, heads, kv_heads, width })
    }

    /// Returns the approximate time of forward on one thread, in nanoseconds.
    fn time(&self) -> usize {
        // Two products and the exponentials.
        self.batch * self.heads * self.queries * self.keys * (2 * self.width + 64) / 64
    }

    /// Returns the number of values in a row of queries and in a row of keys.
    fn rows(&self) -> [usize; 2] {
        [self.heads * self.width, self.kv_heads * self.width]
    }

    /// Returns the index, among all weights, of the first weight of a row of the block.
    fn weight(&self, block: &Block, row: usize) -> usize {
        ((block.batch * self.heads + block.head) * self.queries + block.first + row) * self.keys
    }
}

/// A few consecutive queries of one head, and the range of keys to compute for them.
#[derive(Debug, Clone)]
struct Block {
    batch: usize,
    head: usize,
    first: usize,
    rows: usize,
    keys: Range<usize>,
}

impl Block {
    /// Returns the length of a row of scores: one score for each key, then -infinity up to a multiple of the
    /// widest vector.
    fn width(&self) -> usize {
        self.keys.len().next_multiple_of(MAX_LANES)
    }
}

#[derive(Debug, Clone)]
struct Setup {
    sizes: Sizes,
    scale: f32,
    /// The score of a masked key: [`Attention::min_float`].
    fill: f32,
    quiet: bool,
    masks: Masks,
    dropout: Option<DropoutMask>,
    level: Level,
    /// Number of parts into which the heads of each sample are divided for the threads.
    split: usize,
}

impl Setup {
    /// Returns the sample and the heads of part `n`.
    fn part(&self, n: usize) -> (usize, Range<usize>) {
        let heads = self.sizes.heads / self.split;
        let first = n % self.split * heads;
        (n / self.split, first..first + heads)
    }

    /// Joins parts `[batch, split, length, heads * width]` into rows of all heads,
    /// `[batch, length, split * heads * width]`.
    fn joined(&self, parts: Buffer, length: usize) -> Buffer {
        if self.split == 1 {
            return parts;
        }
        let mut joined = Buffer::new(parts.len());
        let width = parts.len() / (self.sizes.batch * self.split * length);
        for (at, row) in parts.chunks_exact(width).enumerate() {
            let (part, at) = (at / length, at % length);
            let (batch, part) = (part / self.split, part % self.split);
            joined[((batch * length + at) * self.split + part) * width..][..width].copy_from_slice(row);
        }
        joined
    }

    /// Divides the queries of a sample into blocks of at most `most` queries. The blocks have head 0; the
    /// caller sets their head. If `skips` is true, a block has only the range of keys that its queries see;
    /// if false, all keys.
    fn blocks(&self, batch: usize, most: usize, skips: bool) -> Vec<Block> {
        let Sizes { queries, keys, .. } = self.sizes;
        let block = |first| {
            let block = Block { batch, head: 0, first, rows: most.min(queries - first), keys: 0..keys };
            let keys = if skips { self.masks.seen(&block, self.level) } else { 0..keys };
            Block { keys, ..block }
        };
        (0..queries).step_by(most).map(block).collect()
    }

    /// Sets the masked scores of a row of the block to `fill`, and the scores after the last key to
    /// -infinity.
    #[inline(always)]
    fn mask(&self, block: &Block, row: usize, scores: &mut [f32]) {
        self.masks.fill(block, row, &mut scores[..block.keys.len()], self.fill);
        scores[block.keys.len()..].fill(f32::NEG_INFINITY);
    }

    /// Returns whether masked keys have a weight of exactly 0 in all rows with these statistics. The kernels'
    /// `exp` returns 0 below -87. If a score is NaN, all weights of its row are NaN. The maximum may then be
    /// finite, but the reciprocal is NaN.
    fn masked_are_zero(&self, stats: &[[f32; 2]]) -> bool {
        stats.iter().all(|[most, factor]| most.is_finite() && *most > self.fill + 88.0 && !factor.is_nan())
    }

    /// Returns whether blocks may leave out keys that are masked for all their queries and have weights of 0.
    /// Returns false without masks, and if a number in `values` is not finite: 0 times this number is NaN,
    /// which the output must show.
    fn skips(&self, values: &[&[f32]]) -> bool {
        !self.masks.is_empty() && all_finite(self.level, values)
    }

    /// Returns the length of a packed row of a head.
    fn packed_width(&self) -> usize {
        self.sizes.width.next_multiple_of(MAX_LANES)
    }

    /// Computes `scores = rows * panels` for the block's rows and keys. `panels` are packed keys; the first
    /// of them is the key `first`.
    fn multiply_panels(
        &self,
        block: &Block,
        rows: View<'_>,
        (panels, first): (&[f32], usize),
        scores: &mut [f32],
        step: usize,
    ) {
        let (width, panel) = (self.sizes.width, self.packed_width() * PANEL);
        let start = block.keys.start - first;
        let (mut from, end) = (start, start + block.width());
        while from < end {
            let to = end.min((from / PANEL + 1) * PANEL);
            self.level.run(Multiply {
                size: [block.rows, width],
                a: rows.from(block.first).scalars(),
                b: View { values: panels, first: from / PANEL * panel + from % PANEL, step: PANEL },
                target: &mut scores[from - start..],
                step,
                columns: to - from,
                adds: false,
            });
            from = to;
        }
    }

    /// Returns the distance between rows of scores: an odd multiple of the widest vector's length, so that
    /// the rows do not all fall into the same sets of a cache.
    fn step(keys: usize) -> usize {
        (keys.div_ceil(MAX_LANES) | 1) * MAX_LANES
    }

    /// Returns the matrix of head `head` of sample `batch` in values `[batch, sequence, heads * width]`.
    fn head<'a>(&self, values: &'a [f32], [batch, length, heads, head]: [usize; 4]) -> View<'a> {
        let (width, step) = (self.sizes.width, heads * self.sizes.width);
        View { values, first: batch * length * step + head * width, step }
    }
}
