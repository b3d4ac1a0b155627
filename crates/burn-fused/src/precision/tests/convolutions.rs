//! Convolutions of 16-bit images against an f64 reference.

use burn::nn::PaddingConfig2d;
use burn::nn::conv::{Conv2d, Conv2dConfig};

use super::*;
use crate::conv::{conv, conv_relu, conv_relu_pool, conv_relu_pool_twice};

/// A convolution of random weights, which are exact in `half` if given.
fn conv_layer([inputs, outputs]: [usize; 2], half: Option<Half>, device: &Device) -> Conv2d {
    let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
    let mut layer = Conv2dConfig::new([inputs, outputs], [3, 3]).with_padding(padding).init(device);
    let weights = numbers(outputs * inputs * 9, 3);
    let weights = half.map_or(weights.clone(), |half| rounded(half, &weights));
    let weights = TensorData::new(weights, [outputs, inputs, 3, 3]);
    layer.weight = Param::from_tensor(Tensor::from_data(weights, device));
    let bias = TensorData::new(numbers(outputs, 4), [outputs]);
    layer.bias = Some(Param::from_tensor(Tensor::from_data(bias, device)));
    layer
}

/// Output of `operator`, and the gradients of images, weights and biases. Images and
/// the gradient of the output are exact in 16 bits. All in f32.
fn run_conv(
    sizes: [usize; 5],
    dtype: DType,
    layer: &Conv2d,
    operator: impl Fn(Tensor<4>, &Conv2d) -> Tensor<4>,
) -> [Vec<f32>; 4] {
    let device = Device::flex().autodiff();
    let [batch, inputs, _, height, width] = sizes;
    let images = rounded(Half::Bf16, &numbers(batch * inputs * height * width, 5));
    let images = TensorData::new(images, [batch, inputs, height, width]);
    let images = Tensor::<4>::from_data(images, &device).require_grad();
    let output = operator(images.clone().cast(dtype), layer);
    assert_eq!(output.dtype(), dtype);
    let shares = shares(output.shape().num_elements());
    let shares = Tensor::<4>::from_data(TensorData::new(shares, output.dims()), &device).cast(dtype);
    let gradients = (output.clone() * shares).sum().backward();
    let bias = layer.bias.as_ref().expect("it has biases").val();
    [
        output.cast(DType::F32).into_data(),
        images.grad(&gradients).expect("of the images").into_data(),
        layer.weight.val().grad(&gradients).expect("of the weights").into_data(),
        bias.grad(&gradients).expect("of the biases").into_data(),
    ]
    .map(|data| data.try_into_vec().expect("f32"))
}

/// The same by the definition, in f64.
fn reference([batch, inputs, outputs, height, width]: [usize; 5], half: Half, relu: bool) -> [Vec<f64>; 4] {
    let wide = |values: Vec<f32>| values.into_iter().map(f64::from).collect::<Vec<_>>();
    let images = wide(rounded(Half::Bf16, &numbers(batch * inputs * height * width, 5)));
    let weights = wide(rounded(half, &numbers(outputs * inputs * 9, 3)));
    let bias = wide(numbers(outputs, 4));
    let shares = wide(shares(batch * outputs * height * width));
    let mut all = [shares.len(), images.len(), weights.len(), outputs].map(|count| vec![0.0; count]);
    for at in 0..shares.len() {
        let (x, y) = (at % width, at / width % height);
        let (output, image) = (at / (width * height) % outputs, at / (width * height * outputs));
        let taps = || {
            (0..inputs * 9).filter_map(move |tap| {
                let (row, column) = (y + tap % 9 / 3, x + tap % 3);
                let inside = (1..=height).contains(&row) && (1..=width).contains(&column);
                inside.then(|| {
                    let pixel = ((image * inputs + tap / 9) * height + row - 1) * width + column - 1;
                    (pixel, output * inputs * 9 + tap)
                })
            })
        };
        let sum = bias[output] + taps().map(|(pixel, tap)| images[pixel] * weights[tap]).sum::<f64>();
        if relu && sum <= 0.0 {
            continue;
        }
        all[0][at] = sum;
        all[3][output] += shares[at];
        for (pixel, tap) in taps() {
            all[1][pixel] += shares[at] * weights[tap];
            all[2][tap] += shares[at] * images[pixel];
        }
    }
    all
}

