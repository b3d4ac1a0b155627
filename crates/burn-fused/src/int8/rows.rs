//! Integer layers on images in rows: channels innermost, output channels in the lanes
//! of vectors. For any layer and batch.
//!
//! A map is `[height][width][channels / 4]` words of four channels, with the border
//! that the next layer pads it with. A linear layer is a convolution whose kernel
//! covers the map.

use super::layer::{Geometry, Layer, MaxPool, Weights};
use super::requantize::Requantization;
use super::words::{Block, Instructions, LANES, Task, Words};

/// Pixels of the output that are computed together.
const PIXELS: usize = 6;
/// Bytes of all maps of a block of images.
const BLOCK_BYTES: usize = 1 << 20;

/// Where the pixels of one image are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Map {
    pub shape: [usize; 3],
    pub border: [usize; 2],
    /// The byte of the border: the real 0.
    pub zero: u8,
}

impl Map {
    /// Words of a pixel.
    pub fn groups(self) -> usize {
        self.shape[0].div_ceil(4)
    }

    /// Words from a row to the next.
    fn row(self) -> usize {
        (self.shape[2] + 2 * self.border[1]) * self.groups()
    }

    /// Words of an image.
    fn len(self) -> usize {
        (self.shape[1] + 2 * self.border[0]) * self.row()
    }

    /// First word of a pixel.
    fn at(self, y: usize, x: usize) -> usize {
        (y + self.border[0]) * self.row() + (x + self.border[1]) * self.groups()
    }
}

/// A layer, prepared.
#[derive(Debug, Clone)]
enum Step {
    Product(Box<Product>),
    MaxPool(MaxPool),
}

/// A convolution or linear layer.
#[derive(Debug, Clone)]
struct Product {
    /// First word of the window of each output pixel.
    bases: Vec<usize>,
    /// First word of each output pixel.
    targets: Vec<usize>,
    /// Rows of the kernel, and the words of a row.
    rows: usize,
    run: usize,
    /// `[16 outputs at a time, up to four times][row][word][vector]`.
    weights: Vec<Block>,
    bias: Vec<i32>,
    requantization: Requantization,
}

/// A model's layers on images in rows.
#[derive(Debug, Clone)]
pub(super) struct Rows {
    steps: Vec<Step>,
    /// The input of each step, and the last output.
    maps: Vec<Map>,
    /// Images of a block.
    images: usize,
}

/// Maps of a block of images.
#[derive(Debug, Clone)]
pub(super) struct RowMaps(Vec<Vec<u32>>);

impl Rows {
    /// Of valid layers, with biases that contain the input's zero point.
    pub fn new(mut shape: [usize; 3], mut zero: u8, layers: &[Layer], biases: &[Vec<i32>]) -> Self {
        if matches!(layers.first(), Some(Layer::Linear(_))) {
            shape = [shape.iter().product(), 1, 1];
        }
        let mut shapes = vec![(shape, zero)];
        for layer in layers {
            shape = layer.output_shape(shape).expect("the model was checked");
            zero = layer.product(shape).map_or(zero, |(.., output)| output.zero_point as u8);
            shapes.push((shape, zero));
        }
        let border = |layer: Option<&Layer>| match layer {
            Some(Layer::Conv(conv)) => conv.padding,
            _ => [0; 2],
        };
        let maps = shapes.iter().enumerate();
        let maps: Vec<_> =
            maps.map(|(i, &(shape, zero))| Map { shape, border: border(layers.get(i)), zero }).collect();
        let step = |(i, layer): (usize, &Layer)| match layer.product(maps[i].shape) {
            Some((geometry, weights, relu, output)) => {
                let zero = output.zero_point as u8;
                let requantization =
                    Requantization::new(geometry.outputs, &weights.multipliers, &weights.shifts, zero, relu);
                let product =
                    Product::new(geometry, weights, &biases[i], requantization, [maps[i], maps[i + 1]]);
                Step::Product(Box::new(product))
            }
            None => match layer {
                Layer::MaxPool(pool) => Step::MaxPool(*pool),
                _ => unreachable!("all others have weights"),
            },
        };
        let steps = layers.iter().enumerate().map(step).collect();
        let largest = maps.windows(2).map(|pair| 4 * (pair[0].len() + pair[1].len())).max().unwrap_or(1);
        let images = (BLOCK_BYTES / largest).clamp(1, 8 * PIXELS);
        let images = if images > PIXELS { images - images % PIXELS } else { images };
        Self { steps, maps, images }
    }

    /// Images that are computed together.
    pub fn images(&self) -> usize {
        self.images
    }

    /// Maps whose borders hold the real 0.
    pub fn maps(&self) -> RowMaps {
        let filled = |map: &Map| vec![u32::from_ne_bytes([map.zero; 4]); map.len() * self.images];
        RowMaps(self.maps.iter().map(filled).collect())
    }

