//! Pooling: everything in [`burn::nn::pool`], with a fused [`MaxPool2d`].

use burn::config::Config;
use burn::nn::PaddingConfig2d;
use burn::tensor::Tensor;

use super::convert::{converts, module};
use crate::ops::max_pool::max_pool;
use crate::runtime::fallback::any_unsupported;

pub use burn::nn::pool::*;

// `config!` cannot define this type, because the default of `strides` is another field.
/// Configuration of a [`MaxPool2d`] layer; replaces [`burn::nn::pool::MaxPool2dConfig`].
#[derive(Config, Debug)]
pub struct MaxPool2dConfig {
    /// Height and width of the window.
    pub kernel_size: [usize; 2],
    /// Stride: pixels from one window to the next.
    #[config(default = "kernel_size")]
    pub strides: [usize; 2],
    /// Padding around images; a pixel of the padding is never a maximum.
    #[config(default = "PaddingConfig2d::Valid")]
    pub padding: PaddingConfig2d,
    /// Dilation: pixels from one element of a window to the next.
    #[config(default = "[1, 1]")]
    pub dilation: [usize; 2],
    /// Whether a window may reach beyond the image.
    #[config(default = "false")]
    pub ceil_mode: bool,
}

converts!(MaxPool2dConfig of burn::nn::pool::MaxPool2dConfig {
    kernel_size, strides, padding, dilation, ceil_mode,
});

impl MaxPool2dConfig {
    /// Creates a layer.
    pub fn init(&self) -> MaxPool2d {
        burn::nn::pool::MaxPool2dConfig::from(self.clone()).init().into()
    }
}

module! {
    /// Max pooling of images; replaces [`burn::nn::pool::MaxPool2d`].
    ///
    /// The pooling is one operator for 2x2 windows with stride 2, dilation 1 and no padding, if all windows
    /// are inside the image. Other poolings are composed of Burn's operators.
    /// [`Conv2d::forward_relu_pool`](crate::nn::conv::Conv2d::forward_relu_pool) and
    /// [`BatchNorm::forward_with`](crate::nn::BatchNorm::forward_with) compute a convolution or normalisation
    /// and its pooling in one operator.
    pub struct MaxPool2d of burn::nn::pool::MaxPool2d {
        /// Stride: pixels from one window to the next.
        pub stride: [usize; 2],
        /// Height and width of the window.
        pub kernel_size: [usize; 2],
        /// Padding around images; a pixel of the padding is never a maximum.
        #[module(skip)]
        pub padding: PaddingConfig2d,
        /// Dilation: pixels from one element of a window to the next.
        pub dilation: [usize; 2],
        /// Whether a window may reach beyond the image.
        pub ceil_mode: bool,
    }
}

impl MaxPool2d {
    /// Returns the maxima of the windows of images `[batch, channels, height, width]`.
    ///
    /// # Panics
    /// If the window is larger than the padded images.
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let [.., height, width] = input.dims();
        // With even sizes, no window reaches beyond the image.
        let inside = !self.ceil_mode || (height % 2 == 0 && width % 2 == 0);
        let padded = !matches!(self.padding, PaddingConfig2d::Valid | PaddingConfig2d::Explicit(0, 0, 0, 0));
        let usual = [self.stride, self.kernel_size, self.dilation] == [[2, 2], [2, 2], [1, 1]];
        let reasons = [
            (!usual, "windows other than 2x2 with stride 2 and dilation 1"),
            (padded, "padded images"),
            (!inside, "windows that reach beyond the image (ceil_mode with an odd size)"),
        ];
        let pooled = if any_unsupported("max_pool2d", &reasons) { None } else { max_pool(&input) };
        pooled.unwrap_or_else(|| burn::nn::pool::MaxPool2d::from(self.clone()).forward(input))
    }
}

#[cfg(test)]
mod tests {
    use burn::nn;
    use burn::tensor::Device;

    use super::*;
    use crate::kernels::simd::Level;
    use crate::ops::testing::{Part, assert_close, autodiff_devices, random, results};

    fn compare(config: &MaxPool2dConfig, x: Tensor<4>) {
        let (ours, burns) = (config.init(), nn::pool::MaxPool2d::from(config.init()));
        let x = [x];
        let expected = results(&burns, &x, |layer, x| layer.forward(x[0].clone()));
        for level in Level::available() {
            let _held = level.hold();
            let found = results(&ours, &x, |layer, x| layer.forward(x[0].clone()));
            assert_close(&found, &expected, &format!("{:?} at {level}, {config}", x[0].dims()));
        }
    }

    #[test]
    fn maxima_and_gradients_are_burns() {
        for device in autodiff_devices() {
            // The largest shapes use recycled buffers, which contain values of an earlier use.
            for shape in [[1, 1, 2, 2], [2, 3, 5, 7], [3, 2, 8, 66], [4, 8, 33, 35], [2, 2, 32, 32]] {
                let x = random(shape, 3, &device);
                // Rounding makes some values equal; only one of them gets the gradient.
                let rounded = (x.clone() * 2.0).round();
                let view = random([shape[1], shape[0], shape[3], shape[2]], 4, &device)
                    .swap_dims(0, 1)
                    .swap_dims(2, 3);
                for x in [x.clone(), rounded, view] {
                    compare(&MaxPool2dConfig::new([2, 2]), x);
                }
                compare(&MaxPool2dConfig::new([2, 2]).with_ceil_mode(true), x.clone());
                compare(&MaxPool2dConfig::new([2, 2]).with_strides([1, 1]), x.clone());
                let border = PaddingConfig2d::Explicit(1, 1, 1, 1);
                compare(&MaxPool2dConfig::new([2, 2]).with_padding(border), x.clone());
            }
        }
    }

    #[test]
    fn non_finite_values_are_where_burns_are() {
        let device = Device::flex().autodiff();
        let numbers = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0];
        for at in 0..256 {
            let square = [0, 2, 4, 6].map(|shift| numbers[at >> shift & 3]);
            let x = [Tensor::<1>::from_data(square, &device).reshape([1, 1, 2, 2])];
            let (ours, config) =
                (MaxPool2dConfig::new([2, 2]).init(), nn::pool::MaxPool2dConfig::new([2, 2]));
            let bits = |parts: Vec<Part>| {
                parts.into_iter().flat_map(|(_, x)| x).map(f32::to_bits).collect::<Vec<_>>()
            };
            let found = bits(results(&ours, &x, |layer, x| layer.forward(x[0].clone())));
            let expected = bits(results(&config.init(), &x, |layer, x| layer.forward(x[0].clone())));
            assert_eq!(found, expected, "{square:?}");
        }
    }

    #[test]
    fn without_autodiff_and_of_nothing_maxima_are_burns() {
        let device = Device::flex();
        let ours = MaxPool2dConfig::new([2, 2]).init();
        let burns = nn::pool::MaxPool2d::from(ours.clone());
        assert_eq!(ours.to_string(), burns.to_string());
        for shape in [[2, 3, 6, 5], [0, 3, 4, 4], [2, 0, 4, 4]] {
            let x = random(shape, 3, &device);
            ours.forward(x.clone()).into_data().assert_eq(&burns.forward(x).into_data(), true);
        }
    }
}
