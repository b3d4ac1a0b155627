//! Integer executor with 16 images in the lanes of vectors, for few channels and one
//! input channel.
//!
//! A map is `[channels / 4][height][width]` blocks: in each lane a word of four
//! channels of one image, padded as the next layer requires. The input, which has one
//! channel, is stored as windows of four pixels instead, two pixels apart: one word has
//! the pixels of two neighbouring outputs of a kernel of width 3. Pooling takes the
//! maximum of accumulators before requantization, which is monotonic, so only a quarter
//! is requantized.

use std::ops::Range;

use super::layer::{Layer, Map, MaxPool, Operation, Step};
use super::model::Stage;
use super::words::{Block, Instructions, LANES, Task, Words};

mod conv;
mod input;

use conv::{Ends, Multiply, Product, Source};
use input::{Fill, Windows};

/// Maximum output channels of a layer.
const MOST_OUTPUTS: usize = 16;

/// A model's layers on images in lanes.
#[derive(Debug, Clone)]
pub(super) struct Lanes {
    windows: Windows,
    steps: Vec<Step<Product>>,
    /// The layers of each step.
    layers: Vec<Range<usize>>,
    /// The output of each step.
    maps: Vec<Map>,
}

impl Lanes {
    /// From valid layers, the maps before and after each, and biases that contain the input's zero point;
    /// `None` if this executor does not support them.
    pub fn new(maps: &[Map], layers: &[Layer], biases: &[Vec<i32>]) -> Option<Self> {
        let Some(Layer::Conv(first)) = layers.first() else { return None };
        let fits = |layer: &Layer| match layer {
            Layer::Conv(conv) => conv.outputs <= MOST_OUTPUTS,
            Layer::Linear(linear) => linear.outputs <= MOST_OUTPUTS,
            Layer::MaxPool(_) => true,
        };
        if !(first.inputs == 1 && first.stride[1] == 1 && layers.iter().all(fits)) {
            return None;
        }
        let windows = Windows::new(maps[0], first);
        let mut found = Self { windows, steps: Vec::new(), layers: Vec::new(), maps: Vec::new() };
        let mut i = 0;
        while let Some(layer) = layers.get(i) {
            let operation = layer.operation(maps[i].shape);
            let pooled = matches!(operation, Operation::Product(..))
                && layers.get(i + 1) == Some(&Layer::MaxPool(MaxPool { kernel: [2; 2], stride: [2; 2] }));
            let next = i + 1 + usize::from(pooled);
            found.steps.push(match operation {
                Operation::Product(geometry, weights) => {
                    let source = if i == 0 { Source::Windows(&windows) } else { Source::Map(maps[i]) };
                    let ends = Ends { source, output: maps[next], pooled, width: maps[i + 1].shape[2] };
                    Step::Product(Box::new(Product::new(geometry, weights, &biases[i], ends)))
                }
                Operation::MaxPool(pool) => Step::MaxPool(pool),
            });
            found.maps.push(maps[next]);
            found.layers.push(i..next);
            i = next;
        }
        Some(found)
    }

    /// The layers of each step.
    pub fn steps(&self) -> impl Iterator<Item = Range<usize>> {
        self.layers.iter().cloned()
    }

    /// The images' words, their windows, and the output of each step, whose borders hold the zero point.
    pub fn maps(&self) -> Vec<Vec<Block>> {
        let filled = |map: &Map| vec![Block::of(map.zero); map.len()];
        self.windows.buffers().into_iter().chain(self.maps.iter().map(filled)).collect()
    }

    /// Computes `outputs` `[images, outputs]` of `inputs` `[images, 1, height, width]`,
    /// of at most 16 images. `watch` is called at the beginning of each stage.
    pub fn run(
        &self,
        instructions: Instructions,
        blocks: &mut [Vec<Block>],
        images: &[u8],
        outputs: &mut [u8],
        watch: &mut dyn FnMut(Stage),
    ) {
        let [flat, blocks @ ..] = blocks else { unreachable!("as of `maps`") };
        instructions.run(Fill { windows: &self.windows, images, flat, target: &mut blocks[0] });
        for (i, step) in self.steps.iter().enumerate() {
            watch(Stage::Step(i));
            let [input, output] = blocks.get_disjoint_mut([i, i + 1]).expect("two maps");
            match step {
                Step::Product(product) => instructions.run(Multiply { product, input, output }),
                Step::MaxPool(pool) => {
                    let maps = [self.maps[i - 1], self.maps[i]];
                    instructions.run(Pool { pool: *pool, maps, input, output });
                }
            }
        }
        watch(Stage::Output);
        let last = self.steps.len();
        store(self.maps[last - 1], &blocks[last], outputs);
    }
}

/// Transposes so that images are outermost, then channels.
fn store(map: Map, blocks: &[Block], outputs: &mut [u8]) {
    let [channels, height, width] = map.shape;
    for (lane, image) in outputs.chunks_exact_mut(channels * height * width).enumerate() {
        for (c, plane) in image.chunks_exact_mut(height * width).enumerate() {
            for (target, block) in plane.iter_mut().zip(&blocks[c / 4 * map.plane()..]) {
                *target = block.0[lane].to_ne_bytes()[c % 4];
            }
        }
    }
}

/// Max pooling that is not fused into a convolution.
struct Pool<'a> {
    pool: MaxPool,
    maps: [Map; 2],
    input: &'a [Block],
    output: &'a mut [Block],
}

impl Task for Pool<'_> {
    #[inline(always)]
    fn run<W: Words>(self, words: W) {
        let Self { pool: MaxPool { kernel, stride }, maps: [from, to], input, output } = self;
        for group in 0..to.groups() {
            for y in 0..to.shape[1] {
                for x in 0..to.shape[2] {
                    let mut max = words.splat(0);
                    for dy in 0..kernel[0] {
                        for dx in 0..kernel[1] {
                            let at = group * from.plane() + from.at(y * stride[0] + dy, x * stride[1] + dx);
                            max = words.max_bytes(max, words.load(&input[at]));
                        }
                    }
                    words.store(max, &mut output[group * to.plane() + to.at(y, x)]);
                }
            }
        }
    }
}
