//! The linear layer.

use burn::module::Param;
use burn::nn::{Initializer, LinearLayout};
use burn::tensor::{Device, Tensor, assert_shape};

use super::convert::{config, module};
use crate::kernels::activation::ActivationFunction;
use crate::ops::linear::{LinearLayer, linear_activated};

config! {
    /// Configuration of a [`Linear`] layer; replaces [`burn::nn::LinearConfig`].
    pub struct LinearConfig of burn::nn::LinearConfig {
        /// Number of inputs.
        pub d_input: usize,
        /// Number of outputs.
        pub d_output: usize,
        /// Whether a bias is added.
        #[config(default = true)]
        pub bias: bool,
        /// How parameters are initialised.
        #[config(default = "Initializer::KaimingUniform{gain: 1.0 / 3f64.sqrt(), fan_out_only: false}")]
        pub initializer: Initializer,
        /// How weights are stored.
        #[config(default = "LinearLayout::Row")]
        pub layout: LinearLayout,
    }

    /// Creates a layer with new parameters.
    pub fn init(&self, device: &Device) -> Linear;
}

module! {
    /// A linear layer, `x W + b`, as one operator. Replaces [`burn::nn::Linear`].
    pub struct Linear of burn::nn::Linear {
        /// Weights `[d_input, d_output]`.
        pub weight: Param<Tensor<2>>,
        /// Bias `[d_output]`.
        pub bias: Option<Param<Tensor<1>>>,
    }
}

impl LinearLayer for Linear {
    fn parameters(&self) -> (Tensor<2>, Option<Tensor<1>>) {
        (self.weight.val(), self.bias.as_ref().map(Param::val))
    }
}

impl Linear {
    /// Returns the outputs `[..., d_output]` for `input` `[..., d_input]`.
    ///
    /// # Panics
    /// If the last axis of `input` is not `d_input`.
    #[track_caller]
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        self.forward_activated(input, ActivationFunction::Identity)
    }

    /// Applies `activation` to the outputs. In f32, the same operator computes both.
    ///
    /// # Panics
    /// In the same cases as [`forward`](Self::forward).
    #[track_caller]
    pub fn forward_activated<const D: usize>(
        &self,
        input: Tensor<D>,
        activation: ActivationFunction,
    ) -> Tensor<D> {
        let [d_input, _] = self.weight.shape().dims();
        assert_shape!(input, [.., d_input]);
        linear_activated(input, self, activation)
    }
}

#[cfg(test)]
mod tests {
    use burn::nn;
    use burn::tensor::DType;

    use super::*;
    use crate::ops::testing::{assert_close, fixed, random, results};

    type Function = fn(Tensor<2>) -> Tensor<2>;

    #[test]
    fn outputs_and_gradients_are_those_of_burns_layer() {
        let device = Device::flex().autodiff();
        for (seed, sizes) in [[1, 1, 1], [5, 3, 40], [6, 40, 3], [12, 33, 65], [64, 16, 48], [0, 4, 40]]
            .into_iter()
            .enumerate()
        {
            let [rows, inputs, outputs] = sizes;
            for (bias, layout) in
                [(true, LinearLayout::Row), (false, LinearLayout::Row), (true, LinearLayout::Col)]
            {
                let config = nn::LinearConfig::new(inputs, outputs).with_bias(bias).with_layout(layout);
                let burns = fixed(config.init(&device));
                let ours = Linear::from(burns.clone());
                let x = [random([rows, inputs], seed as u64 + 1, &device)];
                let context = format!("{rows} rows, {inputs} x {outputs}, bias {bias}, {layout:?}");
                let expected = results(&burns, &x, |layer, x| layer.forward(x[0].clone()));
                assert_close(
                    &results(&ours, &x, |layer, x| layer.forward(x[0].clone())),
                    &expected,
                    &context,
                );
                let activations: [(_, Function); 3] = [
                    (ActivationFunction::Relu, burn::tensor::activation::relu),
                    (ActivationFunction::Gelu, burn::tensor::activation::gelu),
                    (ActivationFunction::GeluApproximate, burn::tensor::activation::gelu_approximate),
                ];
                for (activation, burns_activation) in activations {
                    let context = format!("{activation:?} of {context}");
                    let expected =
                        results(&burns, &x, |layer, x| burns_activation(layer.forward(x[0].clone())));
                    let found =
                        results(&ours, &x, |layer, x| layer.forward_activated(x[0].clone(), activation));
                    assert_close(&found, &expected, &context);
                }
            }
        }
    }

    #[test]
    fn inputs_have_any_number_of_dimensions() {
        let device = Device::flex().autodiff();
        let burns = fixed(nn::LinearConfig::new(20, 40).init(&device));
        let ours = Linear::from(burns.clone());
        let x = [random([2, 3, 4, 20], 1, &device).swap_dims(0, 2)];
        let expected = results(&burns, &x, |layer, x| layer.forward(x[0].clone()));
        assert_close(&results(&ours, &x, |layer, x| layer.forward(x[0].clone())), &expected, "4 dimensions");
        let x = [random([20], 1, &device)];
        let expected = results(&burns, &x, |layer, x| layer.forward(x[0].clone()));
        assert_close(&results(&ours, &x, |layer, x| layer.forward(x[0].clone())), &expected, "1 dimension");
    }

    #[test]
    fn inputs_without_rows_have_outputs_without_rows_and_no_gradients() {
        let device = Device::flex().autodiff();
        let ours = LinearConfig::new(5, 40).init(&device);
        for shape in [[0, 3, 5], [3, 0, 5], [0, 0, 5]] {
            let found = results(&ours, &[random(shape, 1, &device)], |layer, x| layer.forward(x[0].clone()));
            assert!(
                found[0].1.is_empty() && found[2].1 == [0.0; 200] && found[3].1 == [0.0; 40],
                "{found:?}"
            );
        }
    }

    #[test]
    fn a_missing_bias_is_one_of_zeros_for_inputs_of_16_bits_too() {
        let device = Device::flex().autodiff();
        for (dtype, outputs) in [(DType::F32, 5), (DType::F32, 40), (DType::BF16, 5), (DType::BF16, 40)] {
            let bare = LinearConfig::new(7, outputs).with_bias(false).init(&device);
            let zeros =
                Linear { bias: Some(Param::from_tensor(Tensor::zeros([outputs], &device))), ..bare.clone() };
            let run = |layer: &Linear, x: Tensor<2>| layer.forward(x.cast(dtype)).cast(DType::F32);
            let x = [random([6, 7], 3, &device)];
            let found = results(&bare, &x, |layer, x| run(layer, x[0].clone()));
            let mut expected = results(&zeros, &x, |layer, x| run(layer, x[0].clone()));
            assert!(expected.pop().is_some_and(|(name, _)| name == "gradient of bias"));
            assert_eq!(found, expected, "{dtype:?}, {outputs} outputs");
        }
    }

    #[test]
    #[should_panic(expected = "assert_shape!(input, [.., d_input]): axis 1 expected 4, got 3")]
    fn inputs_of_another_width_panic_in_burns_words() {
        let device = Device::flex();
        LinearConfig::new(4, 2).init(&device).forward(Tensor::<2>::zeros([1, 3], &device));
    }

    #[test]
    fn it_is_shown_and_configured_as_burns() {
        let device = Device::flex();
        let config = LinearConfig::new(3, 4).with_bias(false);
        let burns = nn::LinearConfig::from(config.clone());
        assert_eq!(config.to_string(), burns.to_string());
        assert_eq!(config.init(&device).to_string(), burns.init(&device).to_string());
    }
}
