//! Convolutions: everything in [`burn::nn::conv`], with a fused [`Conv2d`].

use std::borrow::Cow;

use burn::module::Param;
use burn::nn::{Initializer, PaddingConfig2d};
use burn::tensor::{Device, Tensor};

use super::BatchNorm;
use super::convert::{config, module};
use crate::kernels::epilogue::Epilogue;
use crate::ops::conv::{ConvLayer, conv_with};

pub use burn::nn::conv::*;

config! {
    /// Configuration of a [`Conv2d`] layer; replaces [`burn::nn::conv::Conv2dConfig`].
    pub struct Conv2dConfig of burn::nn::conv::Conv2dConfig {
        /// Numbers of input and output channels.
        pub channels: [usize; 2],
        /// Height and width of the kernel.
        pub kernel_size: [usize; 2],
        /// Stride: pixels from one position of the kernel to the next.
        #[config(default = "[1, 1]")]
        pub stride: [usize; 2],
        /// Dilation: pixels from one element of the kernel to the next.
        #[config(default = "[1, 1]")]
        pub dilation: [usize; 2],
        /// Number of groups of channels.
        #[config(default = "1")]
        pub groups: usize,
        /// Padding with zeros around images.
        #[config(default = "PaddingConfig2d::Valid")]
        pub padding: PaddingConfig2d,
        /// Whether a bias is added.
        #[config(default = true)]
        pub bias: bool,
        /// How parameters are initialised.
        #[config(default = "Initializer::KaimingUniform{gain: 1.0 / 3f64.sqrt(), fan_out_only: false}")]
        pub initializer: Initializer,
    }

    /// Creates a layer with new parameters.
    ///
    /// # Panics
    /// If the number of groups does not divide both numbers of channels.
    pub fn init(&self, device: &Device) -> Conv2d;
}

module! {
    /// A convolution of images; replaces [`burn::nn::conv::Conv2d`].
    ///
    /// The convolution is one operator for 3x3 kernels with padding 1, a bias, stride 1, dilation 1 and one
    /// group. Other convolutions are composed of Burn's operators. The layer then logs the reason, once for
    /// each reason, at level debug.
    pub struct Conv2d of burn::nn::conv::Conv2d {
        /// Weights `[outputs, inputs / groups, height, width]`.
        pub weight: Param<Tensor<4>>,
        /// Bias `[outputs]`.
        pub bias: Option<Param<Tensor<1>>>,
        /// Stride: pixels from one position of the kernel to the next.
        pub stride: [usize; 2],
        /// Height and width of the kernel.
        pub kernel_size: [usize; 2],
        /// Dilation: pixels from one element of the kernel to the next.
        pub dilation: [usize; 2],
        /// Number of groups of channels.
        pub groups: usize,
        /// Padding with zeros around images.
        #[module(skip)]
        pub padding: PaddingConfig2d,
    }
}

impl ConvLayer for Conv2d {
    fn as_burns(&self) -> Cow<'_, burn::nn::conv::Conv2d> {
        Cow::Owned(self.clone().into())
    }
}

