//! The memory layout with 16 images in the lanes of vectors, for models with one input channel and few
//! channels in each layer.
//!
//! A map, the input or output of a layer, is `[channels / 4][height][width]` blocks. Each lane of a block has
//! a word: four channels of a pixel of one image. Maps are padded as the next layer requires.
//!
//! The model's input has only one channel. A word of the input is therefore a window instead: four
//! neighbouring pixels of a row. Windows begin two pixels apart. With a kernel of width 3, one word then has
//! all pixels of a row that two neighbouring outputs need.
//!
//! 2x2 pooling takes the maximum of accumulators before requantization. Requantization is monotonic, so the
//! result is the same, and only a quarter of the accumulators is requantized.

use super::layer::{Geometry, Layer, Map, MaxPool, Weights};
use super::requantize::{NUMBERS, Requantization};
use super::words::{Block, LANES, Task, Words};

/// Maximum number of output channels of a layer.
const MOST_OUTPUTS: usize = 16;

/// 2x2 max pooling, which is computed together with the convolution before it.
pub(super) const POOL: Layer = Layer::MaxPool(MaxPool { kernel: [2; 2], stride: [2; 2] });

/// Whether this layout supports the layers of a model. The first layer has to be a convolution of one
/// channel, with a horizontal stride of 1 and [`POOL`] after it. Each window of pixels then serves two
/// neighbouring outputs, which are pooled together. No layer may be an average pooling, and no convolution or
/// linear layer may have more than [`MOST_OUTPUTS`] outputs.
pub(super) fn support(layers: &[Layer]) -> bool {
    let fits = |layer: &Layer| match layer {
        Layer::Conv(conv) => conv.outputs <= MOST_OUTPUTS,
        Layer::Linear(linear) => linear.outputs <= MOST_OUTPUTS,
        Layer::MaxPool(_) => true,
        Layer::AveragePool(_) => false,
    };
    matches!(layers, [Layer::Conv(first), pool, ..] if first.inputs == 1 && first.stride[1] == 1 && *pool == POOL)
        && layers.iter().all(fits)
}

/// Number of windows in a row of the input.
fn windows(input: Map) -> usize {
    input.row().div_ceil(2)
}

/// Number of blocks in [`Fill::flat`], which stores 16 images of one channel with four pixels in a word. One
/// more block lies before the images, and one after them.
pub(super) fn words(map: Map) -> usize {
    (map.shape[1] * map.shape[2]).div_ceil(4).next_multiple_of(LANES) + 2
}

/// Transposes images of one channel into lanes, and then copies their pixels to windows.
pub(super) struct Fill<'a> {
    pub map: Map,
    pub images: &'a [u8],
    /// Scratch memory for the transposed images: [`words`] blocks.
    pub flat: &'a mut [Block],
    /// The map of the input: windows of pixels. Windows without a pixel of the image are not written, so they
    /// keep the zero point.
    pub windows: &'a mut [Block],
}

impl Task for Fill<'_> {
    #[inline(always)]
    fn run<W: Words>(self, words: W) {
        let Self { map, images, flat, .. } = self;
        let Map { shape: [_, height, width], border, zero } = map;
        into_lanes(words, height * width, images, &mut flat[1..]);
        let zeros = u32::from_ne_bytes([zero; 4]);
        let rows = self.windows.chunks_exact_mut(windows(map)).skip(border[0]);
        for (y, row) in rows.take(height).enumerate() {
            for (x, window) in row.iter_mut().enumerate() {
                let mask = inside(2 * x as isize - border[1] as isize, width as isize);
                if mask == 0 {
                    continue;
                }
                // Position of the window's first pixel in `flat`, counted in pixels. The first block of
                // `flat` is before the image.
                let at = 4 + y * width + 2 * x - border[1];
                let [low, high] = [flat[at / 4].0, flat[at / 4 + 1].0];
                let right = 8 * (at % 4) as u32;
                let mut word = [0; LANES];
                for i in 0..LANES {
                    let pixels = low[i] >> right | high[i] << 1 << (31 - right);
                    word[i] = pixels & mask | zeros & !mask;
                }
                window.0 = word;
            }
        }
    }
}

/// Returns a mask of the four pixels that begin at `x`, with a byte for each pixel: 0xff if the pixel is
/// inside the row, and 0 if it is outside.
#[inline(always)]
fn inside(x: isize, width: isize) -> u32 {
    if x >= 0 && x + 4 <= width {
        return u32::MAX;
    }
    u32::from_ne_bytes([0, 1, 2, 3].map(|next| if (0..width).contains(&(x + next)) { 0xff } else { 0 }))
}

