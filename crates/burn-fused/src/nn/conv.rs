//! Convolutions: all of [`burn::nn::conv`], with ours in place of Burn's of the same name.

use burn::config::Config;
use burn::module::{Module, Param};
use burn::nn::{Initializer, PaddingConfig2d};
use burn::tensor::{Device, Tensor};

use super::convert::{converts, shown_as_burns};
use crate::conv::{conv, conv_relu, conv_relu_pool};

pub use burn::nn::conv::*;

/// Configuration of a [`Conv2d`] layer, as [`burn::nn::conv::Conv2dConfig`].
#[derive(Config, Debug)]
pub struct Conv2dConfig {
    /// Numbers of input and output channels.
    pub channels: [usize; 2],
    /// Height and width of the kernel.
    pub kernel_size: [usize; 2],
    /// Pixels from one square under the kernel to the next.
    #[config(default = "[1, 1]")]
    pub stride: [usize; 2],
    /// Pixels between the kernel's elements.
    #[config(default = "[1, 1]")]
    pub dilation: [usize; 2],
    /// Number of groups of channels.
    #[config(default = "1")]
    pub groups: usize,
    /// Zeros around images.
    #[config(default = "PaddingConfig2d::Valid")]
    pub padding: PaddingConfig2d,
    /// Whether a bias is added.
    #[config(default = true)]
    pub bias: bool,
    /// How parameters are initialised.
    #[config(default = "Initializer::KaimingUniform{gain: 1.0 / 3f64.sqrt(), fan_out_only: false}")]
    pub initializer: Initializer,
}

converts!(Conv2dConfig of burn::nn::conv::Conv2dConfig {
    channels, kernel_size, stride, dilation, groups, padding, bias, initializer,
});

impl Conv2dConfig {
    /// A layer with new parameters.
    ///
    /// # Panics
    /// If a number of channels is not divisible by the groups.
    pub fn init(&self, device: &Device) -> Conv2d {
        burn::nn::conv::Conv2dConfig::from(self.clone()).init(device).into()
    }
}

/// A convolution of images, as [`burn::nn::conv::Conv2d`].
///
/// It is one operator for 3x3 kernels with padding 1, a bias, stride 1, dilation 1 and one group. Others are composed
/// of Burn's operators; the reason is logged at level debug, once for each.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Conv2d {
    /// Weights `[outputs, inputs / groups, height, width]`.
    pub weight: Param<Tensor<4>>,
    /// Bias `[outputs]`.
    pub bias: Option<Param<Tensor<1>>>,
    /// Pixels from one square under the kernel to the next.
    pub stride: [usize; 2],
    /// Height and width of the kernel.
    pub kernel_size: [usize; 2],
    /// Pixels between the kernel's elements.
    pub dilation: [usize; 2],
    /// Number of groups of channels.
    pub groups: usize,
    /// Zeros around images.
    #[module(skip)]
    pub padding: PaddingConfig2d,
}

converts!(Conv2d of burn::nn::conv::Conv2d { weight, bias, stride, kernel_size, dilation, groups, padding });
shown_as_burns!(Conv2d of burn::nn::conv::Conv2d);

impl Conv2d {
    /// The outputs `[batch, outputs, height, width]` of images `[batch, inputs, height, width]`.
    ///
    /// # Panics
    /// If images, parameters and options do not fit each other.
    #[track_caller]
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        conv(input, self)
    }

    /// ReLU of the outputs, in the same operator.
    ///
    /// # Panics
    /// As [`forward`](Self::forward).
    #[track_caller]
    pub fn forward_relu(&self, input: Tensor<4>) -> Tensor<4> {
        conv_relu(input, self)
    }

    /// 2x2 max pooling with stride 2 of ReLU of the outputs, in the same operator.
    ///
    /// # Panics
    /// As [`forward`](Self::forward).
    #[track_caller]
    pub fn forward_relu_pool(&self, input: Tensor<4>) -> Tensor<4> {
        conv_relu_pool(input, self)
    }
}

#[cfg(test)]
mod tests {
    use burn::nn;
    use burn::nn::pool::MaxPool2dConfig;
    use burn::tensor::activation::relu;

    use super::*;
    use crate::nn::testing::{assert_close, autodiff_devices, fixed, random, results};

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
