//! GRU: Cho and others, "Learning phrase representations using RNN encoder-decoder for statistical machine
//! translation" (2014). The reset gate scales the product of hidden state and weights, as in the first
//! version of the paper and in PyTorch.

use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;

use super::parameters::{Gate, HIDDEN_BIAS, HIDDEN_WEIGHTS, INPUT_BIAS, Parameters, of_gates, tensors};
use crate::kernels::recurrent::gru::{self, Forward, GATES};
use crate::kernels::recurrent::repeated::{Repeated, of_input_weights, of_weights};
use crate::kernels::recurrent::sequences::Sequences;
use crate::kernels::simd::Level;
use crate::ops::extension::{Backward, Saved, on_flex, unsupported_tensors};
use crate::ops::flex_tensor::{contiguous, values};
use crate::runtime::memory::Buffer;

/// Number of the operator's tensors: inputs, the hidden states before the first step, and four parameters for
/// each gate.
const TENSORS: usize = 2 + 4 * GATES;

/// Runs a GRU with sigmoid gates and tanh candidates. Returns the hidden states of all steps, `[batch, steps,
/// hidden]`. `x` is `[batch, steps, inputs]`. With `reverse`, time runs from the last step to the first.
///
/// `state` has the hidden states before the first step. `gates` are the update, reset and new gate. `clip` is
/// the maximum magnitude of a hidden state.
///
/// Returns `None` if a shape, a type or the backend is not supported.
pub(crate) fn gru(
    x: &Tensor<3>,
    state: Option<Tensor<2>>,
    gates: [Gate; GATES],
    reverse: bool,
    clip: Option<f32>,
) -> Option<Tensor<3>> {
    let sizes = |tensors: [&FlexTensor; TENSORS]| {
        let sequences = Sequences::from_tensors(tensors[0], tensors[2 + HIDDEN_WEIGHTS], reverse, clip)?;
        let gates = tensors[2..].chunks_exact(4).all(|gate| sequences.has_gate(gate));
        (sequences.has_state(tensors[1]) && gates).then_some(sequences)
    };
    let output = on_flex(tensors(x, [state], gates), sizes, forward);
    output.map_err(|tensors| unsupported_tensors("gru", tensors)).ok().map(Tensor::from_dispatch)
}

/// Returns the output and its backward.
fn forward(
    [x, hidden, gates @ ..]: [FlexTensor; TENSORS],
    sequences: Sequences,
    backward: bool,
) -> (FlexTensor, Backward<impl Saved, TENSORS>) {
    let [x, hidden] = [x, hidden].map(contiguous);
    let (level, parameters) = (Level::current(), Parameters::new(gates));
    let repeated = Repeated::find(values(&x), sequences.inputs);
    let mut gates = parameters.multiply_inputs(level, values(&x), repeated.as_ref(), sequences);
    let mut products = Buffer::new(if backward { sequences.rows() * sequences.width() } else { 0 });
    let mut output = Buffer::new(sequences.rows() * sequences.hidden);
    let biases = [INPUT_BIAS, HIDDEN_BIAS].map(|which| parameters.biases(which, sequences));
    let forward = Forward {
        sequences,
        weights: parameters.each(HIDDEN_WEIGHTS),
        biases: biases.each_ref().map(|bias| &**bias),
        before: &sequences.padded(values(&hidden)),
        gates: &mut gates,
        saved_products: &mut products,
        output: &mut output,
    };
    forward.run(level);
    let output = output.into_tensor(&[sequences.batch, sequences.steps, sequences.hidden]);
    let result = output.clone();
    let backward = Backward::new(move |gradient, of_input| {
        let (width, hidden) = (sequences.width(), values(&hidden));
        let states = Sequences { inputs: 0, ..sequences };
        let before = states.inputs_and_states(&[], values(&output), hidden, width);
        let of_state = !hidden.is_empty();
        let backward = gru::Backward {
            sequences,
            weights: parameters.each(HIDDEN_WEIGHTS),
            gradient: values(&gradient),
            before: &before,
            products: &products,
            gates: &mut gates,
            of_state,
        };
        let (of_hidden, of_products, of_biases) = backward.run(level);
        let (inputs, columns) = ((values(&x), sequences.inputs), GATES * width);
        let of_inputs = of_input_weights(level, inputs, repeated.as_ref(), &gates, columns);
        let of_states = of_weights(level, &before, &of_products, columns);
        let mut gradients = [const { None }; TENSORS];
        gradients[0] = of_input.then(|| parameters.of_inputs(level, &gates, &x, sequences));
        gradients[1] = of_state.then(|| sequences.state(&of_hidden));
        // The gradients have rows for the hidden units, then rows for the padding. Leave out the rows for the
        // padding.
        let of_states = &of_states[..sequences.hidden * GATES * width];
        let of_gates =
            of_gates(GATES, [&of_inputs, of_states], of_biases.each_ref().map(|of| &**of), sequences);
        gradients[2..].iter_mut().zip(of_gates).for_each(|(gradient, of_gates)| *gradient = of_gates);
        gradients
    });
    (result, backward)
}
