//! Mixed precision and loss scaling.
//!
//! With bf16 or fp16, activations and the factors of matrix products have 16 bits. Weights, optimizer, loss
//! and batch norm statistics stay in f32.
//!
//! f16 has a narrow range: small gradients would become 0. Loss scaling multiplies the loss, and therefore
//! all gradients, by a large factor. It divides the averaged gradients by the same factor. If a gradient
//! overflows, the step is skipped and the factor is halved.

use burn::tensor::DType;
use burn_fused::optim::flat;
use burn_mpi::Piece;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::values::display_names;

/// Type of activations, of their gradients and of the factors of products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum MixedPrecision {
    /// f32.
    #[default]
    No,
    /// bf16: 8 bits of precision, the range of f32.
    Bf16,
    /// f16: 11 bits of precision, values up to 65504, with loss scaling.
    Fp16,
    /// 8-bit floats. The value exists only so that an error can say that no device of this program supports
    /// it.
    #[value(hide = true)]
    Fp8,
}

display_names!(MixedPrecision);

impl MixedPrecision {
    /// Returns the type of activations.
    pub fn activations(self) -> DType {
        match self {
            Self::No | Self::Fp8 => DType::F32,
            Self::Bf16 => DType::BF16,
            Self::Fp16 => DType::F16,
        }
    }

    /// Whether the range of gradients is so narrow that the loss has to be scaled.
    pub fn scales_loss(self) -> bool {
        self == Self::Fp16
    }
}

/// The initial scale, the same as PyTorch's.
const FIRST: f32 = 65536.0;
/// The scale is multiplied by this factor after an overflow, and divided by it after [`GOOD`] steps without
/// an overflow. The factor is a power of two, so that scaling does not round.
const BACKOFF: f32 = 0.5;
/// Steps without an overflow before the scale grows.
const GOOD: u32 = 2000;

/// The current loss scale and its counters, as checkpoints store them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    /// Factor of the loss.
    pub scale: f32,
    /// Number of steps since the last overflow, or since the scale last grew.
    pub good_steps: u32,
    /// Number of steps that did not update the weights, because a gradient was NaN or infinite.
    pub skipped_steps: usize,
}

impl Default for LossScale {
    fn default() -> Self {
        Self { scale: FIRST, good_steps: 0, skipped_steps: 0 }
    }
}

impl LossScale {
    /// Divides averaged gradients by the scale. Returns whether all of them are finite.
    pub fn unscale(&self, gradients: Vec<Piece<'_>>) -> bool {
        let scaled = gradients.into_iter().map(|piece| flat::scale(piece.gradient, 1.0 / self.scale));
        scaled.fold(true, |finite, is_finite| finite & is_finite)
    }

