//! LSTM layers in one direction and in both.

use burn::module::Module;
use burn::nn::{Initializer, LstmState};
use burn::tensor::{Device, Tensor, s};

use super::{ACTIVATIONS, CLIPS, GateController, WEIGHTS, last_states, swapped};
use crate::nn::activation::{Activation, ActivationConfig};
use crate::nn::convert::{config, converts, module, shown_as_burns};
use crate::ops::recurrent;
use crate::runtime::fallback::{any_unsupported, unsupported};

config! {
    /// Configuration of an [`Lstm`]; replaces [`burn::nn::LstmConfig`].
    pub struct LstmConfig of burn::nn::LstmConfig {
        /// Number of inputs.
        pub d_input: usize,
        /// Number of hidden units.
        pub d_hidden: usize,
        /// Whether biases are added.
        pub bias: bool,
        /// How parameters are initialised.
        #[config(default = "Initializer::XavierNormal{gain:1.0}")]
        pub initializer: Initializer,
        /// Whether inputs are `[batch, steps, d_input]` rather than `[steps, batch, d_input]`.
        #[config(default = true)]
        pub batch_first: bool,
        /// Whether time runs from the last step to the first.
        #[config(default = false)]
        pub reverse: bool,
        /// Maximum magnitude of a cell; unlimited if `None`.
        pub clip: Option<f64>,
        /// Whether the forget gate is one minus the input gate.
        #[config(default = false)]
        pub input_forget: bool,
        /// Activation of the input, forget and output gate.
        #[config(default = "ActivationConfig::Sigmoid")]
        pub gate_activation: ActivationConfig,
        /// Activation of the cell gate.
        #[config(default = "ActivationConfig::Tanh")]
        pub cell_activation: ActivationConfig,
        /// Activation of the cells when they become the hidden state.
        #[config(default = "ActivationConfig::Tanh")]
        pub hidden_activation: ActivationConfig,
    }

    /// Creates a layer with new parameters.
    pub fn init(&self, device: &Device) -> Lstm;
}

/// Long short-term memory, as one operator for all steps. Replaces [`burn::nn::Lstm`].
///
/// The operator supports only layers with sigmoid gates and tanh states. Other layers are composed of Burn's
/// operators.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Lstm {
    /// Input gate: the share of the candidates that enters the cells.
    pub input_gate: GateController,
    /// Forget gate: the share of the cells that stays; `None` if `input_forget` is true.
    pub forget_gate: Option<GateController>,
    /// Output gate: the share of the cells that becomes the hidden state.
    pub output_gate: GateController,
    /// Cell gate: the candidates for the cells.
    pub cell_gate: GateController,
    /// Number of hidden units.
    pub d_hidden: usize,
    /// Whether inputs are `[batch, steps, d_input]` rather than `[steps, batch, d_input]`.
    pub batch_first: bool,
    /// Whether time runs from the last step to the first.
    pub reverse: bool,
    /// Maximum magnitude of a cell; unlimited if `None`.
    pub clip: Option<f64>,
    /// Whether the forget gate is one minus the input gate.
    pub input_forget: bool,
    /// Activation of the input, forget and output gate.
    pub gate_activation: Activation,
    /// Activation of the cell gate.
    pub cell_activation: Activation,
    /// Activation of the cells when they become the hidden state.
    pub hidden_activation: Activation,
}

converts!(Lstm of burn::nn::Lstm {
    input_gate, output_gate, cell_gate, d_hidden, batch_first, reverse, clip, input_forget, gate_activation,
    cell_activation, hidden_activation,
} maybe { forget_gate });
shown_as_burns!(Lstm of burn::nn::Lstm);

impl Lstm {
    /// Returns the hidden states of all steps, and the cells and hidden states after the last step. `state`
    /// has the cells and hidden states before the first step; `None` stands for zeros.
    ///
    /// # Shapes
    /// - `batched_input`: `[batch, steps, d_input]`, or `[steps, batch, d_input]` if `batch_first` is false
    /// - output: as the input, with `d_hidden` values in a step
    /// - states: `[batch, d_hidden]`
    ///
    /// # Panics
    /// If shapes do not match, or if `input_forget` is false and there is no forget gate.
    pub fn forward(
        &self,
        batched_input: Tensor<3>,
        state: Option<LstmState<2>>,
    ) -> (Tensor<3>, LstmState<2>) {
        let input = swapped(batched_input.clone(), self.batch_first);
        match self.run(&input, &state, self.reverse) {
            Some((output, state)) => (swapped(output, self.batch_first), state),
            None => burn::nn::Lstm::from(self.clone()).forward(batched_input, state),
        }
    }

    /// Does the same as [`forward`](Self::forward), but takes the input of one step at a time. The iterator
    /// yields the number of a step and the input `[batch, 1, d_input]` of this step. The layer runs Burn's
    /// operators.
    ///
    /// # Panics
    /// In the same cases as [`forward`](Self::forward), or if the number of a step is not below `seq_length`.
    pub fn forward_iter<I: Iterator<Item = (usize, Tensor<3>)>>(
        &self,
        input_timestep_iter: I,
        state: Option<LstmState<2>>,
        batch_size: usize,
        seq_length: usize,
        device: &Device,
    ) -> (Tensor<3>, LstmState<2>) {
        unsupported("lstm", "single steps (forward_iter)");
        let burns = burn::nn::Lstm::from(self.clone());
        burns.forward_iter(input_timestep_iter, state, batch_size, seq_length, device)
    }

