//! Checks Winograd at every SIMD level against an f64 reference.

use super::super::*;
use super::testing::{Reference, gradients, product};
use crate::kernels::epilogue::NO_MAXIMUM;
use crate::runtime::poll::Poll;
use crate::runtime::poll::counting::counted;

/// Maximum error, divided by the largest value.
const TOLERANCE: f64 = 5e-6;

const EPILOGUES: [Epilogue; 3] = [Epilogue::Identity, Epilogue::Relu, Epilogue::ReluPool];

/// A small pseudo-random generator.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let x = self.0 ^ (self.0 >> 33);
        x.wrapping_mul(0xff51afd7ed558ccd) >> 20
    }

    fn between(&mut self, least: usize, most: usize) -> usize {
        least + self.next() as usize % (most - least + 1)
    }

    /// Returns values from -1 to 1.
    fn values(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| (self.next() & 0xff_ffff) as f32 / (1 << 23) as f32 - 1.0).collect()
    }
}

/// The inputs of a convolution.
struct Case {
    shape: Shape,
    input: Vec<f32>,
    weights: Vec<f32>,
    bias: Vec<f32>,
}

/// The results of one forward and one backward.
#[derive(Debug, Clone, PartialEq)]
struct Results {
    output: Vec<f32>,
    argmax: Vec<u8>,
    input: Vec<f32>,
    weights: Vec<f32>,
    bias: Vec<f32>,
}

impl Case {
    fn new([batch, inputs, outputs, height, width]: [usize; 5], numbers: &mut Numbers) -> Self {
        let shape = Shape { batch, inputs, outputs, height, width };
        let [input, weights, bias] =
            [shape.input_len(), shape.weight_len(), outputs].map(|len| numbers.values(len));
        Self { shape, input, weights, bias }
    }

    fn run(&self, level: Level, epilogue: Epilogue, gradient: &[f32]) -> Results {
        let (shape, parameters) = (self.shape, [&self.weights[..], &self.bias]);
        let conv = Convolution { level, route: Route::Winograd, shape, epilogue };
        let (output, argmax) = conv.forward(&self.input, parameters, true);
        let without = conv.forward(&self.input, parameters, false);
        assert_eq!(bits(&without.0), bits(&output), "without backward: {shape:?}");
        let back = Back {
            input: &self.input,
            weights: &self.weights,
            output: &output,
            argmax: &argmax,
            gradient,
            normed: None,
            of_input: true,
        };
        let (found, polls) = counted(|poll| conv.backward(back, poll));
        assert!(polls > 1, "not polled");
        let less = conv.backward(Back { normed: None, of_input: false, ..back }, Poll::nothing());
        assert!(less.input.is_none());
        assert_eq!(bits(&less.weights), bits(&found.weights), "without the gradient of the input: {shape:?}");
        let argmax = if argmax.is_empty() { argmax } else { in_order(level, shape, &argmax) };
        let input = found.input.expect("requested");
        Results {
            output: output.to_vec(),
            argmax,
            input: input.to_vec(),
            weights: found.weights.to_vec(),
            bias: found.bias,
        }
    }