impl Conv2d {
    /// Returns the outputs `[batch, outputs, height, width]` for images `[batch, inputs, height, width]`.
    ///
    /// # Panics
    /// If images, parameters and options do not fit each other.
    #[track_caller]
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        self.forward_with(input, Epilogue::Identity)
    }

    /// Returns ReLU of the outputs, in the same operator.
    ///
    /// # Panics
    /// In the same cases as [`forward`](Self::forward).
    #[track_caller]
    pub fn forward_relu(&self, input: Tensor<4>) -> Tensor<4> {
        self.forward_with(input, Epilogue::Relu)
    }

    /// Returns the outputs after `epilogue`, in the same operator.
    ///
    /// # Panics
    /// In the same cases as [`forward`](Self::forward).
    #[track_caller]
    pub fn forward_with(&self, input: Tensor<4>, epilogue: Epilogue) -> Tensor<4> {
        conv_with(input, &self.as_burns(), epilogue)
    }

    /// Normalises the outputs by `norm`, and returns `epilogue` of the result.
    ///
    /// In training in f32, convolution and normalisation together are one operator in two cases, provided
    /// that the convolution alone is one operator:
    ///
    /// - a direct convolution (few channels) of 12 to 16, of 24 to 32, or of at least 36 images;
    /// - a Winograd convolution (16 or more input channels) with 12 to 16, 24 to 32, or at least 36 output
    ///   channels.
    ///
    /// In both cases, images or channels fill at least 3/4 of the lanes of vectors of 16 values. Outputs and
    /// gradients differ from those of two separate operators only by rounding.
    ///
    /// # Panics
    /// In the same cases as [`forward`](Self::forward), or if the layer and `norm` have different numbers of
    /// channels.
    #[track_caller]
    pub fn forward_norm(&self, input: Tensor<4>, norm: &BatchNorm, epilogue: Epilogue) -> Tensor<4> {
        norm.forward_conv(self, input, epilogue)
    }

    /// Applies ReLU and then 2x2 max pooling with stride 2 to the outputs, in the same operator.
    ///
    /// # Panics
    /// In the same cases as [`forward`](Self::forward).
    #[track_caller]
    pub fn forward_relu_pool(&self, input: Tensor<4>) -> Tensor<4> {
        self.forward_with(input, Epilogue::ReluPool)
    }
}

#[cfg(test)]
mod tests {
    use burn::module::Module;
    use burn::nn;
    use burn::nn::pool::MaxPool2dConfig;
    use burn::tensor::activation::relu;
    use burn::tensor::{DType, TensorData};

    use super::*;
    use crate::kernels::simd::Level;
    use crate::ops::testing::{Part, assert_close, autodiff_devices, fixed, random, results};

    const ONE: PaddingConfig2d = PaddingConfig2d::Explicit(1, 1, 1, 1);

    type Forward<L> = fn(&L, Tensor<4>) -> Tensor<4>;

    #[test]
    fn outputs_and_gradients_are_those_of_burns_layer() {
        let forwards: [(Forward<Conv2d>, Forward<nn::conv::Conv2d>); 3] = [
            (Conv2d::forward, nn::conv::Conv2d::forward),
            (Conv2d::forward_relu, |layer, x| relu(layer.forward(x))),
            (Conv2d::forward_relu_pool, |layer, x| {
                MaxPool2dConfig::new([2, 2]).init().forward(relu(layer.forward(x)))
            }),
        ];
        for device in autodiff_devices() {
            let usual = nn::conv::Conv2dConfig::new([4, 6], [3, 3]).with_padding(ONE);
            for config in [
                usual.clone(),
                nn::conv::Conv2dConfig::new([32, 34], [3, 3]).with_padding(ONE),
                usual.clone().with_bias(false),
                usual.clone().with_stride([2, 1]),
                usual.clone().with_groups(2),
                usual.clone().with_dilation([1, 2]),
                usual.with_padding(PaddingConfig2d::Same),
                nn::conv::Conv2dConfig::new([4, 6], [1, 5]).with_padding(PaddingConfig2d::Same),
            ] {
                let burns = fixed(config.init(&device));
                let ours = Conv2d::from(burns.clone());
                let x = [random([3, config.channels[0], 7, 10], 5, &device)];
                for (at, (ours_forward, burns_forward)) in forwards.iter().enumerate() {
                    let found = results(&ours, &x, |layer, x| ours_forward(layer, x[0].clone()));
                    let expected = results(&burns, &x, |layer, x| burns_forward(layer, x[0].clone()));
                    assert_close(&found, &expected, &format!("epilogue {at} of {config}"));
                }
            }
        }
    }

    #[derive(Module, Debug)]
    struct Ours {
        conv: Conv2d,
        norm: BatchNorm,
    }

    #[derive(Module, Debug)]
    struct Burns {
        conv: nn::conv::Conv2d,
        norm: nn::BatchNorm,
    }

    impl Burns {
        fn forward(&self, x: Tensor<4>, epilogue: Epilogue) -> Tensor<4> {
            epilogue.composed(self.norm.forward(self.conv.forward(x)))
        }
    }

