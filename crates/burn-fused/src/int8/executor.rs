//! Runs an integer model on a block of images, step by step. A step computes one layer, or a convolution and
//! the pooling after it.
//!
//! Images are stored in one of two memory layouts. The layout of [`lanes`] is faster, and is for small models
//! with one input channel. The layout of [`rows`] supports all layers. A map is the memory of a layer's input
//! or output.

use std::ops::Range;

use super::layer::{AveragePool, Layer, Map, MaxPool, Operation};
use super::model::Stage;
use super::words::{Block, Instructions, LANES, Task, Words};
use super::{lanes, rows};

/// A model's layers, prepared for one memory layout.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    in_lanes: bool,
    /// The steps, each with the indices of the layers that it computes.
    steps: Vec<(Range<usize>, Step)>,
    /// The map of each step's input, then the map of the last step's output.
    maps: Vec<Map>,
    /// Maximum number of images in a block.
    pub images: usize,
}

#[derive(Debug, Clone)]
enum Step {
    Lanes(Box<lanes::Product>),
    Rows(Box<rows::Product>),
    MaxPool(MaxPool),
    AveragePool(AveragePool),
}

impl Plan {
    /// Makes a plan from valid layers, the maps before and after each layer, and the biases that
    /// `Weights::checked_bias` returns. Images are in lanes if `lanes` is true and [`lanes::support`] accepts
    /// the layers, and otherwise in rows.
    pub fn new(maps: &[Map], layers: &[Layer], biases: &[Vec<i32>], lanes: bool) -> Self {
        let in_lanes = lanes && lanes::support(layers);
        let mut plan = Self { in_lanes, steps: Vec::new(), maps: vec![maps[0]], images: LANES };
        let mut i = 0;
        while let Some(layer) = layers.get(i) {
            let operation = layer.operation(maps[i].shape);
            let pooled = in_lanes
                && matches!(operation, Operation::Product(..))
                && layers.get(i + 1) == Some(&lanes::POOL);
            let next = i + 1 + usize::from(pooled);
            let ends = [maps[i], maps[next]];
            let step = match operation {
                Operation::MaxPool(pool) => Step::MaxPool(pool),
                Operation::AveragePool(pool) => Step::AveragePool(pool),
                Operation::Product(geometry, weights) if in_lanes => {
                    let product = lanes::Product::new(geometry, weights, &biases[i], ends, i == 0, pooled);
                    Step::Lanes(Box::new(product))
                }
                Operation::Product(geometry, weights) => {
                    Step::Rows(Box::new(rows::Product::new(geometry, weights, &biases[i], ends)))
                }
            };
            plan.steps.push((i..next, step));
            plan.maps.push(maps[next]);
            i = next;
        }
        if !in_lanes {
            plan.images = rows::images(maps);
        }
        plan
    }

    /// Returns the indices of the layers of each step.
    pub fn steps(&self) -> impl Iterator<Item = Range<usize>> {
        self.steps.iter().map(|(layers, _)| layers.clone())
    }

    /// Allocates a buffer for each map, filled with the map's zero point. No step changes the pixels of the
    /// borders, so they keep this value. For images in lanes, also allocates the scratch buffer of
    /// [`lanes::Fill`].
    pub fn buffers(&self) -> Vec<Vec<Block>> {
        let blocks =
            |map: &Map| if self.in_lanes { map.len() } else { (map.len() * self.images).div_ceil(LANES) };
        let words = self.in_lanes.then(|| vec![Block::splat(0); lanes::words(self.maps[0])]);
        self.maps.iter().map(|map| vec![Block::splat(map.zero); blocks(map)]).chain(words).collect()
    }

