//! Checks direct convolution and im2col + GEMM at each SIMD level against a scalar f64 reference.

use super::*;
use crate::runtime::poll::Poll;
use crate::runtime::poll::counting::counted;

/// A small pseudo-random generator.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let x = self.0 ^ (self.0 >> 33);
        x.wrapping_mul(0xff51afd7ed558ccd) >> 20
    }

    fn upto(&mut self, most: usize) -> usize {
        1 + self.next() as usize % most
    }

    /// Returns values from -2 to 2 in steps of `1 / steps`. If `steps` is small, sums of products are exact
    /// in f32. Values that are equal or zero in the reference are then equal or zero at every SIMD level.
    fn values(&mut self, len: usize, steps: u64) -> Vec<f32> {
        (0..len).map(|_| (self.next() % (4 * steps + 1)) as f32 / steps as f32 - 2.0).collect()
    }
}

struct Reference {
    output: Vec<f64>,
    input: Vec<f64>,
    weights: Vec<f64>,
    bias: Vec<f64>,
}

/// Computes the convolution and its gradients by their definitions, in f64.
fn reference(
    shape: Shape,
    epilogue: Epilogue,
    input: &[f32],
    weights: &[f32],
    bias: &[f32],
    gradient: &[f32],
) -> Reference {
    let Shape { batch, inputs, outputs, height, width } = shape;
    let neighbours = |y: usize, x: usize| {
        (0..9).filter_map(move |tap| {
            let (y, x) = ((y + tap / 3).checked_sub(1)?, (x + tap % 3).checked_sub(1)?);
            (y < height && x < width).then_some((tap, y * width + x))
        })
    };
    let [oh, ow] = shape.output_size(epilogue);
    let mut all = Reference {
        output: vec![0.0; shape.output_len(epilogue)],
        input: vec![0.0; input.len()],
        weights: vec![0.0; weights.len()],
        bias: vec![0.0; outputs],
    };
    for (image, o) in (0..batch).flat_map(|image| (0..outputs).map(move |o| (image, o))) {
        let mut product = vec![f64::from(bias[o]); height * width];
        let plane = |i: usize| (image * inputs + i) * height * width;
        for (at, value) in product.iter_mut().enumerate() {
            for i in 0..inputs {
                for (tap, n) in neighbours(at / width, at % width) {
                    *value += f64::from(input[plane(i) + n]) * f64::from(weights[(o * inputs + i) * 9 + tap]);
                }
            }
        }
        let mut back = vec![0.0; height * width];
        for (to, (y, x)) in (0..oh).flat_map(|y| (0..ow).map(move |x| (y, x))).enumerate() {
            let to = (image * outputs + o) * oh * ow + to;
            let at = match epilogue {
                Epilogue::Identity | Epilogue::Relu => y * width + x,
                Epilogue::ReluPool => {
                    let corner = 2 * y * width + 2 * x;
                    let square = [corner, corner + 1, corner + width, corner + width + 1];
                    square.into_iter().fold(corner, |a, b| if product[b] > product[a] { b } else { a })
                }
            };
            let passes = epilogue == Epilogue::Identity || product[at] > 0.0;
            all.output[to] = if passes { product[at] } else { 0.0 };
            back[at] = if passes { f64::from(gradient[to]) } else { 0.0 };
        }
        all.bias[o] += back.iter().sum::<f64>();
        for (at, &g) in back.iter().enumerate().filter(|(_, g)| **g != 0.0) {
            for i in 0..inputs {
                for (tap, n) in neighbours(at / width, at % width) {
                    let w = (o * inputs + i) * 9 + tap;
                    all.weights[w] += g * f64::from(input[plane(i) + n]);
                    all.input[plane(i) + n] += g * f64::from(weights[w]);
                }
            }
        }
    }
    all
}

fn assert_close(what: &str, found: &[f32], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0f64, |max, x| max.max(x.abs()));
    for (at, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let off = (f64::from(found) - expected).abs();
        assert!(off <= 1e-5 * largest, "{what}, value {at}: {found} for {expected}, largest {largest}");
    }
}

