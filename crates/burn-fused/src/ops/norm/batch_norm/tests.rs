//! Checks the operator against the formulas in f64 and against Burn's operators.

use burn::tensor::activation::relu;
use burn::tensor::module::{batch_norm_train, max_pool2d};
use burn::tensor::ops::MaxPoolOptions;
use burn::tensor::{DType, Device, Tensor, TensorData};

use super::{BatchShape, Input, batch_norm, gradients, normalised};
use crate::kernels::epilogue::Epilogue;
use crate::kernels::simd::Level;
use crate::ops::testing::{autodiff_devices, random};

const EPSILON: f64 = 1e-5;
const EPILOGUES: [Epilogue; 3] = [Epilogue::Identity, Epilogue::Relu, Epilogue::ReluPool];
/// Batch, channels, height, width. Some channels have more values than one block of a sum. No channel has
/// exactly two values: the gradients of two values would cancel out except for a part of 1e-5, in which f32
/// has few exact digits.
const SIZES: [[usize; 4]; 12] = [
    [1, 3, 5, 7],
    [1, 1, 1, 4],
    [65, 2, 3, 3],
    [2, 5, 33, 35],
    [17, 4, 8, 8],
    [3, 2, 1, 9],
    [5, 3, 2, 1],
    [8, 7, 14, 14],
    [1, 4, 1, 1],
    [3, 1, 1, 1],
    [32, 33, 1, 1],
    [65, 19, 1, 1],
];

/// Draws values from -2 to 2 in steps of 1/16, so that some are equal.
struct Draw(u64);

impl Draw {
    fn values(&mut self, count: usize) -> Vec<f32> {
        let next = |_| {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((self.0 >> 40) % 65) as f32 / 16.0 - 2.0
        };
        (0..count).map(next).collect()
    }
}

#[derive(Clone)]
struct Case {
    sizes: [usize; 4],
    epilogue: Epilogue,
    x: Vec<f32>,
    scale: Vec<f32>,
    shift: Vec<f32>,
    /// Gradient of the output.
    gradient: Vec<f32>,
}

/// Output, mean, variance, and the gradients of input, scale and shift; named by [`NAMES`].
type Results<T> = [Vec<T>; 6];
const NAMES: [&str; 6] = ["output", "mean", "variance", "gradient", "gradient of scale", "of shift"];

impl Case {
    /// Returns `None` if the output would be empty.
    fn new(sizes: [usize; 4], epilogue: Epilogue, seed: u64) -> Option<Self> {
        let shape = BatchShape::from_dims(&sizes, epilogue)?;
        let mut draw = Draw(seed);
        // The mean is far from zero, as in a network.
        let x = draw.values(shape.len()).iter().map(|x| x + 3.0).collect();
        let [scale, shift] = [draw.values(sizes[1]), draw.values(sizes[1])];
        // If a shift were a multiple of its scale, some outputs would be zero except for rounding.
        let shift = shift.iter().map(|x| x * 0.217 + 0.0531).collect();
        Some(Self { sizes, epilogue, x, scale, shift, gradient: draw.values(shape.output_len(epilogue)) })
    }

    fn name(&self) -> String {
        format!("{:?} {:?}", self.sizes, self.epilogue)
    }

    fn kernel(&self, level: Level) -> Results<f32> {
        let Some(shape) = BatchShape::from_dims(&self.sizes, self.epilogue) else {
            unreachable!("as in new")
        };
        let Self { epilogue, x, scale, shift, gradient, .. } = self;
        let input = Input { shape, epilogue: *epilogue, x, parameters: [scale, shift] };
        let (output, moments, argmax) = normalised(level, input, EPSILON, true);
        let (of_x, [of_scale, of_shift]) = gradients(level, input, &moments, &argmax, gradient);
        [output.to_vec(), moments.mean, moments.variance, of_x.to_vec(), of_scale, of_shift]
    }