    /// Runs [`forward`](Self::forward) with the operator, from and to `[batch, steps, ...]`; `None` if the
    /// operator does not support this layer or this input.
    fn run(
        &self,
        input: &Tensor<3>,
        state: &Option<LstmState<2>>,
        reverse: bool,
    ) -> Option<(Tensor<3>, LstmState<2>)> {
        let gate = matches!(self.gate_activation, Activation::Sigmoid(_));
        let tanh = |activation: &Activation| matches!(activation, Activation::Tanh(_));
        let fits = self.input_gate.hidden_transform.weight.shape().dims() == [self.d_hidden; 2];
        let clip = self.clip.map(|clip| clip as f32);
        let forget = if self.input_forget { None } else { Some(self.forget_gate.as_ref()?) };
        let reasons = [
            (!(gate && tanh(&self.cell_activation) && tanh(&self.hidden_activation)), ACTIVATIONS),
            (!fits, WEIGHTS),
            (!clip.is_none_or(|clip| clip >= 0.0), CLIPS),
        ];
        if any_unsupported("lstm", &reasons) {
            return None;
        }
        let gates = [&self.input_gate, &self.output_gate, &self.cell_gate].into_iter().chain(forget);
        let gates = gates.map(GateController::parameters).collect();
        let states = state.clone().map_or([None, None], |state| [Some(state.hidden), Some(state.cell)]);
        let (output, cell) = recurrent::lstm(input, states, gates, reverse, clip)?;
        let hidden = last_states(output.clone(), reverse);
        Some((output, LstmState { cell, hidden }))
    }
}

config! {
    /// Configuration of a [`BiLstm`]; replaces [`burn::nn::BiLstmConfig`].
    pub struct BiLstmConfig of burn::nn::BiLstmConfig {
        /// Number of inputs.
        pub d_input: usize,
        /// Number of hidden units of each direction.
        pub d_hidden: usize,
        /// Whether biases are added.
        pub bias: bool,
        /// How parameters are initialised.
        #[config(default = "Initializer::XavierNormal{gain:1.0}")]
        pub initializer: Initializer,
        /// Whether inputs are `[batch, steps, d_input]` rather than `[steps, batch, d_input]`.
        #[config(default = true)]
        pub batch_first: bool,
        /// Maximum magnitude of a cell; unlimited if `None`.
        pub clip: Option<f64>,
        /// Whether the forget gate is one minus the input gate.
        #[config(default = false)]
        pub input_forget: bool,
        /// Activation of the input, forget and output gate.
        #[config(default = "ActivationConfig::Sigmoid")]
        pub gate_activation: ActivationConfig,
        /// Activation of the cell gate.
        #[config(default = "ActivationConfig::Tanh")]
        pub cell_activation: ActivationConfig,
        /// Activation of the cells when they become the hidden state.
        #[config(default = "ActivationConfig::Tanh")]
        pub hidden_activation: ActivationConfig,
    }

    /// Creates a layer with new parameters.
    pub fn init(&self, device: &Device) -> BiLstm;
}

module! {
    /// An LSTM in each direction of time; replaces [`burn::nn::BiLstm`].
    pub struct BiLstm of burn::nn::BiLstm {
        /// Layer from the first step to the last.
        pub forward: Lstm,
        /// Layer from the last step to the first.
        pub reverse: Lstm,
        /// Number of hidden units of each direction.
        pub d_hidden: usize,
        /// Whether inputs are `[batch, steps, d_input]` rather than `[steps, batch, d_input]`.
        pub batch_first: bool,
    }
}

impl BiLstm {
    /// Returns the hidden states of all steps, and the cells and hidden states after the last step of each
    /// direction. In each step, the hidden units of `forward` come first, then the hidden units of `reverse`.
    /// `state` has the cells and hidden states before the first step of each direction; `None` stands for
    /// zeros.
    ///
    /// # Shapes
    /// - `batched_input`: `[batch, steps, d_input]`, or `[steps, batch, d_input]` if `batch_first` is false
    /// - output: as the input, with `2 * d_hidden` values in a step
    /// - states: `[2, batch, d_hidden]`
    ///
    /// # Panics
    /// In the same cases as [`Lstm::forward`].
    pub fn forward(
        &self,
        batched_input: Tensor<3>,
        state: Option<LstmState<3>>,
    ) -> (Tensor<3>, LstmState<3>) {
        let state_of =
            |direction: usize| state.clone().map(|state| state.slice(s![direction]).squeeze_dim(0));
        let states = [state_of(0), state_of(1)];
        let input = swapped(batched_input.clone(), self.batch_first);
        let run = |layer: &Lstm, reverse| layer.run(&input, &states[usize::from(reverse)], reverse);
        // Burn's layer applies the options `batch_first` and `reverse` of its field `forward`, and ignores
        // both options of its field `reverse`.
        let unusual = !self.forward.batch_first || self.forward.reverse;
        let both = if any_unsupported(
            "bi_lstm",
            &[(unusual, "forward layers with batch_first = false or reverse = true")],
        ) {
            None
        } else {
            run(&self.forward, false).zip(run(&self.reverse, true))
        };
        match both {
            Some(((forward, of_forward), (reverse, of_reverse))) => {
                let states = LstmState::stack(vec![of_forward, of_reverse], 0);
                (swapped(Tensor::cat(vec![forward, reverse], 2), self.batch_first), states)
            }
            None => burn::nn::BiLstm::from(self.clone()).forward(batched_input, state),
        }
    }
}
