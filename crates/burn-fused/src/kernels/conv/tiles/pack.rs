//! Packs weights, images and gradients in the layouts that products on AMX tiles read:
//! [`Operands`](crate::kernels::half::amx::Operands).

use super::super::Shape;
use super::super::blocks::total;
use super::super::scratch::Scratch;
use super::super::source::{Mask, Planes, Source};
use super::{Flat, LEVEL, padded};
use crate::kernels::half::Half;
use crate::kernels::half::amx::{BLOCK, TILE, WORDS};
use crate::kernels::simd::{Kernel, Lanes};

/// Rounds weights `[outputs, inputs, 3, 3]` to bf16, and packs them as the right matrix of the products. A
/// product's results are output channels, and the terms of its sums are input channels. The packed layout is
/// `[results / 32, 9, terms / 32]`, with two tiles of 16 results each at every index.
///
/// With `flipped`, the weights are packed for the gradient of the input: results are input channels, terms
/// are output channels, and the taps are in reverse order.
pub fn weights<'a>(shape: Shape, weights: &[f32], flipped: bool, buffer: &'a mut Scratch) -> &'a [u32] {
    let weights = Half::Bf16.narrowed(LEVEL, weights);
    let Shape { inputs, outputs, .. } = shape;
    let [terms, results] = if flipped { [outputs, inputs] } else { [inputs, outputs] };
    let steps = padded(terms) / BLOCK;
    let words = buffer.take::<u32>(padded(results) / BLOCK * 9 * steps * 2 * WORDS);
    if [terms, results] != [terms, results].map(padded) {
        words.fill(0);
    }
    let (weights, none) = (weights.as_chunks::<9>().0, [0; 9]);
    let taps_of = |term: usize, result: usize| {
        if term < terms {
            &weights[if flipped { term * inputs + result } else { result * inputs + term }]
        } else {
            &none
        }
    };
    let mut pack = |term: usize, result: usize| {
        let first = result / BLOCK * 9 * steps + term / BLOCK;
        let place = (2 * first + result % BLOCK / TILE) * WORDS + term % BLOCK / 2 * TILE + result % TILE;
        let taps = words[place..].iter_mut().step_by(2 * steps * WORDS).take(9);
        let pairs = taps_of(term, result).iter().zip(taps_of(term + 1, result));
        let word = |(&even, &odd): (&u16, &u16)| u32::from(even) | u32::from(odd) << 16;
        if flipped {
            taps.zip(pairs.rev()).for_each(|(tap, pair)| *tap = word(pair))
        } else {
            taps.zip(pairs).for_each(|(tap, pair)| *tap = word(pair))
        }
    };
    // `weights` is read in the order in which it is stored.
    for outer in (0..outputs).step_by(if flipped { 2 } else { 1 }) {
        for inner in (0..inputs).step_by(if flipped { 1 } else { 2 }) {
            if flipped { pack(outer, inner) } else { pack(inner, outer) }
        }
    }
    words
}

/// Packs the planes of a source for one block of images.
pub struct Channels<'a> {
    pub flat: Flat,
    /// Index of the block's first image in the batch.
    pub first: usize,
    pub source: Source<'a, u16>,
    pub lanes: &'a mut Scratch,
    pub wide: &'a mut Scratch,
    /// Receives all positions of [`Flat`], the pixels and the zeros around them, with the channels of a
    /// position side by side.
    pub pixels: &'a mut [u16],
    /// If present, the first slice receives tiles of 16 pairs of neighbouring positions in 16 channels. The
    /// second slice has one sum for each channel, to which the values of all positions are added.
    pub pairs: Option<(&'a mut [u32], &'a mut [f32])>,
}

