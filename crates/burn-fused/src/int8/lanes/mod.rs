//! Integer executor with 16 images in the lanes of vectors, for few channels and one
//! input channel.
//!
//! A map is `[channels / 4][height][width]` blocks: in each lane a word of four
//! channels of one image, padded as the next layer requires. The input, which has one
//! channel, is stored as windows of four pixels instead, two pixels apart: one word has
//! the pixels of two neighbouring outputs of a kernel of width 3. Pooling takes the
//! maximum of accumulators before requantization, which is monotonic, so only a quarter
//! is requantized.

use super::layer::{Layer, MaxPool, Operation};
use super::stages::Stage;
use super::words::{Block, Instructions, LANES, Task, Words};

mod conv;
mod input;

use conv::{Ends, Product, Source};
use input::Windows;

/// Maximum output channels of a layer.
const MOST_OUTPUTS: usize = 16;

/// Layout of the pixels of a map.
#[derive(Debug, Clone, Copy)]
struct Map {
    shape: [usize; 3],
    border: [usize; 2],
    zero: u8,
}

impl Map {
    fn groups(self) -> usize {
        self.shape[0].div_ceil(4)
    }

    fn row(self) -> usize {
        self.shape[2] + 2 * self.border[1]
    }

    /// Blocks of a group.
    fn plane(self) -> usize {
        (self.shape[1] + 2 * self.border[0]) * self.row()
    }

    fn len(self) -> usize {
        self.groups() * self.plane()
    }

    /// A pixel in the first group.
    fn at(self, y: usize, x: usize) -> usize {
        (y + self.border[0]) * self.row() + x + self.border[1]
    }
}

#[derive(Debug, Clone)]
enum Step {
    Product(Box<Product>),
    MaxPool(MaxPool),
}

/// A model's layers on images in lanes.
#[derive(Debug, Clone)]
pub(super) struct Lanes {
    windows: Windows,
    steps: Vec<Step>,
    /// The first layer of each step.
    firsts: Vec<usize>,
    /// The output of each step.
    maps: Vec<Map>,
}

/// Maps of 16 images.
#[derive(Debug, Clone)]
pub(super) struct LaneMaps {
    input: input::Buffers,
    maps: Vec<Vec<Block>>,
}

impl Lanes {
    /// From valid layers, with biases that contain the input's zero point; `None` if
    /// this executor does not support them.
    pub fn new(input: [usize; 3], zero: u8, layers: &[Layer], biases: &[Vec<i32>]) -> Option<Self> {
        let Some(Layer::Conv(first)) = layers.first() else { return None };
        let fits = |layer: &Layer| match layer {
            Layer::Conv(conv) => conv.outputs <= MOST_OUTPUTS,
            Layer::Linear(linear) => linear.outputs <= MOST_OUTPUTS,
            Layer::MaxPool(_) => true,
        };
        if !(first.inputs == 1 && first.stride[1] == 1 && layers.iter().all(fits)) {
            return None;
        }
        let windows = Windows::new(input, zero, first);
        let (mut shape, mut zero, mut i) = (input, zero, 0);
        let (mut steps, mut firsts, mut maps) = (Vec::new(), Vec::new(), Vec::<Map>::new());
        while let Some(layer) = layers.get(i) {
            let operation = layer.operation(shape);
            let [channels, height, width] = layer.output_shape(shape).expect("the model was checked");
            let pooled = matches!(operation, Operation::Product(..))
                && layers.get(i + 1) == Some(&Layer::MaxPool(MaxPool { kernel: [2; 2], stride: [2; 2] }));
            shape = if pooled { [channels, height / 2, width / 2] } else { [channels, height, width] };
            zero = layer.zero_point(zero);
            let next = i + 1 + usize::from(pooled);
            let output = Map { shape, border: layers.get(next).map_or([0; 2], Layer::border), zero };
            steps.push(match operation {
                Operation::Product(geometry, weights, after) => {
                    let source = maps.last().map_or(Source::Windows(&windows), |&map| Source::Map(map));
                    let ends = Ends { source, output, pooled, width };
                    Step::Product(Box::new(Product::new(geometry, weights, &biases[i], after, ends)))
                }
                Operation::MaxPool(pool) => Step::MaxPool(pool),
            });
            maps.push(output);
            firsts.push(i);
            i = next;
        }
        Some(Self { windows, steps, firsts, maps })
    }

    /// The first layer of each step.
    pub fn first_layers(&self) -> &[usize] {
        &self.firsts
    }

    /// Maps whose borders hold the zero point.
    pub fn maps(&self) -> LaneMaps {
        let filled = |map: &Map| vec![Block([u32::from_ne_bytes([map.zero; 4]); LANES]); map.len()];
        LaneMaps { input: self.windows.buffers(), maps: self.maps.iter().map(filled).collect() }
    }

    /// Computes `outputs` `[images, outputs]` of `inputs` `[images, 1, height, width]`,
    /// of at most 16 images. `watch` is called at the beginning of each stage.
    pub fn run(
        &self,
        instructions: Instructions,
        maps: &mut LaneMaps,
        inputs: &[u8],
        outputs: &mut [u8],
        watch: &mut impl FnMut(Stage),
    ) {
        let LaneMaps { input, maps } = maps;
        instructions.run(self.windows.fill(inputs, input));
        for (i, step) in self.steps.iter().enumerate() {
            watch(Stage::Step(i));
            let (before, after) = maps.split_at_mut(i);
            let source = before.last().map_or(input.windows(), |map| &map[..]);
            match step {
                Step::Product(product) => instructions.run(product.task(source, &mut after[0])),
                Step::MaxPool(pool) => {
                    let maps = [self.maps[i - 1], self.maps[i]];
                    instructions.run(Pool { pool: *pool, maps, input: source, output: &mut after[0] });
                }
            }
        }
        watch(Stage::Output);
        let last = self.maps.len() - 1;
        store(self.maps[last], &maps[last], outputs);
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
