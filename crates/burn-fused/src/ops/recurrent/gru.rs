//! GRU: Cho and others, "Learning phrase representations using RNN encoder-decoder for statistical machine
//! translation" (2014), with the reset gate after the product, as in the first version of the paper and in PyTorch.

use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;

use super::parameters::{
    Gate, HIDDEN_BIAS, HIDDEN_WEIGHTS, INPUT_BIAS, Parameters, of_gates, of_input_weights, of_weights,
    tensors,
};
use super::sequences::{Order, Sequences};
use crate::kernels::recurrent::panel::{Columns, Gates};
use crate::kernels::recurrent::repeated::Repeated;
use crate::kernels::recurrent::units::{Units, clipped, store_units, units, units_mut};
use crate::kernels::simd::math::{sigmoid, tanh};
use crate::kernels::simd::{Level, MAX_LANES, Scalars, kernel};
use crate::ops::extension::{Backward, Saved, on_flex, unsupported_tensors};
use crate::ops::flex_tensor::{contiguous, values};
use crate::runtime::memory::Buffer;
use crate::runtime::poll;

/// Numbers of the gates.
const UPDATE: usize = 0;
const RESET: usize = 1;
const NEW: usize = 2;
const GATES: usize = 3;

/// Tensors of the operator: inputs, the hidden states before the first step, and four for each gate.
const TENSORS: usize = 2 + 4 * GATES;

/// The hidden states of all steps, in the order of `x`, of a GRU with gates by sigmoid and candidates by tanh.
///
/// `state` are the hidden states before the first step. `gates` are the update, reset and new gate. `clip` is the
/// maximum magnitude of a hidden state.
///
/// None if a shape, a type or the backend is not supported.
pub(crate) fn gru(
    x: &Tensor<3>,
    state: Option<Tensor<2>>,
    gates: [Gate; GATES],
    order: Order,
    clip: Option<f32>,
) -> Option<Tensor<3>> {
    let sizes = |tensors: [&FlexTensor; TENSORS]| {
        let sequences = Sequences::of(tensors[0], tensors[2 + HIDDEN_WEIGHTS], order, clip)?;
        let gates = tensors[2..].chunks_exact(4).all(|gate| sequences.has_gate(gate));
        (sequences.has_state(tensors[1]) && gates).then_some(sequences)
    };
    let output = on_flex(tensors(x, [state], gates), sizes, forward);
    output.map_err(|tensors| unsupported_tensors("gru", tensors)).ok().map(Tensor::from_dispatch)
}

/// The output, and its backward.
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
    let (weights, before) = (parameters.each(HIDDEN_WEIGHTS), sequences.padded(&hidden));
    steps(level, sequences, weights, biases, before, &mut gates, &mut products, &mut output);
    let output = output.into_tensor(&sequences.output_shape());
    let result = output.clone();
    let backward = Backward::new(move |gradient, of_input| {
        let (width, hidden) = (sequences.width(), values(&hidden));
        let states = Sequences { inputs: 0, ..sequences };
        let before = states.inputs_and_states(&[], values(&output), hidden, width);
        let (weights, g, of_state) = (parameters.each(HIDDEN_WEIGHTS), values(&gradient), !hidden.is_empty());
        let (of_hidden, of_products, of_biases) =
            steps_back(level, sequences, weights, g, &before, &products, &mut gates, of_state);
        let (inputs, columns) = ((values(&x), sequences.inputs), GATES * width);
        let of_inputs = of_input_weights(level, inputs, repeated.as_ref(), &gates, columns);
        let of_states = of_weights(level, &before, &of_products, columns);
        let mut gradients = [const { None }; TENSORS];
        gradients[0] = of_input.then(|| parameters.of_inputs(level, &gates, &x, sequences));
        gradients[1] = of_state.then(|| sequences.state(&of_hidden));
        // Behind the rows of the hidden units are those of padding.
        let of_states = &of_states[..sequences.hidden * GATES * width];
        let of_gates =
            of_gates(GATES, [&of_inputs, of_states], of_biases.each_ref().map(|of| &**of), sequences);
        gradients[2..].iter_mut().zip(of_gates).for_each(|(gradient, of_gates)| *gradient = of_gates);
        gradients
    });
    (result, backward)
}