impl Kernel for Channels<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) {
        let Self { flat, first: image, source, pixels, mut pairs, .. } = self;
        assert_eq!(S::F32_LANES, TILE, "a vector is a row of a tile");
        let channels = padded(source.channels);
        let (front, len) = (flat.front() * channels, flat.len());
        pixels[..front].fill(0);
        pixels[front + len * channels..].fill(0);
        let pixels = &mut pixels[front..];
        let size: usize = flat.size().iter().product();
        let lanes = self.lanes.take::<S::f32s>(2 * len);
        let wide = self.wide.take::<f32>(3 * TILE * size);
        for group in (0..channels / TILE).step_by(2) {
            for (half, lanes) in lanes.chunks_exact_mut(len).enumerate() {
                load(simd, flat, image, source, group + half, wide, lanes);
            }
            let (first, second) = lanes.split_at(len);
            // Both groups of 16 channels are stored at once, because they share a cache line.
            let both = first.iter().zip(second);
            for ((&first, &second), pixel) in both.zip(pixels.chunks_exact_mut(channels)) {
                let (left, right) = pixel[group * TILE..][..BLOCK].split_at_mut(TILE);
                simd.upper_halves(first, left);
                simd.upper_halves(second, right);
            }
            if let Some((pairs, sums)) = &mut pairs {
                for (group, lanes) in [(group, first), (group + 1, second)] {
                    let values: &[[f32; TILE]] = bytemuck::cast_slice(lanes);
                    let steps = pairs.chunks_exact_mut(channels / TILE * WORDS);
                    for (values, tiles) in values.chunks_exact(BLOCK).zip(steps) {
                        let tile = tiles[group * WORDS..][..WORDS].as_chunks_mut::<TILE>().0;
                        for (two, pair) in values.as_chunks::<2>().0.iter().zip(tile) {
                            for (word, (&even, &odd)) in pair.iter_mut().zip(two[0].iter().zip(&two[1])) {
                                *word = even.to_bits() >> 16 | odd.to_bits() & 0xffff_0000;
                            }
                        }
                    }
                    let found = total(simd, lanes);
                    let found: &[f32] = bytemuck::cast_slice(std::slice::from_ref(&found));
                    for (sum, found) in sums.iter_mut().skip(group * TILE).zip(found) {
                        *sum += found;
                    }
                }
            }
        }
    }
}

/// Loads the 16 channels of group `group` of all images of a block. `first` is the index of the block's first
/// image in the batch. Positions between and after the images become zero, as do channels beyond the last
/// one. `wide` is scratch for three times 16 channels of an image.
#[inline(always)]
fn load<S: Lanes>(
    simd: S,
    flat: Flat,
    first: usize,
    source: Source<'_, u16>,
    group: usize,
    wide: &mut [f32],
    lanes: &mut [S::f32s],
) {
    let count = if group * TILE < source.channels { flat.images } else { 0 };
    let (images, rest) = lanes.split_at_mut(count * flat.period());
    rest.fill(simd.splat_f32s(0.0));
    let [height, width] = flat.size();
    let pixels = if let Mask::Pool(_) = source.mask { height / 2 * (width / 2) } else { height * width };
    let (values, wide) = wide.split_at_mut(TILE * height * width);
    let (outputs, pooled) = wide.split_at_mut(TILE * height * width);
    for (image, lanes) in images.chunks_exact_mut(flat.period()).enumerate() {
        let planes = source.group::<S>([first + image, group]);
        let widened = |bits: &[u16], wide: &mut [f32]| {
            let len = planes.count * pixels;
            Half::Bf16.widen(LEVEL, &bits[planes.first * pixels..][..len], &mut wide[..len]);
        };
        widened(source.values, values);
        let mask = match source.mask {
            Mask::All => Mask::All,
            Mask::Relu(output) => {
                widened(output, outputs);
                Mask::Relu(&*outputs)
            }
            Mask::Pool(argmax) => Mask::Pool(argmax),
        };
        let source =
            Source { values: &*values, mask, channels: source.channels, size: source.size, normed: None };
        let pooled = bytemuck::cast_slice_mut(pooled);
        source.load(simd, Planes { first: 0, ..planes }, [0, height], flat.plane(), pooled, lanes);
    }
}
