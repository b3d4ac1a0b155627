//! Compares operators with Burn's. If operands fit each other, both must compute the same. If they do not
//! fit, our operator must panic, even in cases in which Burn's operator computes a result. Our operators on
//! 16-bit operands are compared with Burn's operators on f32.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::Param;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::{log_softmax, relu};
use burn::tensor::module::{batch_norm_train, max_pool2d};
use burn::tensor::ops::MaxPoolOptions;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use crate::int8::{Layer, Model, QParams, Scheme, Weights};
use crate::kernels::epilogue::Epilogue;
use crate::ops::conv::*;
use crate::ops::fake_quantize::{channel_ranges, fake_quantize};
use crate::ops::linear::linear;
use crate::ops::loss::smoothed_cross_entropy;
use crate::ops::norm::{batch_norm, moving_average};

/// Tensors, each as its shape and its values: the output, then the gradients of a weighted sum of the output.
type Values = Vec<(Vec<usize>, Vec<f32>)>;
/// What an operator returns, or the message of its panic.
type Outcome = Result<Values, String>;
type Convolution = fn(Tensor<4>, &Conv2d) -> Tensor<4>;
/// Creates an input for a layer with this number of channels or columns.
type Input<const D: usize> = fn(usize, &Device) -> Tensor<D>;

/// Returns all devices of this build, with the types of inputs to test beside parameters in f32. Only flex
/// computes with bf16 and f16.
fn devices() -> Vec<(Device, &'static [DType])> {
    let plain = [
        (Device::flex(), &[DType::F32, DType::BF16, DType::F16][..]),
        #[cfg(feature = "ndarray")]
        (Device::ndarray(), &[DType::F32]),
        #[cfg(feature = "tch")]
        (Device::libtorch(), &[DType::F32]),
    ];
    plain
        .into_iter()
        .flat_map(|(device, types)| [(device.clone(), types), (device.autodiff(), types)])
        .collect()
}

/// Returns a tensor of multiples of 1/64 from -1/2 to 1/2, which all types represent exactly.
fn tensor<const D: usize>(sizes: [usize; D], device: &Device) -> Tensor<D> {
    let values: Vec<f32> =
        (0..sizes.iter().product()).map(|i| ((i * 7919) % 65) as f32 / 64.0 - 0.5).collect();
    Tensor::from_data(TensorData::new(values, sizes), device)
}

fn values<const D: usize>(x: Tensor<D>) -> (Vec<usize>, Vec<f32>) {
    let data = x.into_data();
    (data.shape().to_vec(), data.iter::<f32>().collect())
}

fn outcome(run: impl FnOnce() -> Values) -> Outcome {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(panic) => panic.downcast_ref::<&str>().unwrap_or(&"").to_string(),
    })
}

/// Returns the output of `operator` and, on an autodiff device, the gradients of `x`, of `weights` and of
/// `others`.
fn results<const D: usize, const E: usize>(
    x: Tensor<D>,
    weights: Option<Tensor<E>>,
    others: &[Tensor<1>],
    operator: impl FnOnce(Tensor<D>) -> Tensor<D>,
) -> Values {
    if !x.device().is_autodiff() {
        return vec![values(operator(x))];
    }
    let x = x.require_grad();
    let output = operator(x.clone());
    let shares = tensor(output.dims(), &output.device()).abs();
    let gradients = (output.clone().cast(DType::F32) * shares).sum().backward();
    let mut found = vec![values(output)];
    found.extend(x.grad(&gradients).map(values));
    found.extend(weights.and_then(|weights| weights.grad(&gradients)).map(values));
    found.extend(others.iter().filter_map(|other| other.grad(&gradients)).map(values));
    found
}

/// Asserts that `ours` is a panic whose message has the format of Burn's checks.
fn refused(what: &str, ours: &Outcome) {
    let told = ours.as_ref().is_err_and(|message| message.starts_with("=== Tensor Operation Error ==="));
    assert!(told, "{what}: {ours:?}");
}

