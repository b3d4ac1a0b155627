//! Checks the operator against a plain loop, and against Burn's operators.

use burn::tensor::{Device, Distribution};

use super::*;
use crate::kernels::quantization::Int8Error;

const AFFINE: QParams = QParams { scale: 0.1, zero_point: 40 };

/// Returns values, some of them clipped and some halfway between two quantized values.
fn sample(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919) % 1009) as f32 * 0.05 - 11.0).collect()
}

/// Computes PyTorch's formula with integers. Returns the value, and whether the gradient passes.
fn plainly(x: f32, scheme: Scheme, QParams { scale, zero_point }: QParams) -> (f32, bool) {
    let [low, high] = scheme.bounds();
    let q = f64::from((x * (1.0 / scale)).round_ties_even()) as i64 + i64::from(zero_point);
    let inside = (i64::from(low)..=i64::from(high)).contains(&q);
    let q = q.clamp(low.into(), high.into());
    ((q - i64::from(zero_point)) as f32 * scale, inside)
}

/// Returns the output, and the gradient of `x` for an output gradient of 1, 2, 3, …
fn run<const D: usize>(
    data: TensorData,
    scheme: Scheme,
    parameters: &[QParams],
    axis: usize,
) -> (Vec<f32>, Vec<f32>) {
    let device = Device::flex().autodiff();
    let len = data.num_elements();
    let x = Tensor::<D>::from_data(data, &device).require_grad();
    let factors = TensorData::new((1..=len).map(|i| i as f32).collect::<Vec<_>>(), x.dims());
    let y = fake_quantize(x.clone(), scheme, parameters, axis);
    let loss = (y.clone() * Tensor::from_data(factors, &device)).sum();
    let gradient = x.grad(&loss.backward()).unwrap();
    let values = |data: TensorData| data.try_into_vec::<f32>().unwrap();
    (values(y.into_data()), values(gradient.into_data()))
}

#[test]
fn values_and_gradients_are_those_of_a_plain_loop_on_every_level() {
    let channels = [0.05f32, 0.3, 0.02].map(|scale| QParams { scale, zero_point: 0 });
    for level in Level::available() {
        let _held = level.hold();
        for len in [1, 3, 63, 64, 65, 130, 999] {
            let x = sample(3 * len);
            let check = |found: (Vec<f32>, Vec<f32>), expected: &dyn Fn(usize) -> (f32, bool)| {
                for (i, (value, gradient)) in found.0.into_iter().zip(found.1).enumerate() {
                    let (value_expected, passes) = expected(i);
                    assert_eq!(value.to_bits(), value_expected.to_bits(), "{level}, {len}, {i}");
                    assert_eq!(gradient, if passes { (i + 1) as f32 } else { 0.0 }, "{level}, {len}, {i}");
                }
            };
            let data = |shape: Vec<usize>| TensorData::new(x.clone(), shape);
            let affine = run::<1>(data(vec![3 * len]), Scheme::Affine, &[AFFINE], 0);
            check(affine, &|i| plainly(x[i], Scheme::Affine, AFFINE));
            let symmetric = Scheme::Symmetric;
            let first = run::<2>(data(vec![3, len]), symmetric, &channels, 0);
            check(first, &|i| plainly(x[i], symmetric, channels[i / len]));
            let last = run::<2>(data(vec![len, 3]), symmetric, &channels, 1);
            check(last, &|i| plainly(x[i], symmetric, channels[i % 3]));
        }
    }
}

#[test]
fn some_gradients_pass_and_some_do_not() {
    let (_, gradient) = run::<1>(TensorData::new(sample(500), [500]), Scheme::Affine, &[AFFINE], 0);
    let clipped = gradient.iter().filter(|&&x| x == 0.0).count();
    assert!(clipped > 50 && clipped < 450, "{clipped}");
}

#[test]
fn it_equals_burns_operators() {
    let device = Device::flex();
    let x = Tensor::<3>::random([4, 3, 70], Distribution::Uniform(-8.0, 20.0), &device);
    let parameters = [0.1f32, 0.05, 0.02].map(|scale| QParams { scale, zero_point: 90 });
    let grids = Grids::new(Scheme::Affine, &parameters, &[4, 3, 70], 1);
    let ours = fake_quantize(x.clone(), Scheme::Affine, &parameters, 1);
    let theirs = composed(x, &grids);
    let off = (ours - theirs).abs().max().into_scalar::<f32>();
    assert!(off < 1e-5, "{off}");
}

#[test]
fn nan_stays_and_passes_no_gradient() {
    let data = TensorData::new(vec![f32::NAN, 1.0, f32::INFINITY], [3]);
    let (values, gradient) = run::<1>(data, Scheme::Affine, &[AFFINE], 0);
    assert!(values[0].is_nan() && values[2] == 21.5, "{values:?}");
    assert_eq!(gradient, [0.0, 2.0, 0.0]);
}

#[test]
fn a_gradient_that_others_hold_is_left_alone() {
    let device = Device::flex().autodiff();
    let x = Tensor::<1>::from_floats([1.0, 1e6], &device).require_grad();
    let y = fake_quantize(x.clone(), Scheme::Affine, &[AFFINE], 0);
    let gradients = (y.clone() + x.clone()).sum().backward();
    let gradient = x.grad(&gradients).unwrap().into_data();
    assert_eq!(gradient.try_into_vec::<f32>().unwrap(), [2.0, 1.0]);
}

#[test]
fn ranges_are_by_tensor_and_by_channel() {
    let device = Device::flex();
    let x = Tensor::<2>::from_floats([[1.0, -2.0, 0.5], [4.0, 3.0, -0.0]], &device);
    assert_eq!(range(&x), Ok([-2.0, 4.0]));
    assert_eq!(channel_ranges(&x, 0), Ok(vec![[-2.0, 1.0], [0.0, 4.0]]));
    assert_eq!(channel_ranges(&x, 1), Ok(vec![[1.0, 4.0], [-2.0, 3.0], [0.0, 0.5]]));
    assert_eq!(channel_ranges(&x.clone().transpose(), 1), channel_ranges(&x, 0));
    let bad = Tensor::<2>::from_floats([[1.0, f32::NAN]], &device);
    assert_eq!(range(&bad), Err(Int8Error::NonFinite));
    assert_eq!(channel_ranges(&bad, 1), Err(Int8Error::NonFinite));
    assert_eq!(channel_ranges(&bad, 0), Err(Int8Error::NonFinite));
    let training = Tensor::<2>::from_floats([[1.0, 2.0]], &device.autodiff()).require_grad();
    assert_eq!(range(&(training * 2.0)), Ok([2.0, 4.0]));
}