fn check(level: Level, shape: Shape, epilogue: Epilogue, numbers: &mut Numbers) {
    let steps = if epilogue == Epilogue::Identity { 1000 } else { 16 };
    let input = numbers.values(shape.input_len(), steps);
    let weights = numbers.values(shape.weight_len(), steps);
    let bias = numbers.values(shape.outputs, steps);
    let gradient = numbers.values(shape.output_len(epilogue), 1000);
    let expected = reference(shape, epilogue, &input, &weights, &bias, &gradient);
    let what = |part| format!("{part} of {shape:?}, {epilogue:?}, {level}");
    let conv = Convolution { level, route: Route::for_shape(shape, Algorithm::Gemm), shape, epilogue };
    let (output, argmax) = conv.forward(&input, [&weights, &bias], true);
    assert_close(&what("output"), &output, &expected.output);
    let alone = conv.forward(&input, [&weights, &bias], false);
    assert_eq!(alone.0[..], output[..], "{}", what("output without backward"));

    let back = Back {
        input: &input,
        weights: &weights,
        output: &output,
        argmax: &argmax,
        gradient: &gradient,
        normed: None,
        of_input: true,
    };
    let (found, polls) = counted(|poll| conv.backward(back, poll));
    assert!(polls > 0, "not polled");
    assert_close(&what("weights"), &found.weights, &expected.weights);
    assert_close(&what("bias"), &found.bias, &expected.bias);
    assert_close(&what("input"), found.input.as_deref().unwrap(), &expected.input);
    let less = conv.backward(Back { normed: None, of_input: false, ..back }, Poll::nothing());
    assert!(less.input.is_none());
    assert_eq!((&less.weights[..], less.bias), (&found.weights[..], found.bias), "{}", what("twice"));
}

#[test]
fn every_simd_level_matches_the_f64_reference() {
    let mut numbers = Numbers(7);
    for case in 0..60 {
        let few = case % 2 == 0;
        let most = if few { 9 } else { 30 };
        let shape = Shape {
            batch: numbers.upto(if case % 10 == 0 { 40 } else { 5 }),
            inputs: numbers.upto(most),
            outputs: numbers.upto(most),
            height: numbers.upto(20),
            width: numbers.upto(20),
        };
        for level in Level::available() {
            for epilogue in [Epilogue::Identity, Epilogue::Relu, Epilogue::ReluPool] {
                check(level, shape, epilogue, &mut numbers);
            }
        }
    }
}

#[test]
fn batches_that_do_not_fill_the_lanes_are_supported() {
    let mut numbers = Numbers(11);
    for batch in [1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 128, 255, 256, 257] {
        for level in Level::available() {
            for (inputs, outputs) in [(1, 4), (11, 13)] {
                let shape = Shape { batch, inputs, outputs, height: 5, width: 6 };
                check(level, shape, Epilogue::ReluPool, &mut numbers);
            }
        }
    }
}

#[test]
fn large_images_split_into_groups_match_the_reference() {
    let mut numbers = Numbers(13);
    for (height, width) in [(32, 32), (33, 31), (3, 300), (17, 129)] {
        for level in Level::available() {
            for epilogue in [Epilogue::Relu, Epilogue::ReluPool] {
                let shape = Shape { batch: 2, inputs: 16, outputs: 9, height, width };
                check(level, shape, epilogue, &mut numbers);
            }
        }
    }
}

#[test]
fn the_shape_and_the_setting_select_the_algorithm() {
    let route = |[batch, inputs, outputs, height, width]: [usize; 5], algorithm| {
        Route::for_shape(Shape { batch, inputs, outputs, height, width }, algorithm)
    };
    for (sizes, expected) in [
        ([32, 3, 32, 32, 32], Route::Direct),
        ([32, 12, 32, 32, 32], Route::Gemm),
        ([32, 32, 64, 32, 32], Route::Winograd),
        ([1, 16, 9, 8, 8], Route::Winograd),
        ([1, 256, 256, 7, 7], Route::Gemm),
        ([64, 256, 256, 1, 1], Route::Gemm),
        ([32, 16, 8, 28, 28], Route::Direct),
    ] {
        assert_eq!(route(sizes, Algorithm::Winograd), expected, "{sizes:?}");
        let other = if expected == Route::Direct { Route::Direct } else { Route::Gemm };
        assert_eq!(route(sizes, Algorithm::Gemm), other, "{sizes:?}");
    }
}
