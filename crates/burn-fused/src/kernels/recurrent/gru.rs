//! Steps of a GRU.

use super::panel::{Columns, Gates};
use super::sequences::Sequences;
use super::units::{Units, clipped, store_units, units, units_mut};
use crate::kernels::simd::math::{sigmoid, tanh};
use crate::kernels::simd::{MAX_LANES, Scalars, kernel};
use crate::runtime::memory::Buffer;
use crate::runtime::poll;

/// Numbers of the gates.
const UPDATE: usize = 0;
const RESET: usize = 1;
const NEW: usize = 2;
pub const GATES: usize = 3;

kernel! {
    /// The steps of forward.
    pub fn steps<S>(
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
    pub fn steps_back<S>(
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