kernel! {
    /// The steps of forward.
    fn steps<S>(
        simd: S,
        sequences: Sequences,
        // Of the hidden state.
        weights: [&[f32]; GATES],
        // Of the input and of the hidden state.
        biases: [Buffer; 2],
        // Padded rows of the states before the first step.
        before: Buffer,
        // `[rows, gates, width]`: products of the inputs, which become gates.
        gates: &mut [f32],
        // `[rows, width]`: the products of the new gate with hidden states, which its reset gate scales; or empty.
        saved_products: &mut [f32],
        output: &mut [f32],
    ) {
        let (Sequences { batch, steps, hidden, clip, .. }, width) = (sequences, sequences.width());
        let ([bias, hidden_bias], mut before) = (biases, before);
        let panel = Gates::pack(simd, weights, [hidden, width]);
        let mut after = Buffer::new(batch * width);
        let mut products = Buffer::new(batch * GATES * MAX_LANES);
        for time in 0..steps {
            for first in (0..width).step_by(MAX_LANES) {
                panel.multiply(simd, first, (batch, &before, width), &mut products);
                for (sequence, products) in products.chunks_exact_mut(GATES * MAX_LANES).enumerate() {
                    let row = sequences.row(sequence, sequences.step(time));
                    let gates = &mut gates[row * GATES * width..][..GATES * width];
                    let mut values = [[0.0; MAX_LANES]; GATES];
                    for (gate, values) in values.iter_mut().enumerate() {
                        let at = gate * width + first;
                        let (inputs, bias, hidden_bias) =
                            (units(gates, at), units(&bias, at), units(&hidden_bias, at));
                        let products = units_mut(products, gate * MAX_LANES);
                        for lane in 0..MAX_LANES {
                            products[lane] += hidden_bias[lane];
                            values[lane] = inputs[lane] + bias[lane];
                        }
                    }
                    let at = sequence * width + first;
                    let products = std::array::from_fn(|gate| units(products, gate * MAX_LANES));
                    step(&mut values, products, clip, units(&before, at), units_mut(&mut after, at));
                    for (gate, values) in values.iter().enumerate() {
                        *units_mut(gates, gate * width + first) = *values;
                    }
                    if !saved_products.is_empty() {
                        *units_mut(saved_products, row * width + first) = *products[NEW];
                    }
                    store_units(&mut output[row * hidden..][..hidden], first, units(&after, at));
                }
            }
            std::mem::swap(&mut before, &mut after);
        }
    }
}

/// A step of units: `gates` are products of the inputs with their biases, and become gates.
#[inline(always)]
fn step(gates: &mut [Units; GATES], products: [&Units; GATES], clip: f32, before: &Units, after: &mut Units) {
    for lane in 0..MAX_LANES {
        let update = sigmoid(gates[UPDATE][lane] + products[UPDATE][lane]);
        let reset = sigmoid(gates[RESET][lane] + products[RESET][lane]);
        let new = tanh(gates[NEW][lane] + reset * products[NEW][lane]);
        (gates[UPDATE][lane], gates[RESET][lane], gates[NEW][lane]) = (update, reset, new);
        after[lane] = clipped(new * (1.0 - update) + update * before[lane], clip);
    }
}

