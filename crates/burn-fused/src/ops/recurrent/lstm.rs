//! LSTM: Hochreiter and Schmidhuber, "Long short-term memory" (1997).
//!
//! An LSTM has two outputs, the hidden states of all steps and the last cells, but an operator of autodiff
//! can have only one. The hidden states are therefore the output of a first operator, which computes
//! everything. The last cells are the output of a second operator on the first one's output. In the backward
//! pass, the backward of the second operator runs first. It stores the gradient of the last cells for the
//! backward of the first operator.

use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::flex::FlexTensor;
use burn::backend::{DispatchTensor, TensorMetadata};
use burn::tensor::Tensor;

use super::parameters::{Gate, HIDDEN_BIAS, HIDDEN_WEIGHTS, INPUT_BIAS, Parameters, of_gates, tensors};
use crate::kernels::recurrent::lstm::{self, FORGET, Forward};
use crate::kernels::recurrent::repeated::{Repeated, of_input_weights, of_weights};
use crate::kernels::recurrent::sequences::Sequences;
use crate::kernels::simd::Level;
use crate::ops::extension::{Backward, Saved, on_flex, unsupported_tensors};
use crate::ops::flex_tensor::{contiguous, values};
use crate::runtime::memory::Buffer;

/// Number of the operator's tensors: inputs, hidden and cell states before the first step, and four
/// parameters for each gate.
const TENSORS: usize = 3 + 4 * 4;

/// Runs an LSTM with sigmoid gates and tanh states. Returns the hidden states of all steps, `[batch, steps,
/// hidden]`, and the last cells. `x` is `[batch, steps, inputs]`. With `reverse`, time runs from the last
/// step to the first.
///
/// `states` has the hidden states and cells before the first step. `gates` are the input, output, cell and
/// forget gate. Without a forget gate, the cell is multiplied by 1 minus the input gate. `clip` is the
/// maximum magnitude of a cell.
///
/// Returns `None` if a shape, a type or the backend is not supported.
pub(crate) fn lstm(
    x: &Tensor<3>,
    states: [Option<Tensor<2>>; 2],
    gates: Vec<Gate>,
    reverse: bool,
    clip: Option<f32>,
) -> Option<(Tensor<3>, Tensor<2>)> {
    let run = if gates.len() > FORGET { run::<4> } else { run::<3> };
    run(tensors(x, states, gates), reverse, clip)
}

fn run<const G: usize>(
    tensors: [DispatchTensor; TENSORS],
    reverse: bool,
    clip: Option<f32>,
) -> Option<(Tensor<3>, Tensor<2>)> {
    let sizes = |tensors: [&FlexTensor; TENSORS]| {
        let sequences = Sequences::from_tensors(tensors[0], tensors[3 + HIDDEN_WEIGHTS], reverse, clip)?;
        let states = tensors[1..3].iter().all(|state| sequences.has_state(state));
        let gates = tensors[3..].chunks_exact(4).take(G).all(|gate| sequences.has_gate(gate));
        (states && gates).then_some(sequences)
    };
    let mut last = None;
    let output = on_flex(tensors, sizes, |tensors, sequences, backward| {
        let left = Left::default();
        let (output, cells, backward) = forward::<G>(tensors, sequences, left.clone(), backward);
        let shape = output.shape().to_vec();
        let of_cells = Backward::new(move |gradient, _of_output| {
            *left.lock().unwrap_or_else(PoisonError::into_inner) = Some(gradient);
            // Autodiff runs the first operator's backward only if its output has a gradient, so return zeros.
            [Some(Buffer::zeroed(shape.iter().product()).into_tensor(&shape))]
        });
        last = Some((cells, of_cells));
        (output, backward)
    });
    let output = output.map_err(|tensors| unsupported_tensors("lstm", tensors)).ok()?;
    let output = Tensor::<3>::from_dispatch(output);
    // The second operator; see the head of this module.
    let last = on_flex([output.clone().into_dispatch()], |_| last, |_, last, _| last);
    Some((output, Tensor::from_dispatch(last.ok()?)))
}

/// The gradient of the last cells, which the second operator's backward stores for the backward of the first
/// operator.
type Left = Arc<Mutex<Option<FlexTensor>>>;