    /// Computes `outputs` `[images, outputs]` of `inputs` `[images, channels, height,
    /// width]`, of at most [`images`](Self::images) images.
    pub fn run(
        &self,
        instructions: Instructions,
        RowMaps(words): &mut RowMaps,
        images: usize,
        inputs: &[u8],
        outputs: &mut [u8],
    ) {
        let (first, last) = (self.maps[0], self.maps[self.steps.len()]);
        load(first, inputs, &mut words[0]);
        for (i, step) in self.steps.iter().enumerate() {
            let [input, output] = words.get_disjoint_mut([i, i + 1]).expect("two maps");
            let maps = [self.maps[i], self.maps[i + 1]];
            match step {
                Step::Product(product) => instructions.run(Multiply { product, maps, images, input, output }),
                Step::MaxPool(pool) => instructions.run(Pool { pool: *pool, maps, images, input, output }),
            }
        }
        store(last, &words[self.steps.len()], outputs);
    }
}

/// Channels go innermost.
fn load(map: Map, inputs: &[u8], words: &mut [u32]) {
    let [channels, height, width] = map.shape;
    let images = inputs.chunks_exact(channels * height * width);
    for (image, words) in images.zip(words.chunks_exact_mut(map.len())) {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(words);
        for (c, plane) in image.chunks_exact(height * width).enumerate() {
            for (y, row) in plane.chunks_exact(width).enumerate() {
                let target = &mut bytes[4 * map.at(y, 0) + c..];
                for (&pixel, target) in row.iter().zip(target.iter_mut().step_by(4 * map.groups())) {
                    *target = pixel;
                }
            }
        }
    }
}

/// Channels go outermost.
fn store(map: Map, words: &[u32], outputs: &mut [u8]) {
    let [channels, height, width] = map.shape;
    let images = outputs.chunks_exact_mut(channels * height * width);
    for (image, words) in images.zip(words.chunks_exact(map.len())) {
        let bytes: &[u8] = bytemuck::cast_slice(words);
        for (c, plane) in image.chunks_exact_mut(height * width).enumerate() {
            let pixels = bytes.iter().skip(c).step_by(4 * map.groups());
            plane.iter_mut().zip(pixels).for_each(|(target, &pixel)| *target = pixel);
        }
    }
}

/// Vectors of outputs that are computed together, from those that are left.
fn vectors_of(left: usize) -> usize {
    match left {
        4.. => 4,
        2..4 => 2,
        _ => 1,
    }
}

impl Product {
    fn new(
        geometry: Geometry,
        weights: &Weights,
        bias: &[i32],
        requantization: Requantization,
        [input, output]: [Map; 2],
    ) -> Self {
        let Geometry { inputs, outputs, kernel, stride, .. } = geometry;
        let groups = input.groups();
        let (rows, run) = (kernel[0], kernel[1] * groups);
        let mut padded = bias.to_vec();
        padded.resize(outputs.next_multiple_of(LANES), 0);
        let mut blocks = Vec::with_capacity(padded.len() / LANES * rows * run);
        let mut first = 0;
        while first < padded.len() / LANES {
            let vectors = vectors_of(padded.len() / LANES - first);
            for row in 0..rows {
                for word in 0..run {
                    let (column, group) = (word / groups, word % groups);
                    for vector in first..first + vectors {
                        let mut block = [[0u8; 4]; LANES];
                        for (lane, bytes) in block.iter_mut().enumerate() {
                            let output = vector * LANES + lane;
                            for (b, byte) in bytes.iter_mut().enumerate() {
                                let channel = 4 * group + b;
                                if output < outputs && channel < inputs {
                                    let at = (output * inputs + channel) * kernel[0] + row;
                                    *byte = weights.values[at * kernel[1] + column] as u8;
                                }
                            }
                        }
                        blocks.push(Block(block.map(u32::from_ne_bytes)));
                    }
                }
            }
            first += vectors;
        }
        let [_, height, width] = output.shape;
        let pixels = || (0..height).flat_map(move |y| (0..width).map(move |x| (y, x)));
        // The window of output (0, 0) begins at the border's first pixel.
        let base = |(y, x): (usize, usize)| y * stride[0] * input.row() + x * stride[1] * groups;
        Self {
            bases: pixels().map(base).collect(),
            targets: pixels().map(|(y, x)| output.at(y, x)).collect(),
            rows,
            run,
            weights: blocks,
            bias: padded,
            requantization,
        }
    }
}

/// A convolution of a block of images.
struct Multiply<'a> {
    product: &'a Product,
    maps: [Map; 2],
    images: usize,
    input: &'a [u32],
    output: &'a mut [u32],
}

impl Task for Multiply<'_> {
    #[inline(always)]
    fn run<W: Words>(self, words: W) {
        let Self { product, maps, images, input, output } = self;
        let output: &mut [u8] = bytemuck::cast_slice_mut(output);
        let vectors = product.bias.len() / LANES;
        let mut weights = &product.weights[..];
        let mut first = 0;
        while first < vectors {
            let count = vectors_of(vectors - first);
            let (now, rest) = weights.split_at(count * product.rows * product.run);
            match count {
                4 => outputs::<W, 4>(words, product, maps, images, now, first, input, output),
                2 => outputs::<W, 2>(words, product, maps, images, now, first, input, output),
                _ => outputs::<W, 1>(words, product, maps, images, now, first, input, output),
            }
            weights = rest;
            first += count;
        }
    }
}