/// Batches of one block and of several, of few and of many channels.
const SIZES: [[usize; 5]; 4] = [[3, 1, 4, 8, 8], [161, 4, 8, 6, 5], [19, 12, 13, 17, 16], [5, 3, 17, 9, 4]];

#[test]
fn convolutions_match_an_f64_reference_on_rounded_values() {
    for half in HALVES {
        for (sizes, relu) in SIZES.into_iter().flat_map(|sizes| [(sizes, false), (sizes, true)]) {
            let expected = reference(sizes, half, relu);
            for level in Level::available() {
                let _held = level.hold();
                let layer = conv_layer([sizes[1], sizes[2]], None, &Device::flex().autodiff());
                let operator = if relu { conv_relu } else { conv };
                let found = run_conv(sizes, half.dtype(), &layer, operator);
                // Activations are rounded. Gradients of weights are only in f16.
                let of_weights = if half == Half::F16 { rounding(half) } else { 0.0 };
                let most = [rounding(half), rounding(half), of_weights, of_weights];
                for (part, most) in most.into_iter().enumerate() {
                    let off = apart(&found[part], &expected[part]);
                    assert!(off < most + 1e-5, "{half:?} at {level}, {sizes:?}, part {part}: {off}");
                }
            }
        }
    }
}

#[test]
fn rounded_f32_operators_give_the_bits_of_16_bit_ones() {
    let device = Device::flex().autodiff();
    for (half, sizes) in HALVES.into_iter().flat_map(|half| SIZES.map(|sizes| (half, sizes))) {
        let layer = conv_layer([sizes[1], sizes[2]], Some(half), &device);
        let expected = run_conv(sizes, DType::F32, &layer, conv_relu_pool);
        let found = run_conv(sizes, half.dtype(), &layer, conv_relu_pool);
        for part in [0, 1] {
            assert_eq!(found[part], rounded(half, &expected[part]), "{half:?}, {sizes:?}, part {part}");
        }
        for part in [2, 3] {
            let expected: Vec<f64> = expected[part].iter().map(|&x| f64::from(x)).collect();
            let most = if half == Half::F16 { rounding(half) } else { 0.0 };
            let off = apart(&found[part], &expected);
            assert!(off < most + 1e-5, "{half:?}, {sizes:?}, part {part}: {off}");
        }
    }
}

#[test]
fn two_convolutions_are_two_16_bit_operators() {
    let device = Device::flex().autodiff();
    let (first, second) = (conv_layer([1, 4], None, &device), conv_layer([4, 8], None, &device));
    let sizes = [35, 1, 4, 8, 8];
    let pair = run_conv(sizes, DType::BF16, &first, |x, first| conv_relu_pool_twice(x, first, &second));
    let two =
        run_conv(sizes, DType::BF16, &first, |x, first| conv_relu_pool(conv_relu_pool(x, first), &second));
    assert_eq!(pair, two);
}

#[test]
fn other_convolutions_run_in_f32() {
    let device = Device::flex().autodiff();
    let layer = Conv2dConfig::new([3, 5], [5, 5]).init(&device);
    let images = Tensor::<4>::ones([2, 3, 8, 8], &device);
    let expected = conv_relu_pool(images.clone(), &layer).cast(DType::BF16);
    let found = conv_relu_pool(images.cast(DType::BF16), &layer);
    assert_eq!(found.into_data(), expected.into_data());
}

#[test]
fn gradients_above_the_range_of_f16_are_infinite() {
    let device = Device::flex().autodiff();
    let layer = conv_layer([1, 2], None, &device);
    let weights_gradient = |dtype: DType| {
        let images = Tensor::<4>::ones([40, 1, 8, 8], &device).cast(dtype);
        let gradients = conv(images, &layer).cast(DType::F32).mul_scalar(100.0).sum().backward();
        layer
            .weight
            .val()
            .grad(&gradients)
            .expect("of the weights")
            .into_data()
            .try_into_vec::<f32>()
            .expect("f32")
    };
    // 40 images of 8x8 pixels with a gradient of 100 each.
    assert!(weights_gradient(DType::F16).iter().all(|x| *x == f32::INFINITY));
    assert!(weights_gradient(DType::BF16).iter().all(|x| (196_000.0..=256_000.0).contains(x)));
}
