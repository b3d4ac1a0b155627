//! Batch normalisation of images, one channel at a time. A plane is one channel of one image. Threads share
//! the channels.
//!
//! The order of each sum is fixed, so all SIMD levels compute the same bits. Loops are used instead of
//! closures, because the closures of iterators may be compiled as separate functions, without the level's
//! instructions.

use std::ops::Range;

use super::{Affine, AffineBackward, BatchShape, Input, Moments, level_and_slope};
use crate::kernels::epilogue::{Epilogue, passes, relu};
use crate::kernels::simd::{Kernel, Lanes, Level, load};
use crate::kernels::squares::Squares;
use crate::runtime::memory::Buffer;
use crate::runtime::poll::Poll;
use crate::runtime::threads::{chunks, each, pieces};

/// Number of partial sums. Each is independent of the others, so that the processor overlaps their additions.
const PARTS: usize = 32;
/// Number of values in a block. A block is summed in f32, and the sums of blocks are added in f64.
const BLOCK: usize = 1024;

/// Maximum number of groups of channels that threads share.
const GROUPS: usize = 16;

/// Splits the planes of a batch into groups of channels: for each group, the planes of each image. If there
/// are no values, all slices are empty.
fn by_channels<T>(values: &mut [T], shape: BatchShape) -> Vec<Vec<&mut [T]>> {
    let some = channels_of_group(shape);
    let mut groups: Vec<Vec<&mut [T]>> =
        (0..shape.channels.div_ceil(some)).map(|_| Vec::with_capacity(shape.batch)).collect();
    for image in pieces(values, shape.batch) {
        let plane = image.len() / shape.channels;
        groups.iter_mut().zip(chunks(image, some * plane)).for_each(|(group, planes)| group.push(planes));
    }
    groups
}

fn channels_of_group(shape: BatchShape) -> usize {
    shape.channels.div_ceil(GROUPS)
}

/// See [`normalised`](super::normalised).
pub(super) fn forward(
    level: Level,
    input: Input<'_>,
    epsilon: f64,
    backward: bool,
) -> (Buffer, Moments, Vec<u8>) {
    let Input { shape, epilogue, x, .. } = input;
    assert_eq!(x.len(), shape.len(), "length of {shape:?}");
    let mut output = Buffer::new(shape.output_len(epilogue));
    let keeps = backward && epilogue == Epilogue::ReluPool;
    let mut argmax = vec![0; if keeps { output.len() } else { 0 }];
    let some = channels_of_group(shape);
    let mut found: Vec<Moments> = vec![Moments::default(); shape.channels.div_ceil(some)];
    let groups = by_channels(&mut output, shape).into_iter().zip(by_channels(&mut argmax, shape));
    each(x.len() / 2, groups.zip(&mut found).enumerate(), |(group, ((output, argmax), moments))| {
        let channels = group * some..shape.channels.min((group + 1) * some);
        level.run(Statistics { input, epsilon, channels: channels.clone(), moments: &mut *moments });
        level.run(Normalise { input, moments, first: channels.start, output, argmax });
    });
    let mut moments = Moments::default();
    found.into_iter().for_each(|of_group| moments.append(of_group));
    (output, moments, argmax)
}

/// See [`inferred`](super::inferred).
pub(super) fn inference(level: Level, input: Input<'_>, moments: &Moments) -> Buffer {
    let Input { shape, x, .. } = input;
    let mut output = Buffer::new(shape.output_len(input.epilogue));
    let groups = by_channels(&mut output, shape).into_iter().enumerate();
    each(x.len() / 4, groups, |(group, output)| {
        let first = group * channels_of_group(shape);
        let moments = &moments.part(first, channels_of_group(shape));
        let argmax = output.iter().map(|_| &mut [][..]).collect();
        level.run(Normalise { input, moments, first, output, argmax });
    });
    output
}

/// Computes the statistics of some channels.
struct Statistics<'a> {
    input: Input<'a>,
    epsilon: f64,
    channels: Range<usize>,
    moments: &'a mut Moments,
}

impl Kernel for Statistics<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) {
        let Self { input: Input { shape, x, .. }, epsilon, channels, moments } = self;
        let (pixels, values) = (shape.pixels(), shape.values() as f64);
        for channel in channels {
            let (mut sum, mut square) = (0.0, 0.0);
            for image in 0..shape.batch {
                let plane = &x[shape.plane(image, channel)..][..pixels];
                sum += sums(simd, plane, plane, ValueTerms)[0];
            }
            let mean = (sum / values) as f32;
            for image in 0..shape.batch {
                let plane = &x[shape.plane(image, channel)..][..pixels];
                square += sums(simd, plane, plane, DistanceTerms { mean })[0];
            }
            moments.push(mean, square / values, epsilon);
        }
    }
}

