//! Scaled dot-product attention as one operator: Vaswani et al., "Attention is all you need" (2017).
//!
//! Queries, keys and values are read as linear layers write them, `[batch, sequence, heads * width]`, and the
//! context is written as the next one reads it. The scores of a few queries at a time are in cache, and only
//! the maximum and the sum of each softmax are saved: backward computes the weights again (Dao et al.,
//! "FlashAttention", 2022), so memory grows with the length of a sequence and not with its square.

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

/// What attention computes, beside its tensors.
pub(crate) struct Attention {
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values, each for as many heads of queries.
    pub kv_heads: usize,
    /// Factor of the products of queries and keys.
    pub scale: f64,
    /// The score of a masked key.
    pub min_float: f64,
    /// Whether softmax has another term of 1 in its denominator.
    pub quiet_softmax: bool,
    /// Probability of a weight to be set to zero; 0 where dropout is inactive.
    pub dropout: f64,
    /// `true` where a key is masked: `[batch, queries, keys]`, or 1 for an axis on which it does not depend.
    pub masks: Vec<Tensor<3, Bool>>,
}

impl Attention {
    /// The context `[batch, queries, heads * width]` of queries of the same shape, and keys and values
    /// `[batch, keys, kv_heads * width]`; and the weights `[batch, heads, queries, keys]` after dropout, if they are
    /// wanted.
    ///
    /// # Panics
    /// If shapes do not fit.
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
                // An operator of their own, without work in forward: its backward runs only if they are used.
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

    /// What the operator needs, if it supports these queries, keys and values, and the masks.
    fn setup(&self, tensors: [&FlexTensor; 3], device: &Device) -> Option<Setup> {
        let sizes = Sizes::from_tensors(tensors, self.heads, self.kv_heads)?;
        let masks = Masks::from_tensors(&self.masks, &sizes)?;
        let (dropout, level) = (DropoutMask::draw(self.dropout, device), Level::current());
        let (scale, fill, quiet) = (self.scale as f32, self.min_float as f32, self.quiet_softmax);
        let split = if rayon::current_num_threads() > sizes.batch { sizes.kv_heads } else { 1 };
        Some(Setup { sizes, scale, fill, quiet, masks, dropout, level, split })
    }

    /// Context and weights, composed of Burn's operators.
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

/// Sizes of the operator.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    batch: usize,
    queries: usize,
    keys: usize,
    heads: usize,
    kv_heads: usize,
    /// Of a head.
    width: usize,
}

impl Sizes {
    /// None if a type is not f32, shapes do not fit each other, or something is empty.
    fn from_tensors(tensors: [&FlexTensor; 3], heads: usize, kv_heads: usize) -> Option<Self> {
        let [[batch, queries, all], k, v] = tensors.map(|tensor| tensor.shape().dims::<3>());
        let (keys, width) = (k[1], all.checked_div(heads)?);
        let fits = k == v && k == [batch, keys, kv_heads * width] && all == heads * width;
        let fits = fits && kv_heads > 0 && heads.is_multiple_of(kv_heads);
        let f32s = tensors.iter().all(|tensor| tensor.dtype() == DType::F32);
        let all = batch * queries * keys * width;
        (fits && f32s && all > 0).then_some(Self { batch, queries, keys, heads, kv_heads, width })
    }

    /// Values of a row of queries, and of keys.
    fn rows(&self) -> [usize; 2] {
        [self.heads * self.width, self.kv_heads * self.width]
    }

    /// Index of the first weight of a row of the block among all weights.
    fn weight(&self, block: &Block, row: usize) -> usize {
        ((block.batch * self.heads + block.head) * self.queries + block.first + row) * self.keys
    }
}

/// A few queries of a head, and the keys that they may see.
#[derive(Debug, Clone)]
struct Block {
    batch: usize,
    head: usize,
    first: usize,
    rows: usize,
    keys: Range<usize>,
}

impl Block {
    /// Values of a row of scores: those of the keys, and -infinity up to a multiple of the widest vector.
    fn width(&self) -> usize {
        self.keys.len().next_multiple_of(MAX_LANES)
    }
}

#[derive(Debug, Clone)]
struct Setup {
    sizes: Sizes,
    scale: f32,
    /// The score of a masked key.
    fill: f32,
    quiet: bool,
    masks: Masks,
    dropout: Option<DropoutMask>,
    level: Level,
    /// Parts of each of the batch, by heads, for threads.
    split: usize,
}

impl Setup {
    /// The place in the batch, and the heads, of a part.
    fn part(&self, n: usize) -> (usize, Range<usize>) {
        let heads = self.sizes.heads / self.split;
        let first = n % self.split * heads;
        (n / self.split, first..first + heads)
    }

    /// The rows of all heads, of parts `[batch, split, length, heads * width]`.
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

    /// Blocks of `most` queries of the first head of a batch, with the keys that they see if `skips`.
    fn blocks(&self, batch: usize, most: usize, skips: bool) -> Vec<Block> {
        let Sizes { queries, keys, .. } = self.sizes;
        let block = |first| {
            let block = Block { batch, head: 0, first, rows: most.min(queries - first), keys: 0..keys };
            let keys = if skips { self.masks.seen(&block, self.level) } else { 0..keys };
            Block { keys, ..block }
        };
        (0..queries).step_by(most).map(block).collect()
    }

    /// Sets masked scores of a row of the block, and those after the last key.
    #[inline(always)]
    fn mask(&self, block: &Block, row: usize, scores: &mut [f32]) {
        self.masks.fill(block, row, &mut scores[..block.keys.len()], self.fill);
        scores[block.keys.len()..].fill(f32::NEG_INFINITY);
    }

    /// Whether a masked key has a weight of exactly 0 in all rows with these statistics.
    fn masked_are_zero(&self, stats: &[[f32; 2]]) -> bool {
        stats.iter().all(|[most, _]| most.is_finite() && *most > self.fill + 88.0)
    }

    /// Whether keys that are masked for all queries of a block can be left out where their weights are 0: if not
    /// all values are finite, 0 times them may be NaN.
    fn skips(&self, values: &[&[f32]]) -> bool {
        !self.masks.is_empty() && values.iter().all(|values| all_finite(self.level, values))
    }

    /// Values of a row of a head when packed.
    fn packed_width(&self) -> usize {
        self.sizes.width.next_multiple_of(MAX_LANES)
    }

    /// `scores = rows panels`, of the block's rows and keys; the panels begin with the key `first`.
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

    /// Distance of rows of scores: an odd number of the widest vectors, so that not all rows are in the same sets
    /// of a cache.
    fn step(keys: usize) -> usize {
        (keys.div_ceil(MAX_LANES) | 1) * MAX_LANES
    }

    /// The matrix of a head in values `[batch, sequence, heads * width]`.
    fn head<'a>(&self, values: &'a [f32], [batch, length, heads, head]: [usize; 4]) -> View<'a> {
        let (width, step) = (self.sizes.width, heads * self.sizes.width);
        View { values, first: batch * length * step + head * width, step }
    }
}