    /// Checks outputs and gradients against the f64 reference. `product` is the reference before the
    /// epilogue.
    fn check(&self, level: Level, epilogue: Epilogue, product: &[f64], numbers: &mut Numbers) {
        let shape = self.shape;
        let gradient = numbers.values(shape.output_len(epilogue));
        let found = self.run(level, epilogue, &gradient);
        let what = |part| format!("{part} of {shape:?}, {epilogue:?}, {level}");
        let largest = product.iter().fold(0.0f64, |max, x| max.max(x.abs()));
        let near = TOLERANCE * largest;
        // The gradient before the epilogue. If values are nearly equal or nearly zero, rounding decides which
        // of them gets the gradient, so the reference takes the maximum that forward found.
        let mut before = vec![0.0; product.len()];
        for (at, (&output, &gradient)) in found.output.iter().zip(&gradient).enumerate() {
            let (value, from) = match epilogue {
                Epilogue::Identity => (product[at], Some(at)),
                Epilogue::Relu => (product[at].max(0.0), (output > 0.0).then_some(at)),
                Epilogue::ReluPool => {
                    let square = square(shape, at);
                    let largest = square.iter().fold(0.0, |max: f64, &at| max.max(product[at]));
                    (largest, square.get(usize::from(found.argmax[at])).copied())
                }
            };
            let off = (f64::from(output) - value).abs();
            assert!(off <= near, "{}, value {at}: {output} for {value}, largest {largest}", what("output"));
            match from {
                Some(from) => {
                    assert!((product[from] - f64::from(output)).abs() <= near, "{}", what("argmax"));
                    before[from] = f64::from(gradient);
                }
                None => assert_eq!(output, 0.0, "{}", what("argmax")),
            }
        }
        let Reference { input, weights, bias } = gradients(shape, &self.input, &self.weights, &before);
        for (part, found, expected) in [
            ("input", &found.input, input),
            ("weights", &found.weights, weights),
            ("bias", &found.bias, bias),
        ] {
            assert_eq!(found.len(), expected.len());
            let largest = expected.iter().fold(0.0f64, |max, x| max.max(x.abs()));
            for (at, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
                let off = (f64::from(found) - expected).abs();
                let text = || format!("{}, value {at}: {found} for {expected}", what(part));
                assert!(off <= TOLERANCE * largest, "{}, largest {largest}", text());
            }
        }
    }

