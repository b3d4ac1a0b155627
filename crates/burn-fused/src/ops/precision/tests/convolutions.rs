//! Checks convolutions of 16-bit images against an f64 reference.

use burn::nn::PaddingConfig2d;
use burn::nn::conv::{Conv2d, Conv2dConfig};

use super::*;
use crate::ops::conv::{conv, conv_relu, conv_relu_pool, conv_relu_pool_twice};

/// Returns a convolution with random weights. If `half` is given, the weights are exact in this type.
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

/// Returns the output of `operator`, and the gradients of images, weights and biases, all in f32. The images
/// and the gradient of the output are exact in 16 bits.
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

/// Computes the results of [`run_conv`] by the definition of a convolution, in f64.
fn reference(sizes: [usize; 5], half: Half, epilogue: Epilogue) -> [Vec<f64>; 4] {
    let [batch, inputs, outputs, height, width] = sizes;
    let wide = |values: Vec<f32>| values.into_iter().map(f64::from).collect::<Vec<_>>();
    let images = wide(rounded(Half::Bf16, &numbers(batch * inputs * height * width, 5)));
    let weights = wide(rounded(half, &numbers(outputs * inputs * 9, 3)));
    let bias = wide(numbers(outputs, 4));
    let taps = |at: usize| {
        let (x, y) = (at % width, at / width % height);
        let (output, image) = (at / (width * height) % outputs, at / (width * height * outputs));
        (0..inputs * 9).filter_map(move |tap| {
            let (row, column) = (y + tap % 9 / 3, x + tap % 3);
            let inside = (1..=height).contains(&row) && (1..=width).contains(&column);
            inside.then(|| {
                let pixel = ((image * inputs + tap / 9) * height + row - 1) * width + column - 1;
                (pixel, output * inputs * 9 + tap)
            })
        })
    };
    let sums: Vec<f64> = (0..batch * outputs * height * width)
        .map(|at| {
            let products = taps(at).map(|(pixel, tap)| images[pixel] * weights[tap]);
            bias[at / (width * height) % outputs] + products.sum::<f64>()
        })
        .collect();
    // For each value of the output, the index of the sum that it equals, or `None` if the value is 0.
    let source: Vec<Option<usize>> = match epilogue {
        Epilogue::Identity => (0..sums.len()).map(Some).collect(),
        Epilogue::Relu => (0..sums.len()).map(|at| (sums[at] > 0.0).then_some(at)).collect(),
        Epilogue::ReluPool => (0..batch * outputs * (height / 2) * (width / 2))
            .map(|at| {
                let (x, y, plane) =
                    (at % (width / 2), at / (width / 2) % (height / 2), at / ((width / 2) * (height / 2)));
                let corner = (plane * height + 2 * y) * width + 2 * x;
                let four = [corner, corner + 1, corner + width, corner + width + 1];
                let largest = four.into_iter().max_by(|&a, &b| sums[a].total_cmp(&sums[b]))?;
                (sums[largest] > 0.0).then_some(largest)
            })
            .collect(),
    };
    let shares = wide(shares(source.len()));
    let mut all = [source.len(), images.len(), weights.len(), outputs].map(|count| vec![0.0; count]);
    for (to, (source, share)) in source.into_iter().zip(shares).enumerate() {
        let Some(at) = source else { continue };
        all[0][to] = sums[at];
        all[3][at / (width * height) % outputs] += share;
        for (pixel, tap) in taps(at) {
            all[1][pixel] += share * weights[tap];
            all[2][tap] += share * images[pixel];
        }
    }
    all
}

/// Batch, input channels, output channels, height and width. Some batches have one block and some have
/// several; some convolutions have few channels and some have many.
const SIZES: [[usize; 5]; 4] = [[3, 1, 4, 8, 8], [161, 4, 8, 6, 5], [19, 12, 13, 17, 16], [5, 3, 17, 9, 4]];

/// More sizes, in the order of [`SIZES`], all with many channels. They include numbers of channels that are
/// multiples of a tile and that are not, images of one block and of several blocks, odd heights and widths,
/// and sizes that Winograd does not support.
const MANY_CHANNELS: [[usize; 5]; 5] =
    [[3, 32, 64, 8, 8], [2, 16, 33, 33, 31], [35, 40, 16, 5, 7], [70, 33, 17, 4, 4], [3, 48, 24, 1, 3]];

#[test]
fn convolutions_match_an_f64_reference_on_rounded_values() {
    type Operator = fn(Tensor<4>, &Conv2d) -> Tensor<4>;
    let epilogues: [(Epilogue, Operator); 3] =
        [(Epilogue::Identity, conv), (Epilogue::Relu, conv_relu), (Epilogue::ReluPool, conv_relu_pool)];
    for half in HALVES {
        let all = SIZES.into_iter().chain(MANY_CHANNELS);
        for (sizes, (epilogue, operator)) in all.flat_map(|sizes| epilogues.map(|found| (sizes, found))) {
            if epilogue == Epilogue::ReluPool && sizes[3] == 1 {
                continue;
            }
            let expected = reference(sizes, half, epilogue);
            for level in Level::available() {
                let _held = level.hold();
                let layer = conv_layer([sizes[1], sizes[2]], None, &Device::flex().autodiff());
                let found = run_conv(sizes, half.dtype(), &layer, operator);
                // In bf16 and in f16, activations are rounded. Gradients of weights are rounded only in f16.
                let of_weights = if half == Half::F16 { rounding(half) } else { 0.0 };
                let most = [rounding(half), rounding(half), of_weights, of_weights];
                for (part, most) in most.into_iter().enumerate() {
                    let off = apart(&found[part], &expected[part]);
                    assert!(
                        off < most + 1e-5,
                        "{half:?} at {level}, {sizes:?}, {epilogue:?}, part {part}: {off}"
                    );
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
    let expected = conv_relu_pool(images.clone(), &layer).cast(DType::BF16).into_data();
    assert_eq!(conv_relu_pool(images.cast(DType::BF16), &layer).into_data(), expected);
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
    // There are 40 images of 8x8 pixels, and each pixel has a gradient of 100. The sum is at most 256,000;
    // the range of f16 ends at 65,504.
    assert!(weights_gradient(DType::F16).iter().all(|x| *x == f32::INFINITY));
    assert!(weights_gradient(DType::BF16).iter().all(|x| (196_000.0..=256_000.0).contains(x)));
}