    /// Evaluates the formulas, one value after another.
    fn formulas(&self) -> Results<f64> {
        let [batch, channels, height, width] = self.sizes;
        let at = |image, channel, y, x| ((image * channels + channel) * height + y) * width + x;
        let [halved_height, halved_width] = match self.epilogue {
            Epilogue::ReluPool => [height / 2, width / 2],
            _ => [height, width],
        };
        let outputs = batch * channels * halved_height * halved_width;
        let mut results: Results<f64> = Default::default();
        results[0] = vec![0.0; outputs];
        results[3] = vec![0.0; self.x.len()];
        for channel in 0..channels {
            let all = || {
                (0..batch).flat_map(move |image| {
                    (0..height).flat_map(move |y| (0..width).map(move |x| at(image, channel, y, x)))
                })
            };
            let count = (batch * height * width) as f64;
            let mean = all().map(|i| f64::from(self.x[i])).sum::<f64>() / count;
            let variance = all().map(|i| (f64::from(self.x[i]) - mean).powi(2)).sum::<f64>() / count;
            let deviation = (variance + EPSILON).sqrt();
            let [scale, shift] = [&self.scale, &self.shift].map(|values| f64::from(values[channel]));
            let normal = |i: usize| (f64::from(self.x[i]) - mean) / deviation;
            let value = |i: usize| normal(i) * scale + shift;
            // Gradient of the normalised, scaled and shifted values.
            let mut of_value = vec![0.0; self.x.len()];
            for image in 0..batch {
                for y in 0..halved_height {
                    for x in 0..halved_width {
                        let out = ((image * channels + channel) * halved_height + y) * halved_width + x;
                        let mut chosen = at(image, channel, y, x);
                        if self.epilogue == Epilogue::ReluPool {
                            let square = [(0, 0), (0, 1), (1, 0), (1, 1)]
                                .map(|(below, right)| at(image, channel, 2 * y + below, 2 * x + right));
                            chosen = square[0];
                            for pixel in square {
                                chosen = if value(pixel) > value(chosen) { pixel } else { chosen };
                            }
                        }
                        let passes = self.epilogue == Epilogue::Identity || value(chosen) > 0.0;
                        if passes {
                            results[0][out] = value(chosen);
                            of_value[chosen] = f64::from(self.gradient[out]);
                        }
                    }
                }
            }
            let of_shift = all().map(|i| of_value[i]).sum::<f64>();
            let of_scale = all().map(|i| of_value[i] * normal(i)).sum::<f64>();
            for i in all() {
                let own = of_value[i] - of_shift / count - normal(i) * of_scale / count;
                results[3][i] = scale / deviation * own;
            }
            for (result, value) in [(1, mean), (2, variance), (4, of_scale), (5, of_shift)] {
                results[result].push(value);
            }
        }
        results
    }

    /// Runs an operator on tensors, and returns its results.
    fn operator(&self, operator: Operator) -> Results<f32> {
        let device = Device::flex().autodiff();
        let [scale, shift] = [&self.scale, &self.shift].map(|values| {
            Tensor::<1>::from_data(TensorData::new(values.clone(), [values.len()]), &device).require_grad()
        });
        let x = Tensor::<4>::from_data(TensorData::new(self.x.clone(), self.sizes), &device).require_grad();
        let (output, mean, variance) = operator(x.clone(), scale.clone(), shift.clone(), self.epilogue);
        let gradient = TensorData::new(self.gradient.clone(), output.dims());
        let gradient = Tensor::<4>::from_data(gradient, &device);
        let gradients = (output.clone() * gradient).sum().backward();
        [
            output.into_data(),
            mean.into_data(),
            variance.into_data(),
            x.grad(&gradients).expect("of the input").into_data(),
            scale.grad(&gradients).expect("of the scale").into_data(),
            shift.grad(&gradients).expect("of the shift").into_data(),
        ]
        .map(|data| data.try_into_vec().expect("f32"))
    }
}

/// Writes a non-finite value into one of the inputs.
type Spoil<'a> = &'a dyn Fn(&mut Case);

type Operator = fn(Tensor<4>, Tensor<1>, Tensor<1>, Epilogue) -> (Tensor<4>, Tensor<1>, Tensor<1>);

fn one(
    x: Tensor<4>,
    scale: Tensor<1>,
    shift: Tensor<1>,
    epilogue: Epilogue,
) -> (Tensor<4>, Tensor<1>, Tensor<1>) {
    let found = batch_norm(x, scale, shift, EPSILON, epilogue);
    (found.output, found.mean, found.variance)
}

fn several(
    x: Tensor<4>,
    scale: Tensor<1>,
    shift: Tensor<1>,
    epilogue: Epilogue,
) -> (Tensor<4>, Tensor<1>, Tensor<1>) {
    let found = batch_norm_train(x, scale, shift, EPSILON);
    let output = match epilogue {
        Epilogue::Identity => found.output,
        Epilogue::Relu => relu(found.output),
        Epilogue::ReluPool => max_pool2d(relu(found.output), MaxPoolOptions::new([2, 2])),
    };
    (output, found.mean, found.variance)
}

/// Asserts that non-finite values are equal, and that finite values differ by at most 1e-5 times the largest
/// expected value.
fn agree(what: &str, found: &[f32], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let finite = expected.iter().filter(|x| x.is_finite());
    let largest = finite.fold(0.0f64, |max, x| max.max(x.abs()));
    for (at, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let found = f64::from(found);
        let same = if expected.is_finite() {
            (found - expected).abs() <= 1e-5 * largest
        } else {
            found == expected || (found.is_nan() && expected.is_nan())
        };
        assert!(same, "{what}, value {at}: {found} for {expected}, of at most {largest}");
    }
}

