//! Convolutions and linear layers on images in lanes.

use super::{Block, Map, Task, Windows, Words};
use crate::int8::layer::{Geometry, Weights};
use crate::int8::requantize::Requantization;

/// Input of a layer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Source<'a> {
    Windows(&'a Windows),
    Map(Map),
}

/// Input and output of a layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ends<'a> {
    pub source: Source<'a>,
    pub output: Map,
    /// Whether 2x2 max pooling follows.
    pub pooled: bool,
    /// Width of the output before pooling.
    pub width: usize,
}

/// A convolution or linear layer.
#[derive(Debug, Clone)]
pub(super) struct Product {
    /// Neighbouring outputs of one window: 2 on windows of pixels, else 1. Each is
    /// computed as an output channel with shifted weights.
    phases: usize,
    /// Whether 2x2 max pooling follows.
    pooled: bool,
    /// First block of the windows of each result.
    bases: Vec<usize>,
    /// Block of each result in the first group.
    targets: Vec<usize>,
    /// Which results have a second phase.
    second: Vec<bool>,
    /// Blocks from the base: one for each word of the kernel.
    taps: Vec<usize>,
    /// Offset from a base to the other positions of its pooling window.
    steps: [usize; 2],
    /// Blocks of a group of the output.
    plane: usize,
    /// `[groups of a tile][tap][channel][phase]` words, and biases.
    weights: Vec<i32>,
    bias: Vec<i32>,
    /// Groups of four channels of each tile.
    tiles: Vec<usize>,
    requantization: Requantization,
}

impl Product {
    /// Constructs a layer between two maps.
    pub fn new(geometry: Geometry, weights: &Weights, bias: &[i32], ends: Ends<'_>) -> Self {
        let Geometry { inputs, outputs, kernel, stride, .. } = geometry;
        let Ends { source, output, pooled, width } = ends;
        let (phases, row, column, taps) = match source {
            Source::Windows(windows) => {
                let taps =
                    (0..kernel[0]).flat_map(|y| (0..windows.words).map(move |k| y * windows.row + 2 * k));
                (2, stride[0] * windows.row, 1, taps.collect())
            }
            Source::Map(map) => {
                let taps = (0..map.groups()).flat_map(|group| {
                    let rows = (0..kernel[0]).map(move |y| group * map.plane() + y * map.row());
                    rows.flat_map(|row| (0..kernel[1]).map(move |x| row + x))
                });
                (1, stride[0] * map.row(), stride[1], taps.collect::<Vec<_>>())
            }
        };
        // The byte of a tap: a pixel of the window, or a channel.
        let byte = |channel: usize, phase: usize, tap: usize, b: usize| -> i8 {
            let (input, y, x) = match source {
                Source::Windows(windows) => {
                    let (y, k) = (tap / windows.words, tap % windows.words);
                    (0, y, (4 * k + b).wrapping_sub(phase))
                }
                Source::Map(_) => {
                    let (group, at) = (tap / (kernel[0] * kernel[1]), tap % (kernel[0] * kernel[1]));
                    (4 * group + b, at / kernel[1], at % kernel[1])
                }
            };
            match channel < outputs && input < inputs && x < kernel[1] {
                true => weights.values[((channel * inputs + input) * kernel[0] + y) * kernel[1] + x],
                false => 0,
            }
        };
        let groups = outputs.div_ceil(4);
        let tiles = if pooled || phases == 2 { vec![1; groups] } else { vec![groups] };
        let (mut packed, mut first) = (Vec::new(), 0);
        for &tile in &tiles {
            for tap in 0..taps.len() {
                for channel in 4 * first..4 * (first + tile) {
                    for phase in 0..phases {
                        let bytes = [0, 1, 2, 3].map(|b| byte(channel, phase, tap, b) as u8);
                        packed.push(i32::from_ne_bytes(bytes));
                    }
                }
            }
            first += tile;
        }
        let bias = (0..4 * groups).flat_map(|o| vec![bias.get(o).copied().unwrap_or(0); phases]).collect();
        // Results of one row: pooled ones are two outputs wide, and so are windows.
        let across = if pooled || phases == 1 { output.shape[2] } else { width.div_ceil(2) };
        let apart = if phases == 2 && !pooled { 2 } else { 1 };
        let pixels = || (0..output.shape[1]).flat_map(move |y| (0..across).map(move |x| (y, x)));
        let [down, along] =
            if pooled { [2 * row, if phases == 2 { 1 } else { 2 * column }] } else { [row, column] };
        Self {
            phases,
            pooled,
            bases: pixels().map(|(y, x)| y * down + x * along).collect(),
            targets: pixels().map(|(y, x)| output.at(y, apart * x)).collect(),
            second: pixels().map(|(_, x)| 2 * x + 1 < width).collect(),
            taps,
            steps: [row, column],
            plane: output.plane(),
            weights: packed,
            bias,
            tiles,
            requantization: Requantization::new(geometry, weights),
        }
    }
}

