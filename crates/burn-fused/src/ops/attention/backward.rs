//! Backward of attention. It computes the attention weights again, from the softmax statistics that forward
//! saved.
//!
//! The outer loop is over blocks of keys, which are packed once for all heads and queries that use them. The
//! inner loop is over blocks of queries. For each pair of blocks, the inner loop computes the weights and the
//! gradients of the scores. It then adds three products:
//!
//! - to the gradients of queries: gradients of scores times keys;
//! - to the gradients of keys: gradients of scores times queries;
//! - to the gradients of values: weights times gradients of the context (the weighted sums of values).
//!
//! The gradient of a score is `weight * (gradient of the weight - mean)`. `mean` is the sum, over the row, of
//! each weight times its gradient.

use std::ops::Range;
use std::sync::Arc;

use burn::backend::flex::FlexTensor;

use super::softmax::SoftmaxBackward;
use super::{Block, Setup, Sizes};
use crate::kernels::attention::{Multiply, PANEL, View, pack, pack_transposed, row_products};
use crate::kernels::simd::Scalars;
use crate::ops::flex_tensor::values;
use crate::runtime::memory::Buffer;
use crate::runtime::poll::Poll;
use crate::runtime::threads::each;

/// What forward saves for backward.
#[derive(Debug, Clone)]
pub struct State {
    pub setup: Arc<Setup>,
    pub q: FlexTensor,
    pub k: FlexTensor,
    /// For each row of scores (a query of a head): the maximum score, and the reciprocal of softmax's
    /// denominator.
    pub stats: Arc<Vec<[f32; 2]>>,
    /// The output of the operator: the context (the weighted sums of values), or the weights if this is the
    /// backward of the weights.
    pub output: FlexTensor,
}

impl State {
    /// Returns the gradients of queries, keys and values. `gradient` is the gradient of the context. If `v`
    /// is `None`, `gradient` is the gradient of the weights, and only queries and keys get gradients.
    pub fn backward(
        &self,
        v: Option<&FlexTensor>,
        gradient: &FlexTensor,
        of_q: bool,
    ) -> [Option<FlexTensor>; 3] {
        let (setup, stats, gradient) = (&*self.setup, &self.stats[..], values(gradient));
        let Sizes { batch, queries, keys, heads, .. } = setup.sizes;
        let [q_width, kv_width] = setup.sizes.rows();
        let inputs = [values(&self.q), values(&self.k), v.map_or(&[], values)];
        let skips = setup.skips(&[inputs[1], inputs[2], gradient]);
        let buffer = |wanted, len| Buffer::new(if wanted { batch * len } else { 0 });
        let mut of_q = buffer(of_q, queries * q_width);
        let mut of_k = buffer(true, keys * kv_width);
        let mut of_v = buffer(v.is_some(), keys * kv_width);
        let [mut qs, mut ks, mut vs] =
            [(&mut of_q, queries * q_width), (&mut of_k, keys * kv_width), (&mut of_v, keys * kv_width)]
                .map(|(buffer, len)| buffer.chunks_mut(len / setup.split));
        let parts = stats.chunks(heads / setup.split * queries).enumerate().map(|(n, stats)| {
            let (batch, heads) = setup.part(n);
            let gradients = [&mut qs, &mut ks, &mut vs].map(|parts| parts.next().unwrap_or_default());
            let output = values(&self.output);
            Part { setup, skips, batch, heads, inputs, output, gradient, stats, gradients }
        });
        let poll = Poll::current();
        each(2 * setup.sizes.time(), parts, |part| part.run(poll));
        let tensor = |buffer: Buffer, length, width| {
            (!buffer.is_empty()).then(|| setup.joined(buffer, length).into_tensor(&[batch, length, width]))
        };
        [tensor(of_q, queries, q_width), tensor(of_k, keys, kv_width), tensor(of_v, keys, kv_width)]
    }
}

