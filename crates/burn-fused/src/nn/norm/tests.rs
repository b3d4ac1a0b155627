//! Checks the layers against Burn's.

use burn::tensor::DType;

use super::*;
use crate::kernels::simd::Level;
use crate::ops::testing::{Part, assert_close, autodiff_devices, random, results};

/// Returns a layer in which `gamma` and `beta` are not 1 and 0.
fn burns_layer(width: usize, bias: bool, epsilon: f64, device: &Device) -> burn::nn::LayerNorm {
    let config = burn::nn::LayerNormConfig::new(width).with_bias(bias).with_epsilon(epsilon);
    let mut layer = config.init(device);
    layer.gamma = Param::from_tensor(random([width], 21, device) + 0.5);
    layer.beta = bias.then(|| Param::from_tensor(random([width], 22, device)));
    layer
}

fn burns_rms(width: usize, epsilon: f64, device: &Device) -> burn::nn::RmsNorm {
    burn::nn::RmsNorm { gamma: Param::from_tensor(random([width], 23, device) + 0.5), epsilon }
}

fn of_burns<const D: usize>(layer: &burn::nn::LayerNorm, x: &Tensor<D>) -> Vec<Part> {
    results(layer, std::slice::from_ref(x), |layer, x| layer.forward(x[0].clone()))
}

fn of_ours<const D: usize>(layer: &LayerNorm, x: &Tensor<D>) -> Vec<Part> {
    results(layer, std::slice::from_ref(x), |layer, x| layer.forward(x[0].clone()))
}

fn compare<const D: usize>(burns: &burn::nn::LayerNorm, x: &Tensor<D>, context: &str) {
    let expected = of_burns(burns, x);
    for level in Level::available() {
        let _held = level.hold();
        assert_close(&of_ours(&burns.clone().into(), x), &expected, &format!("{context} at {level}"));
    }
}

fn compare_rms<const D: usize>(burns: &burn::nn::RmsNorm, x: &Tensor<D>, context: &str) {
    let x = std::slice::from_ref(x);
    let expected = results(burns, x, |layer, x| layer.forward(x[0].clone()));
    for level in Level::available() {
        let _held = level.hold();
        let found = results(&RmsNorm::from(burns.clone()), x, |layer, x| layer.forward(x[0].clone()));
        assert_close(&found, &expected, &format!("RMS, {context} at {level}"));
    }
}

#[test]
fn outputs_and_gradients_are_those_of_burns_layers() {
    for device in autodiff_devices() {
        for (seed, [rows, width]) in [
            [1, 1],
            [1, 2],
            [2, 31],
            [3, 32],
            [5, 33],
            [63, 40],
            [64, 7],
            [65, 64],
            [130, 100],
            [200, 257],
            [0, 8],
        ]
        .into_iter()
        .enumerate()
        {
            let x = random([rows, width], seed as u64, &device);
            let context = format!("{rows} rows of {width}");
            for epsilon in [1e-5, 0.1] {
                // With one or two values in a row and a small epsilon, gradients are differences of nearly
                // equal numbers, and thus mostly rounding errors.
                if width <= 2 && epsilon < 0.1 {
                    continue;
                }
                for bias in [true, false] {
                    compare(&burns_layer(width, bias, epsilon, &device), &x, &context);
                }
                compare_rms(&burns_rms(width, epsilon, &device), &x, &context);
            }
        }
    }
}

#[test]
fn inputs_have_any_number_of_dimensions_and_strides() {
    let device = Device::flex().autodiff();
    let (layer, rms) = (burns_layer(20, true, 1e-5, &device), burns_rms(20, 1e-5, &device));
    let x = random([20, 3, 4, 5], 1, &device).swap_dims(0, 3);
    compare(&layer, &x, "4 dimensions");
    compare_rms(&rms, &x, "4 dimensions");
    let x = random([6, 30], 2, &device).slice([1..5, 7..27]);
    compare(&layer, &x, "a slice");
    let x = random([20], 3, &device);
    compare(&layer, &x, "1 dimension");
    compare_rms(&rms, &x, "1 dimension");
}