    /// Computes `outputs` from `inputs`, both `[images, channels, height, width]`. `images` is at most
    /// [`self.images`](Self::images). `buffers` come from [`buffers`](Self::buffers). Calls `watch` at the
    /// beginning of each step and of [`Stage::Output`].
    pub fn run(
        &self,
        instructions: Instructions,
        buffers: &mut [Vec<Block>],
        (images, inputs, outputs): (usize, &[u8], &mut [u8]),
        watch: &mut dyn FnMut(Stage),
    ) {
        let (blocks, words) = buffers.split_at_mut(self.maps.len());
        match words.first_mut() {
            Some(flat) => {
                let (map, windows) = (self.maps[0], &mut blocks[0]);
                instructions.run(lanes::Fill { map, images: inputs, flat, windows });
            }
            None => rows::load(self.maps[0], inputs, bytemuck::cast_slice_mut(&mut blocks[0])),
        }
        for (i, (_, step)) in self.steps.iter().enumerate() {
            watch(Stage::Step(i));
            let [input, output] = blocks.get_disjoint_mut([i, i + 1]).expect("two maps");
            let maps = [self.maps[i], self.maps[i + 1]];
            match step {
                Step::Lanes(product) => instructions.run(lanes::Multiply { product, input, output }),
                Step::Rows(product) => {
                    let (input, output) = (bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output));
                    instructions.run(rows::Multiply { product, maps, images, input, output });
                }
                Step::MaxPool(pool) => {
                    let groups = maps[0].groups();
                    let size =
                        if self.in_lanes { [groups, size_of::<Block>()] } else { [images, 4 * groups] };
                    let (input, output) = (bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output));
                    instructions.run(Pool { pool: *pool, maps, size, input, output });
                }
                Step::AveragePool(pool) => {
                    let size = [images, 4 * maps[0].groups()];
                    average(*pool, maps, size, bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output));
                }
            }
        }
        watch(Stage::Output);
        let (map, blocks) = (self.maps[self.steps.len()], &blocks[self.steps.len()]);
        if self.in_lanes {
            lanes::store(map, blocks, outputs)
        } else {
            rows::store(map, bytemuck::cast_slice(blocks), outputs)
        }
    }
}

/// Computes average pooling of `planes` planes, for images in rows. A plane is one image with all channels,
/// so a pixel has `bytes` bytes, one for each channel.
fn average(
    pool: AveragePool,
    [from, to]: [Map; 2],
    [planes, bytes]: [usize; 2],
    input: &[u8],
    output: &mut [u8],
) {
    for plane in 0..planes {
        for y in 0..to.shape[1] {
            for x in 0..to.shape[2] {
                let rows = pool.window(0, from.shape[1], y);
                let columns = pool.window(1, from.shape[2], x);
                let count = (rows.len() * columns.len()) as u64;
                let target = &mut output[(plane * to.plane() + to.at(y, x)) * bytes..][..bytes];
                for (byte, target) in target.iter_mut().enumerate() {
                    let pixels = rows.clone().flat_map(|y| columns.clone().map(move |x| (y, x)));
                    let pixel =
                        |(y, x)| u64::from(input[(plane * from.plane() + from.at(y, x)) * bytes + byte]);
                    *target = ((pixels.map(pixel).sum::<u64>() + count / 2) / count) as u8;
                }
            }
        }
    }
}

/// Computes max pooling of planes. In rows, a plane is one image with all channels. In lanes, a plane is a
/// group of four channels of 16 images. `size` is the number of planes and the number of bytes in a pixel.
struct Pool<'a> {
    pool: MaxPool,
    maps: [Map; 2],
    size: [usize; 2],
    input: &'a [u8],
    output: &'a mut [u8],
}

impl Task for Pool<'_> {
    #[inline(always)]
    fn run<W: Words>(self, _words: W) {
        let Self { pool: MaxPool { kernel, stride }, maps: [from, to], size: [planes, bytes], .. } = self;
        for plane in 0..planes {
            for y in 0..to.shape[1] {
                for x in 0..to.shape[2] {
                    let target = &mut self.output[(plane * to.plane() + to.at(y, x)) * bytes..][..bytes];
                    for window in 0..kernel[0] * kernel[1] {
                        let (dy, dx) = (window / kernel[1], window % kernel[1]);
                        let at = plane * from.plane() + from.at(y * stride[0] + dy, x * stride[1] + dx);
                        let source = &self.input[at * bytes..][..bytes];
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