    fn check_all(&self, numbers: &mut Numbers) {
        let product = product(self.shape, &self.input, &self.weights, &self.bias);
        for level in Level::available() {
            for epilogue in EPILOGUES {
                self.check(level, epilogue, &product, numbers);
            }
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Returns the indices of the four pixels of the 2x2 square of pooled pixel `at`.
fn square(shape: Shape, at: usize) -> [usize; 4] {
    let [height, width] = shape.output_size(Epilogue::ReluPool);
    let (plane, y, x) = (at / (height * width), at / width % height, at % width);
    let corner = (plane * shape.height + 2 * y) * shape.width + 2 * x;
    [corner, corner + 1, corner + shape.width, corner + shape.width + 1]
}

/// Returns the argmax in the order of the output.
fn in_order(level: Level, shape: Shape, argmax: &[u8]) -> Vec<u8> {
    let lanes = match level {
        Level::Avx512 => 16,
        Level::Avx2 => 8,
        Level::Neon | Level::Portable => 4,
    };
    let [height, width] = shape.output_size(Epilogue::ReluPool);
    let groups = shape.outputs.div_ceil(lanes);
    (0..shape.output_len(Epilogue::ReluPool))
        .map(|at| {
            let (pixel, plane) = (at % (height * width), at / (height * width));
            let (image, output) = (plane / shape.outputs, plane % shape.outputs);
            argmax[((image * groups + output / lanes) * height * width + pixel) * lanes + output % lanes]
        })
        .collect()
}

#[test]
fn outputs_and_gradients_match_the_f64_reference() {
    let mut numbers = Numbers(17);
    for _ in 0..16 {
        let mut draw = |[least, most]: [usize; 2]| numbers.between(least, most);
        let sizes = [[1, 5], [16, 70], [1, 70], [1, 19], [1, 19]].map(&mut draw);
        Case::new(sizes, &mut numbers).check_all(&mut numbers);
    }
}

#[test]
fn batches_of_many_blocks_match_the_f64_reference() {
    let mut numbers = Numbers(18);
    // All cases have more tiles than a block: in one image, in one row of tiles, or in several small images.
    // Some tiles are half tiles.
    let large = [[2, 16, 17, 41, 37], [1, 17, 16, 9, 530], [1, 66, 16, 48, 45]];
    let small = [[70, 16, 33, 5, 3], [9, 16, 17, 14, 14], [70, 16, 16, 2, 2], [30, 16, 16, 6, 12]];
    for sizes in large.into_iter().chain(small) {
        Case::new(sizes, &mut numbers).check_all(&mut numbers);
    }
}

#[test]
fn results_are_the_same_bits_after_other_convolutions() {
    let mut numbers = Numbers(19);
    let cases = [[2, 35, 18, 11, 10], [3, 64, 64, 16, 16], [1, 16, 5, 3, 30]];
    let cases = cases.map(|sizes| Case::new(sizes, &mut numbers));
    for level in Level::available() {
        for epilogue in EPILOGUES {
            let runs = [0, 1].map(|_| {
                cases.each_ref().map(|case| {
                    let gradient = Numbers(20).values(case.shape.output_len(epilogue));
                    let found = case.run(level, epilogue, &gradient);
                    let Results { output, argmax, input, weights, bias } = found;
                    ([output, input, weights, bias].map(|values| bits(&values)), argmax)
                })
            });
            assert!(runs[0] == runs[1], "{epilogue:?}, {level}");
        }
    }
}

#[test]
fn equal_values_leave_the_gradient_to_the_first_and_zeros_to_none() {
    let mut numbers = Numbers(21);
    let mut case = Case::new([2, 18, 20, 7, 6], &mut numbers);
    case.weights.fill(0.0);
    let gradient = numbers.values(case.shape.output_len(Epilogue::ReluPool));
    for level in Level::available() {
        for (bias, index) in [(1.0, 0), (0.0, NO_MAXIMUM as u8), (-1.0, NO_MAXIMUM as u8)] {
            case.bias.fill(bias);
            let found = case.run(level, Epilogue::ReluPool, &gradient);
            assert!(found.argmax.iter().all(|&found| found == index), "bias {bias}, {level}");
            assert!(found.output.iter().all(|&output| output == bias.max(0.0)));
            assert_eq!(found.bias.iter().any(|&gradient| gradient != 0.0), bias > 0.0);
        }
    }
}

#[test]
fn a_non_finite_value_reaches_all_that_it_touches_and_no_other_tile() {
    let mut numbers = Numbers(22);
    let sizes = [2, 17, 19, 13, 14];
    let [_, inputs, outputs, height, width] = sizes;
    for (level, value) in Level::available()
        .flat_map(|level| [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].map(|value| (level, value)))
    {
        let mut case = Case::new(sizes, &mut numbers);
        // The value is in the second image. From case to case, it is at different pixels of a tile.
        let (channel, y, x) = (numbers.between(0, inputs - 1), numbers.between(4, 8), numbers.between(4, 8));
        case.input[((inputs + channel) * height + y) * width + x] = value;
        let gradient = numbers.values(case.shape.output_len(Epilogue::Identity));
        let found = case.run(level, Epilogue::Identity, &gradient);
        for (at, output) in found.output.iter().enumerate() {
            let (plane, oy, ox) = (at / (height * width), at / width % height, at % width);
            let touched = plane >= outputs && oy.abs_diff(y) <= 1 && ox.abs_diff(x) <= 1;
            // The 6x6 pixels of a tile reach one pixel beyond the tile on each side.
            let near = |o: usize, i: usize| (o / 4 * 4..=o / 4 * 4 + 5).contains(&(i + 1));
            let in_tile = plane >= outputs && near(oy, y) && near(ox, x);
            let what = format!("{value} at {y}, {x}: output {at} is {output}, {level}");
            assert!(!touched || !output.is_finite(), "{what}");
            assert!(in_tile || output.is_finite(), "{what}");
        }
        // Every output has a gradient, so the gradients of all weights of `channel` become NaN or infinite.
        for (at, of_weight) in found.weights.iter().enumerate() {
            assert_eq!(of_weight.is_finite(), at / 9 % inputs != channel, "weight {at}, {level}");
        }
        assert!(found.input.iter().chain(&found.bias).all(|gradient| gradient.is_finite()));

        let mut case = Case::new(sizes, &mut numbers);
        case.weights[(5 * inputs + channel) * 9 + 4] = value;
        let found = case.run(level, Epilogue::Relu, &gradient);
        let finite = |plane: &[f32]| plane.iter().all(|value| value.is_finite());
        for (plane, values) in found.output.chunks(height * width).enumerate() {
            assert_eq!(finite(values), plane % outputs != 5, "channel {plane}, {level}");
        }
    }
}
