//! The forward pass of a step: the model's own, or one with state, such as fake
//! quantization.

use burn::tensor::Tensor;

use crate::model::{BatchPlace, Model, Network};
use crate::quant::Quantizer;

/// The forward pass of training.
pub trait Forward<M: Model> {
    /// Begins a step. Every rank calls it, including those without samples.
    fn begin_step(&mut self, _model: &M) {}

    /// The output for a batch.
    fn forward(&mut self, model: &M, input: M::Input, place: &BatchPlace) -> M::Output;

    /// Values that are averaged in each step over the ranks with samples; their
    /// number is constant.
    fn averaged(&mut self, _model: &M) -> &mut [f32] {
        &mut []
    }

    /// Ends a step, in which weights are updated and [`averaged`](Self::averaged) are
    /// means. Not called for a step with a NaN or infinite loss.
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

/// Without one, the model's own forward pass.
impl<M: Model, F: Forward<M>> Forward<M> for Option<F> {
    fn begin_step(&mut self, model: &M) {
        if let Some(forward) = self {
            forward.begin_step(model);
        }
    }

    fn forward(&mut self, model: &M, input: M::Input, place: &BatchPlace) -> M::Output {
        match self {
            Some(forward) => forward.forward(model, input, place),
            None => Plain.forward(model, input, place),
        }
    }

    fn averaged(&mut self, model: &M) -> &mut [f32] {
        self.as_mut().map_or(&mut [], |forward| forward.averaged(model))
    }

    fn end_step(&mut self) {
        if let Some(forward) = self {
            forward.end_step();
        }
    }
}

/// Quantization-aware training.
impl Forward<Network> for Quantizer {
    fn begin_step(&mut self, _network: &Network) {
        Self::begin_step(self);
    }

    fn forward(&mut self, network: &Network, images: Tensor<4>, place: &BatchPlace) -> Tensor<2> {
        self.fake_quantized(network, images, Some(place))
    }

    fn averaged(&mut self, network: &Network) -> &mut [f32] {
        self.averaged_mut(network)
    }

    fn end_step(&mut self) {
        self.adopt_averages();
    }
}
