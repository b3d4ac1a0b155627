//! GRU layers in one direction and in both.

use burn::nn::Initializer;
use burn::tensor::{Device, Tensor, s};

use super::{ACTIVATIONS, CLIPS, GateController, WEIGHTS, last_states, swapped};
use crate::nn::activation::{Activation, ActivationConfig};
use crate::nn::convert::{config, module};
use crate::ops::recurrent;
use crate::runtime::fallback::any_unsupported;

config! {
    /// Configuration of a [`Gru`]; replaces [`burn::nn::GruConfig`].
    pub struct GruConfig of burn::nn::GruConfig {
        /// Number of inputs.
        pub d_input: usize,
        /// Number of hidden units.
        pub d_hidden: usize,
        /// Whether biases are added.
        pub bias: bool,
        /// Whether the reset gate scales the product of hidden state and weights, rather than the hidden
        /// state itself.
        #[config(default = "true")]
        pub reset_after: bool,
        /// How parameters are initialised.
        #[config(default = "Initializer::XavierNormal{gain:1.0}")]
        pub initializer: Initializer,
        /// Activation of the update and reset gate.
        #[config(default = "ActivationConfig::Sigmoid")]
        pub gate_activation: ActivationConfig,
        /// Activation of the new gate.
        #[config(default = "ActivationConfig::Tanh")]
        pub hidden_activation: ActivationConfig,
        /// Maximum magnitude of a hidden state; unlimited if `None`.
        pub clip: Option<f64>,
    }

    /// Creates a layer with new parameters.
    pub fn init(&self, device: &Device) -> Gru;
}

module! {
    /// Gated recurrent unit, as one operator for all steps. Replaces [`burn::nn::Gru`].
    ///
    /// The operator supports only layers with sigmoid gates, tanh candidates and `reset_after`. Other layers
    /// are composed of Burn's operators.
    pub struct Gru of burn::nn::Gru {
        /// Update gate: the share of the hidden state that stays.
        pub update_gate: GateController,
        /// Reset gate: the share of the hidden state that enters the candidates.
        pub reset_gate: GateController,
        /// New gate: the candidates for the hidden state.
        pub new_gate: GateController,
        /// Number of hidden units.
        pub d_hidden: usize,
        /// Whether the reset gate scales the product of hidden state and weights, rather than the hidden
        /// state itself.
        pub reset_after: bool,
        /// Activation of the update and reset gate.
        pub gate_activation: Activation,
        /// Activation of the new gate.
        pub hidden_activation: Activation,
        /// Maximum magnitude of a hidden state; unlimited if `None`.
        pub clip: Option<f64>,
    }
}

impl Gru {
    /// Returns the hidden states of all steps, `[batch, steps, d_hidden]`. `batched_input` is
    /// `[batch, steps, d_input]`. `state` has the hidden states before the first step, `[batch, d_hidden]`;
    /// `None` stands for zeros.
    ///
    /// # Panics
    /// If shapes do not match.
    pub fn forward(&self, batched_input: Tensor<3>, state: Option<Tensor<2>>) -> Tensor<3> {
        self.run(&batched_input, &state, false)
            .unwrap_or_else(|| burn::nn::Gru::from(self.clone()).forward(batched_input, state))
    }

    /// Runs [`forward`](Self::forward) with the operator, in either direction of time; `None` if the operator
    /// does not support this layer or this input.
    fn run(&self, input: &Tensor<3>, state: &Option<Tensor<2>>, reverse: bool) -> Option<Tensor<3>> {
        let gate = matches!(self.gate_activation, Activation::Sigmoid(_));
        let tanh = matches!(self.hidden_activation, Activation::Tanh(_));
        let fits = self.update_gate.hidden_transform.weight.shape().dims() == [self.d_hidden; 2];
        let clip = self.clip.map(|clip| clip as f32);
        let reasons = [
            (!(gate && tanh), ACTIVATIONS),
            (!fits, WEIGHTS),
            (!self.reset_after, "layers without reset_after"),
            (!clip.is_none_or(|clip| clip >= 0.0), CLIPS),
        ];
        if any_unsupported("gru", &reasons) {
            return None;
        }
        let gates = [&self.update_gate, &self.reset_gate, &self.new_gate].map(GateController::parameters);
        recurrent::gru(input, state.clone(), gates, reverse, clip)
    }
}

config! {
    /// Configuration of a [`BiGru`]; replaces [`burn::nn::BiGruConfig`].
    pub struct BiGruConfig of burn::nn::BiGruConfig {
        /// Number of inputs.
        pub d_input: usize,
        /// Number of hidden units of each direction.
        pub d_hidden: usize,
        /// Whether biases are added.
        pub bias: bool,
        /// Whether the reset gate scales the product of hidden state and weights, rather than the hidden
        /// state itself.
        #[config(default = "true")]
        pub reset_after: bool,
        /// How parameters are initialised.
        #[config(default = "Initializer::XavierNormal{gain:1.0}")]
        pub initializer: Initializer,
        /// Whether inputs are `[batch, steps, d_input]` rather than `[steps, batch, d_input]`.
        #[config(default = true)]
        pub batch_first: bool,
        /// Activation of the update and reset gate.
        #[config(default = "ActivationConfig::Sigmoid")]
        pub gate_activation: ActivationConfig,
        /// Activation of the new gate.
        #[config(default = "ActivationConfig::Tanh")]
        pub hidden_activation: ActivationConfig,
        /// Maximum magnitude of a hidden state; unlimited if `None`.
        pub clip: Option<f64>,
    }

    /// Creates a layer with new parameters.
    pub fn init(&self, device: &Device) -> BiGru;
}

module! {
    /// A GRU in each direction of time; replaces [`burn::nn::BiGru`].
    pub struct BiGru of burn::nn::BiGru {
        /// Layer from the first step to the last.
        pub forward: Gru,
        /// Layer from the last step to the first.
        pub reverse: Gru,
        /// Number of hidden units of each direction.
        pub d_hidden: usize,
        /// Whether inputs are `[batch, steps, d_input]` rather than `[steps, batch, d_input]`.
        pub batch_first: bool,
    }
}

impl BiGru {
    /// Returns the hidden states of all steps, and the hidden states after the last step of each direction.
    /// In each step, the hidden units of `forward` come first, then the hidden units of `reverse`. `state`
    /// has the hidden states before the first step of each direction; `None` stands for zeros.
    ///
    /// # Shapes
    /// - `batched_input`: `[batch, steps, d_input]`, or `[steps, batch, d_input]` if `batch_first` is false
    /// - output: as the input, with `2 * d_hidden` values in a step
    /// - states: `[2, batch, d_hidden]`
    ///
    /// # Panics
    /// If shapes do not match.
    pub fn forward(&self, batched_input: Tensor<3>, state: Option<Tensor<3>>) -> (Tensor<3>, Tensor<3>) {
        let input = swapped(batched_input.clone(), self.batch_first);
        let run = |layer: &Gru, reverse| {
            let state = state.clone().map(|state| state.slice(s![usize::from(reverse)]).squeeze_dim(0));
            let output = layer.run(&input, &state, reverse)?;
            Some((output.clone(), last_states(output, reverse)))
        };
        match run(&self.forward, false).zip(run(&self.reverse, true)) {
            Some(((forward, of_forward), (reverse, of_reverse))) => {
                let states = Tensor::stack(vec![of_forward, of_reverse], 0);
                (swapped(Tensor::cat(vec![forward, reverse], 2), self.batch_first), states)
            }
            None => burn::nn::BiGru::from(self.clone()).forward(batched_input, state),
        }
    }
}
