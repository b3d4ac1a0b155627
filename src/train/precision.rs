//! Mixed precision: activations and products in 16 bits; weights, optimizer, loss and
//! batch norm statistics in f32.

use std::fmt;

use burn::tensor::{DType, Tensor};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::model::{BatchPlace, Network};
use crate::values;

/// Type of activations, of their gradients and of the factors of products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// f32.
    #[default]
    No,
    /// bf16: 8 bits of precision, the range of f32.
    Bf16,
    /// f16: 11 bits of precision, values to 65504, with loss scaling.
    Fp16,
    /// 8 bits: of no device here, but of the reports.
    Fp8,
}

impl Precision {
    /// The type of activations; none if it is that of the weights.
    pub fn activations(self) -> Option<DType> {
        match self {
            Self::No | Self::Fp8 => None,
            Self::Bf16 => Some(DType::BF16),
            Self::Fp16 => Some(DType::F16),
        }
    }

    /// Class scores in training. Operators of `burn_fused` use the type of their input, so only the samples are
    /// converted, and the scores back for the loss.
    pub fn forward(self, network: &Network, samples: Tensor<4>, place: &BatchPlace) -> Tensor<2> {
        match self.activations() {
            Some(dtype) => network.apply(samples.cast(dtype), Some(place)).cast(DType::F32),
            None => network.apply(samples, Some(place)),
        }
    }

    /// Whether gradients may exceed the range, so that the loss is scaled.
    pub fn scales_loss(self) -> bool {
        self == Self::Fp16
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&values::name(self))
    }
}

#[cfg(test)]
mod tests {
    use burn::module::{Module, ModuleVisitor, Param};
    use burn::tensor::{Device, Gradients, TensorData};
    use burn_fused::loss::cross_entropy;

    use super::*;
    use crate::model::{Activation, ModelKind, NetworkOptions};

    const SAMPLES: usize = 16;

    /// Flat gradients of all parameters.
    struct All {
        gradients: Gradients,
        values: Vec<f32>,
    }

    impl ModuleVisitor for All {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = param.val().grad_remove(&mut self.gradients) {
                self.values.extend(gradient.into_data().try_into_vec::<f32>().expect("f32"));
            }
        }
    }

    fn gradients(
        device: &Device,
        kind: ModelKind,
        options: &NetworkOptions,
        precision: Precision,
    ) -> Vec<f32> {
        let device = device.clone().autodiff();
        let network = Network::with_options(kind, options, kind.classes(), 5, &device);
        let [channels, height, width] = kind.input_shape();
        let mut state = 7u64;
        let value = |_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let values: Vec<f32> = (0..SAMPLES * channels * height * width).map(value).collect();
        let samples = TensorData::new(values, [SAMPLES, channels, height, width]);
        let place = BatchPlace { seed: 1, step: 0, first: 0, stride: 1 };
        let scores = precision.forward(&network, Tensor::from_data(samples, &device), &place);
        // Unscaled, the smallest gradients would lose bits in f16.
        let scale = if precision.scales_loss() { 4096.0 } else { 1.0 };
        let labels: Vec<u8> = [1, 7, 3].into_iter().cycle().take(SAMPLES).collect();
        let loss = cross_entropy(scores, &labels).loss.mul_scalar(scale);
        let mut all = All { gradients: loss.backward(), values: Vec::new() };
        network.visit(&mut all);
        all.values.iter().map(|value| value / scale).collect()
    }

    fn norm(values: impl Iterator<Item = f32>) -> f32 {
        values.map(|x| x * x).sum::<f32>().sqrt()
    }

    #[test]
    fn every_network_has_nearly_the_gradients_of_f32() {
        let plain = NetworkOptions::default();
        let more = NetworkOptions { batch_norm: true, dropout: 0.3, ..plain };
        let gelu = NetworkOptions { activation: Activation::Gelu, ..plain };
        let device = Device::flex();
        for kind in [ModelKind::Convnet, ModelKind::Mlp, ModelKind::Vgg] {
            for options in [plain, more, gelu] {
                let exact = gradients(&device, kind, &options, Precision::No);
                // Rounding changes the maximum of some squares, and what some ReLU passes on: of few
                // samples, or behind norms, those outweigh the rounding itself.
                let off = [Precision::Bf16, Precision::Fp16].map(|precision| {
                    let found = gradients(&device, kind, &options, precision);
                    assert_eq!(found.len(), exact.len());
                    assert_ne!(found, exact, "{kind} {options:?} {precision}");
                    norm(found.iter().zip(&exact).map(|(a, b)| a - b)) / norm(exact.iter().copied())
                });
                assert!(off[0] < 0.25 && off[1] < off[0], "{kind} {options:?}: {off:?}");
            }
        }
    }

    /// With `--features tch`.
    #[cfg(feature = "tch")]
    #[test]
    #[allow(deprecated, reason = "tch is deprecated upstream, and still supported here")]
    fn libtorch_has_nearly_the_gradients_of_f32_in_bf16() {
        let plain = NetworkOptions::default();
        let device = Device::libtorch();
        for kind in [ModelKind::Convnet, ModelKind::Mlp, ModelKind::Vgg] {
            for options in [plain, NetworkOptions { batch_norm: true, dropout: 0.3, ..plain }] {
                let exact = gradients(&device, kind, &options, Precision::No);
                let found = gradients(&device, kind, &options, Precision::Bf16);
                assert_ne!(found, exact, "{kind} {options:?}");
                let off = norm(found.iter().zip(&exact).map(|(a, b)| a - b)) / norm(exact.iter().copied());
                assert!(off < 0.25, "{kind} {options:?}: {off}");
            }
        }
    }

    #[test]
    fn precisions_are_written_alike_everywhere() {
        for precision in Precision::value_variants() {
            assert_eq!(serde_json::to_value(precision).unwrap(), precision.to_string());
        }
    }
}
