//! Integer executor with images in rows: channels innermost, output channels in the
//! lanes of vectors. Supports any layer and batch.
//!
//! A map is `[height][width][channels / 4]` words of four channels, padded as the
//! next layer requires. A linear layer is a convolution whose kernel covers the map.

mod product;

use super::layer::{Layer, Map, MaxPool, Operation, Step};
use super::model::Stage;
use super::words::{Block, Instructions, LANES, Task, Words};
use product::{Multiply, PIXELS, Product};

/// Maximum bytes of all maps of a block of images.
const BLOCK_BYTES: usize = 1 << 20;

/// A model's layers on images in rows.
#[derive(Debug, Clone)]
pub(super) struct Rows {
    steps: Vec<Step<Product>>,
    /// The input of each step, and the last output.
    maps: Vec<Map>,
    /// Images of a block.
    images: usize,
}

impl Rows {
    /// From valid layers, the maps before and after each, and biases that contain the input's zero point.
    pub fn new(maps: Vec<Map>, layers: &[Layer], biases: &[Vec<i32>]) -> Self {
        let step = |(i, layer): (usize, &Layer)| match layer.operation(maps[i].shape) {
            Operation::Product(geometry, weights) => {
                let ends = [maps[i], maps[i + 1]];
                Step::Product(Box::new(Product::new(geometry, weights, &biases[i], ends)))
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
    pub fn maps(&self) -> Vec<Vec<Block>> {
        let blocks = |map: &Map| (map.len() * self.images).div_ceil(LANES);
        self.maps.iter().map(|map| vec![Block::of(map.zero); blocks(map)]).collect()
    }

    /// Computes `outputs` `[images, outputs]` of `inputs` `[images, channels, height,
    /// width]`, of at most [`images`](Self::images) images. `watch` is called at the
    /// beginning of each stage.
    pub fn run(
        &self,
        instructions: Instructions,
        blocks: &mut [Vec<Block>],
        (images, inputs, outputs): (usize, &[u8], &mut [u8]),
        watch: &mut dyn FnMut(Stage),
    ) {
        let (first, last) = (self.maps[0], self.maps[self.steps.len()]);
        load(first, inputs, bytemuck::cast_slice_mut(&mut blocks[0]));
        for (i, step) in self.steps.iter().enumerate() {
            watch(Stage::Step(i));
            let [input, output] = blocks.get_disjoint_mut([i, i + 1]).expect("two maps");
            let (input, output) = (bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output));
            let maps = [self.maps[i], self.maps[i + 1]];
            match step {
                Step::Product(product) => instructions.run(Multiply { product, maps, images, input, output }),
                Step::MaxPool(pool) => instructions.run(Pool { pool: *pool, maps, images, input, output }),
            }
        }
        watch(Stage::Output);
        store(last, bytemuck::cast_slice(&blocks[self.steps.len()]), outputs);
    }
}

/// Transposes so that channels are innermost.
fn load(map: Map, inputs: &[u8], words: &mut [u32]) {
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
        let channels = 4 * from.groups();
        let input: &[u8] = bytemuck::cast_slice(self.input);
        let output: &mut [u8] = bytemuck::cast_slice_mut(self.output);
        for image in 0..images {
            for y in 0..to.shape[1] {
                for x in 0..to.shape[2] {
                    let target = &mut output[4 * image * to.len() + to.at(y, x) * channels..][..channels];
                    for window in 0..kernel[0] * kernel[1] {
                        let (dy, dx) = (window / kernel[1], window % kernel[1]);
                        let at = from.at(y * stride[0] + dy, x * stride[1] + dx);
                        let source = &input[4 * image * from.len() + at * channels..][..channels];
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