    /// Updates the scale after a step. `finite` is whether the averaged gradients of all ranks are finite; if
    /// not, the step must be skipped.
    pub fn count(&mut self, finite: bool) {
        if !finite {
            self.skipped_steps += 1;
            self.good_steps = 0;
            // If the scale were lower than this, its inverse could be infinite.
            self.scale = (self.scale * BACKOFF).max(f32::MIN_POSITIVE);
            return;
        }
        self.good_steps += 1;
        if self.good_steps >= GOOD {
            self.good_steps = 0;
            let grown = self.scale / BACKOFF;
            self.scale = if grown.is_finite() { grown } else { self.scale };
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::module::{Module, ModuleVisitor, Param};
    use burn::tensor::{Device, Gradients, Tensor, TensorData};
    use burn_fused::loss::cross_entropy;
    use burn_fused::nn::BatchPlace;

    use super::*;
    use crate::model::{ActivationKind, ModelKind, Network, NetworkOptions};

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
        precision: MixedPrecision,
    ) -> Vec<f32> {
        let device = device.clone().autodiff();
        let network = Network::with_options(kind, options, kind.dimensions(), 5, &device);
        let [channels, height, width] = kind.dimensions().input;
        let mut state = 7u64;
        let value = |_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let values: Vec<f32> = (0..SAMPLES * channels * height * width).map(value).collect();
        let samples = TensorData::new(values, [SAMPLES, channels, height, width]);
        let place = BatchPlace { seed: 1, step: 0, first: 0, stride: 1 };
        let scores = network.forward_in(precision.activations(), Tensor::from_data(samples, &device), &place);
        // Without scaling, the smallest gradients would lose bits in f16.
        let scale = if precision.scales_loss() { 4096.0 } else { 1.0 };
        let labels: Vec<u16> = [1, 7, 3].into_iter().cycle().take(SAMPLES).collect();
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
        let more = NetworkOptions { batch_norm: true, dropout: crate::values::Below1(0.3), ..plain };
        let gelu = NetworkOptions { activation: ActivationKind::Gelu, ..plain };
        let device = Device::flex();
        for kind in [ModelKind::Convnet, ModelKind::Mlp, ModelKind::Vgg] {
            for options in [plain, more, gelu] {
                let exact = gradients(&device, kind, &options, MixedPrecision::No);
                // Rounding also changes which pixel is the maximum of some pooling windows, and which values
                // some ReLUs pass on. With few samples, or after norms, these changes outweigh the rounding
                // error itself, so the test tolerates 25%.
                let off = [MixedPrecision::Bf16, MixedPrecision::Fp16].map(|precision| {
                    let found = gradients(&device, kind, &options, precision);
                    assert_eq!(found.len(), exact.len());
                    assert_ne!(found, exact, "{kind} {options:?} {precision}");
                    norm(found.iter().zip(&exact).map(|(a, b)| a - b)) / norm(exact.iter().copied())
                });
                assert!(off[0] < 0.25 && off[1] < off[0], "{kind} {options:?}: {off:?}");
            }
        }
    }

    #[cfg(feature = "tch")]
    #[test]
    #[allow(deprecated, reason = "tch is deprecated upstream, and still supported here")]
    fn libtorch_has_nearly_the_gradients_of_f32_in_bf16() {
        let plain = NetworkOptions::default();
        let device = Device::libtorch();
        for kind in [ModelKind::Convnet, ModelKind::Mlp, ModelKind::Vgg] {
            for options in
                [plain, NetworkOptions { batch_norm: true, dropout: crate::values::Below1(0.3), ..plain }]
            {
                let exact = gradients(&device, kind, &options, MixedPrecision::No);
                let found = gradients(&device, kind, &options, MixedPrecision::Bf16);
                assert_ne!(found, exact, "{kind} {options:?}");
                let off = norm(found.iter().zip(&exact).map(|(a, b)| a - b)) / norm(exact.iter().copied());
                assert!(off < 0.25, "{kind} {options:?}: {off}");
            }
        }
    }

    #[test]
    fn precisions_are_written_alike_everywhere() {
        for precision in MixedPrecision::value_variants() {
            assert_eq!(serde_json::to_value(precision).unwrap(), precision.to_string());
        }
    }
}

#[cfg(test)]
mod loss_scale_tests {
    use super::*;

    fn step(scale: &mut LossScale, values: [f32; 2]) -> (bool, Vec<Vec<f32>>) {
        let mut given = values.map(|value| vec![1.0, value]).to_vec();
        let pieces = given.iter_mut().enumerate();
        let pieces = pieces.map(|(param, gradient)| {
            let start = 2 * param;
            Piece { param, range: start..start + 2, start, gradient }
        });
        let fits = scale.unscale(pieces.collect());
        scale.count(fits);
        (fits, given)
    }

    #[test]
    fn gradients_are_divided_by_the_scale() {
        let mut scale = LossScale::default();
        let (fits, found) = step(&mut scale, [65536.0, -3.0 * 65536.0]);
        assert!(fits);
        assert_eq!(found, [[1.0 / 65536.0, 1.0], [1.0 / 65536.0, -3.0]]);
        assert_eq!(scale, LossScale { good_steps: 1, ..LossScale::default() });
    }

    #[test]
    fn an_overflow_skips_the_step_and_halves_the_scale() {
        let mut scale = LossScale { good_steps: 7, ..LossScale::default() };
        for (n, value) in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN].into_iter().enumerate() {
            assert!(!step(&mut scale, [0.0, value]).0);
            let expected =
                LossScale { scale: FIRST / 2f32.powi(n as i32 + 1), good_steps: 0, skipped_steps: n + 1 };
            assert_eq!(scale, expected);
        }
        // After any number of overflows, finite gradients stay finite.
        (0..300).for_each(|_| assert!(!step(&mut scale, [0.0, f32::NAN]).0));
        let (fits, found) = step(&mut scale, [0.0, 0.0]);
        assert!(fits && found.iter().flatten().all(|x| x.is_finite()), "{scale:?}");
    }

    #[test]
    fn the_scale_doubles_after_2000_good_steps() {
        let mut scale = LossScale::default();
        (0..1999).for_each(|_| assert!(step(&mut scale, [1.0, 2.0]).0));
        assert_eq!(scale.scale, FIRST);
        assert!(step(&mut scale, [1.0, 2.0]).0);
        assert_eq!((scale.scale, scale.good_steps), (2.0 * FIRST, 0));
        // An overflow restarts the count.
        (0..1999).for_each(|_| assert!(step(&mut scale, [1.0, 2.0]).0));
        assert!(!step(&mut scale, [1.0, f32::INFINITY]).0);
        assert!(step(&mut scale, [1.0, 2.0]).0);
        assert_eq!((scale.scale, scale.good_steps, scale.skipped_steps), (FIRST, 1, 1));
    }
}