/// Transposes images of `size` pixels: block `w` of `flat` gets word `w` (four pixels) of each image.
#[inline(always)]
fn into_lanes<W: Words>(words: W, size: usize, images: &[u8], flat: &mut [Block]) {
    for (from, flat) in (0..size).step_by(4 * LANES).zip(flat.chunks_exact_mut(LANES)) {
        let mut rows = [words.splat(0); LANES];
        for (row, image) in rows.iter_mut().zip(images.chunks_exact(size)) {
            let pixels = &image[from..];
            *row = match pixels.first_chunk::<64>() {
                Some(pixels) => words.load(&bytemuck::pod_read_unaligned(pixels)),
                None => {
                    let mut some = [0; 64];
                    some[..pixels.len()].copy_from_slice(pixels);
                    words.load(&bytemuck::cast(some))
                }
            };
        }
        words.transpose(&mut rows);
        for (row, block) in rows.iter().zip(flat) {
            words.store(*row, block);
        }
    }
}

/// Copies the images in `blocks` to `outputs`, `[images, channels, height, width]`.
pub(super) fn store(map: Map, blocks: &[Block], outputs: &mut [u8]) {
    let [channels, height, width] = map.shape;
    for (lane, image) in outputs.chunks_exact_mut(channels * height * width).enumerate() {
        for (c, plane) in image.chunks_exact_mut(height * width).enumerate() {
            for (target, block) in plane.iter_mut().zip(&blocks[c / 4 * map.plane()..]) {
                *target = block.0[lane].to_ne_bytes()[c % 4];
            }
        }
    }
}

/// A prepared convolution or linear layer.
#[derive(Debug, Clone)]
pub(super) struct Product {
    /// For each result (a pixel of the output): the first block of the input that it reads.
    bases: Vec<usize>,
    /// For each result: the block of the output to which its first group of channels is written.
    targets: Vec<usize>,
    /// Offsets from an element of `bases` to the blocks that a result reads, one for each word of the kernel.
    taps: Vec<usize>,
    /// Offsets from an element of `bases` to the positions of the kernel. A result is the maximum over these
    /// positions. Without pooling, there is only one, with offset 0. With pooling, there are four, or two if
    /// the input has windows of pixels: a window serves two neighbouring outputs at once.
    positions: Vec<usize>,
    /// Number of blocks of the output for one group of four channels.
    plane: usize,
    /// Weights `[tile][tap][channel][phase]`, four in a word, and biases (`bias`) `[channel][phase]`. If the
    /// input has windows of pixels, there are two phases, one for each of two neighbouring outputs. Both
    /// phases read the same windows, and the weights of the second phase are shifted by one pixel. Otherwise,
    /// there is one phase.
    weights: Vec<i32>,
    bias: Vec<i32>,
    /// Number of groups of four output channels in a tile. The channels of a tile are computed together.
    tile: usize,
    requantization: Requantization,
}

impl Product {
    /// Prepares a layer that reads the map `input` and writes the map `output`. If `first` is true, a word of
    /// the input is a window of pixels; if false, it is four channels of a pixel. If `pooled` is true, the
    /// layer includes [`POOL`].
    pub fn new(
        geometry: Geometry,
        weights: &Weights,
        bias: &[i32],
        [input, output]: [Map; 2],
        first: bool,
        pooled: bool,
    ) -> Self {
        let Geometry { inputs, outputs, kernel, stride, .. } = geometry;
        let (row, columns, phases) = if first { (windows(input), 4, 2) } else { (input.row(), 1, 1) };
        let taps: Vec<[usize; 3]> = (0..input.groups())
            .flat_map(|group| (0..kernel[0]).map(move |y| (group, y)))
            .flat_map(|(group, y)| (0..kernel[1] + phases - 1).step_by(columns).map(move |x| [group, y, x]))
            .collect();
        // The weight by which byte `b` of the word at a tap is multiplied. The byte is a pixel of the window,
        // or a channel.
        let byte = |channel: usize, phase: usize, [group, y, x]: [usize; 3], b: usize| -> i8 {
            let (input, x) = if first { (0, (x + b).wrapping_sub(phase)) } else { (4 * group + b, x) };
            if channel < outputs && input < inputs && x < kernel[1] {
                weights.values[((channel * inputs + input) * kernel[0] + y) * kernel[1] + x]
            } else {
                0
            }
        };
        let groups = outputs.div_ceil(4);
        let tile = if pooled { 1 } else { groups };
        let mut packed = Vec::new();
        for channel in (0..4 * groups).step_by(4 * tile) {
            for &tap in &taps {
                for of in phases * channel..phases * (channel + 4 * tile) {
                    let bytes = [0, 1, 2, 3].map(|b| byte(of / phases, of % phases, tap, b) as u8);
                    packed.push(i32::from_ne_bytes(bytes));
                }
            }
        }
        let bias = (0..4 * groups * phases).map(|of| bias.get(of / phases).copied().unwrap_or(0)).collect();
        let [down, right] = [stride[0] * row, stride[1]];
        let (side, along) = if pooled { (2, 2 * right / phases) } else { (1, right) };
        let pixels = || (0..output.shape[1]).flat_map(|y| (0..output.shape[2]).map(move |x| (y, x)));
        Self {
            bases: pixels().map(|(y, x)| side * y * down + x * along).collect(),
            targets: pixels().map(|(y, x)| output.at(y, x)).collect(),
            taps: taps.iter().map(|[group, y, x]| group * input.plane() + y * row + x / phases).collect(),
            positions: [0, down, right, down + right][..side * side / phases].to_vec(),
            plane: output.plane(),
            weights: packed,
            bias,
            tile,
            requantization: Requantization::new(geometry, weights),
        }
    }
}

