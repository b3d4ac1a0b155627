//! Activation layers: everything in [`burn::nn::activation`], with fused layers that replace Burn's layers of
//! the same names.

use burn::config::Config;
use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::Identity;
use super::convert::{module, variants};
use crate::kernels::activation::ActivationFunction;
use crate::ops::activation::activate;

pub use burn::nn::activation::*;

module! {
    /// GELU as one operator: `x Φ(x)`, where Φ is the distribution function of the normal distribution
    /// (Hendrycks and Gimpel, "Gaussian error linear units", 2016). Replaces [`burn::nn::Gelu`].
    #[derive(Default)]
    pub struct Gelu of burn::nn::Gelu {
        /// Whether Φ is approximated by tanh.
        pub approximate: bool,
    }
}

impl Gelu {
    /// Creates a GELU with the exact Φ.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a GELU with the approximation of Φ by tanh.
    pub fn new_approximate() -> Self {
        Self { approximate: true }
    }

    /// Returns the GELU of each value of `input`.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        activate(input, self.function())
    }

    fn function(&self) -> ActivationFunction {
        if self.approximate { ActivationFunction::GeluApproximate } else { ActivationFunction::Gelu }
    }
}

/// Defines the enum [`Activation`], and its conversions: from each layer, from Burn's enum, and to Burn's
/// enum.
macro_rules! layers {
    ($($variant:ident),* $(,)?) => {
        /// One of the activation layers; replaces [`burn::nn::activation::Activation`].
        #[derive(Module, Debug)]
        #[non_exhaustive]
        #[allow(clippy::large_enum_variant, reason = "as Burn's")]
        pub enum Activation {
            $(
                #[doc = concat!("`", stringify!($variant), "`.")]
                $variant($variant),
            )*
        }

        variants!(Activation of burn::nn::activation::Activation { $($variant(layer: $variant)),* });

        impl Activation {
            /// Applies the activation to `input`.
            pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
                match self {
                    $(Self::$variant(layer) => layer.forward(input),)*
                }
            }
        }
    };
}

layers!(
    Identity,
    Gelu,
    PRelu,
    Relu,
    LeakyRelu,
    SwiGlu,
    Selu,
    Sigmoid,
    Tanh,
    HardSigmoid,
    HardSwish,
    Softplus,
    Softsign,
    Elu,
    Celu,
    ThresholdedRelu,
    HardShrink,
    SoftShrink,
    Shrink,
);

impl Activation {
    /// Returns the activation if the operator of a linear layer can compute it. Returns `None` for
    /// activations that only their own layer computes.
    pub(crate) fn epilogue(&self) -> Option<ActivationFunction> {
        match self {
            Self::Identity(_) => Some(ActivationFunction::Identity),
            Self::Relu(_) => Some(ActivationFunction::Relu),
            Self::Gelu(gelu) => Some(gelu.function()),
            _ => None,
        }
    }
}

/// Defines the enum [`ActivationConfig`], and its conversions: from each layer's configuration, from Burn's
/// enum, and to Burn's enum.
macro_rules! configs {
    ($($variant:ident $(($config:ident: $type:ident))?),* $(,)?) => {
        /// Configuration of an [`Activation`]; replaces [`burn::nn::activation::ActivationConfig`].
        #[derive(Config, Debug)]
        #[non_exhaustive]
        pub enum ActivationConfig {
            $(
                #[doc = concat!("`", stringify!($variant), "`.")]
                $variant $(($type))?,
            )*
        }

        variants!(ActivationConfig of burn::nn::activation::ActivationConfig { $($variant $(($config: $type))?),* });
    };
}

configs!(
    Identity,
    Gelu,
    GeluApproximate,
    PRelu(config: PReluConfig),
    Relu,
    LeakyRelu(config: LeakyReluConfig),
    SwiGlu(config: SwiGluConfig),
    Selu,
    Sigmoid,
    Tanh,
    HardSigmoid(config: HardSigmoidConfig),
    HardSwish,
    Softplus(config: SoftplusConfig),
    Softsign,
    Elu(config: EluConfig),
    Celu(config: CeluConfig),
    ThresholdedRelu(config: ThresholdedReluConfig),
    HardShrink(config: HardShrinkConfig),
    SoftShrink(config: SoftShrinkConfig),
    Shrink(config: ShrinkConfig),
);

impl ActivationConfig {
    /// Creates the layer, with new parameters if it has any.
    pub fn init(&self, device: &Device) -> Activation {
        burn::nn::activation::ActivationConfig::from(self.clone()).init(device).into()
    }
}

#[cfg(test)]
mod tests {
    use burn::module::Module;

    use super::*;
    use crate::kernels::simd::Level;
    use crate::ops::testing::{Part, assert_close, autodiff_devices, random, results};

    /// Returns outputs and gradients. If `kept` is set, another tensor shares the memory of the layer's
    /// input.
    fn run<M: Module>(
        layer: &M,
        x: &Tensor<3>,
        kept: bool,
        forward: fn(&M, Tensor<3>) -> Tensor<3>,
    ) -> Vec<Part> {
        results(layer, std::slice::from_ref(x), |layer, x| {
            if kept { forward(layer, x[0].clone()) } else { forward(layer, x[0].clone() * 3.0) }
        })
    }