/// Asserts that `ours` and `burns` are equal values or are both panics. Values may differ by `error` times
/// the largest value. A panic of `ours` must have the message of `burns`, or a message in the format of
/// Burn's checks.
fn agree(what: &str, ours: &Outcome, burns: &Outcome, error: f32) {
    let (found, expected) = match (ours, burns) {
        (Ok(found), Ok(expected)) => (found, expected),
        (Err(message), Err(theirs)) if message == theirs => return,
        (Err(_), Err(_)) => return refused(what, ours),
        _ => panic!("{what}: {ours:?}, Burn: {burns:?}"),
    };
    assert_eq!(found.len(), expected.len(), "{what}");
    for ((shape, found), (sizes, expected)) in found.iter().zip(expected) {
        assert_eq!(shape, sizes, "{what}");
        let largest = expected.iter().fold(1e-3, |most: f32, x| most.max(x.abs()));
        for (x, y) in found.iter().zip(expected) {
            assert!((x - y).abs() <= error * largest || x.is_nan() && y.is_nan(), "{what}: {x} for {y}");
        }
    }
}

fn error_of(dtype: DType) -> f32 {
    match dtype {
        DType::BF16 => 2e-2,
        DType::F16 => 5e-3,
        _ => 1e-5,
    }
}

fn pool(x: Tensor<4>) -> Tensor<4> {
    max_pool2d(relu(x), MaxPoolOptions::new([2, 2]))
}

const CONVOLUTIONS: [(&str, Convolution, Convolution); 3] = [
    ("conv", conv, |x, layer| layer.forward(x)),
    ("conv_relu", conv_relu, |x, layer| relu(layer.forward(x))),
    ("conv_relu_pool", conv_relu_pool, |x, layer| pool(layer.forward(x))),
];
/// Input and output channels for which the direct convolution, Winograd, and im2col + GEMM run.
const CHANNELS: [[usize; 2]; 3] = [[4, 8], [32, 16], [12, 31]];

fn layer([inputs, outputs]: [usize; 2], device: &Device) -> Conv2d {
    let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
    let mut layer = Conv2dConfig::new([inputs, outputs], [3, 3]).with_padding(padding).init(device);
    layer.weight = Param::from_tensor(tensor([outputs, inputs, 3, 3], device));
    layer.bias = Some(Param::from_tensor(tensor([outputs], device)));
    layer
}

fn convolved(x: Tensor<4>, layer: &Conv2d, operator: Convolution) -> Outcome {
    let biases: Vec<_> = layer.bias.iter().map(Param::val).collect();
    outcome(|| results(x, Some(layer.weight.val()), &biases, |x| operator(x, layer)))
}

#[test]
fn convolutions_of_any_images_are_burns() {
    let images: [(&str, Input<4>); 14] = [
        ("of the layer's channels", |c, device| tensor([3, c, 8, 8], device)),
        ("with a channel more", |c, device| tensor([3, c + 1, 8, 8], device)),
        ("with a channel less", |c, device| tensor([3, c - 1, 8, 8], device)),
        ("with half the channels", |c, device| tensor([3, c / 2, 8, 8], device)),
        ("with twice the channels", |c, device| tensor([3, 2 * c, 8, 8], device)),
        ("without channels", |_, device| tensor([3, 0, 8, 8], device)),
        ("empty batch", |c, device| tensor([0, c, 8, 8], device)),
        ("one pixel high", |c, device| tensor([3, c, 1, 8], device)),
        ("transposed", |c, device| tensor([3, c, 6, 8], device).swap_dims(2, 3)),
        ("channels last", |c, device| tensor([3, 8, 7, c], device).permute([0, 3, 1, 2])),
        ("part", |c, device| tensor([5, c + 3, 9, 10], device).slice([1..4, 2..c + 2, 1..9, 1..9])),
        ("first of a batch", |c, device| tensor([5, c, 8, 8], device).narrow(0, 0, 2)),
        ("flipped", |c, device| tensor([3, c, 8, 8], device).flip([0, 3])),
        ("repeated", |c, device| tensor([1, c, 8, 8], device).expand([3, c, 8, 8])),
    ];
    for (device, types) in devices() {
        for (channels, dtype) in CHANNELS.into_iter().flat_map(|of| types.iter().map(move |to| (of, *to))) {
            let layer = layer(channels, &device);
            for ((kind, images), (name, ours, burns)) in
                images.iter().flat_map(|images| CONVOLUTIONS.map(|operator| (images, operator)))
            {
                let x = images(channels[0], &device);
                let found = convolved(x.clone().cast(dtype), &layer, ours);
                let what = format!("{name} {channels:?} of images {kind}, {dtype:?}, {device:?}");
                agree(&what, &found, &convolved(x, &layer, burns), error_of(dtype));
            }
        }
    }
}