/// Computes a layer for 16 images.
pub(super) struct Multiply<'a> {
    pub product: &'a Product,
    pub input: &'a [Block],
    pub output: &'a mut [Block],
}

impl Task for Multiply<'_> {
    #[inline(always)]
    fn run<W: Words>(self, words: W) {
        let Self { product, input, output } = self;
        let phases = if product.positions.len() == 2 { 2 } else { 1 };
        let tiles = product.weights.chunks_exact(4 * product.tile * phases * product.taps.len());
        for (number, weights) in tiles.enumerate() {
            let tile = Tile { product, weights, first: number * product.tile, input };
            match (&product.positions[..], product.tile) {
                (&[a, b, c, d], _) => tile.run::<W, 4, 4, 1>(words, [a, b, c, d], output),
                (&[a, b], _) => tile.run::<W, 2, 8, 2>(words, [a, b], output),
                (_, 1) => tile.run::<W, 1, 4, 1>(words, [0], output),
                (_, 2) => tile.run::<W, 1, 8, 1>(words, [0], output),
                (_, 3) => tile.run::<W, 1, 12, 1>(words, [0], output),
                _ => tile.run::<W, 1, 16, 1>(words, [0], output),
            }
        }
    }
}

/// A tile: some groups of output channels, which are computed together.
struct Tile<'a> {
    product: &'a Product,
    weights: &'a [i32],
    /// Index of the first group.
    first: usize,
    input: &'a [Block],
}

#[allow(clippy::needless_range_loop, reason = "the index names a register")]
impl Tile<'_> {
    /// Computes all results of the tile. Each result is the maximum over `P` positions and `PHASES` phases.
    /// `C` is the number of channels of the tile times `PHASES`.
    #[inline(always)]
    fn run<W: Words, const P: usize, const C: usize, const PHASES: usize>(
        &self,
        words: W,
        positions: [usize; P],
        output: &mut [Block],
    ) {
        let Product { bases, targets, taps, plane, .. } = self.product;
        let (weights, _) = self.weights.as_chunks::<C>();
        let weights = &weights[..taps.len()];
        let furthest = taps.iter().max().unwrap_or(&0) + positions.iter().max().unwrap_or(&0);
        let last = bases.last().unwrap_or(&0) + furthest;
        assert!(last < self.input.len(), "a window reaches beyond the input");
        let bias: &[i32; C] = self.product.bias[4 * self.first * PHASES..].first_chunk().expect("padded");
        for (&base, &target) in bases.iter().zip(targets) {
            let mut sums = [[words.splat(0); C]; P];
            for p in 0..P {
                for c in 0..C {
                    sums[p][c] = words.splat(bias[c]);
                }
            }
            for (tap, weights) in taps.iter().zip(weights) {
                let mut bytes = [words.splat(0); P];
                for p in 0..P {
                    // SAFETY: bases ascend, so no index is above `last`, and the assertion above checks that
                    // `last` is within the input.
                    bytes[p] = words.load(unsafe { self.input.get_unchecked(base + tap + positions[p]) });
                }
                for c in 0..C {
                    let weights = words.splat(weights[c]);
                    for p in 0..P {
                        sums[p][c] = words.dot(sums[p][c], bytes[p], weights);
                    }
                }
            }
            let mut max = sums[0];
            for sums in &sums[1..] {
                for c in 0..C {
                    max[c] = words.max(max[c], sums[c]);
                }
            }
            for group in 0..C / 4 / PHASES {
                let mut channels = [words.splat(0); 4];
                for c in 0..4 {
                    let phases = &max[(4 * group + c) * PHASES..][..PHASES];
                    channels[c] = words.max(phases[0], phases[PHASES - 1]);
                }
                let word = self.requantize(words, group, channels);
                words.store(word, &mut output[(self.first + group) * plane + target]);
            }
        }
    }

    /// Requantizes the sums of the four channels of a group, and packs the results into words.
    #[inline(always)]
    fn requantize<W: Words>(&self, words: W, group: usize, mut sums: [W::Word; 4]) -> W::Word {
        let all = &self.product.requantization;
        let outputs: &[_; 4] = all.outputs[4 * (self.first + group)..].first_chunk().expect("padded");
        for c in 0..4 {
            let mut numbers = [words.splat(0); NUMBERS];
            for n in 0..NUMBERS {
                numbers[n] = words.splat(outputs[c][n]);
            }
            sums[c] = all.apply(words, sums[c], numbers);
        }
        words.pack(sums)
    }
}