/// Normalises, scales and shifts some channels, and applies the epilogue.
struct Normalise<'a> {
    input: Input<'a>,
    /// Statistics of these channels.
    moments: &'a Moments,
    /// The first channel.
    first: usize,
    /// Receives these channels of each image.
    output: Vec<&'a mut [f32]>,
    /// Receives the argmax of pooling of these channels of each image. Empty slices if it is not kept.
    argmax: Vec<&'a mut [u8]>,
}

impl Kernel for Normalise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) {
        let Self { input, moments, first, mut output, mut argmax } = self;
        let Input { shape, epilogue, x, .. } = input;
        let pooled = epilogue == Epilogue::ReluPool;
        let mut squares = squares(shape, epilogue);
        // A plane before it is pooled.
        let mut normalised = vec![0.0; if pooled { shape.pixels() } else { 0 }];
        for channel in 0..moments.mean.len() {
            let affine =
                Affine::new(&input, first + channel, moments.mean[channel], moments.inverse[channel]);
            for (image, (output, argmax)) in output.iter_mut().zip(&mut argmax).enumerate() {
                let plane = &x[shape.plane(image, first + channel)..][..shape.pixels()];
                let target = if pooled {
                    &mut normalised[..]
                } else {
                    &mut output[channel * plane.len()..][..plane.len()]
                };
                for (to, &x) in target.iter_mut().zip(plane) {
                    let x = affine.apply(x);
                    *to = if epilogue == Epilogue::Relu { relu(x) } else { x };
                }
                if pooled {
                    let at = channel * squares.len();
                    let argmax = if argmax.is_empty() { &mut [] } else { &mut argmax[at..][..squares.len()] };
                    squares.pool(simd, true, &normalised, &mut output[at..][..squares.len()], argmax);
                }
            }
        }
    }
}

/// See [`gradients`](super::gradients).
pub(super) fn backward(
    level: Level,
    input: Input<'_>,
    moments: &Moments,
    argmax: &[u8],
    gradient: &[f32],
) -> (Buffer, [Vec<f32>; 2]) {
    let Input { shape, x, .. } = input;
    assert_eq!(x.len(), shape.len(), "length of {shape:?}");
    let mut of_x = Buffer::new(x.len());
    let [mut of_scale, mut of_shift] = [(); 2].map(|()| vec![0.0; shape.channels]);
    let some = channels_of_group(shape);
    let sums = of_scale.chunks_mut(some).zip(of_shift.chunks_mut(some));
    let groups = by_channels(&mut of_x, shape).into_iter().zip(sums).enumerate();
    let poll = Poll::current();
    each(x.len(), groups, |(group, (of_x, of_parameters))| {
        let first = group * some;
        level.run(GroupBackward { input, moments, argmax, gradient, first, of_x, of_parameters, poll });
    });
    (of_x, [of_scale, of_shift])
}

/// Computes the gradients of some channels.
struct GroupBackward<'a> {
    input: Input<'a>,
    moments: &'a Moments,
    argmax: &'a [u8],
    gradient: &'a [f32],
    /// The first channel.
    first: usize,
    /// Receives the gradient of these channels of each image.
    of_x: Vec<&'a mut [f32]>,
    /// Receive the gradients of these channels' scales and shifts.
    of_parameters: (&'a mut [f32], &'a mut [f32]),
    poll: Poll,
}

impl Kernel for GroupBackward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) {
        let Self { input, moments, argmax, gradient, first, mut of_x, of_parameters, poll } = self;
        let Input { shape, epilogue, x, .. } = input;
        let (pixels, mut squares) = (shape.pixels(), squares(shape, epilogue));
        // One channel's gradient before the epilogue.
        let mut passed = vec![0.0; if epilogue == Epilogue::Identity { 0 } else { shape.values() }];
        for (at, (of_scale, of_shift)) in of_parameters.0.iter_mut().zip(of_parameters.1).enumerate() {
            let channel = first + at;
            let inverse = moments.inverse[channel];
            let affine = Affine::new(&input, channel, moments.mean[channel], inverse);
            let (mut gradients, mut distances) = (0.0, 0.0);
            for image in 0..shape.batch {
                let from = shape.plane(image, channel);
                let plane = &x[from..][..pixels];
                let of_plane = match epilogue {
                    Epilogue::Identity => &gradient[from..][..pixels],
                    Epilogue::Relu => {
                        let passed = &mut passed[image * pixels..][..pixels];
                        let pairs = gradient[from..][..pixels].iter().zip(plane);
                        for (to, (&gradient, &x)) in passed.iter_mut().zip(pairs) {
                            *to = if passes(affine.apply(x)) { gradient } else { 0.0 };
                        }
                        passed
                    }
                    Epilogue::ReluPool => {
                        let passed = &mut passed[image * pixels..][..pixels];
                        let at = (image * shape.channels + channel) * squares.len();
                        let range = at..at + squares.len();
                        squares.spread(simd, &gradient[range.clone()], &argmax[range], passed);
                        passed
                    }
                };
                let found = sums(simd, of_plane, plane, GradientTerms { mean: affine.mean });
                gradients += found[0];
                distances += found[1];
            }
            *of_scale = (distances * f64::from(inverse)) as f32;
            *of_shift = gradients as f32;
            let [level, slope] = level_and_slope(inverse, gradients, distances, shape.values());
            let back = AffineBackward { mean: affine.mean, factor: affine.factor, level, slope };
            for (image, of_x) in of_x.iter_mut().enumerate() {
                let from = shape.plane(image, channel);
                let of_plane = match epilogue {
                    Epilogue::Identity => &gradient[from..][..pixels],
                    Epilogue::Relu | Epilogue::ReluPool => &passed[image * pixels..][..pixels],
                };
                let target = &mut of_x[at * pixels..][..pixels];
                let pairs = x[from..][..pixels].iter().zip(of_plane);
                for (to, (&x, &gradient)) in target.iter_mut().zip(pairs) {
                    *to = back.apply(x, gradient);
                }
            }
            poll.call();
        }
    }
}