    fn blocks(channels: [usize; 2], bias: bool, device: &Device) -> (Ours, Burns) {
        let config = nn::conv::Conv2dConfig::new(channels, [3, 3]).with_padding(ONE).with_bias(bias);
        let norm = || nn::BatchNormConfig::new(channels[1]).init(device);
        let burns = fixed(Burns { conv: config.init(device), norm: norm() });
        // A conversion shares the running statistics between both layers, so load a record instead.
        let ours = BatchNorm::from(norm()).load_record(burns.norm.clone().into_record());
        (Ours { conv: burns.conv.clone().into(), norm: ours }, burns)
    }

    /// Returns output and gradients, except the gradient of the convolution's bias. Normalisation subtracts
    /// this bias again, so its gradient is 0 except for rounding. Unless `of_input` is set, the gradient of
    /// `x` is not computed.
    fn of_block<M: Module>(
        module: &M,
        (x, of_input): (&Tensor<4>, bool),
        forward: impl Fn(&M, Tensor<4>) -> Tensor<4>,
    ) -> Vec<Part> {
        let tracked = if of_input { std::slice::from_ref(x) } else { &[] };
        let parts =
            results(module, tracked, |module, tracked| forward(module, tracked.first().unwrap_or(x).clone()));
        let is_bias = |(name, _): &Part| name == "gradient of conv.bias";
        let bias = parts.iter().find(|part| is_bias(part)).map(|(_, values)| values.clone());
        assert!(bias.unwrap_or_default().iter().all(|x| x.abs() < 1e-3), "{parts:?}");
        parts.into_iter().filter(|part| !is_bias(part)).collect()
    }

    #[test]
    fn a_normalised_convolution_is_that_of_burns_layers() {
        let epilogues = [Epilogue::Identity, Epilogue::Relu, Epilogue::ReluPool];
        for device in autodiff_devices() {
            // First, direct convolution, with lanes that have no image. The first two use the moments of
            // patches. Then Winograd, with lanes that have no channel, and with blocks that are parts of an
            // image. Last, sizes that the operator does not support.
            for (channels, [batch, height, width]) in [
                ([1, 32], [29, 9, 7]),
                ([3, 29], [14, 5, 6]),
                ([3, 5], [14, 8, 8]),
                ([2, 4], [12, 2, 3]),
                ([1, 2], [12, 3, 1100]),
                ([16, 28], [5, 9, 10]),
                ([32, 46], [3, 14, 14]),
                ([16, 16], [2, 67, 70]),
                ([4, 64], [2, 6, 6]),
                ([2, 4], [3, 7, 6]),
                ([16, 20], [5, 9, 10]),
            ] {
                let x = random([batch, channels[0], height, width], 5, &device);
                for (level, epilogue) in
                    Level::available().flat_map(|level| epilogues.map(|epilogue| (level, epilogue)))
                {
                    let _held = level.hold();
                    let (ours, burns) = blocks(channels, channels[0] != 3, &device);
                    let context = format!("{channels:?}, {:?}, {epilogue:?} at {level}", x.dims());
                    for x in [(&x, true), (&x, false)] {
                        let expected = of_block(&burns, x, |burns, x| burns.forward(x, epilogue));
                        let found =
                            of_block(&ours, x, |ours, x| ours.conv.forward_norm(x, &ours.norm, epilogue));
                        assert_close(&found, &expected, &context);
                    }
                    let running = [
                        [&ours.norm.running_mean, &burns.norm.running_mean],
                        [&ours.norm.running_var, &burns.norm.running_var],
                    ];
                    for both in running {
                        let [found, expected] = both.map(|state| state.value_sync().into_data());
                        let part = |data: TensorData| [(String::new(), data.try_into_vec().expect("f32"))];
                        assert_close(&part(found), &part(expected), &format!("statistics of {context}"));
                    }
                    let (ours, burns, x) = (ours.valid(), burns.valid(), x.clone().inner());
                    let part = |x: Tensor<4>| [(String::new(), x.into_data().try_into_vec().expect("f32"))];
                    let found = part(ours.conv.forward_norm(x.clone(), &ours.norm, epilogue));
                    assert_close(
                        &found,
                        &part(burns.forward(x, epilogue)),
                        &format!("inference of {context}"),
                    );
                }
            }
        }
    }

