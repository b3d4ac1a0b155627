//! Backward of attention, which computes the weights again.

use std::sync::Arc;

use burn::backend::flex::FlexTensor;
use rayon::prelude::*;

use super::kernels::{Multiply, SoftmaxBackward, View};
use super::{Setup, Sizes};
use crate::extension;
use crate::flex_tensor::values;
use crate::memory::Buffer;
use crate::poll;
use crate::simd::{MAX_LANES, Scalars};

/// Saved by forward for backward.
#[derive(Debug, Clone)]
pub struct Saved {
    pub setup: Arc<Setup>,
    pub q: FlexTensor,
    pub k: FlexTensor,
    /// Of the softmax of each row.
    pub stats: Arc<Vec<[f32; 2]>>,
}

/// For the gradient of the context.
#[derive(Debug, Clone)]
pub struct OfContext {
    pub saved: Saved,
    pub v: FlexTensor,
}

impl extension::Saved<3> for OfContext {
    fn backward(self, gradient: FlexTensor, of_q: bool) -> [Option<FlexTensor>; 3] {
        self.saved.backward(Some(&self.v), values(&gradient), of_q)
    }
}

/// For the gradient of the weights.
#[derive(Debug, Clone)]
pub struct OfWeights {
    pub saved: Saved,
}

impl extension::Saved<2> for OfWeights {
    fn backward(self, gradient: FlexTensor, of_q: bool) -> [Option<FlexTensor>; 2] {
        let [q, k, _] = self.saved.backward(None, values(&gradient), of_q);
        [q, k]
    }
}

impl Saved {
    /// The gradients of queries, keys and values from that of the context; without values, those of queries and
    /// keys from that of the weights.
    fn backward(&self, v: Option<&FlexTensor>, gradient: &[f32], of_q: bool) -> [Option<FlexTensor>; 3] {
        let (setup, stats) = (&*self.setup, &self.stats[..]);
        let Sizes { batch, queries, keys, heads, .. } = setup.sizes;
        let [q_width, kv_width] = setup.sizes.rows();
        let inputs = [values(&self.q), values(&self.k), v.map_or(&[], values)];
        let skips = setup.skips(&[inputs[1], inputs[2], gradient]);
        let buffer = |wanted, len| Buffer::new(if wanted { batch * len } else { 0 });
        let mut of_q = buffer(of_q, queries * q_width);
        let mut of_k = buffer(true, keys * kv_width);
        let mut of_v = buffer(v.is_some(), keys * kv_width);
        let mut qs = of_q.chunks_mut(queries * q_width);
        let mut vs = of_v.chunks_mut(keys * kv_width);
        let parts = of_k.chunks_mut(keys * kv_width).zip(stats.chunks(heads * queries)).enumerate();
        let parts = parts.map(|(batch, (of_k, stats))| {
            let outputs = [qs.next().unwrap_or_default(), of_k, vs.next().unwrap_or_default()];
            Part { setup, skips, batch, inputs, gradient, stats, outputs }
        });
        match rayon::current_num_threads() {
            1 => parts.for_each(|part| part.run(poll::current())),
            // The callback is for the thread of backward.
            _ => parts.collect::<Vec<_>>().into_par_iter().for_each(|part| part.run(|| ())),
        }
        let tensor = |buffer: Buffer, length, width| {
            (!buffer.is_empty()).then(|| buffer.into_tensor(&[batch, length, width]))
        };
        [tensor(of_q, queries, q_width), tensor(of_k, keys, kv_width), tensor(of_v, keys, kv_width)]
    }
}