/// `N` vectors of outputs, for all pixels of all images.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "the parts of a task")]
fn outputs<W: Words, const N: usize>(
    words: W,
    product: &Product,
    maps: [Map; 2],
    images: usize,
    weights: &[Block],
    first: usize,
    input: &[u32],
    output: &mut [u8],
) {
    let pixels = product.bases.len();
    let total = images * pixels;
    let (mut image, mut pixel, mut done) = (0, 0, 0);
    while done < total {
        // A few left over are computed one at a time.
        let count = if total - done > 3 { PIXELS.min(total - done) } else { 1 };
        let (mut bases, mut targets) = ([0; PIXELS], [0; PIXELS]);
        for i in 0..count {
            bases[i] = image * maps[0].len() + product.bases[pixel];
            targets[i] = image * maps[1].len() + product.targets[pixel];
            pixel += 1;
            if pixel == pixels {
                (pixel, image) = (0, image + 1);
            }
        }
        if count == 1 {
            let sums = tile::<W, 1, N>(words, product, maps[0], weights, first, input, [bases[0]]);
            finish(words, product, maps[1], first, sums, &targets[..1], output);
        } else {
            for i in count..PIXELS {
                bases[i] = bases[0];
            }
            let sums = tile::<W, PIXELS, N>(words, product, maps[0], weights, first, input, bases);
            finish(words, product, maps[1], first, sums, &targets[..count], output);
        }
        done += count;
    }
}

/// Accumulators of `P` pixels.
#[inline(always)]
fn tile<W: Words, const P: usize, const N: usize>(
    words: W,
    product: &Product,
    map: Map,
    weights: &[Block],
    first: usize,
    input: &[u32],
    bases: [usize; P],
) -> [[W::Word; N]; P] {
    let (biases, _) = product.bias[first * LANES..].as_chunks::<LANES>();
    let mut sums = [[words.splat(0); N]; P];
    for sums in &mut sums {
        for n in 0..N {
            sums[n] = words.load_i32(&biases[n]);
        }
    }
    let run = product.run;
    for (row, weights) in weights.chunks_exact(run * N).enumerate() {
        let mut windows = [&input[..0]; P];
        for p in 0..P {
            windows[p] = &input[bases[p] + row * map.row()..][..run];
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

/// Requantizes accumulators of pixels and stores them.
#[inline(always)]
fn finish<W: Words, const P: usize, const N: usize>(
    words: W,
    product: &Product,
    map: Map,
    first: usize,
    sums: [[W::Word; N]; P],
    targets: &[usize],
    output: &mut [u8],
) {
    let all = &product.requantization;
    let lowest = words.splat(all.lowest.into());
    for n in 0..N {
        let channel = (first + n) * LANES;
        let of = |values: &[i32]| -> [i32; LANES] { *values[channel..].first_chunk().expect("padded") };
        let [multiplier, addend, right] =
            [&all.multiplier, &all.addend, &all.right].map(|values| words.load_i32(&of(values)));
        let [low, high, left] = [&all.low, &all.high, &all.left].map(|values| words.load_i32(&of(values)));
        let room = (4 * map.groups()).saturating_sub(channel).min(LANES);
        for (sums, &target) in sums.iter().zip(targets) {
            let mut sum = sums[n];
            if all.wide {
                sum = words.shift_left(words.min(words.max(sum, low), high), left);
            }
            let scaled = words.max(words.scale(sum, multiplier, addend, right), lowest);
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

/// Max pooling of a block of images.
struct Pool<'a> {
    pool: MaxPool,
    maps: [Map; 2],
    images: usize,
    input: &'a [u32],
    output: &'a mut [u32],
}

impl Task for Pool<'_> {
    #[inline(always)]
    fn run<W: Words>(self, _words: W) {
        let Self { pool: MaxPool { kernel, stride }, maps: [from, to], images, .. } = self;
        let groups = 4 * from.groups();
        let input: &[u8] = bytemuck::cast_slice(self.input);
        let output: &mut [u8] = bytemuck::cast_slice_mut(self.output);
        for image in 0..images {
            for y in 0..to.shape[1] {
                for x in 0..to.shape[2] {
                    let target = &mut output[4 * (image * to.len() + to.at(y, x))..][..groups];
                    for window in 0..kernel[0] * kernel[1] {
                        let (dy, dx) = (window / kernel[1], window % kernel[1]);
                        let at = from.at(y * stride[0] + dy, x * stride[1] + dx);
                        let source = &input[4 * (image * from.len() + at)..][..groups];
                        if window == 0 {
                            target.copy_from_slice(source);
                        } else {
                            for (target, &source) in target.iter_mut().zip(source) {
                                *target = source.max(*target);
                            }
                        }
                    }
                }
            }
        }
    }
}
