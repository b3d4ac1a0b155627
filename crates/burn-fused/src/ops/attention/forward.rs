//! Forward of attention: scores, softmax and context (the weighted sums of values), for a few queries at a
//! time.

use std::ops::Range;
use std::sync::Arc;

use burn::backend::flex::FlexTensor;

use super::backward::State;
use super::softmax::softmax;
use super::{Block, Setup, Sizes};
use crate::kernels::attention::{Multiply, PANEL, View, pack, pack_transposed};
use crate::kernels::simd::Scalars;
use crate::ops::extension::{Backward, Saved};
use crate::ops::flex_tensor::{contiguous, values};
use crate::runtime::memory::Buffer;
use crate::runtime::threads::each;

/// Returns the context, and the softmax weights if `weights` is set, each with its backward.
pub fn forward(
    tensors: [FlexTensor; 3],
    setup: Setup,
    weights: bool,
) -> ((FlexTensor, Backward<impl Saved, 3>), Option<(FlexTensor, Backward<impl Saved, 2>)>) {
    let tensors = tensors.map(contiguous);
    let Sizes { batch, queries, keys, heads, .. } = setup.sizes;
    let width = setup.sizes.rows()[0];
    let mut context = Buffer::new(batch * queries * width);
    let mut all_weights = Buffer::new(if weights { batch * heads * queries * keys } else { 0 });
    let mut stats = vec![[0.0; 2]; batch * heads * queries];
    let skips = setup.skips(&[values(&tensors[1]), values(&tensors[2])]);
    let inputs = tensors.each_ref().map(values);
    let part_heads = heads / setup.split;
    let mut of_weights = all_weights.chunks_mut(part_heads * queries * keys);
    let part_stats = stats.chunks_mut(part_heads * queries);
    let parts = context.chunks_mut(queries * width / setup.split).zip(part_stats);
    let parts = parts.enumerate().map(|(n, (context, stats))| {
        let (batch, heads) = setup.part(n);
        let weights = of_weights.next().unwrap_or_default();
        Part { setup: &setup, skips, batch, heads, inputs, context, stats, weights }
    });
    each(setup.sizes.time(), parts, Part::run);
    let [q, k, v] = tensors;
    let context = setup.joined(context, queries).into_tensor(&[batch, queries, width]);
    let saved = State { setup: Arc::new(setup), q, k, stats: Arc::new(stats), output: context.clone() };
    let of_weights = weights.then(|| {
        let weights = all_weights.into_tensor(&[batch, heads, queries, keys]);
        let saved = State { output: weights.clone(), ..saved.clone() };
        let backward = Backward::new(move |gradient, of_q| {
            let [q, k, _] = saved.backward(None, &gradient, of_q);
            [q, k]
        });
        (weights, backward)
    });
    let backward = Backward::new(move |gradient, of_q| saved.backward(Some(&v), &gradient, of_q));
    ((context, backward), of_weights)
}

/// Some heads of one sample: the work of one task.
struct Part<'a> {
    setup: &'a Setup,
    /// Whether keys that are masked for all queries of a block can be left out.
    skips: bool,
    batch: usize,
    heads: Range<usize>,
    inputs: [&'a [f32]; 3],
    /// Receives the context, `[queries, heads * width]`.
    context: &'a mut [f32],
    /// Receives the statistics for backward, `[heads, queries]`.
    stats: &'a mut [[f32; 2]],
    /// Receives the weights, `[heads, queries, keys]`; empty if they are not requested.
    weights: &'a mut [f32],
}

/// Maximum number of scores of a block: 256 KiB of f32. A block of 8 or fewer queries may have more scores.
const SCORES: usize = 1 << 16;

impl Part<'_> {
    fn run(self) {
        let Self { setup, skips, batch, heads, inputs: [q, k, v], context, stats, weights } = self;
        let Sizes { queries, keys, kv_heads, width, .. } = setup.sizes;
        let shared = setup.sizes.heads / kv_heads;
        let blocks = setup.blocks(batch, (SCORES / keys).clamp(8, 32), skips);
        let (step, padded) = (Setup::step(keys), setup.packed_width());
        let mut scores = Buffer::new(blocks[0].rows * step);
        let mut k_panels = Buffer::new(keys.next_multiple_of(PANEL) * padded);
        let mut v_rows = Buffer::new(keys * padded);
        for (at, head) in heads.clone().enumerate() {
            if head % shared == 0 {
                let [k, v] = [k, v].map(|values| setup.head(values, [batch, keys, kv_heads, head / shared]));
                pack_transposed(setup.level, k, keys, width, setup.scale, &mut k_panels);
                pack(setup.level, v, keys, width, &mut v_rows);
            }
            let q = setup.head(q, [batch, queries, setup.sizes.heads, head]);
            for block in &blocks {
                let mut block = Block { head, ..block.clone() };
                let row = at * queries + block.first;
                let stats = &mut stats[row..][..block.rows];
                let weights = if weights.is_empty() {
                    &mut []
                } else {
                    &mut weights[row * keys..][..block.rows * keys]
                };
                // The first pass leaves out keys that no query of the block sees. If the statistics do not
                // prove that these keys have weights of 0, a second pass computes the scores of all keys.
                loop {
                    setup.multiply_panels(&block, q, (&k_panels, 0), &mut scores, step);
                    let (scores, weights) = (&mut scores[..], &mut *weights);
                    softmax(setup.level, setup, &block, scores, step, stats, weights);
                    if block.keys == (0..keys) || setup.masked_are_zero(stats) {
                        break;
                    }
                    block.keys = 0..keys;
                }
                setup.level.run(Multiply {
                    size: [block.rows, block.keys.len()],
                    a: Scalars { values: &scores, first: 0, term_step: 1, row_step: step },
                    b: View { values: &v_rows, first: block.keys.start * padded, step: padded },
                    target: &mut context[(block.first * heads.len() + at) * width..],
                    step: heads.len() * width,
                    columns: width,
                    adds: false,
                });
            }
        }
    }
}