#[test]
fn a_large_mean_costs_no_more_digits_than_in_burn() {
    let device = Device::flex().autodiff();
    // The values are integers near 4096, so their sums are exact.
    let x = (random([50, 64], 1, &device) * 64.0).round() + 4096.0;
    compare(&burns_layer(64, true, 1e-5, &device), &x, "mean 4096");
}

#[test]
fn it_is_the_same_on_several_threads() {
    let device = Device::flex().autodiff();
    let (layer, x) = (burns_layer(40, true, 1e-5, &device), random([3, 67, 40], 1, &device));
    let on_threads = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        pool.install(|| of_ours(&layer.clone().into(), &x))
    };
    assert_eq!(on_threads(1), on_threads(3));
}

#[test]
fn non_finite_rows_are_as_in_burn() {
    let device = Device::flex().autodiff();
    for value in [f32::NAN, f32::INFINITY, 1e30] {
        let x = random([5, 40], 1, &device).slice_fill([2..3, 17..18], value);
        compare(&burns_layer(40, true, 1e-5, &device), &x, &format!("with {value}"));
        compare_rms(&burns_rms(40, 1e-5, &device), &x, &format!("with {value}"));
    }
}

#[test]
fn frozen_and_repeated_layers_are_as_in_burn() {
    let device = Device::flex().autodiff();
    let x = [random([9, 24], 1, &device)];
    let burns = burns_layer(24, true, 1e-5, &device).no_grad();
    compare(&burns, &x[0], "frozen");
    for device in autodiff_devices() {
        let x = [random([9, 24], 1, &device)];
        let burns = burns_layer(24, true, 1e-5, &device);
        let expected = results(&burns, &x, |layer, x| {
            let once = layer.forward(x[0].clone().exp());
            layer.forward(once.clone().sin()) + once + x[0].clone()
        });
        let found = results(&LayerNorm::from(burns), &x, |layer, x| {
            let once = layer.forward(x[0].clone().exp());
            layer.forward(once.clone().sin()) + once + x[0].clone()
        });
        assert_close(&found, &expected, "twice");
    }
}

#[test]
fn without_autodiff_and_in_other_types_it_is_as_in_burn() {
    let device = Device::flex();
    let (layer, rms) = (burns_layer(24, true, 1e-5, &device), burns_rms(24, 1e-5, &device));
    let (ours, our_rms) = (LayerNorm::from(layer.clone()), RmsNorm::from(rms.clone()));
    let x = random([9, 24], 1, &device);
    let part = |y: Tensor<2>| vec![("output".into(), y.into_data().try_into_vec_as().expect("floats"))];
    assert_close(&part(ours.forward(x.clone())), &part(layer.forward(x.clone())), "inference");
    assert_close(&part(our_rms.forward(x.clone())), &part(rms.forward(x.clone())), "inference, RMS");
    let (x, cast) = (x.cast(DType::F64), |p: Param<Tensor<1>>| Param::from_tensor(p.val().cast(DType::F64)));
    let wide = LayerNorm { gamma: cast(ours.gamma), beta: ours.beta.map(cast), epsilon: ours.epsilon };
    let expected = burn::nn::LayerNorm::from(wide.clone()).forward(x.clone());
    wide.forward(x).into_data().assert_eq(&expected.into_data(), true);
}

#[test]
fn they_are_shown_configured_and_recorded_as_burns() {
    let device = Device::flex();
    let config = LayerNormConfig::new(6).with_epsilon(0.1 + 0.2);
    let (burns_config, ours) = (burn::nn::LayerNormConfig::from(config.clone()), config.init(&device));
    assert_eq!(config.to_string(), burns_config.to_string());
    let burns = burns_config.init(&device);
    assert_eq!(ours.to_string(), burns.to_string());
    assert_eq!(LayerNorm::from(burns.clone()).epsilon, config.epsilon, "it has all digits");
    let burns = burns_layer(6, true, 1e-5, &device);
    let loaded = ours.load_record(burns.clone().into_record());
    assert_eq!(loaded.gamma.val().into_data(), burns.gamma.val().into_data());
    let config = RmsNormConfig::new(6);
    let burns = burn::nn::RmsNormConfig::from(config.clone());
    assert_eq!(config.to_string(), burns.to_string());
    assert_eq!(config.init(&device).to_string(), burns.init(&device).to_string());
}