/// Some heads of one sample: the work of one task.
struct Part<'a> {
    setup: &'a Setup,
    /// Whether keys that are masked for all queries of a block can be left out.
    skips: bool,
    batch: usize,
    heads: Range<usize>,
    /// Queries, keys and values. The slice of values is empty in the backward of the weights.
    inputs: [&'a [f32]; 3],
    /// The context, or the weights if there are no values.
    output: &'a [f32],
    /// Gradient of the output.
    gradient: &'a [f32],
    /// The part's elements of [`State::stats`], `[heads, queries]`.
    stats: &'a [[f32; 2]],
    /// Gradients of the inputs, `[length, heads * width]`; empty if not needed.
    gradients: [&'a mut [f32]; 3],
}

/// Maximum numbers of queries and keys in a block. The products of a block, and the factors of the products,
/// fit in the processor's cache.
const BLOCK: [usize; 2] = [32, 256];
/// Number of blocks between two calls of the callback of [`set_poll`](crate::set_poll). These blocks take
/// about 200 µs.
const POLL: usize = 8;

impl<'a> Part<'a> {
    fn run(mut self, poll: Poll) {
        let Self { setup, skips, batch, stats, .. } = self;
        let Sizes { queries, keys, heads, kv_heads, .. } = setup.sizes;
        let shared = heads / kv_heads;
        let mut blocks = setup.blocks(batch, BLOCK[0], skips);
        for block in &mut blocks {
            let stats = stats.chunks(queries).map(|stats| &stats[block.first..][..block.rows]);
            if !stats.into_iter().all(|stats| setup.masked_are_zero(stats)) {
                block.keys = 0..keys;
            }
        }
        let means = self.means();
        let mut buffers = BlockBuffers::new(setup);
        for kv_head in self.heads.start / shared..self.heads.end / shared {
            for first in (0..keys).step_by(BLOCK[1]) {
                let keys = first..keys.min(first + BLOCK[1]);
                self.pack(kv_head, keys.clone(), &mut buffers);
                for head in kv_head * shared..(kv_head + 1) * shared {
                    for (n, block) in blocks.iter().enumerate() {
                        if n % POLL == 0 {
                            poll.call();
                        }
                        let adds = [block.keys.start < first, head % shared > 0 || block.first > 0];
                        let seen = block.keys.start.max(first)..block.keys.end.min(keys.end);
                        let block = Block { head, keys: seen, ..block.clone() };
                        if !block.keys.is_empty() {
                            self.compute_scores(&block, first, &means, &mut buffers);
                        }
                        self.add_block(&block, keys.clone(), &mut buffers, adds);
                    }
                }
            }
        }
    }

    /// Returns the `mean` of each row, `[heads, queries]`; the documentation of this module defines it. It is
    /// computed from the output instead: the products of the values and their gradients have the same sum.
    fn means(&self) -> Vec<f32> {
        let Sizes { queries, keys, heads, width, .. } = self.setup.sizes;
        let mut means = vec![0.0; self.heads.len() * queries];
        for (head, sums) in self.heads.clone().zip(means.chunks_exact_mut(queries)) {
            let (output, width) = if self.inputs[2].is_empty() {
                let first = (self.batch * heads + head) * queries * keys;
                (View { values: self.output, first, step: keys }, keys)
            } else {
                (self.setup.head(self.output, [self.batch, queries, heads, head]), width)
            };
            let matrices = [output, View { values: self.gradient, ..output }];
            row_products(self.setup.level, matrices, width, sums);
        }
        means
    }

    /// Packs the keys in the range `keys` of a head, and their values.
    fn pack(&self, kv_head: usize, keys: Range<usize>, buffers: &mut BlockBuffers) {
        let (Self { setup, inputs: [_, k, v], .. }, count) = (self, keys.len());
        let (Sizes { kv_heads, width, .. }, level) = (setup.sizes, setup.level);
        let k = setup.head(k, [self.batch, setup.sizes.keys, kv_heads, kv_head]).from(keys.start);
        pack_transposed(level, k, count, width, setup.scale, &mut buffers.k_panels);
        pack(level, k, count, width, &mut buffers.k_rows);
        if !v.is_empty() {
            pack_transposed(level, View { values: v, ..k }, count, width, 1.0, &mut buffers.v_panels);
        }
    }

    /// Returns the queries of a head, and the gradient of its context.
    fn query_rows(&self, head: usize) -> [View<'a>; 2] {
        let Sizes { queries, heads, .. } = self.setup.sizes;
        let q = self.setup.head(self.inputs[0], [self.batch, queries, heads, head]);
        [q, View { values: self.gradient, ..q }]
    }

    /// Computes the weights of a block, and the gradients of its scores. `first` is the index of the first
    /// packed key.
    fn compute_scores(&self, block: &Block, first: usize, means: &[f32], buffers: &mut BlockBuffers) {
        let Self { setup, gradient, stats, .. } = *self;
        let BlockBuffers { scores, of_scores, step, k_panels, v_panels, .. } = buffers;
        let [q, gradient_rows] = self.query_rows(block.head);
        setup.multiply_panels(block, q, (k_panels, first), scores, *step);
        if self.inputs[2].is_empty() {
            for (row, target) in of_scores.chunks_mut(*step).enumerate().take(block.rows) {
                let (target, rest) = target[..block.width()].split_at_mut(block.keys.len());
                let from = setup.sizes.weight(block, row) + block.keys.start;
                target.copy_from_slice(&gradient[from..][..target.len()]);
                rest.fill(0.0);
            }
        } else {
            setup.multiply_panels(block, gradient_rows, (v_panels, first), of_scores, *step);
        }
        let row = (block.head - self.heads.start) * setup.sizes.queries + block.first;
        setup.level.run(SoftmaxBackward {
            setup,
            block,
            scores,
            gradient: of_scores,
            step: *step,
            stats: &stats[row..][..block.rows],
            means: &means[row..][..block.rows],
        });
    }

    /// Adds the products of a block to the gradients. The keys of the block are among the packed keys. If
    /// `adds_queries` is false, this is the first block with these queries, so the product replaces the
    /// gradients of the queries. If `adds_keys` is false, this is the first block with these keys, so the
    /// products replace the gradients of keys and values.
    fn add_block(
        &mut self,
        block: &Block,
        packed: Range<usize>,
        buffers: &mut BlockBuffers,
        [adds_queries, adds_keys]: [bool; 2],
    ) {
        let (setup, heads, seen) = (self.setup, self.heads.clone(), block.keys.len());
        let ([q, gradient_rows], has_values) = (self.query_rows(block.head), !self.inputs[2].is_empty());
        let [of_q, of_k, of_v] = &mut self.gradients;
        let Sizes { width, kv_heads, .. } = setup.sizes;
        let shared = setup.sizes.heads / kv_heads;
        let (q_step, kv_step) = (heads.len() * width, heads.len() / shared * width);
        let at = block.head - heads.start;
        let BlockBuffers { scores, of_scores, step, k_rows, rows, .. } = buffers;
        let (start, step, padded) = (block.keys.start, *step, setup.packed_width());
        if seen > 0 && !of_q.is_empty() {
            setup.level.run(Multiply {
                size: [block.rows, seen],
                a: Scalars { values: of_scores, first: 0, term_step: 1, row_step: step },
                b: View { values: k_rows, first: (start - packed.start) * padded, step: padded },
                target: &mut of_q[block.first * q_step + at * width..],
                step: q_step,
                columns: width,
                adds: adds_queries,
            });
        }
        let mut add = |weights: &[f32], matrix: View<'_>, target: &mut [f32]| {
            let target = &mut target[at / shared * width..];
            if !adds_keys {
                for key in packed.clone().filter(|key| !block.keys.contains(key)) {
                    target[key * kv_step..][..width].fill(0.0);
                }
            }
            if seen > 0 {
                pack(setup.level, matrix.from(block.first), block.rows, width, rows);
                setup.level.run(Multiply {
                    size: [seen, block.rows],
                    a: Scalars { values: weights, first: 0, term_step: step, row_step: 1 },
                    b: View { values: rows, first: 0, step: padded },
                    target: &mut target[start * kv_step..],
                    step: kv_step,
                    columns: width,
                    adds: adds_keys,
                });
            }
        };
        add(of_scores, q, of_k);
        if has_values {
            add(scores, gradient_rows, of_v);
        }
    }
}

struct BlockBuffers {
    scores: Buffer,
    of_scores: Buffer,
    /// Distance between rows of scores.
    step: usize,
    k_panels: Buffer,
    k_rows: Buffer,
    v_panels: Buffer,
    /// Packed rows of queries, or of the gradient of the context.
    rows: Buffer,
}

impl BlockBuffers {
    fn new(setup: &Setup) -> Self {
        let (queries, keys) = (BLOCK[0].min(setup.sizes.queries), BLOCK[1].min(setup.sizes.keys));
        let step = Setup::step(keys);
        let [scores, of_scores] = [(); 2].map(|()| Buffer::new(queries * step));
        let packed = || Buffer::new(keys.next_multiple_of(PANEL) * setup.packed_width());
        let (k_panels, k_rows, v_panels) = (packed(), packed(), packed());
        Self {
            scores,
            of_scores,
            step,
            k_panels,
            k_rows,
            v_panels,
            rows: Buffer::new(queries * setup.packed_width()),
        }
    }
}
