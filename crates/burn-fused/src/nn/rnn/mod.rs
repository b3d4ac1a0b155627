//! Recurrent layers: LSTM and GRU, in one direction and in both.

mod gru;
mod lstm;
#[cfg(test)]
mod tests;

use burn::nn::{Initializer, LinearLayout};
use burn::tensor::{Device, Tensor, s};

use super::convert::module;
use super::{Linear, LinearConfig};
use crate::ops::recurrent;

pub use gru::{BiGru, BiGruConfig, Gru, GruConfig};
pub use lstm::{BiLstm, BiLstmConfig, Lstm, LstmConfig};

/// What the operators of LSTM and GRU do not support, for the debug lines.
const ACTIVATIONS: &str = "activations other than sigmoid and tanh";
const WEIGHTS: &str = "hidden weights other than [d_hidden, d_hidden]";
const CLIPS: &str = "negative clips";

module! {
    /// A gate of a recurrent layer; replaces [`burn::nn::GateController`].
    pub struct GateController of burn::nn::GateController {
        /// Linear layer of the inputs.
        pub input_transform: Linear,
        /// Linear layer of the hidden state.
        pub hidden_transform: Linear,
    }
}

impl GateController {
    /// Creates a gate with new parameters.
    pub fn new(
        d_input: usize,
        d_output: usize,
        bias: bool,
        initializer: Initializer,
        device: &Device,
    ) -> Self {
        let transform = |d_input| {
            let config = LinearConfig {
                d_input,
                d_output,
                bias,
                initializer: initializer.clone(),
                layout: LinearLayout::Row,
            };
            config.init(device)
        };
        Self { input_transform: transform(d_input), hidden_transform: transform(d_output) }
    }

    /// Returns the sum of the outputs of both layers, `[batch, d_output]`.
    ///
    /// # Panics
    /// If `input` is not `[batch, d_input]`, or `hidden` is not `[batch, d_output]`.
    pub fn gate_product(&self, input: Tensor<2>, hidden: Tensor<2>) -> Tensor<2> {
        self.input_transform.forward(input) + self.hidden_transform.forward(hidden)
    }

    /// Returns weights and biases of both layers.
    fn parameters(&self) -> recurrent::Gate {
        let transforms = [&self.input_transform, &self.hidden_transform];
        let bias = |transform: &Linear| transform.bias.as_ref().map(|bias| bias.val());
        (transforms.map(|transform| transform.weight.val()), transforms.map(bias))
    }
}

/// Swaps the axes of batch and steps unless `batch_first` is true. The operators take and return
/// `[batch, steps, ...]`.
fn swapped(tensor: Tensor<3>, batch_first: bool) -> Tensor<3> {
    if batch_first { tensor } else { recurrent::swap(tensor) }
}

/// Returns the hidden states of the step that is computed last, `[batch, d_hidden]`. `output` has the hidden
/// states of all steps, `[batch, steps, d_hidden]`.
fn last_states(output: Tensor<3>, reverse: bool) -> Tensor<2> {
    let last = if reverse { 0 } else { output.dims()[1] - 1 };
    output.slice(s![.., last, ..]).squeeze_dim(1)
}