/// The layer, for 16 images.
pub(super) struct Multiply<'a> {
    pub product: &'a Product,
    pub input: &'a [Block],
    pub output: &'a mut [Block],
}

impl Task for Multiply<'_> {
    #[inline(always)]
    fn run<W: Words>(self, words: W) {
        let Self { product, input, output } = self;
        let [row, column] = product.steps;
        let (mut weights, mut first) = (&product.weights[..], 0);
        for &groups in &product.tiles {
            let channels = 4 * groups * product.phases;
            let (now, rest) = weights.split_at(channels * product.taps.len());
            let tile = Tile { product, weights: now, first, input };
            match (product.phases, product.pooled, groups) {
                (1, true, _) => tile.run::<W, 4, 4, 1>(words, [0, column, row, row + column], output),
                (_, true, _) => tile.run::<W, 2, 8, 2>(words, [0, row], output),
                (2, ..) => tile.run::<W, 1, 8, 2>(words, [0], output),
                (.., 1) => tile.run::<W, 1, 4, 1>(words, [0], output),
                (.., 2) => tile.run::<W, 1, 8, 1>(words, [0], output),
                (.., 3) => tile.run::<W, 1, 12, 1>(words, [0], output),
                _ => tile.run::<W, 1, 16, 1>(words, [0], output),
            }
            weights = rest;
            first += groups;
        }
    }
}

/// Some groups of output channels.
struct Tile<'a> {
    product: &'a Product,
    weights: &'a [i32],
    /// First group.
    first: usize,
    input: &'a [Block],
}

#[allow(clippy::needless_range_loop, reason = "the index names a register")]
impl Tile<'_> {
    /// All results of the tile, each the maximum over `P` positions, and `C` channels
    /// times phases.
    #[inline(always)]
    fn run<W: Words, const P: usize, const C: usize, const PHASES: usize>(
        &self,
        words: W,
        positions: [usize; P],
        output: &mut [Block],
    ) {
        let Product { bases, targets, taps, pooled, plane, second, .. } = self.product;
        let (weights, _) = self.weights.as_chunks::<C>();
        let weights = &weights[..taps.len()];
        let furthest = taps.iter().max().unwrap_or(&0) + positions.iter().max().unwrap_or(&0);
        let last = bases.last().unwrap_or(&0) + furthest;
        assert!(last < self.input.len(), "windows within the input");
        let bias: &[i32; C] = self.product.bias[4 * self.first * PHASES..].first_chunk().expect("padded");
        for ((&base, &target), &second) in bases.iter().zip(targets).zip(second) {
            let mut sums = [[words.splat(0); C]; P];
            for p in 0..P {
                for c in 0..C {
                    sums[p][c] = words.splat(bias[c]);
                }
            }
            for (tap, weights) in taps.iter().zip(weights) {
                let mut bytes = [words.splat(0); P];
                for p in 0..P {
                    // SAFETY: bases ascend, so no index is above `last`, which is
                    // within the input.
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
                let of = |c: usize, phase: usize| max[(4 * group + c) * PHASES + phase];
                let target = (self.first + group) * plane + target;
                let mut channels = [words.splat(0); 4];
                for c in 0..4 {
                    channels[c] = of(c, 0);
                    if PHASES == 2 && *pooled {
                        channels[c] = words.max(channels[c], of(c, 1));
                    }
                }
                words.store(self.requantize(words, group, channels), &mut output[target]);
                if PHASES == 2 && !pooled && second {
                    for c in 0..4 {
                        channels[c] = of(c, 1);
                    }
                    words.store(self.requantize(words, group, channels), &mut output[target + 1]);
                }
            }
        }
    }

    /// Four channels, as the bytes of words.
    #[inline(always)]
    fn requantize<W: Words>(&self, words: W, group: usize, mut sums: [W::Word; 4]) -> W::Word {
        let all = &self.product.requantization;
        let first = 4 * (self.first + group);
        let of = |values: &[i32]| -> [i32; 4] { *values[first..].first_chunk().expect("padded") };
        if all.wide {
            let (low, high, left) = (of(&all.low), of(&all.high), of(&all.left));
            for c in 0..4 {
                let clamped = words.min(words.max(sums[c], words.splat(low[c])), words.splat(high[c]));
                sums[c] = words.shift_left(clamped, words.splat(left[c]));
            }
        }
        let (multiplier, addend, right) = (of(&all.multiplier), of(&all.addend), of(&all.right));
        for c in 0..4 {
            let [multiplier, addend, right] = [multiplier[c], addend[c], right[c]].map(|v| words.splat(v));
            sums[c] = words.scale(sums[c], multiplier, addend, right);
        }
        words.max_bytes(words.pack(sums), words.splat(i32::from_ne_bytes([all.lowest; 4])))
    }
}
