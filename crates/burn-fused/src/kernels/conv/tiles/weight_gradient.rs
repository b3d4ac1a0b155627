//! The gradient of the weights, computed on AMX tiles. For each of the nine taps of the 3x3 kernel, it is a
//! matrix product of the images and the output's gradient. The rows of the product are input channels, the
//! columns are output channels, and the sums run over all pixels.

use super::super::Shape;
use super::super::scratch::Scratch;
use super::{Flat, padded};
use crate::kernels::half::amx::{BLOCK, Operands, TILE, WORDS, tiles};
use crate::runtime::poll::Poll;

/// Maximum number of steps in a pass. A pass goes over all taps. A step multiplies 32 pixels by their
/// gradients ([`Operands::steps`]). The values of both factors stay in the L1 cache during a pass.
const PASS: usize = 8;
/// Maximum number of steps between two calls of the poll callback in [`WeightGradient::add`]. For all nine
/// taps, these steps take some tens of microseconds.
const GROUP: usize = 14 * PASS;

/// The sums over all blocks that were added so far, `[taps, inputs, outputs]`. The numbers of channels are
/// padded.
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

    /// Adds a block's part of the gradient of the weights. `images` are the block's input, and `pairs` has
    /// the gradient of its output. `pixels` is scratch. `poll` is called every few tens of microseconds.
    pub fn add(&mut self, flat: Flat, images: &[u16], pairs: &[u32], pixels: &mut Scratch, poll: Poll) {
        let [inputs, outputs] = [self.inputs, self.outputs].map(padded);
        let pixels = pixels.take::<u16>(inputs * flat.all());
        self.load(flat, images, pixels);
        let steps: Vec<usize> = (0..flat.len()).step_by(BLOCK).collect();
        for input in (0..inputs).step_by(BLOCK) {
            for output in (0..outputs).step_by(BLOCK) {
                let stride = outputs / TILE * WORDS;
                for (group, steps) in steps.chunks(GROUP).enumerate() {
                    let tiles = tiles().expect("tiles are available");
                    for (pass, steps) in steps.chunks(PASS).enumerate() {
                        let first = group * GROUP + pass * PASS;
                        for tap in 0..9 {
                            tiles.add_products(Operands {
                                left: &pixels[input * flat.all() + flat.tap(tap)..],
                                left_strides: [flat.all(), TILE * flat.all()],
                                steps,
                                right: &pairs[first * stride + output / TILE * WORDS..],
                                right_stride: stride,
                                sums: &mut self.sums[(tap * inputs + input) * outputs + output..],
                                sums_strides: [outputs, TILE * outputs, TILE],
                            });
                        }
                    }
                    drop(tiles);
                    poll.call();
                }
            }
        }
    }

    /// Copies images to the flat layout, one channel after the other.
    fn load(&self, flat: Flat, values: &[u16], pixels: &mut [u16]) {
        let [height, width] = flat.size();
        for (channel, row) in pixels.chunks_exact_mut(flat.all()).enumerate() {
            if channel >= self.inputs {
                row.fill(0);
                continue;
            }
            row[..flat.front()].fill(0);
            let (images, end) = row[flat.front()..].split_at_mut(flat.images * flat.period());
            end.fill(0);
            for (image, target) in images.chunks_exact_mut(flat.period()).enumerate() {
                let plane = &values[(image * self.inputs + channel) * height * width..][..height * width];
                let (rows, after) = target.split_at_mut(height * (width + 1));
                after.fill(0);
                for (from, to) in plane.chunks_exact(width).zip(rows.chunks_exact_mut(width + 1)) {
                    copy_row(from, &mut to[..width]);
                    to[width] = 0;
                }
            }
        }
    }

    /// Stores the sums as `[outputs, inputs, 3, 3]`.
    pub fn finish(self, weights: &mut [f32]) {
        let [inputs, outputs] = [self.inputs, self.outputs].map(padded);
        let (weights, _) = weights.as_chunks_mut::<9>();
        // In this order of the loops, neighbouring sums are read one after the other, and the cache lines of
        // the weights stay in the cache until the next input writes to them.
        for input in 0..self.inputs {
            for output in 0..self.outputs {
                weights[output * self.inputs + input] =
                    std::array::from_fn(|tap| self.sums[(tap * inputs + input) * outputs + output]);
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