    #[test]
    fn statistics_of_values_far_from_zero_are_exact() {
        let device = Device::flex().autodiff();
        for channels in [[2, 4], [16, 28]] {
            let norm =
                BatchNorm::from(nn::BatchNormConfig::new(channels[1]).with_momentum(1.0).init(&device));
            let mut conv = blocks(channels, true, &device).0.conv;
            conv.bias = Some(Param::from_tensor(Tensor::full([channels[1]], 4096.0, &device)));
            let x = random([28, channels[0], 9, 8], 3, &device) * 0.1;
            conv.forward_norm(x.clone(), &norm, Epilogue::Identity);
            let values = |x: Tensor<1>| x.into_data().try_into_vec::<f32>().expect("f32");
            let sums = values(conv.forward(x).swap_dims(0, 1).flatten(0, 3));
            for (sums, found) in sums.chunks(28 * 9 * 8).zip(values(norm.running_var.value_sync())) {
                let mean = |term: &dyn Fn(f64) -> f64| {
                    sums.iter().map(|&x| term(f64::from(x))).sum::<f64>() / sums.len() as f64
                };
                let center = mean(&|x| x);
                let expected = mean(&|x| (x - center).powi(2));
                assert!((f64::from(found) / expected - 1.0).abs() < 1e-3, "{found}, not {expected}");
            }
            // Equal values are normalised to 0.
            conv.weight = Param::from_tensor(Tensor::zeros(conv.weight.dims(), &device));
            conv.bias = Some(Param::from_tensor(Tensor::full([channels[1]], 100.1, &device)));
            let x = random([12, channels[0], 3000, 1], 3, &device);
            let output = conv.forward_norm(x, &norm, Epilogue::Identity);
            assert!(values(output.flatten(0, 3)).iter().all(|&x| x == 0.0));
            assert!(values(norm.running_var.value_sync()).iter().all(|&x| x < 1e-9));
        }
    }

    /// A filter of differences gives small values in smooth images, of which the squares are large.
    #[test]
    fn patches_of_smooth_images_have_exact_moments() {
        let device = Device::flex().autodiff();
        let conv = Conv2dConfig::new([1, 9], [3, 3]).with_padding(ONE).with_bias(false).init(&device);
        let filter = [0.0, 1.0, 0.0, 1.0, -4.0, 1.0, 0.0, 1.0, 0.0];
        let weight = Tensor::<1>::from_data(filter.repeat(9).as_slice(), &device).reshape([9, 1, 3, 3]);
        let conv = Conv2d { weight: Param::from_tensor(weight), ..conv };
        let bump = |at: f64, size: usize| (at / size as f64 * std::f64::consts::PI).sin().powi(2);
        for (size, scale) in [(96, 1.0), (96, 1.0 / 255.0), (1, 1.0), (1, 1e4), (2, 1e20), (3, 1e-22)] {
            let pixels: Vec<f32> = (0..12 * size * size)
                .map(|at| {
                    let (image, y, x) = (at / size / size, at / size % size, at % size);
                    let value = 200.0 * bump(y as f64 + 1.0, size + 1) * bump(x as f64 + 0.5, size + 1);
                    ((value + image as f64 / 10.0).round() * scale) as f32
                })
                .collect();
            let config = nn::BatchNormConfig::new(9).with_momentum(1.0).with_epsilon(1e-300);
            let norm = BatchNorm::from(config.init(&device));
            let weight = conv.weight.val();
            let conv = if !(1e-10..1e10).contains(&scale) {
                Conv2d { weight: Param::from_tensor((weight / scale).detach()), ..conv.clone() }
            } else {
                conv.clone()
            };
            let taps = conv.weight.val().into_data().try_into_vec::<f32>().expect("f32");
            let pixel = |image: usize, y: usize, x: usize| {
                let inside = (1..=size).contains(&y) && (1..=size).contains(&x);
                if inside { f64::from(pixels[(image * size + y - 1) * size + x - 1]) } else { 0.0 }
            };
            let sums: Vec<f64> = (0..12 * size * size)
                .map(|at| {
                    let (image, y, x) = (at / size / size, at / size % size, at % size);
                    let term = |tap: usize| f64::from(taps[tap]) * pixel(image, y + tap / 3, x + tap % 3);
                    (0..9).map(term).sum()
                })
                .collect();
            let mean = sums.iter().sum::<f64>() / sums.len() as f64;
            let expected = sums.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / sums.len() as f64;
            let x = TensorData::new(pixels.clone(), [12, 1, size, size]);
            let output = conv.forward_norm(Tensor::from_data(x, &device), &norm, Epilogue::Identity);
            for found in norm.running_var.value_sync().into_data().iter::<f64>() {
                assert!((found / expected - 1.0).abs() < 1e-5, "{size}, {scale}: {found}, not {expected}");
            }
            let output = output.into_data().try_into_vec::<f32>().expect("f32");
            for (at, &found) in output.iter().enumerate() {
                let place = at / (9 * size * size) * size * size + at % (size * size);
                let value = (sums[place] - mean) / expected.sqrt();
                let close = (f64::from(found) - value).abs() < 1e-3;
                assert!(close, "{size}, {scale}: {found} at {at}, not {value}");
            }
        }
    }