#[test]
fn layers_of_any_parameters_are_burns_or_are_refused() {
    fn weights(sizes: [usize; 4], device: &Device) -> Param<Tensor<4>> {
        Param::from_tensor(tensor(sizes, device))
    }
    fn bias(len: usize, device: &Device) -> Option<Param<Tensor<1>>> {
        Some(Param::from_tensor(tensor([len], device)))
    }
    // Each change of a layer has a name, whether the changed layer is meaningless, and a function that makes
    // the change. Our operator must refuse a meaningless layer, although Burn may compute a result with it.
    type Change = fn(&mut Conv2d, [usize; 2], &Device);
    let changes: [(&str, bool, Change); 24] = [
        ("no bias", false, |layer, _, _| layer.bias = None),
        ("a bias too long", true, |layer, [_, n], device| layer.bias = bias(n + 1, device)),
        ("a bias too short", true, |layer, [_, n], device| layer.bias = bias(n - 1, device)),
        ("a bias of one value", true, |layer, _, device| layer.bias = bias(1, device)),
        ("an empty bias", true, |layer, _, device| layer.bias = bias(0, device)),
        ("stride 2", false, |layer, _, _| layer.stride = [2, 2]),
        ("stride 0", true, |layer, _, _| layer.stride = [0, 1]),
        ("stride 0 in same padding", true, |layer, _, _| {
            (layer.stride, layer.padding) = ([1, 0], PaddingConfig2d::Same);
        }),
        ("dilation 2", false, |layer, _, _| layer.dilation = [2, 2]),
        ("dilation 0", true, |layer, _, _| layer.dilation = [0, 1]),
        ("dilation 9", true, |layer, _, _| layer.dilation = [9, 1]),
        ("dilation 9 in same padding", true, |layer, _, _| {
            (layer.dilation, layer.padding) = ([9, 9], PaddingConfig2d::Same);
        }),
        ("two groups", false, |layer, [c, n], device| {
            (layer.groups, layer.weight) = (2, weights([n / 2 * 2, c / 2, 3, 3], device));
            layer.bias = bias(n / 2 * 2, device);
        }),
        ("two groups of whole weights", false, |layer, _, _| layer.groups = 2),
        ("two groups of an odd number of outputs", true, |layer, [c, _], device| {
            (layer.groups, layer.weight, layer.bias) =
                (2, weights([7, c / 2, 3, 3], device), bias(7, device));
        }),
        ("no groups", true, |layer, _, _| layer.groups = 0),
        ("larger weights", false, |layer, [c, n], device| layer.weight = weights([n, c, 5, 5], device)),
        // Burn's output of a kernel that is one pixel larger has no pixels.
        ("weights a pixel larger than the images", false, |layer, [c, n], device| {
            layer.weight = weights([n, c, 11, 3], device);
        }),
        ("weights two pixels larger than the images", true, |layer, [c, n], device| {
            layer.weight = weights([n, c, 12, 3], device);
        }),
        ("unpadded weights a pixel larger than the images", false, |layer, [c, n], device| {
            (layer.weight, layer.kernel_size) = (weights([n, c, 3, 8], device), [3, 8]);
            layer.padding = PaddingConfig2d::Valid;
        }),
        ("weights a pixel larger than the images and stride 2", true, |layer, [c, n], device| {
            (layer.weight, layer.stride) = (weights([n, c, 11, 3], device), [2, 1]);
        }),
        ("same padding", false, |layer, [c, n], device| {
            (layer.weight, layer.kernel_size) = (weights([n, c, 4, 11], device), [4, 11]);
            (layer.stride, layer.padding) = ([2, 3], PaddingConfig2d::Same);
        }),
        ("empty weights", true, |layer, [c, n], device| layer.weight = weights([n, c, 0, 3], device)),
        ("no outputs", false, |layer, [c, _], device| {
            (layer.weight, layer.bias) = (weights([0, c, 3, 3], device), bias(0, device));
        }),
    ];
    for (device, types) in devices() {
        for (channels, dtype) in CHANNELS.into_iter().flat_map(|of| types.iter().map(move |to| (of, *to))) {
            for ((change, meaningless, apply), (name, ours, burns)) in
                changes.iter().flat_map(|change| CONVOLUTIONS.map(|operator| (change, operator)))
            {
                let mut layer = layer(channels, &device);
                apply(&mut layer, channels, &device);
                // Pooling is compared in f32 only. In 16 bits, an operator that falls back to Burn's
                // operators rounds before it pools. Rounding can make several values of a window equal, and
                // then another value than in f32 gets the gradient.
                let dtype = if name == "conv_relu_pool" { DType::F32 } else { dtype };
                let x = || tensor([3, channels[0], 8, 7], &device);
                let found = convolved(x().cast(dtype), &layer, ours);
                let what = format!("{name} {channels:?} with {change}, {dtype:?}, {device:?}");
                if *meaningless {
                    refused(&what, &found)
                } else {
                    agree(&what, &found, &convolved(x(), &layer, burns), error_of(dtype))
                }
            }
        }
    }
}

