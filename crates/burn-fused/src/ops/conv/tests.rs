//! Checks the fused operators against the Burn operators that they replace.

use burn::module::Param;
use burn::nn::PaddingConfig2d;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::tensor::activation::relu;
use burn::tensor::module::max_pool2d;
use burn::tensor::ops::MaxPoolOptions;
use burn::tensor::{Device, Tensor, TensorData};

use super::{conv, conv_relu, conv_relu_pool};
use crate::kernels::simd::Level;

/// Output of an operator, and the gradients of images, weights and biases.
type Results = [Vec<f32>; 4];

type Operator = fn(Tensor<4>, &Conv2d) -> Tensor<4>;

struct Case {
    /// Number of images, input channels, output channels, height and width.
    sizes: [usize; 5],
    images: Vec<f32>,
    weights: Vec<f32>,
    bias: Vec<f32>,
}

impl Case {
    /// Draws a case whose values are multiples of 1/16. Sums of products are then exact, so equal values stay
    /// equal and zeros stay zero in any order of summation.
    fn new(sizes: [usize; 5], seed: u64) -> Self {
        let [batch, inputs, outputs, height, width] = sizes;
        let mut state = seed;
        let mut values = |count: usize| {
            let next = |_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                ((state >> 40) % 65) as f32 / 16.0 - 2.0
            };
            (0..count).map(next).collect::<Vec<_>>()
        };
        let [images, weights, bias] =
            [batch * inputs * height * width, outputs * inputs * 9, outputs].map(&mut values);
        Self { sizes, images, weights, bias }
    }

    fn run(&self, operator: Operator) -> Results {
        let device = Device::flex().autodiff();
        let [batch, inputs, outputs, height, width] = self.sizes;
        let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
        let mut layer = Conv2dConfig::new([inputs, outputs], [3, 3]).with_padding(padding).init(&device);
        let weights = TensorData::new(self.weights.clone(), [outputs, inputs, 3, 3]);
        layer.weight = Param::from_tensor(Tensor::from_data(weights, &device));
        let bias = TensorData::new(self.bias.clone(), [outputs]);
        layer.bias = Some(Param::from_tensor(Tensor::from_data(bias, &device)));
        let images = TensorData::new(self.images.clone(), [batch, inputs, height, width]);
        let images = Tensor::<4>::from_data(images, &device).require_grad();

        let output = operator(images.clone(), &layer);
        let count = output.shape().num_elements();
        // Sums with these weights are exact too. The weights have both signs.
        let shares = (0..count).map(|i| (i % 7) as f32 / 4.0 - 0.5).collect::<Vec<_>>();
        let shares = Tensor::<4>::from_data(TensorData::new(shares, output.dims()), &device);
        let gradients = (output.clone() * shares).sum().backward();
        let bias = layer.bias.as_ref().expect("set above").val();
        [
            output.into_data(),
            images.grad(&gradients).expect("of the images").into_data(),
            layer.weight.val().grad(&gradients).expect("of the weights").into_data(),
            bias.grad(&gradients).expect("of the biases").into_data(),
        ]
        .map(|data| data.try_into_vec().expect("f32"))
    }

    fn compare(&self, what: &str) {
        for level in Level::available() {
            let _held = level.hold();
            self.compare_at(&format!("{what}, {level}"));
        }
    }

    fn compare_at(&self, what: &str) {
        let pairs: [(&str, Operator, Operator); 3] = [
            ("conv", conv, |images, layer| layer.forward(images)),
            ("conv_relu", conv_relu, |images, layer| relu(layer.forward(images))),
            ("conv_relu_pool", conv_relu_pool, |images, layer| {
                max_pool2d(relu(layer.forward(images)), MaxPoolOptions::new([2, 2]))
            }),
        ];
        for (name, one, several) in pairs {
            if name == "conv_relu_pool" && self.sizes[3..].iter().any(|&side| side < 2) {
                continue;
            }
            let parts = ["output", "gradient of images", "of weights", "of biases"];
            for ((part, found), expected) in parts.iter().zip(self.run(one)).zip(self.run(several)) {
                agree(&format!("{what}, {name} {:?}, {part}", self.sizes), &found, &expected);
            }
        }
    }
}

/// Asserts that non-finite values are equal, and that finite values differ by at most 1e-5 times the largest
/// expected value.
fn agree(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let finite = expected.iter().filter(|x| x.is_finite());
    let largest = finite.fold(0.0f32, |max, x| max.max(x.abs()));
    for (at, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let same = if expected.is_finite() {
            (found - expected).abs() <= 1e-5 * largest
        } else {
            found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan())
        };
        assert!(same, "{what}, value {at}: {found} for {expected}");
    }
}

const SIZES: [[usize; 5]; 8] = [
    [3, 1, 4, 28, 28],
    [17, 4, 8, 14, 14],
    [2, 3, 5, 7, 9],
    [1, 7, 3, 1, 4],
    [33, 2, 1, 5, 2],
    [2, 12, 31, 8, 8],
    [3, 17, 9, 9, 5],
    [1, 13, 16, 33, 31],
];

#[test]
fn fused_operators_match_burns_operators() {
    for (seed, sizes) in SIZES.into_iter().enumerate() {
        Case::new(sizes, seed as u64).compare("exact");
    }
}

#[test]
fn gradients_are_zero_where_the_convolution_is_exactly_zero() {
    for sizes in [[5, 2, 3, 6, 6], [5, 12, 13, 6, 6], [5, 20, 18, 6, 6]] {
        let mut case = Case::new(sizes, 3);
        case.weights.fill(0.0);
        case.bias.fill(0.0);
        case.compare("zeros");
        let [_, of_images, of_weights, of_bias] = case.run(conv_relu_pool);
        assert!([of_images, of_weights, of_bias].iter().flatten().all(|&gradient| gradient == 0.0));
        // Now all outputs are positive and equal, so the first value of each 2x2 square gets the gradient.
        case.bias.fill(1.0);
        case.compare("equals");
    }
}

#[test]
fn non_finite_values_propagate() {
    for sizes in [[18, 2, 3, 6, 7], [3, 12, 13, 6, 7]] {
        for (name, value) in [("nan", f32::NAN), ("inf", f32::INFINITY), ("-inf", f32::NEG_INFINITY)] {
            let mut case = Case::new(sizes, 4);
            case.images[9] = value;
            case.images[100] = value;
            case.compare(&format!("{name} in an image"));
            let mut case = Case::new(sizes, 5);
            case.weights[4] = value;
            case.compare(&format!("{name} in the weights"));
            let mut case = Case::new(sizes, 6);
            case.bias[0] = value;
            case.compare(&format!("{name} in the biases"));
        }
    }
}
