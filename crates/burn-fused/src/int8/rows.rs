//! The memory layout with images in rows: the channels of a pixel are adjacent, and the lanes of a vector are
//! 16 output channels. This layout supports any layer and any number of images.
//!
//! A map, the input or output of a layer, is `[height][width][channels / 4]` words of four channels, padded
//! as the next layer requires. A linear layer is a convolution with a kernel that covers the map.

use super::layer::{Geometry, Map, Weights};
use super::requantize::{NUMBERS, Requantization};
use super::words::{Block, LANES, Task, Words};

/// Maximum size in bytes of a layer's input and output together, for all images of a block. A block of one
/// image may exceed it.
const BLOCK_BYTES: usize = 1 << 20;
/// Number of output pixels that are computed together. With four vectors of outputs for each pixel, 24 of 32
/// registers are accumulators.
const PIXELS: usize = 6;

/// Returns the maximum number of images in a block. `maps` are the maps before and after each layer.
pub(super) fn images(maps: &[Map]) -> usize {
    let largest = maps.windows(2).map(|pair| 4 * (pair[0].len() + pair[1].len())).max().unwrap_or(1);
    let images = (BLOCK_BYTES / largest).clamp(1, 8 * PIXELS);
    if images > PIXELS { images - images % PIXELS } else { images }
}

/// Copies `inputs`, `[images, channels, height, width]`, to `words`, the maps of these images one after
/// another.
pub(super) fn load(map: Map, inputs: &[u8], words: &mut [u32]) {
    let [channels, height, width] = map.shape;
    let images = inputs.chunks_exact(channels * height * width);
    for (image, words) in images.zip(words.chunks_exact_mut(map.len())) {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(words);
        if height * width == 1 {
            bytes[4 * map.at(0, 0) * map.groups()..][..channels].copy_from_slice(image);
            continue;
        }
        for (c, plane) in image.chunks_exact(height * width).enumerate() {
            for (y, row) in plane.chunks_exact(width).enumerate() {
                let target = &mut bytes[4 * map.at(y, 0) * map.groups() + c..];
                for (&pixel, target) in row.iter().zip(target.iter_mut().step_by(4 * map.groups())) {
                    *target = pixel;
                }
            }
        }
    }
}

/// Copies `words`, the maps of images one after another, to `outputs`, `[images, channels, height, width]`.
pub(super) fn store(map: Map, words: &[u32], outputs: &mut [u8]) {
    let [channels, height, width] = map.shape;
    let images = outputs.chunks_exact_mut(channels * height * width);
    for (image, words) in images.zip(words.chunks_exact(map.len())) {
        let bytes: &[u8] = bytemuck::cast_slice(words);
        if height * width == 1 {
            image.copy_from_slice(&bytes[..channels]);
            continue;
        }
        for (c, plane) in image.chunks_exact_mut(height * width).enumerate() {
            let pixels = bytes.iter().skip(c).step_by(4 * map.groups());
            plane.iter_mut().zip(pixels).for_each(|(target, &pixel)| *target = pixel);
        }
    }
}

/// A prepared convolution or linear layer.
#[derive(Debug, Clone)]
pub(super) struct Product {
    /// For each output pixel: the index of the first word that it reads in the input.
    bases: Vec<usize>,
    /// For each output pixel: the index of its first word in the output.
    targets: Vec<usize>,
    /// Number of rows of the kernel, and number of words in such a row (`run`).
    rows: usize,
    run: usize,
    /// Weights `[part of the outputs][row][word][vector]`, with a row and a word of the kernel. A part has up
    /// to four vectors of 16 outputs.
    weights: Vec<Block>,
    bias: Vec<i32>,
    requantization: Requantization,
    /// The numbers of `requantization` as vectors. Each element belongs to 16 outputs. It has one vector for
    /// each number, with one lane for each output.
    numbers: Vec<[Block; NUMBERS]>,
}

/// Returns how many vectors of outputs are computed together if `left` vectors remain.
fn vectors_of(left: usize) -> usize {
    match left {
        4.. => 4,
        2..4 => 2,
        _ => 1,
    }
}

impl Product {
    /// Prepares a layer that reads the map `input` and writes the map `output`.
    pub fn new(geometry: Geometry, weights: &Weights, bias: &[i32], [input, output]: [Map; 2]) -> Self {
        let Geometry { inputs, outputs, kernel, stride, .. } = geometry;
        let groups = input.groups();
        let (rows, run) = (kernel[0], kernel[1] * groups);
        let mut padded = bias.to_vec();
        padded.resize(outputs.next_multiple_of(LANES), 0);
        let byte = |output: usize, row: usize, word: usize, b: usize| {
            let (column, channel) = (word / groups, 4 * (word % groups) + b);
            if output < outputs && channel < inputs {
                weights.values[((output * inputs + channel) * kernel[0] + row) * kernel[1] + column] as u8
            } else {
                0
            }
        };
        let mut blocks = Vec::with_capacity(padded.len() / LANES * rows * run);
        let mut first = 0;
        while first < padded.len() / LANES {
            let vectors = vectors_of(padded.len() / LANES - first);
            for (row, word) in (0..rows).flat_map(|row| (0..run).map(move |word| (row, word))) {
                blocks.extend((first..first + vectors).map(|vector| {
                    Block(std::array::from_fn(|lane| {
                        let output = vector * LANES + lane;
                        u32::from_ne_bytes([0, 1, 2, 3].map(|b| byte(output, row, word, b)))
                    }))
                }));
            }
            first += vectors;
        }
        let requantization = Requantization::new(geometry, weights);
        let numbers =
            requantization.outputs.as_chunks::<LANES>().0.iter().map(|outputs| {
                std::array::from_fn(|n| Block(outputs.map(|numbers| numbers[n].cast_unsigned())))
            });
        let numbers = numbers.collect();
        let [_, height, width] = output.shape;
        let pixels = || (0..height).flat_map(move |y| (0..width).map(move |x| (y, x)));
        // The window of output (0, 0) begins at the first padding pixel, which is the first pixel of the map.
        let base = |(y, x): (usize, usize)| (y * stride[0] * input.row() + x * stride[1]) * groups;
        Self {
            bases: pixels().map(base).collect(),
            targets: pixels().map(|(y, x)| output.at(y, x) * output.groups()).collect(),
            rows,
            run,
            weights: blocks,
            bias: padded,
            requantization,
            numbers,
        }
    }
}