#[test]
#[should_panic(expected = "assert_shape!(input, [.., d_model]): axis 1 expected 10, got 3")]
fn another_width_panics_as_in_burn() {
    let device = Device::flex();
    LayerNormConfig::new(10).init(&device).forward(Tensor::<2>::zeros([1, 3], &device));
}

#[test]
#[should_panic(expected = "assert_shape!(x, [.., d_model]): axis 1 expected 3, got 4")]
fn another_width_panics_as_in_burn_for_rms() {
    let device = Device::flex();
    RmsNormConfig::new(3).init(&device).forward(Tensor::<2>::zeros([2, 4], &device));
}

#[test]
fn the_wrapper_is_burns_with_our_layers() {
    let device = Device::flex();
    let x = random([2, 12, 3, 12], 1, &device);
    let configs: [(NormalizationConfig, burn::nn::norm::NormalizationConfig); 6] = [
        (NormalizationConfig::Identity, burn::nn::norm::NormalizationConfig::Identity),
        (BatchNormConfig::new(12).into(), burn::nn::BatchNormConfig::new(12).into()),
        (GroupNormConfig::new(3, 12).into(), burn::nn::GroupNormConfig::new(3, 12).into()),
        (InstanceNormConfig::new(12).into(), burn::nn::InstanceNormConfig::new(12).into()),
        (LayerNormConfig::new(12).into(), burn::nn::LayerNormConfig::new(12).into()),
        (RmsNormConfig::new(12).into(), burn::nn::RmsNormConfig::new(12).into()),
    ];
    for (config, burns_config) in configs {
        assert_eq!(config.to_string(), burns_config.to_string());
        assert_eq!(config.num_features(), burns_config.num_features());
        assert_eq!(
            config.clone().with_num_features(24).to_string(),
            burns_config.clone().with_num_features(24).to_string()
        );
        let (layer, burns) = (config.init(&device), burns_config.init(&device));
        assert_eq!(layer.to_string(), burns.to_string());
        assert_eq!(layer.num_features(), burns.num_features());
        let part = |y: Tensor<4>| vec![("output".into(), y.into_data().try_into_vec_as().expect("floats"))];
        assert_close(&part(layer.forward(x.clone())), &part(burns.forward(x.clone())), &config.to_string());
        assert_eq!(Normalization::from(burns.clone()).to_string(), burns.to_string());
        assert_eq!(burn::nn::norm::Normalization::from(layer.clone()).to_string(), burns.to_string());
        assert_eq!(NormalizationConfig::from(burns_config.clone()).to_string(), config.to_string());
        let back = burn::nn::norm::NormalizationConfig::from(config.clone());
        assert_eq!(back.to_string(), config.to_string());
        assert_eq!(layer.load_record(burns.into_record()).num_features(), config.num_features());
    }
}

#[test]
fn conversion_leaves_parameters_uninitialised_so_that_they_stay_leaves_on_another_device() {
    let device = Device::flex().autodiff();
    for layer in [
        LayerNorm::from(burn::nn::LayerNormConfig::new(4).init(&device)),
        LayerNorm::from(burn::nn::LayerNorm::from(LayerNormConfig::new(4).init(&device))),
    ] {
        let layer = layer.to_device(&device);
        let gradients = layer.forward(Tensor::<2>::ones([2, 4], &device)).sum().backward();
        assert!(layer.gamma.val().grad(&gradients).is_some());
    }
}

#[test]
fn rows_of_16_bits_are_normalised_in_f32_beside_parameters_in_f32() {
    for device in [Device::flex(), Device::flex().autodiff()] {
        let layer = LayerNorm::from(burns_layer(8, true, 1e-5, &device));
        let rms = RmsNorm::from(burns_rms(8, 1e-5, &device));
        for dtype in [DType::BF16, DType::F16] {
            let x = random([3, 8], 5, &device).cast(dtype);
            let wide = x.clone().cast(DType::F32);
            for (found, expected) in [
                (layer.forward(x.clone()), layer.forward(wide.clone())),
                (rms.forward(x.clone()), rms.forward(wide.clone())),
            ] {
                found.into_data().assert_eq(&expected.cast(dtype).into_data(), true);
            }
        }
    }
}
