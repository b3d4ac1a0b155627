//! Integer executor with images in rows: channels innermost, output channels in the
//! lanes of vectors. Supports any layer and batch.
//!
//! A map is `[height][width][channels / 4]` words of four channels, padded as the
//! next layer requires. A linear layer is a convolution whose kernel covers the map.

mod product;

use super::layer::{Layer, MaxPool, Operation};
use super::stages::Stage;
use super::words::{Instructions, Task, Words};
use product::{Multiply, PIXELS, Product};

/// Maximum bytes of all maps of a block of images.
const BLOCK_BYTES: usize = 1 << 20;

/// Layout of the pixels of one image.
#[derive(Debug, Clone, Copy)]
pub(super) struct Map {
    pub shape: [usize; 3],
    pub border: [usize; 2],
    /// The byte of the padding: the zero point.
    pub zero: u8,
}

impl Map {
    /// Words per pixel.
    pub fn groups(self) -> usize {
        self.shape[0].div_ceil(4)
    }

    /// Words from a row to the next.
    fn row(self) -> usize {
        (self.shape[2] + 2 * self.border[1]) * self.groups()
    }

    /// Words per image.
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
    /// From valid layers, with biases that contain the input's zero point.
    pub fn new(mut shape: [usize; 3], mut zero: u8, layers: &[Layer], biases: &[Vec<i32>]) -> Self {
        if matches!(layers.first(), Some(Layer::Linear(_))) {
            shape = [shape.iter().product(), 1, 1];
        }
        let mut shapes = vec![(shape, zero)];
        for layer in layers {
            shape = layer.output_shape(shape).expect("the model was checked");
            zero = layer.zero_point(zero);
            shapes.push((shape, zero));
        }
        let border = |i| layers.get(i).map_or([0; 2], Layer::border);
        let maps = shapes.iter().enumerate();
        let maps: Vec<_> = maps.map(|(i, &(shape, zero))| Map { shape, border: border(i), zero }).collect();
        let step = |(i, layer): (usize, &Layer)| match layer.operation(maps[i].shape) {
            Operation::Product(geometry, weights, output) => {
                let ends = [maps[i], maps[i + 1]];
                Step::Product(Box::new(Product::new(geometry, weights, &biases[i], output, ends)))
            }
            Operation::MaxPool(pool) => Step::MaxPool(pool),
        };
        let steps = layers.iter().enumerate().map(step).collect();
        let largest = maps.windows(2).map(|pair| 4 * (pair[0].len() + pair[1].len())).max().unwrap_or(1);
        let images = (BLOCK_BYTES / largest).clamp(1, 8 * PIXELS);
        let images = if images > PIXELS { images - images % PIXELS } else { images };
        Self { steps, maps, images }
    }

    /// Images computed together.
    pub fn images(&self) -> usize {
        self.images
    }

    /// Maps whose borders hold the zero point.
    pub fn maps(&self) -> RowMaps {
        let filled = |map: &Map| vec![u32::from_ne_bytes([map.zero; 4]); map.len() * self.images];
        RowMaps(self.maps.iter().map(filled).collect())
    }

    /// Computes `outputs` `[images, outputs]` of `inputs` `[images, channels, height,
    /// width]`, of at most [`images`](Self::images) images. `watch` is called at the
    /// beginning of each stage.
    pub fn run(
        &self,
        instructions: Instructions,
        RowMaps(words): &mut RowMaps,
        (images, inputs, outputs): (usize, &[u8], &mut [u8]),
        watch: &mut impl FnMut(Stage),
    ) {
        let (first, last) = (self.maps[0], self.maps[self.steps.len()]);
        load(first, inputs, &mut words[0]);
        for (i, step) in self.steps.iter().enumerate() {
            watch(Stage::Step(i));
            let [input, output] = words.get_disjoint_mut([i, i + 1]).expect("two maps");
            let maps = [self.maps[i], self.maps[i + 1]];
            match step {
                Step::Product(product) => instructions.run(Multiply { product, maps, images, input, output }),
                Step::MaxPool(pool) => instructions.run(Pool { pool: *pool, maps, images, input, output }),
            }
        }
        watch(Stage::Output);
        store(last, &words[self.steps.len()], outputs);
    }
}

/// Transposes so that channels are innermost.
fn load(map: Map, inputs: &[u8], words: &mut [u32]) {
    let [channels, height, width] = map.shape;
    let images = inputs.chunks_exact(channels * height * width);
    for (image, words) in images.zip(words.chunks_exact_mut(map.len())) {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(words);
        if height * width == 1 {
            bytes[4 * map.at(0, 0)..][..channels].copy_from_slice(image);
            continue;
        }
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

/// Transposes so that channels are outermost.
fn store(map: Map, words: &[u32], outputs: &mut [u8]) {
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