/// Returns the output, the last cells, and the backward, which takes the gradient of the last cells from
/// `left`.
fn forward<const G: usize>(
    tensors: [FlexTensor; TENSORS],
    sequences: Sequences,
    left: Left,
    backward: bool,
) -> (FlexTensor, FlexTensor, Backward<impl Saved, TENSORS>) {
    let [x, hidden, cell, gates @ ..] = tensors;
    let [x, hidden, cell] = [x, hidden, cell].map(contiguous);
    let (level, parameters) = (Level::current(), Parameters::<G>::new(gates));
    let mut bias = parameters.biases(INPUT_BIAS, sequences);
    bias.iter_mut().zip(&*parameters.biases(HIDDEN_BIAS, sequences)).for_each(|(sum, bias)| *sum += bias);
    let repeated = Repeated::find(values(&x), sequences.inputs);
    let mut gates = parameters.multiply_inputs(level, values(&x), repeated.as_ref(), sequences);
    let mut output = Buffer::new(sequences.rows() * sequences.hidden);
    let mut cells = Buffer::new(if backward { sequences.rows() * sequences.width() } else { 0 });
    let mut last_cells = sequences.padded(values(&cell));
    let forward = Forward {
        sequences,
        weights: parameters.each(HIDDEN_WEIGHTS),
        bias: &bias,
        before: &sequences.padded(values(&hidden)),
        cell: &mut last_cells,
        gates: &mut gates,
        cells: &mut cells,
        output: &mut output,
    };
    forward.run(level);
    let last_cells_of_steps = sequences.state(&last_cells);
    let output = output.into_tensor(&[sequences.batch, sequences.steps, sequences.hidden]);
    let kept = Kept {
        level,
        sequences,
        parameters,
        x,
        hidden,
        cell,
        repeated,
        output: output.clone(),
        cells,
        gates,
    };
    let backward = Backward::new(move |gradient, of_input| {
        let of_last_cells = left.lock().unwrap_or_else(PoisonError::into_inner).take();
        kept.gradients(gradient, of_last_cells, of_input)
    });
    (output, last_cells_of_steps, backward)
}

/// What forward saves for backward.
#[derive(Clone)]
struct Kept<const G: usize> {
    level: Level,
    sequences: Sequences,
    parameters: Parameters<G>,
    x: FlexTensor,
    hidden: FlexTensor,
    cell: FlexTensor,
    repeated: Option<Repeated>,
    output: FlexTensor,
    /// The cells of each step.
    cells: Buffer,
    /// The gates of each step.
    gates: Buffer,
}

impl<const G: usize> Kept<G> {
    /// Returns the gradients of the operator's tensors, from the gradients of its output and of its last
    /// cells.
    fn gradients(
        mut self,
        gradient: FlexTensor,
        of_last_cells: Option<FlexTensor>,
        of_input: bool,
    ) -> [Option<FlexTensor>; TENSORS] {
        let Self { level, sequences, ref parameters, ref x, ref hidden, ref cell, ref repeated, .. } = self;
        let (width, [x_values, hidden_values]) = (sequences.width(), [x, hidden].map(values));
        let mut of_cell = match of_last_cells {
            Some(gradient) => sequences.padded(values(&gradient)),
            None => Buffer::zeroed(sequences.batch * width),
        };
        let of_state = !hidden_values.is_empty();
        let backward = lstm::Backward {
            sequences,
            weights: parameters.each(HIDDEN_WEIGHTS),
            gradient: values(&gradient),
            first_cells: &sequences.padded(values(cell)),
            cells: &self.cells,
            gates: &mut self.gates,
            of_cell: &mut of_cell,
            of_state,
        };
        let [of_hidden, of_bias] = backward.run(level);
        // If the inputs do not repeat, one product computes the gradients of input and hidden weights
        // together.
        let (inputs, columns) = (sequences.inputs, G * width);
        let apart = repeated.as_ref().map(|repeated| {
            of_input_weights(level, (x_values, inputs), Some(repeated), &self.gates, columns)
        });
        let together = Sequences { inputs: if apart.is_some() { 0 } else { inputs }, ..sequences };
        let terms =
            together.inputs_and_states(x_values, values(&self.output), hidden_values, sequences.hidden);
        let of_weights = of_weights(level, &terms, &self.gates, columns);
        let mut gradients = [const { None }; TENSORS];
        gradients[0] = of_input.then(|| parameters.of_inputs(level, &self.gates, x, sequences));
        gradients[1] = of_state.then(|| sequences.state(&of_hidden));
        gradients[2] = (!values(cell).is_empty()).then(|| sequences.state(&of_cell));
        let (of_inputs, of_states) = of_weights.split_at(together.inputs * columns);
        let of_inputs = apart.as_deref().unwrap_or(of_inputs);
        let of_gates = of_gates(G, [of_inputs, of_states], [&of_bias; 2], sequences);
        gradients[3..].iter_mut().zip(of_gates).for_each(|(gradient, of_gates)| *gradient = of_gates);
        gradients
    }
}