#[test]
fn images_without_pixels_are_burns_or_are_refused() {
    for (device, _) in devices() {
        for (name, ours, burns) in CONVOLUTIONS {
            let mut layer = layer([4, 8], &device);
            let x = || tensor([3, 4, 0, 8], &device);
            agree(name, &convolved(x(), &layer, ours), &convolved(x(), &layer, burns), 0.0);
            layer.padding = PaddingConfig2d::Same;
            refused(name, &convolved(x(), &layer, ours));
        }
    }
}

#[test]
fn pairs_of_convolutions_are_burns() {
    for (device, types) in devices() {
        // Numbers of channels: of the images, then input and output channels of the first layer, then of the
        // second. Last, the number of values in the second layer's bias.
        for ([images, a, b, c, d], biases) in [
            ([1, 1, 4, 4, 8], 8),
            ([1, 1, 4, 5, 8], 8),
            ([1, 1, 4, 3, 8], 8),
            ([2, 1, 4, 4, 8], 8),
            ([1, 2, 4, 4, 8], 8),
            ([1, 1, 32, 32, 16], 16),
            ([1, 1, 32, 16, 16], 16),
            ([1, 1, 4, 4, 8], 9),
            ([1, 1, 4, 4, 8], 7),
            ([1, 1, 32, 32, 16], 17),
        ] {
            let layers = [layer([a, b], &device), layer([c, d], &device)];
            let [first, mut second] = layers;
            second.bias = Some(Param::from_tensor(tensor([biases], &device)));
            for (dtype, sizes) in
                types.iter().flat_map(|to| [[2, 8, 8], [0, 8, 8], [2, 2, 8]].map(|n| (*to, n)))
            {
                let x = || tensor([sizes[0], images, sizes[1], sizes[2]], &device);
                let run = |x: Tensor<4>, operator: &dyn Fn(Tensor<4>) -> Tensor<4>| {
                    outcome(|| results::<4, 4>(x, Some(first.weight.val()), &[], operator))
                };
                let what =
                    format!("{images} to {a}, {b} to {c}, {d}, {biases}, {sizes:?}, {dtype:?}, {device:?}");
                let burns = run(x(), &|x| pool(second.forward(pool(first.forward(x)))));
                let ours = run(x().cast(dtype), &|x| conv_relu_pool_twice(x, &first, &second));
                if biases == d {
                    agree(&what, &ours, &burns, error_of(dtype))
                } else {
                    refused(&what, &ours)
                }
                let parameters = QParams { scale: 0.5, zero_point: 0 };
                let ours = run(x().cast(dtype), &|x| {
                    conv_relu_pool_twice_quantized(x, &first, &second, &mut |_| Some(parameters))
                });
                let burns = run(x().cast(dtype), &|x| {
                    let middle = fake_quantize(conv_relu_pool(x, &first), Scheme::Affine, &[parameters], 0);
                    conv_relu_pool(middle, &second)
                });
                agree(&what, &ours, &burns, error_of(dtype));
            }
        }
    }
}