/// Computes a layer for a block of images.
pub(super) struct Multiply<'a> {
    pub product: &'a Product,
    pub maps: [Map; 2],
    pub images: usize,
    pub input: &'a [u32],
    pub output: &'a mut [u32],
}

impl Task for Multiply<'_> {
    #[inline(always)]
    fn run<W: Words>(mut self, words: W) {
        let product = self.product;
        let vectors = product.bias.len() / LANES;
        let (mut weights, mut first) = (&product.weights[..], 0);
        while first < vectors {
            let count = vectors_of(vectors - first);
            let (now, rest) = weights.split_at(count * product.rows * product.run);
            match count {
                4 => self.outputs::<W, 4>(words, now, first),
                2 => self.outputs::<W, 2>(words, now, first),
                _ => self.outputs::<W, 1>(words, now, first),
            }
            weights = rest;
            first += count;
        }
    }
}

#[allow(clippy::needless_range_loop, reason = "the index names a register")]
impl Multiply<'_> {
    /// Computes `N` vectors of outputs, beginning with vector `first`, for all pixels of all images.
    #[inline(always)]
    fn outputs<W: Words, const N: usize>(&mut self, words: W, weights: &[Block], first: usize) {
        let Self { product, maps: [from, to], images, .. } = *self;
        let pixels = product.bases.len();
        let total = images * pixels;
        let (mut image, mut pixel, mut done) = (0, 0, 0);
        while done < total {
            // The last one to three pixels are computed one at a time.
            let count = if total - done > 3 { PIXELS.min(total - done) } else { 1 };
            let (mut bases, mut targets) = ([0; PIXELS], [0; PIXELS]);
            for i in 0..count {
                bases[i] = image * from.len() + product.bases[pixel];
                targets[i] = image * to.len() + product.targets[pixel];
                pixel += 1;
                if pixel == pixels {
                    (pixel, image) = (0, image + 1);
                }
            }
            if count == 1 {
                let sums = self.tile::<W, 1, N>(words, weights, first, [bases[0]]);
                self.finish(words, first, sums, &targets[..1]);
            } else {
                for i in count..PIXELS {
                    bases[i] = bases[0];
                }
                let sums = self.tile::<W, PIXELS, N>(words, weights, first, bases);
                self.finish(words, first, sums, &targets[..count]);
            }
            done += count;
        }
    }

    /// Returns the sums of `P` pixels for `N` vectors of outputs.
    #[inline(always)]
    fn tile<W: Words, const P: usize, const N: usize>(
        &self,
        words: W,
        weights: &[Block],
        first: usize,
        bases: [usize; P],
    ) -> [[W::Word; N]; P] {
        let (run, row) = (self.product.run, self.maps[0].row() * self.maps[0].groups());
        let (biases, _) = self.product.bias[first * LANES..].as_chunks::<LANES>();
        let mut sums = [[words.splat(0); N]; P];
        for p in 0..P {
            for n in 0..N {
                sums[p][n] = words.load(&bytemuck::cast(biases[n]));
            }
        }
        for (y, weights) in weights.chunks_exact(run * N).enumerate() {
            let mut windows = [&self.input[..0]; P];
            for p in 0..P {
                windows[p] = &self.input[bases[p] + y * row..][..run];
            }
            let (weights, _) = weights.as_chunks::<N>();
            let weights = &weights[..run];
            for k in 0..run {
                for p in 0..P {
                    let bytes = words.splat(windows[p][k] as i32);
                    for n in 0..N {
                        sums[p][n] = words.dot(sums[p][n], bytes, words.load(&weights[k][n]));
                    }
                }
            }
        }
        sums
    }

    /// Requantizes sums of pixels and stores the results.
    #[inline(always)]
    fn finish<W: Words, const P: usize, const N: usize>(
        &mut self,
        words: W,
        first: usize,
        sums: [[W::Word; N]; P],
        targets: &[usize],
    ) {
        let room = 4 * self.maps[1].groups();
        let output: &mut [u8] = bytemuck::cast_slice_mut(self.output);
        for n in 0..N {
            let channel = (first + n) * LANES;
            let mut numbers = [words.splat(0); NUMBERS];
            for i in 0..NUMBERS {
                numbers[i] = words.load(&self.product.numbers[first + n][i]);
            }
            let room = room.saturating_sub(channel).min(LANES);
            for (sums, &target) in sums.iter().zip(targets) {
                let scaled = self.product.requantization.apply(words, sums[n], numbers);
                let target = &mut output[4 * target + channel..][..room];
                match target.first_chunk_mut() {
                    Some(target) => words.store_bytes(scaled, target),
                    None => {
                        let mut bytes = [0; LANES];
                        words.store_bytes(scaled, &mut bytes);
                        target.copy_from_slice(&bytes[..room]);
                    }
                }
            }
        }
    }
}