    fn compare(burns: &burn::nn::activation::Activation, x: &Tensor<3>, context: &str) {
        for kept in [true, false] {
            let expected = run(burns, x, kept, |layer, x| layer.forward(x));
            for level in Level::available() {
                let _held = level.hold();
                let found = run(&Activation::from(burns.clone()), x, kept, |layer, x| layer.forward(x));
                assert_close(&found, &expected, &format!("{burns}, {context}, kept: {kept}, at {level}"));
            }
        }
    }

    fn fused() -> [burn::nn::activation::Activation; 3] {
        use burn::nn::{Gelu, Relu};
        [Relu.into(), Gelu::new().into(), Gelu::new_approximate().into()]
    }

    #[test]
    fn outputs_and_gradients_are_those_of_burns_layers() {
        for device in autodiff_devices() {
            for (seed, shape) in
                [[1, 1, 1], [3, 0, 2], [2, 3, 5], [4, 32, 8], [7, 9, 17], [5, 64, 65], [3, 250, 101]]
                    .into_iter()
                    .enumerate()
            {
                let x = random(shape, seed as u64 + 2, &device) * 4.0;
                for layer in fused() {
                    compare(&layer, &x, &format!("{shape:?}"));
                    compare(&layer, &x.clone().swap_dims(0, 2), &format!("{shape:?} transposed"));
                }
            }
        }
    }

    #[test]
    fn non_finite_values_are_as_in_burn() {
        let device = Device::flex().autodiff();
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e20, -1e20] {
            let x = random([2, 3, 20], 1, &device).slice_fill([1..2, 1..2, 4..5], value);
            for layer in fused() {
                compare(&layer, &x, &format!("with {value}"));
            }
        }
        // The gradient of a value that ReLU sets to 0 is 0, even if the output's gradient is infinite.
        let gradient = |layer: &Activation| {
            let x = Tensor::<1>::from_data([-1.0, 2.0], &device).require_grad();
            let gradients = (layer.forward(x.clone()) * f32::INFINITY).sum().backward();
            x.grad(&gradients).expect("it is tracked").into_data().try_into_vec_as::<f32>().expect("floats")
        };
        assert_eq!(gradient(&Relu.into()), [0.0, f32::INFINITY]);
    }

    #[test]
    fn without_autodiff_and_in_other_types_it_is_as_in_burn() {
        let device = Device::flex();
        let x = random([2, 3, 40], 1, &device);
        for burns in fused() {
            let ours = Activation::from(burns.clone());
            let part =
                |y: Tensor<3>| vec![("output".into(), y.into_data().try_into_vec_as().expect("floats"))];
            assert_close(&part(ours.forward(x.clone())), &part(burns.forward(x.clone())), "inference");
            let x = x.clone().cast(burn::tensor::DType::BF16);
            ours.forward(x.clone()).into_data().assert_eq(&burns.forward(x).into_data(), true);
        }
    }

    #[test]
    fn every_layer_is_burns_and_back() {
        let device = Device::flex().autodiff();
        let configs = [
            ActivationConfig::Identity,
            ActivationConfig::Gelu,
            ActivationConfig::GeluApproximate,
            PReluConfig::new().into(),
            ActivationConfig::Relu,
            LeakyReluConfig::new().into(),
            SwiGluConfig::new(4, 4).into(),
            ActivationConfig::Selu,
            ActivationConfig::Sigmoid,
            ActivationConfig::Tanh,
            HardSigmoidConfig::new().into(),
            ActivationConfig::HardSwish,
            SoftplusConfig::new().into(),
            ActivationConfig::Softsign,
            EluConfig::new().into(),
            CeluConfig::new().into(),
            ThresholdedReluConfig::new().into(),
            HardShrinkConfig::new().into(),
            SoftShrinkConfig::new().into(),
            ShrinkConfig::new().into(),
        ];
        let x = random([3, 2, 4], 1, &device);
        for config in configs {
            let burns_config = burn::nn::activation::ActivationConfig::from(config.clone());
            assert_eq!(burns_config.to_string(), config.to_string());
            assert_eq!(ActivationConfig::from(burns_config.clone()).to_string(), config.to_string());
            let burns = burns_config.init(&device);
            assert_eq!(config.init(&device).to_string(), burns.to_string());
            let ours = config.init(&device).load_record(burns.clone().into_record());
            let back = burn::nn::activation::Activation::from(ours.clone());
            let expected = run(&burns, &x, true, |layer, x| layer.forward(x));
            assert_close(&run(&ours, &x, true, |layer, x| layer.forward(x)), &expected, &config.to_string());
            assert_close(&run(&back, &x, true, |layer, x| layer.forward(x)), &expected, &config.to_string());
        }
        assert_eq!(
            Activation::from(Gelu::new_approximate()).epilogue(),
            Some(ActivationFunction::GeluApproximate)
        );
        assert_eq!(Activation::from(Selu).epilogue(), None);
    }
}
