//! The forward pass of a training step.

use burn::tensor::{DType, Tensor};

use super::Precision;
use crate::model::{BatchPlace, Model, Network};
use crate::quant::Quantizer;
use crate::spans;

/// A forward pass in training. Without state, it is the model's own ([`Plain`]).
pub trait Forward<M: Model> {
    /// Called before the first batch of a step.
    fn begin_step(&mut self, _model: &M) {}

    /// The outputs for a batch, whose samples are at `place`.
    fn forward(&mut self, model: &M, input: M::Input, place: &BatchPlace) -> M::Output;

    /// Values that are averaged over all ranks with the gradients; always of the same length.
    fn averaged(&mut self, _model: &M) -> &mut [f32] {
        &mut []
    }

    /// Called after each averaged step, before the weights change.
    fn end_step(&mut self) {}
}

/// The model's own forward pass.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plain;

impl<M: Model> Forward<M> for Plain {
    fn forward(&mut self, model: &M, input: M::Input, place: &BatchPlace) -> M::Output {
        model.forward_training(input, place)
    }
}

/// The forward pass of a network, in mixed precision and in quantization-aware training. Operators of `burn_fused`
/// use the type of their input, so only the samples are converted, and the scores back for the loss.
#[derive(Debug, Clone)]
pub struct NetworkForward {
    /// For quantization-aware training.
    pub quantizer: Option<Quantizer>,
    precision: Precision,
}

impl NetworkForward {
    /// The forward pass in this precision.
    pub fn new(quantizer: Option<Quantizer>, precision: Precision) -> Self {
        Self { quantizer, precision }
    }
}

impl Forward<Network> for NetworkForward {
    fn begin_step(&mut self, _network: &Network) {
        self.quantizer.iter_mut().for_each(Quantizer::begin_step);
    }

    fn forward(&mut self, network: &Network, samples: Tensor<4>, place: &BatchPlace) -> Tensor<2> {
        if let Some(quantizer) = &mut self.quantizer {
            return spans::span(&spans::FAKE_QUANTIZED, || {
                quantizer.fake_quantized(network, samples, Some(place))
            });
        }
        match self.precision.activations() {
            Some(dtype) => network.forward_training(samples.cast(dtype), place).cast(DType::F32),
            None => network.forward_training(samples, place),
        }
    }

    fn averaged(&mut self, network: &Network) -> &mut [f32] {
        self.quantizer.as_mut().map_or(&mut [], |quantizer| quantizer.averaged_mut(network))
    }

    fn end_step(&mut self) {
        self.quantizer.iter_mut().for_each(Quantizer::adopt_averages);
    }
}
