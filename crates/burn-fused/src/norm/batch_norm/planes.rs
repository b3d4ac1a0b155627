//! Batch normalisation of images: one channel at a time, plane by plane.
//!
//! The compiler vectorises the scalar loops for each SIMD level. The order of each
//! sum is fixed, so all levels give the same bits.

use super::{Affine, Back, Input, Moments};
use crate::epilogue::{Epilogue, passes, pool_row, relu, spread_row};
use crate::memory::Buffer;

/// Independent partial sums, so that no addition waits for another.
const PARTS: usize = 32;
/// Values that are summed in f32; sums of blocks are summed in f64.
const BLOCK: usize = 1024;

/// See [`Forward`](super::Forward).
#[inline(always)]
pub(super) fn forward(input: Input<'_>, epsilon: f64, backward: bool) -> (Buffer, Moments, Vec<u8>) {
    let Input { shape, epilogue, x, .. } = input;
    let (pixels, values) = (shape.pixels(), shape.values() as f64);
    let pooled = epilogue == Epilogue::ReluPool;
    assert_eq!(x.len(), shape.len(), "length of {shape:?}");
    let mut moments = Moments::default();
    let mut output = Buffer::new(shape.output_len(epilogue));
    let mut argmax = vec![0; if pooled && backward { output.len() } else { 0 }];
    let mut rows = vec![0.0; if pooled { 2 * shape.width } else { 0 }];
    let mut unkept = vec![0; shape.width / 2];
    for channel in 0..shape.channels {
        let planes = (0..shape.batch).map(|image| &x[shape.plane(image, channel)..][..pixels]);
        let mean = planes.clone().map(|plane| sums(plane, plane, |x, _| [x])[0]).sum::<f64>() / values;
        let mean = mean as f32;
        let square = |x, _| [(x - mean) * (x - mean)];
        let variance = planes.clone().map(|plane| sums(plane, plane, square)[0]).sum::<f64>() / values;
        moments.push(mean, variance, epsilon);
        let affine = Affine::of(&input, &moments, channel);
        for (image, plane) in planes.enumerate() {
            if pooled {
                let [height, width] = epilogue.size([shape.height, shape.width]);
                let from = (image * shape.channels + channel) * height * width;
                for (y, squares) in plane.chunks_exact(2 * shape.width).enumerate() {
                    rows.iter_mut().zip(squares).for_each(|(to, &x)| *to = affine.apply(x));
                    let (upper, lower) = rows.split_at(shape.width);
                    let to = from + y * width..from + (y + 1) * width;
                    let argmax = argmax.get_mut(to.clone()).unwrap_or(&mut unkept);
                    pool_row(upper, lower, &mut output[to], argmax);
                }
                continue;
            }
            let target = &mut output[shape.plane(image, channel)..][..pixels];
            let pairs = target.iter_mut().zip(plane);
            match epilogue {
                Epilogue::Relu => pairs.for_each(|(to, &x)| *to = relu(affine.apply(x))),
                _ => pairs.for_each(|(to, &x)| *to = affine.apply(x)),
            }
        }
    }
    (output, moments, argmax)
}

/// See [`Backward`](super::Backward).
#[inline(always)]
pub(super) fn backward(
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
    // One channel's gradient before the epilogue.
    let mut passed = vec![0.0; if epilogue == Epilogue::Identity { 0 } else { shape.values() }];
    for channel in 0..shape.channels {
        let affine = Affine::of(&input, moments, channel);
        let (mut gradients, mut distances) = (0.0, 0.0);
        for image in 0..shape.batch {
            let from = shape.plane(image, channel);
            let plane = &x[from..][..pixels];
            let of_plane = match epilogue {
                Epilogue::Identity => &gradient[from..][..pixels],
                Epilogue::Relu => {
                    let passed = &mut passed[image * pixels..][..pixels];
                    let pairs = gradient[from..][..pixels].iter().zip(plane);
                    passed.iter_mut().zip(pairs).for_each(|(to, (&gradient, &x))| {
                        *to = if passes(affine.apply(x)) { gradient } else { 0.0 };
                    });
                    passed
                }
                Epilogue::ReluPool => {
                    let passed = &mut passed[image * pixels..][..pixels];
                    let [height, width] = epilogue.size([shape.height, shape.width]);
                    let from = (image * shape.channels + channel) * height * width;
                    for (y, rows) in passed.chunks_exact_mut(2 * shape.width).enumerate() {
                        let from = from + y * width..from + (y + 1) * width;
                        let (upper, lower) = rows.split_at_mut(shape.width);
                        spread_row(&gradient[from.clone()], &argmax[from], upper, lower);
                    }
                    passed
                }
            };
            let found = sums(of_plane, plane, |gradient, x| [gradient, gradient * (x - affine.mean)]);
            gradients += found[0];
            distances += found[1];
        }
        let inverse = moments.inverse[channel];
        of_scale.push((distances * f64::from(inverse)) as f32);
        of_shift.push(gradients as f32);
        let back = Back::of(affine, inverse, gradients, distances, shape.values());
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

/// The sums of `terms` of all pairs of `x` and `y`, in a fixed order.
#[inline(always)]
fn sums<const K: usize>(x: &[f32], y: &[f32], terms: impl Fn(f32, f32) -> [f32; K]) -> [f64; K] {
    let mut found = [0.0; K];
    for (x, y) in x.chunks(BLOCK).zip(y.chunks(BLOCK)) {
        let mut parts = [[0.0f32; PARTS]; K];
        let ((x, x_rest), (y, y_rest)) = (x.as_chunks::<PARTS>(), y.as_chunks::<PARTS>());
        for (x, y) in x.iter().zip(y) {
            for i in 0..PARTS {
                let terms = terms(x[i], y[i]);
                for k in 0..K {
                    parts[k][i] += terms[k];
                }
            }
        }
        for (i, (&x, &y)) in x_rest.iter().zip(y_rest).enumerate() {
            let terms = terms(x, y);
            for k in 0..K {
                parts[k][i] += terms[k];
            }
        }
        for k in 0..K {
            found[k] += total(parts[k]);
        }
    }
    found
}

/// The sum of all parts, pairwise.
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