#[test]
fn linear_layers_of_any_operands_are_burns_or_are_refused() {
    let inputs: [(&str, Input<2>); 9] = [
        ("of the layer's columns", |n, device| tensor([3, n], device)),
        ("with a column more", |n, device| tensor([3, n + 1], device)),
        ("with twice the columns", |n, device| tensor([3, 2 * n], device)),
        ("without columns", |_, device| tensor([3, 0], device)),
        ("empty batch", |n, device| tensor([0, n], device)),
        ("transposed", |n, device| tensor([n, 5], device).swap_dims(0, 1)),
        ("part", |n, device| tensor([5, n + 3], device).slice([1..4, 2..n + 2])),
        ("flipped", |n, device| tensor([5, n], device).flip([0, 1])),
        ("repeated", |n, device| tensor([1, n], device).expand([3, n])),
    ];
    for (device, types) in devices() {
        for ([columns, outputs], dtype) in [[8, 10], [1, 10], [8, 40], [8, 1], [8, 0]]
            .into_iter()
            .flat_map(|of| types.iter().map(move |to| (of, *to)))
        {
            let biases = [Some(outputs), None, Some(outputs + 1), Some(1), Some(0)];
            for ((kind, x), bias) in inputs.iter().flat_map(|x| biases.map(|bias| (x, bias))) {
                let mut layer = LinearConfig::new(columns, outputs.max(1)).init(&device);
                layer.weight = Param::from_tensor(tensor([columns, outputs], &device));
                layer.bias = bias.map(|len| Param::from_tensor(tensor([len], &device)));
                let biases: Vec<_> = layer.bias.iter().map(Param::val).collect();
                let run = |x: Tensor<2>, operator: fn(Tensor<2>, &Linear) -> Tensor<2>| {
                    outcome(|| results(x, Some(layer.weight.val()), &biases, |x| operator(x, &layer)))
                };
                let ours = run(x(columns, &device).cast(dtype), linear);
                let what = format!("{columns} to {outputs} of {kind}, bias {bias:?}, {dtype:?}, {device:?}");
                // If the length of the bias does not fit, Burn may broadcast the bias or the output instead
                // of panicking.
                if bias.is_none_or(|len| len == outputs) {
                    agree(
                        &what,
                        &ours,
                        &run(x(columns, &device), |x, layer| layer.forward(x)),
                        error_of(dtype),
                    )
                } else {
                    refused(&what, &ours)
                }
            }
        }
    }
}