fn all_agree(what: &str, found: &Results<f32>, expected: &Results<f64>) {
    for ((name, found), expected) in NAMES.iter().zip(found).zip(expected) {
        agree(&format!("{what}, {name}"), found, expected);
    }
}

fn widened(results: Results<f32>) -> Results<f64> {
    results.map(|values| values.into_iter().map(f64::from).collect())
}

fn cases() -> impl Iterator<Item = Case> {
    let pairs = SIZES.into_iter().flat_map(|sizes| EPILOGUES.map(|epilogue| (sizes, epilogue)));
    (0..).zip(pairs).filter_map(|(seed, (sizes, epilogue))| Case::new(sizes, epilogue, seed))
}

#[test]
fn kernels_match_the_formulas_at_every_simd_level() {
    for case in cases() {
        let expected = case.formulas();
        let mut first: Option<Results<f32>> = None;
        for level in Level::available() {
            let found = case.kernel(level);
            all_agree(&format!("{}, {level}", case.name()), &found, &expected);
            // The bits are equal on all levels too, because no sum depends on the width of vectors.
            assert_eq!(*first.get_or_insert_with(|| found.clone()), found, "{}, {level}", case.name());
        }
    }
}

#[test]
fn the_fused_operator_matches_burns_operators() {
    for case in cases() {
        all_agree(&case.name(), &case.operator(one), &widened(case.operator(several)));
    }
}

#[test]
fn non_finite_values_propagate() {
    for (sizes, epilogue) in [[3, 2, 6, 7], [9, 3, 1, 1]].into_iter().flat_map(|s| EPILOGUES.map(|t| (s, t)))
    {
        let Some(case) = Case::new(sizes, epilogue, 5) else { continue };
        // The position of the largest output, whose gradient passes ReLU and pooling.
        let [output, ..] = case.operator(one);
        let largest = (0..output.len()).max_by(|&a, &b| output[a].total_cmp(&output[b])).expect("some");
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let spoil: [(&str, Spoil<'_>); 4] = [
                ("input", &|case| case.x[4] = value),
                ("scale", &|case| case.scale[1] = value),
                ("shift", &|case| case.shift[1] = value),
                ("gradient", &|case| case.gradient[largest] = value),
            ];
            for (name, spoil) in spoil {
                let mut case = case.clone();
                spoil(&mut case);
                let found = case.operator(one);
                // ReLU sets -inf to zero and propagates NaN.
                let spoilt = found.iter().flatten().any(|x| !x.is_finite());
                assert!(spoilt || value == f32::NEG_INFINITY, "{value} in {name}");
                let what = format!("{}, {value} in {name}", case.name());
                all_agree(&what, &found, &widened(case.operator(several)));
            }
        }
    }
}

#[test]
fn other_types_and_layouts_are_supported() {
    let device = Device::flex().autodiff();
    let values = Draw(1).values(4 * 3 * 5);
    let x = Tensor::<3>::from_data(TensorData::new(values, [4, 5, 3]), &device).swap_dims(1, 2);
    let [scale, shift] = [2.0, 0.25].map(|value| Tensor::<1>::full([3], value, &device));
    let expected = batch_norm_train(x.clone(), scale.clone(), shift.clone(), EPSILON);
    let expected = relu(expected.output).into_data().convert::<f64>().try_into_vec::<f64>().expect("f64");
    let plain = batch_norm(x.clone(), scale.clone(), shift.clone(), EPSILON, Epilogue::Relu).output;
    assert_eq!(plain.dims(), [4, 3, 5]);
    agree("swapped", &plain.into_data().try_into_vec::<f32>().expect("f32"), &expected);

    let x = x.cast(DType::F64);
    let [scale, shift] = [scale, shift].map(|tensor| tensor.cast(DType::F64));
    let output = batch_norm(x, scale, shift, EPSILON, Epilogue::Relu).output;
    assert_eq!(output.dtype(), DType::F64);
    let found = output.into_data().convert::<f32>().try_into_vec::<f32>().expect("f32");
    agree("f64", &found, &expected);
}

#[test]
fn statistics_are_on_the_device_of_the_batch() {
    for device in autodiff_devices().into_iter().chain([Device::flex()]) {
        let x = random([3, 2, 4], 1, &device);
        let found = batch_norm(
            x.clone(),
            Tensor::ones([2], &device),
            Tensor::zeros([2], &device),
            1e-5,
            Epilogue::Relu,
        );
        for statistic in [found.mean, found.variance] {
            assert_eq!(statistic.device(), device);
            assert_eq!(statistic.gradient_checkpointing_strategy(), x.gradient_checkpointing_strategy());
        }
    }
}