/// One of the batch.
struct Part<'a> {
    setup: &'a Setup,
    /// Whether keys that are masked for all queries of a block can be left out.
    skips: bool,
    batch: usize,
    /// Queries, keys, and values or none.
    inputs: [&'a [f32]; 3],
    /// Of the context, or of the weights if there are no values.
    gradient: &'a [f32],
    /// `[heads, queries]`.
    stats: &'a [[f32; 2]],
    /// Gradients of the inputs, or empty: `[length, heads * width]`.
    outputs: [&'a mut [f32]; 3],
}

impl Part<'_> {
    fn run(self, poll: fn()) {
        let Self { setup, skips, batch, inputs: [q, k, v], gradient, stats, outputs } = self;
        let [of_q, of_k, of_v] = outputs;
        let Sizes { queries, keys, heads, kv_heads, width, .. } = setup.sizes;
        let [q_step, kv_step] = setup.sizes.rows();
        let [rows, step] = setup.scores();
        let mut scratch = [(); 2].map(|()| Buffer::new(rows * step));
        let [scores, of_scores] = &mut scratch;
        let mut packed = [(); 3].map(|()| Buffer::new(setup.panels()));
        let [k_panels, k_rows, v_panels] = &mut packed;
        let padded = width.next_multiple_of(MAX_LANES);
        let mut block_rows = [(); 2].map(|()| Buffer::new(rows * padded));
        for head in 0..heads {
            let (shared, kv_head) = (heads / kv_heads, head * kv_heads / heads);
            if head % shared == 0 {
                let k = setup.head(k, [batch, keys, kv_heads, kv_head]);
                setup.pack_transposed(k, setup.scale, k_panels);
                setup.pack(k, keys, k_rows);
                if !v.is_empty() {
                    setup.pack_transposed(View { values: v, ..k }, 1.0, v_panels);
                }
            }
            let k_rows = View { values: k_rows, first: 0, step: padded };
            let q = setup.head(q, [batch, queries, heads, head]);
            for mut block in setup.blocks(batch, head) {
                let stats = &stats[head * queries + block.first..][..block.rows];
                if skips && setup.masked_are_zero(stats) {
                    block.keys = setup.masks.seen(&block, keys);
                }
                let (count, seen) = (block.rows, block.keys.len());
                setup.multiply_panels(&block, q, k_panels, scores, step);
                if v.is_empty() {
                    for (row, target) in of_scores.chunks_mut(step).enumerate().take(count) {
                        let (target, rest) = target[..block.width()].split_at_mut(seen);
                        let at = setup.sizes.weight(&block, row) + block.keys.start;
                        target.copy_from_slice(&gradient[at..][..seen]);
                        rest.fill(0.0);
                    }
                } else {
                    setup.multiply_panels(&block, View { values: gradient, ..q }, v_panels, of_scores, step);
                }
                let gradient_rows = View { values: gradient, ..q };
                let (block, rows) = (&block, &mut block_rows);
                setup.level.run(SoftmaxBackward { setup, block, scores, gradient: of_scores, step, stats });
                if !of_q.is_empty() {
                    setup.level.run(Multiply {
                        size: [count, seen],
                        a: Scalars { values: of_scores, first: 0, term_step: 1, row_step: step },
                        b: k_rows.from(block.keys.start),
                        target: &mut of_q[block.first * q_step + head * width..],
                        step: q_step,
                        columns: width,
                        adds: false,
                    });
                }
                let adds = head % shared > 0 || block.first > 0;
                let add = |weights: &[f32], matrix: View<'_>, packed: &mut [f32], target: &mut [f32]| {
                    setup.pack(matrix.from(block.first), count, packed);
                    let target = &mut target[kv_head * width..];
                    if !adds {
                        for key in (0..block.keys.start).chain(block.keys.end..keys) {
                            target[key * kv_step..][..width].fill(0.0);
                        }
                    }
                    setup.level.run(Multiply {
                        size: [seen, count],
                        a: Scalars { values: weights, first: 0, term_step: step, row_step: 1 },
                        b: View { values: packed, first: 0, step: padded },
                        target: &mut target[block.keys.start * kv_step..],
                        step: kv_step,
                        columns: width,
                        adds,
                    });
                };
                add(of_scores, q, &mut rows[0], of_k);
                if !v.is_empty() {
                    add(scores, gradient_rows, &mut rows[1], of_v);
                }
            }
            poll();
        }
    }
}