#[test]
fn batch_norms_of_any_operands_are_burns() {
    for (device, types) in devices() {
        for (sizes, [scales, shifts]) in [
            ([3, 4, 5, 6], [4, 4]),
            ([3, 4, 5, 6], [5, 4]),
            ([3, 4, 5, 6], [4, 1]),
            ([3, 4, 5, 6], [1, 1]),
            ([0, 4, 5, 6], [4, 4]),
            ([3, 0, 5, 6], [0, 0]),
            ([3, 4, 0, 6], [4, 4]),
            ([3, 4, 1, 6], [4, 4]),
            ([7, 4, 1, 1], [4, 4]),
        ] {
            for (epilogue, dtype) in [Epilogue::Identity, Epilogue::Relu, Epilogue::ReluPool]
                .into_iter()
                .flat_map(|epilogue| types.iter().map(move |dtype| (epilogue, *dtype)))
            {
                let (scale, shift) = (tensor([scales], &device), tensor([shifts], &device));
                let run = |x: Tensor<4>, operator: &dyn Fn(Tensor<4>) -> Tensor<4>| {
                    outcome(|| results::<4, 1>(x, None, &[scale.clone(), shift.clone()], operator))
                };
                // A view with axes in another order than in memory.
                let x = || tensor([sizes[0], sizes[1], sizes[3], sizes[2]], &device).swap_dims(2, 3);
                let ours = run(x().cast(dtype), &|x| {
                    batch_norm(x, scale.clone(), shift.clone(), 1e-5, epilogue).output
                });
                let burns = run(x(), &|x| {
                    let normalised = batch_norm_train(x, scale.clone(), shift.clone(), 1e-5).output;
                    match epilogue {
                        Epilogue::Identity => normalised,
                        Epilogue::Relu => relu(normalised),
                        Epilogue::ReluPool => pool(normalised),
                    }
                });
                let what = format!("{sizes:?} by {scales} and {shifts}, {epilogue:?}, {dtype:?}, {device:?}");
                agree(&what, &ours, &burns, error_of(dtype));
            }
        }
        let moved = |running, batch| {
            let [running, batch] = [running, batch].map(|len| tensor::<1>([len], &device));
            outcome(|| vec![values(moving_average(running, batch, 1.0, 0.5))])
        };
        agree("statistics", &moved(3, 3), &Ok(vec![values(tensor([3], &device))]), 1e-6);
        assert_eq!(moved(0, 0), Ok(vec![(vec![0], vec![])]));
        refused("other channels", &moved(3, 4));
        refused("one channel", &moved(3, 1));
    }
}

#[test]
fn cross_entropies_of_any_operands_are_burns_or_are_refused() {
    for (device, types) in devices() {
        for (sizes, labels, fits) in [
            ([2, 3], &[0, 2][..], true),
            ([0, 3], &[], true),
            ([2, 3], &[0, 3], false),
            ([2, 3], &[0], false),
            ([2, 3], &[0, 1, 2], false),
            ([2, 0], &[0, 0], false),
        ] {
            for (dtype, smoothing) in types
                .iter()
                .chain([&DType::F64])
                .flat_map(|dtype| [0.0, 0.1, 1.0, -0.1, 1.1, f64::NAN].map(|share| (*dtype, share)))
            {
                let run = |x: Tensor<2>, loss: &dyn Fn(Tensor<2>) -> Tensor<1>| {
                    outcome(|| results::<2, 1>(x, None, &[], |x| loss(x).reshape([1, 1])))
                };
                let x = || tensor([sizes[1], sizes[0]], &device).swap_dims(0, 1);
                let ours = run(x().cast(dtype), &|x| smoothed_cross_entropy(x, labels, smoothing).loss);
                let what = format!("{sizes:?}, {labels:?}, {smoothing}, {dtype:?}, {device:?}");
                if !fits || !(0.0..=1.0).contains(&smoothing) {
                    refused(&what, &ours);
                    continue;
                }
                let burns = run(x(), &|x| {
                    let targets = labels.iter().map(|&label| i64::from(label)).collect::<Vec<_>>();
                    let targets = TensorData::new(targets, [labels.len(), 1]);
                    let logs = log_softmax(x, 1);
                    let own = logs.clone().gather(1, Tensor::<2, Int>::from_data(targets, &device)).mean();
                    own.neg() * (1.0 - smoothing) - logs.mean() * smoothing
                });
                agree(&what, &ours, &burns, error_of(dtype));
            }
        }
    }
}