kernel! {
    /// The steps of backward: the gradients of the hidden states before the first step, in padded rows; of the products
    /// of hidden states, in the shape of gates; and of the biases of the input and of the hidden state.
    fn steps_back<S>(
        simd: S,
        sequences: Sequences,
        // Of the hidden state.
        weights: [&[f32]; GATES],
        // Of the output.
        gradient: &[f32],
        // The hidden states before each row, `[rows, width]`.
        before: &[f32],
        // `[rows, width]`, of the new gate with hidden states.
        products: &[f32],
        // `[rows, gates, width]`, which become gradients of the products of inputs.
        gates: &mut [f32],
        // Whether the gradient of the hidden states before the first step is needed.
        of_state: bool,
    ) -> (Buffer, Buffer, [Buffer; 2]) {
        let (Sequences { batch, steps, hidden, clip, .. }, width) = (sequences, sequences.width());
        let mut of_biases = [(); 2].map(|()| Buffer::zeroed(GATES * width));
        let mut found = [Buffer::zeroed(batch * width), Buffer::new(gates.len())];
        let [of_hidden, of_products] = found.each_mut().map(|buffer| &mut buffer[..]);
        let (panel, poll) = (Columns::pack(simd, weights, [hidden, width]), poll::current());
        let mut through_products = Buffer::zeroed(batch * width);
        let mut sums = [(); 2].map(|()| Buffer::new(GATES * width));
        for time in (0..steps).rev() {
            sums.iter_mut().for_each(|sums| sums.fill(0.0));
            for sequence in 0..batch {
                let row = sequences.row(sequence, sequences.step(time));
                let gates = &mut gates[row * GATES * width..][..GATES * width];
                let of_products = &mut of_products[row * GATES * width..][..GATES * width];
                let of_hidden = &mut of_hidden[sequence * width..][..width];
                for (sum, product) in of_hidden.iter_mut().zip(&through_products[sequence * width..]) {
                    *sum += product;
                }
                let gradient = &gradient[row * hidden..][..hidden];
                of_hidden.iter_mut().zip(gradient).for_each(|(sum, gradient)| *sum += gradient);
                for first in (0..width).step_by(MAX_LANES) {
                    let mut values = [[0.0; MAX_LANES]; GATES];
                    for (gate, values) in values.iter_mut().enumerate() {
                        *values = *units(gates, gate * width + first);
                    }
                    let at = row * width + first;
                    let known = [units(before, at), units(products, at)];
                    let of_new_product = step_back(&mut values, clip, known, units_mut(of_hidden, first));
                    for (gate, values) in values.iter().enumerate() {
                        let at = gate * width + first;
                        let of_product = if gate == NEW { &of_new_product } else { values };
                        *units_mut(gates, at) = *values;
                        *units_mut(of_products, at) = *of_product;
                        for (sums, values) in sums.iter_mut().zip([values, of_product]) {
                            for (sum, value) in units_mut(sums, at).iter_mut().zip(values) {
                                *sum += value;
                            }
                        }
                    }
                }
                for gate in gates.chunks_exact_mut(width).chain(of_products.chunks_exact_mut(width)) {
                    // Zero times the infinite gradient of a unit beyond the hidden ones would be NaN.
                    gate[hidden..].fill(0.0);
                }
            }
            for (totals, sums) in of_biases.iter_mut().zip(&sums) {
                totals.iter_mut().zip(&**sums).for_each(|(total, sum)| *total += sum);
            }
            if time > 0 || of_state {
                let (first, row_step) = (sequences.row(0, sequences.step(time)), sequences.stride());
                let [first, row_step] = [first, row_step].map(|rows| rows * GATES * width);
                let scalars = Scalars { values: of_products, first, term_step: 1, row_step };
                panel.multiply(simd, batch, scalars, &mut through_products);
            }
            poll();
        }
        of_hidden.iter_mut().zip(&*through_products).for_each(|(sum, product)| *sum += product);
        let [of_hidden, of_products] = found;
        (of_hidden, of_products, of_biases)
    }
}

/// The gradients of a [`step`]: of the products of inputs into `gates`, and of the hidden states before, but for those
/// through products, into `of_hidden`. Returns the gradient of the new gate's product with hidden states.
#[inline(always)]
fn step_back(
    gates: &mut [Units; GATES],
    clip: f32,
    [before, products]: [&Units; 2],
    of_hidden: &mut Units,
) -> Units {
    let mut of_product = [0.0; MAX_LANES];
    for lane in 0..MAX_LANES {
        let [update, reset, new] = [UPDATE, RESET, NEW].map(|gate| gates[gate][lane]);
        let after = new * (1.0 - update) + update * before[lane];
        let passed = if after > clip || after < -clip { 0.0 } else { of_hidden[lane] };
        let of_new = passed * (1.0 - update) * (1.0 - new * new);
        of_product[lane] = of_new * reset;
        gates[UPDATE][lane] = passed * (before[lane] - new) * update * (1.0 - update);
        gates[RESET][lane] = of_new * products[lane] * reset * (1.0 - reset);
        gates[NEW][lane] = of_new;
        of_hidden[lane] = passed * update;
    }
    of_product
}