    #[test]
    fn relu_passes_the_same_gradients_with_and_without_the_gradient_of_the_input() {
        let device = Device::flex().autodiff();
        let (mut ours, _) = blocks([1, 20], true, &device);
        // Sums far from zero are rounded, so some outputs are near zero on either side.
        ours.conv.bias = Some(Param::from_tensor(Tensor::full([20], 4096.0, &device)));
        let x = random([29, 1, 21, 19], 3, &device);
        let of_shift = |tracked: &[Tensor<4>]| {
            let found = results(&ours, tracked, |ours, tracked| {
                let x = tracked.first().unwrap_or(&x).clone();
                ours.conv.forward_norm(x, &ours.norm, Epilogue::Relu)
            });
            found.into_iter().find(|(name, _)| name == "gradient of norm.beta").expect("there is one").1
        };
        let pairs = of_shift(std::slice::from_ref(&x)).into_iter().zip(of_shift(&[]));
        pairs.for_each(|(with, without)| assert!((with - without).abs() < 1e-3, "{with}, {without}"));
    }

    #[test]
    fn a_normalised_convolution_passes_nan_on_and_computes_16_bits_apart() {
        let device = Device::flex().autodiff();
        for channels in [[1, 20], [2, 4], [16, 28]] {
            let (ours, _) = blocks(channels, true, &device);
            let x = random([12, channels[0], 8, 8], 3, &device);
            let forward = |x: Tensor<4>| ours.conv.forward_norm(x, &ours.norm, Epilogue::ReluPool);
            assert_eq!(forward(x.clone().cast(DType::BF16)).dtype(), DType::BF16);
            let x = x.clone().slice_fill([1..2, 0..1, 3..4, 3..4], f32::NAN);
            assert!(forward(x).into_data().iter::<f32>().all(f32::is_nan));
        }
    }

    #[test]
    #[should_panic(expected = "axis 1 expected 4, got 3")]
    fn a_normalisation_of_other_channels_is_a_panic() {
        let device = Device::flex().autodiff();
        let (ours, _) = blocks([2, 3], true, &device);
        let other = BatchNorm::from(nn::BatchNormConfig::new(4).init(&device));
        ours.conv.forward_norm(random([1, 2, 5, 5], 1, &device), &other, Epilogue::Relu);
    }

    #[test]
    fn it_is_shown_configured_and_recorded_as_burns() {
        let device = Device::flex();
        let config = Conv2dConfig::new([2, 3], [3, 3]).with_padding(ONE);
        assert_eq!(config.to_string(), nn::conv::Conv2dConfig::from(config.clone()).to_string());
        let burns = nn::conv::Conv2dConfig::from(config.clone()).init(&device);
        let loaded = config.init(&device).load_record(burns.clone().into_record());
        assert_eq!(loaded.to_string(), burns.to_string());
        assert_eq!(loaded.weight.val().into_data(), burns.weight.val().into_data());
    }

    #[test]
    #[should_panic(expected = "Number of channels in input tensor")]
    fn other_channels_are_a_panic() {
        let device = Device::flex();
        Conv2dConfig::new([2, 3], [3, 3]).init(&device).forward(random([1, 3, 5, 5], 1, &device));
    }
}