#[test]
fn fake_quantization_of_any_operands_is_the_formula() {
    for (device, types) in devices() {
        for (sizes, len, axis) in [
            ([3, 4, 5], 1, 7),
            ([3, 4, 5], 3, 0),
            ([3, 4, 5], 5, 2),
            ([0, 4, 5], 0, 0),
            ([3, 4, 0], 0, 2),
            ([3, 4, 0], 3, 0),
            ([3, 0, 2], 3, 0),
            ([0, 4, 5], 1, 0),
        ] {
            for &dtype in types.iter().chain([&DType::F64]) {
                let run = |operator: &dyn Fn(Tensor<3>) -> Tensor<3>| {
                    outcome(|| results::<3, 1>(tensor(sizes, &device).cast(dtype), None, &[], operator))
                };
                let parameters = vec![QParams { scale: 0.25, zero_point: 0 }; len];
                let ours = run(&|x| fake_quantize(x, Scheme::Symmetric, &parameters, axis));
                // Nothing is clipped, so all gradients pass.
                let formula = run(&|x| x.clone() + ((x.clone() * 4.0).round() * 0.25 - x).detach());
                agree(&format!("{sizes:?}, {len}, {axis}, {dtype:?}, {device:?}"), &ours, &formula, 1e-6);
            }
        }
        for (len, axis) in [(0, 0), (4, 0), (4, 3)] {
            let parameters = vec![QParams { scale: 0.25, zero_point: 0 }; len];
            let x = tensor([3, 4, 5], &device);
            let ours = outcome(|| vec![values(fake_quantize(x, Scheme::Symmetric, &parameters, axis))]);
            let facts = [format!("{len} quantization parameters "), format!("dimension {axis} of [3, 4, 5]")];
            let told = ours.as_ref().is_err_and(|message| facts.iter().all(|fact| message.contains(fact)));
            assert!(told, "{len}, {axis}: {ours:?}");
        }
        let x = tensor([3, 4, 5], &device);
        refused(
            "ranges of a fourth dimension",
            &outcome(|| vec![(vec![], channel_ranges(&x, 3).unwrap().concat())]),
        );
    }
}

#[test]
fn quantization_of_any_lengths_says_what_does_not_fit() {
    let parameters = QParams { scale: 0.1, zero_point: 0 };
    let bad = QParams { scale: 0.1, zero_point: i32::MIN };
    let weights = Weights::quantize(&[0.1; 48], &[0.1; 3], &[0.01], parameters, parameters).unwrap();
    let layer = crate::int8::Linear { inputs: 16, outputs: 3, weights, relu: false, output: parameters };
    let model = Model::new([1, 4, 4], parameters, vec![Layer::Linear(layer)]).unwrap();
    let infer = |images: usize, scores: usize| {
        model.infer(&mut model.workspace(), &vec![0.5; images], &mut vec![0.0; scores]);
        model.infer_bytes(&mut model.workspace(), &vec![0.5; images], &mut vec![0; scores]);
    };
    infer(0, 0);
    infer(16 * 40, 3 * 40);
    let cases: [([&str; 2], &dyn Fn()); 9] = [
        (["images (0)", "outputs (3)"], &|| infer(0, 3)),
        (["images (1)", "outputs (3)"], &|| infer(16, 2)),
        (["images (1)", "outputs (3)"], &|| infer(16, 4)),
        (["images (40)", "outputs (3)"], &|| infer(16 * 40, 3 * 40 - 1)),
        (["17 values ", "[1, 4, 4]"], &|| infer(17, 3)),
        (["0 weights ", "0 equal parts"], &|| _ = crate::int8::quantize_weights(&[], &[])),
        (["3 weights ", "2 equal parts"], &|| _ = crate::int8::quantize_weights(&[0.0; 3], &[1.0; 2])),
        (["0 values ", "0 channels"], &|| _ = crate::int8::min_max_by_channel(&[], 0)),
        (["scale 0.1 ", "zero point -2147483648 "], &|| crate::int8::dequantize(&[1], bad, &mut [0.0])),
    ];
    for (expected, case) in cases {
        let found = outcome(|| {
            case();
            vec![]
        });
        let told = found.as_ref().is_err_and(|message| expected.iter().all(|fact| message.contains(fact)));
        assert!(told, "{expected:?}: {found:?}");
    }
}