/// Returns the 2x2 squares of a plane. There are none if `epilogue` does not pool.
fn squares(shape: BatchShape, epilogue: Epilogue) -> Squares {
    let pooled = epilogue == Epilogue::ReluPool;
    Squares::new(if pooled { [shape.height, shape.width] } else { [0, 0] })
}

/// Computes the terms of `K` sums over pairs of values.
trait Terms<const K: usize>: Copy {
    /// Returns the terms for each pair of lanes.
    fn compute<S: Lanes>(self, simd: S, x: S::f32s, y: S::f32s) -> [S::f32s; K];
}

/// The term is the first value of the pair.
#[derive(Clone, Copy)]
struct ValueTerms;

impl Terms<1> for ValueTerms {
    #[inline(always)]
    fn compute<S: Lanes>(self, _simd: S, x: S::f32s, _y: S::f32s) -> [S::f32s; 1] {
        [x]
    }
}

/// The term is the square of the first value's distance from the mean.
#[derive(Clone, Copy)]
struct DistanceTerms {
    mean: f32,
}

impl Terms<1> for DistanceTerms {
    #[inline(always)]
    fn compute<S: Lanes>(self, simd: S, x: S::f32s, _y: S::f32s) -> [S::f32s; 1] {
        let distance = simd.sub_f32s(x, simd.splat_f32s(self.mean));
        [simd.mul_f32s(distance, distance)]
    }
}

/// The pair is a gradient and its value. The terms are the gradient, and the gradient times the value's
/// distance from the mean.
#[derive(Clone, Copy)]
struct GradientTerms {
    mean: f32,
}

impl Terms<2> for GradientTerms {
    #[inline(always)]
    fn compute<S: Lanes>(self, simd: S, gradient: S::f32s, x: S::f32s) -> [S::f32s; 2] {
        let distance = simd.sub_f32s(x, simd.splat_f32s(self.mean));
        [gradient, simd.mul_f32s(gradient, distance)]
    }
}

/// Returns the sums of `terms` over all pairs of `x` and `y`, added in a fixed order.
#[inline(always)]
fn sums<S: Lanes, T: Terms<K>, const K: usize>(simd: S, x: &[f32], y: &[f32], terms: T) -> [f64; K] {
    let mut found = [0.0; K];
    let lanes = S::F32_LANES;
    for (x, y) in x.chunks(BLOCK).zip(y.chunks(BLOCK)) {
        // The lanes of these vectors are the partial sums.
        let mut parts = [[simd.splat_f32s(0.0); K]; PARTS];
        let parts = &mut parts[..PARTS / lanes];
        let whole = x.len() / PARTS * PARTS;
        for at in (0..whole).step_by(PARTS) {
            for (i, parts) in parts.iter_mut().enumerate() {
                let from = at + i * lanes;
                let terms =
                    terms.compute(simd, load(simd, &x[from..][..lanes]), load(simd, &y[from..][..lanes]));
                for k in 0..K {
                    parts[k] = simd.add_f32s(parts[k], terms[k]);
                }
            }
        }
        for (at, parts) in (whole..x.len()).step_by(lanes).zip(&mut *parts) {
            let part = at..x.len().min(at + lanes);
            let inside = simd.mask_between_m32s(0, part.len() as u32).mask();
            let terms = terms.compute(simd, load(simd, &x[part.clone()]), load(simd, &y[part]));
            for k in 0..K {
                let term = simd.select_f32s(inside, terms[k], simd.splat_f32s(0.0));
                parts[k] = simd.add_f32s(parts[k], term);
            }
        }
        for k in 0..K {
            let mut values = [0.0; PARTS];
            for (values, parts) in values.chunks_exact_mut(lanes).zip(&*parts) {
                simd.partial_store_f32s(values, parts[k]);
            }
            found[k] += total(values);
        }
    }
    found
}

/// Returns the sum of all parts, added pairwise.
#[inline(always)]
fn total(mut parts: [f32; PARTS]) -> f64 {
    let mut half = PARTS / 2;
    while half > 0 {
        for i in 0..half {
            parts[i] += parts[half + i];
        }
        half /= 2;
    }
    f64::from(parts[0])
}
