//! Checks that the operator of two convolutions gives the same bits as two operators.

use burn::module::Param;
use burn::nn::PaddingConfig2d;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::tensor::{Device, Tensor, TensorData};

use super::*;
use crate::kernels::simd::Level;

/// Returns pseudo-random values of both signs.
fn values<const D: usize>(sizes: [usize; D], seed: u64, device: &Device) -> Tensor<D> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let data = (0..sizes.iter().product::<usize>()).map(next).collect::<Vec<_>>();
    Tensor::from_data(TensorData::new(data, sizes), device)
}

fn layer(inputs: usize, outputs: usize, seed: u64, device: &Device) -> Conv2d {
    let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
    let mut layer = Conv2dConfig::new([inputs, outputs], [3, 3]).with_padding(padding).init(device);
    layer.weight = Param::from_tensor(values([outputs, inputs, 3, 3], seed, device));
    layer.bias = Some(Param::from_tensor(values([outputs], seed + 1, device)));
    layer
}

/// Returns the bits of the output, and of the gradients of images, weights and biases.
fn bits(
    images: &Tensor<4>,
    layers: &[Conv2d; 2],
    operator: impl Fn(Tensor<4>, &Conv2d, &Conv2d) -> Tensor<4>,
) -> Vec<Vec<u32>> {
    let output = operator(images.clone(), &layers[0], &layers[1]);
    let shares = values(output.dims(), 5, &output.device());
    let gradients = (output.clone() * shares).sum().backward();
    let mut found = vec![output.into_data(), images.grad(&gradients).expect("of the images").into_data()];
    for layer in layers {
        let bias = layer.bias.as_ref().expect("set above").val();
        found.push(layer.weight.val().grad(&gradients).expect("of the weights").into_data());
        found.push(bias.grad(&gradients).expect("of the biases").into_data());
    }
    // All NaN count as the same bits, because the payload of a NaN sum depends on the compiler's order of
    // operands.
    let bits = |x: &f32| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() };
    let bits = |data: TensorData| data.as_slice::<f32>().expect("f32").iter().map(bits).collect();
    found.into_iter().map(bits).collect()
}

fn compare(sizes: [usize; 6], spoil: impl Fn(Tensor<4>) -> Tensor<4>) {
    let [batch, inputs, middle, outputs, height, width] = sizes;
    let device = Device::flex().autodiff();
    for level in Level::available() {
        let _held = level.hold();
        let images = spoil(values([batch, inputs, height, width], 1, &device)).require_grad();
        let layers = [layer(inputs, middle, 2, &device), layer(middle, outputs, 3, &device)];
        let two = |x: Tensor<4>, a: &Conv2d, b: &Conv2d| conv_relu_pool(conv_relu_pool(x, a), b);
        assert!(
            bits(&images, &layers, conv_relu_pool_twice) == bits(&images, &layers, two),
            "{sizes:?}, {level}"
        );
        for share in [0.9, 1.2] {
            let one = |x: Tensor<4>, a: &Conv2d, b: &Conv2d| {
                conv_relu_pool_twice_quantized(x, a, b, &mut |found| affine(found, share))
            };
            let three = |x: Tensor<4>, a: &Conv2d, b: &Conv2d| {
                let middle = conv_relu_pool(x, a);
                let middle = match affine(range(&middle), share) {
                    Some(found) => fake_quantize(middle, Scheme::Affine, &[found], 0),
                    None => middle,
                };
                conv_relu_pool(middle, b)
            };
            assert!(
                bits(&images, &layers, one) == bits(&images, &layers, three),
                "{sizes:?}, {level}, parameters of {share} of the range"
            );
        }
    }
}

/// Returns the quantization parameters of the range `found`, scaled by `share`. With a share below 1, some
/// values are clipped.
fn affine(found: Result<[f32; 2], Int8Error>, share: f32) -> Option<QParams> {
    let [min, max] = found.ok()?.map(|end| end * share);
    Scheme::Affine.parameters(min, max).ok()
}

#[test]
fn the_fused_pair_is_bit_identical_to_two_operators() {
    for batch in [1, 3, 8, 15, 16, 17, 33, 257] {
        compare([batch, 1, 4, 8, 12, 8], |images| images);
    }
    for sizes in [[5, 3, 5, 7, 4, 4], [20, 2, 1, 3, 8, 16], [2, 1, 4, 8, 28, 28]] {
        compare(sizes, |images| images);
    }
}

#[test]
fn unsupported_shapes_fall_back_to_two_operators() {
    // The first two cases have a height or width that is not a multiple of 4; the last two have too many
    // channels.
    for sizes in [[3, 1, 4, 8, 10, 8], [3, 1, 4, 8, 7, 9], [2, 4, 40, 8, 8, 8], [2, 1, 16, 16, 8, 8]] {
        compare(sizes, |images| images);
    }
}

#[test]
fn fake_quantization_between_the_pair_sees_the_range_of_the_batch_alone() {
    let device = Device::flex();
    for level in Level::available() {
        let _held = level.hold();
        let layers = [layer(1, 4, 2, &device), layer(4, 8, 3, &device)];
        // The last vector also has lanes without an image of the batch; they must not count in the range.
        let images = values([17, 1, 8, 8], 1, &device) * 0.001 - 5.0;
        let mut seen = Vec::new();
        let output = conv_relu_pool_twice_quantized(images.clone(), &layers[0], &layers[1], &mut |found| {
            seen.push(found);
            None
        });
        assert_eq!(seen, [range(&conv_relu_pool(images.clone(), &layers[0]))], "{level}");
        assert_eq!(output.into_data(), conv_relu_pool_twice(images, &layers[0], &layers[1]).into_data());
    }
}

#[test]
fn nan_in_one_image_leaves_other_images_unchanged() {
    compare([19, 1, 4, 8, 8, 8], |images| {
        let bad = Tensor::<4>::full([1, 1, 1, 2], f32::NAN, &images.device());
        images.slice_assign([4..5, 0..1, 3..4, 2..4], bad)
    });
}
