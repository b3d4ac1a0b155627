//! Batch normalisation of images, one channel at a time. A plane is one channel of one image.
//!
//! The order of each sum is fixed, so all SIMD levels compute the same bits. Loops are used instead of
//! closures, because the closures of iterators may be compiled as separate functions, without the level's
//! instructions.

use super::{Affine, AffineBackward, BatchShape, Input, Moments, level_and_slope};
use crate::kernels::epilogue::{Epilogue, passes, relu};
use crate::kernels::simd::{Lanes, load};
use crate::kernels::squares::Squares;
use crate::runtime::memory::Buffer;

/// Number of partial sums. Each is independent of the others, so that the processor overlaps their additions.
const PARTS: usize = 32;
/// Number of values in a block. A block is summed in f32, and the sums of blocks are added in f64.
const BLOCK: usize = 1024;

/// See [`normalised`](super::normalised).
#[inline(always)]
pub(super) fn forward<S: Lanes>(
    simd: S,
    input: Input<'_>,
    epsilon: f64,
    backward: bool,
) -> (Buffer, Moments, Vec<u8>) {
    let Input { shape, x, .. } = input;
    let (pixels, values) = (shape.pixels(), shape.values() as f64);
    assert_eq!(x.len(), shape.len(), "length of {shape:?}");
    let mut moments = Moments::default();
    let mut target = Target::new(&input, backward);
    for channel in 0..shape.channels {
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
        target.normalise(simd, &input, &moments, channel);
    }
    (target.output, moments, target.argmax)
}

/// See [`inferred`](super::inferred).
#[inline(always)]
pub(super) fn inference<S: Lanes>(simd: S, input: Input<'_>, moments: &Moments) -> Buffer {
    let mut target = Target::new(&input, false);
    for channel in 0..input.shape.channels {
        target.normalise(simd, &input, moments, channel);
    }
    target.output
}

/// The output, which is computed channel by channel.
struct Target {
    output: Buffer,
    /// Argmax of pooling; empty without pooling, or if no backward follows.
    argmax: Vec<u8>,
    squares: Squares,
    /// A plane before it is pooled.
    normalised: Vec<f32>,
}

impl Target {
    fn new(&Input { shape, epilogue, .. }: &Input<'_>, backward: bool) -> Self {
        let pooled = epilogue == Epilogue::ReluPool;
        let output = Buffer::new(shape.output_len(epilogue));
        let argmax = vec![0; if pooled && backward { output.len() } else { 0 }];
        let normalised = vec![0.0; if pooled { shape.pixels() } else { 0 }];
        Self { output, argmax, squares: squares(shape, epilogue), normalised }
    }

    /// Normalises, scales and shifts a channel, and applies the epilogue.
    #[inline(always)]
    fn normalise<S: Lanes>(&mut self, simd: S, input: &Input<'_>, moments: &Moments, channel: usize) {
        let Self { output, argmax, squares, normalised } = self;
        let &Input { shape, epilogue, x, .. } = input;
        let affine = Affine::for_channel(input, moments, channel);
        for image in 0..shape.batch {
            let from = shape.plane(image, channel);
            let plane = &x[from..][..shape.pixels()];
            let pooled = epilogue == Epilogue::ReluPool;
            let target = if pooled { &mut normalised[..] } else { &mut output[from..][..plane.len()] };
            for (to, &x) in target.iter_mut().zip(plane) {
                let x = affine.apply(x);
                *to = if epilogue == Epilogue::Relu { relu(x) } else { x };
            }
            if pooled {
                let at = (image * shape.channels + channel) * squares.len();
                let argmax = if argmax.is_empty() { &mut [] } else { &mut argmax[at..][..squares.len()] };
                squares.pool(simd, true, normalised, &mut output[at..][..squares.len()], argmax);
            }
        }
    }
}

/// See [`gradients`](super::gradients).
#[inline(always)]
pub(super) fn backward<S: Lanes>(
    simd: S,
    input: Input<'_>,
    moments: &Moments,
    argmax: &[u8],
    gradient: &[f32],
) -> (Buffer, [Vec<f32>; 2]) {
    let Input { shape, epilogue, x, .. } = input;
    let pixels = shape.pixels();
    assert_eq!(x.len(), shape.len(), "length of {shape:?}");
    let mut of_x = Buffer::new(x.len());
    let (mut of_scale, mut of_shift) = (Vec::new(), Vec::new());
    let mut squares = squares(shape, epilogue);
    // One channel's gradient before the epilogue.
    let mut passed = vec![0.0; if epilogue == Epilogue::Identity { 0 } else { shape.values() }];
    for channel in 0..shape.channels {
        let affine = Affine::for_channel(&input, moments, channel);
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
        let inverse = moments.inverse[channel];
        of_scale.push((distances * f64::from(inverse)) as f32);
        of_shift.push(gradients as f32);
        let [level, slope] = level_and_slope(inverse, gradients, distances, shape.values());
        let back = AffineBackward { mean: affine.mean, factor: affine.factor, level, slope };
        for image in 0..shape.batch {
            let from = shape.plane(image, channel);
            let of_plane = match epilogue {
                Epilogue::Identity => &gradient[from..][..pixels],
                Epilogue::Relu | Epilogue::ReluPool => &passed[image * pixels..][..pixels],
            };
            let target = &mut of_x[from..][..pixels];
            let pairs = x[from..][..pixels].iter().zip(of_plane);
            for (to, (&x, &gradient)) in target.iter_mut().zip(pairs) {
                *to = back.apply(x, gradient);
            }
        }
    }
    (of_x, [of_scale, of_shift])
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
