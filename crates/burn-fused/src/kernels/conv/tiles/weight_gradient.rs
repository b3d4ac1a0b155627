//! The gradient of the weights, computed on AMX tiles. For each of the nine taps of the 3x3 kernel, it is a
//! matrix product of the images and the output's gradient. The rows of the product are input channels, the
//! columns are output channels, and the sums run over all pixels.

use super::super::Shape;
use super::super::scratch::Scratch;
use super::{Flat, padded};
use crate::kernels::half::amx::{BLOCK, Operands, TILE, WORDS, tiles};
use crate::runtime::poll::Poll;
use crate::runtime::threads::{each, threads_for};

/// Maximum number of steps in a pass. A pass goes over all taps. A step multiplies 32 pixels by their
/// gradients ([`Operands::steps`]). The values of both factors stay in the L1 cache during a pass.
const PASS: usize = 8;
/// Maximum number of steps between two calls of the poll callback in [`WeightGradient::add`]. For all nine
/// taps, these steps take some tens of microseconds.
const GROUP: usize = 14 * PASS;

/// The factors of a block's part of the gradient.
pub struct Factors<'a> {
    pub flat: Flat,
    /// The block's input, as [`load`] stores it.
    pub pixels: &'a [u16],
    /// The gradient of its output, as [`super::pack::Channels`] stores it.
    pub pairs: &'a [u32],
}

/// The sums over all blocks that were added so far, `[inputs / 32, outputs / 32, taps, 32, 32]`. The numbers
/// of channels are padded.
pub struct WeightGradient<'a> {
    inputs: usize,
    outputs: usize,
    sums: &'a mut [f32],
}

impl<'a> WeightGradient<'a> {
    /// Sets all sums to zero.
    pub fn new(shape: Shape, sums: &'a mut Scratch) -> Self {
        let Shape { inputs, outputs, .. } = shape;
        let sums = sums.take(9 * padded(inputs) * padded(outputs));
        sums.fill(0.0);
        Self { inputs, outputs, sums }
    }

    /// Adds the parts of some blocks, which take `time` nanoseconds on one thread. Threads share the sums.
    /// `poll` is called every few tens of microseconds.
    pub fn add(&mut self, blocks: &[Factors<'_>], time: usize, poll: Poll) {
        let outputs = padded(self.outputs);
        // With few channels, an item has the three taps of a row of the kernel.
        let few = self.sums.len() / (9 * BLOCK * BLOCK) < threads_for(time);
        let taps = if few { 3 } else { 9 };
        let stride = outputs / TILE * WORDS;
        each(time, self.sums.chunks_exact_mut(taps * BLOCK * BLOCK).enumerate(), |(item, sums)| {
            let (at, tap) = (item * taps / 9, item * taps % 9);
            let [input, output] = [at / (outputs / BLOCK), at % (outputs / BLOCK)].map(|at| at * BLOCK);
            for &Factors { flat, pixels, pairs } in blocks {
                let steps: Vec<usize> = (0..flat.len()).step_by(BLOCK).collect();
                for (group, steps) in steps.chunks(GROUP).enumerate() {
                    let tiles = tiles().expect("tiles are available");
                    for (pass, steps) in steps.chunks(PASS).enumerate() {
                        let first = group * GROUP + pass * PASS;
                        for (tap, sums) in (tap..).zip(sums.chunks_exact_mut(BLOCK * BLOCK)) {
                            tiles.add_products(Operands {
                                left: &pixels[input * flat.all() + flat.tap(tap)..],
                                left_strides: [flat.all(), TILE * flat.all()],
                                steps,
                                right: &pairs[first * stride + output / TILE * WORDS..],
                                right_stride: stride,
                                sums,
                                sums_strides: [BLOCK, TILE * BLOCK, TILE],
                            });
                        }
                    }
                    drop(tiles);
                    poll.call();
                }
            }
        });
    }

    /// Stores the sums as `[outputs, inputs, 3, 3]`.
    pub fn finish(self, weights: &mut [f32]) {
        let outputs = padded(self.outputs);
        let (weights, _) = weights.as_chunks_mut::<9>();
        // In this order of the loops, neighbouring sums are read one after the other, and the cache lines of
        // the weights stay in the cache until the next input writes to them.
        for input in 0..self.inputs {
            for output in 0..self.outputs {
                let at = input / BLOCK * (outputs / BLOCK) + output / BLOCK;
                let sums = &self.sums[9 * at * BLOCK * BLOCK + input % BLOCK * BLOCK + output % BLOCK..];
                weights[output * self.inputs + input] = std::array::from_fn(|tap| sums[tap * BLOCK * BLOCK]);
            }
        }
    }
}

/// Copies images of `inputs` channels to the flat layout, one channel after the other, and adds channels of
/// zeros up to a multiple of [`BLOCK`].
pub fn load(flat: Flat, inputs: usize, values: &[u16], pixels: &mut [u16]) {
    let [height, width] = flat.size();
    for (channel, row) in pixels[..padded(inputs) * flat.all()].chunks_exact_mut(flat.all()).enumerate() {
        if channel >= inputs {
            row.fill(0);
            continue;
        }
        row[..flat.front()].fill(0);
        let (images, end) = row[flat.front()..].split_at_mut(flat.images * flat.period());
        end.fill(0);
        for (image, target) in images.chunks_exact_mut(flat.period()).enumerate() {
            let plane = &values[(image * inputs + channel) * height * width..][..height * width];
            let (rows, after) = target.split_at_mut(height * (width + 1));
            after.fill(0);
            for (from, to) in plane.chunks_exact(width).zip(rows.chunks_exact_mut(width + 1)) {
                copy_row(from, &mut to[..width]);
                to[width] = 0;
            }
        }
    }
}

/// Copies a row in vectors, because a call of `memcpy` for each row takes longer.
fn copy_row(from: &[u16], to: &mut [u16]) {
    let ((from, rest), (to, end)) = (from.as_chunks::<8>(), to.as_chunks_mut::<8>());
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
    for (to, from) in end.iter_mut().zip(rest) {
        *to = *from;
    }
}
