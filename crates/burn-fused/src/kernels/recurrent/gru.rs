//! Forward and backward steps of a GRU.
//!
//! The products of the inputs with their weights are computed beforehand, for all steps at once. A step
//! multiplies the hidden states by their weights and computes the gates, [`MAX_LANES`] units at a time. In
//! the shapes below, `rows` is the number of steps of all sequences, `gates` is the number of gates, and
//! `width` is the number of hidden units rounded up to whole vectors.

use super::panel::{Columns, Gates};
use super::sequences::{GROUP, Sequences};
use super::units::{Units, clipped, store_units, units, units_mut};
use crate::kernels::simd::math::{sigmoid, tanh};
use crate::kernels::simd::{Kernel, Lanes, Level, MAX_LANES, Scalars};
use crate::runtime::memory::Buffer;
use crate::runtime::poll::Poll;
use crate::runtime::threads::{chunks, each};

/// Indices of the gates.
const UPDATE: usize = 0;
const RESET: usize = 1;
const NEW: usize = 2;
pub const GATES: usize = 3;

/// The forward pass over all steps. Threads share the sequences.
pub struct Forward<'a> {
    pub sequences: Sequences,
    /// Weights of the hidden state, `[hidden, hidden]` for each gate.
    pub weights: [&'a [f32]; GATES],
    /// Biases of the input and of the hidden state, `[gates, width]` each.
    pub biases: [&'a [f32]; 2],
    /// Hidden states before the first step, `[batch, width]`.
    pub before: &'a [f32],
    /// Products of the inputs with their weights, `[rows, gates, width]`. The gates replace them.
    pub gates: &'a mut [f32],
    /// For each row, the products of the hidden state with the weights of the new gate, plus the hidden
    /// state's bias, `[rows, width]`. The reset gate has not scaled them yet. Empty if no backward follows.
    pub saved_products: &'a mut [f32],
    /// Hidden states after each step, `[rows, hidden]`.
    pub output: &'a mut [f32],
}

impl Forward<'_> {
    /// Computes all steps.
    pub fn run(self, level: Level) {
        let Self { sequences, weights, biases, before, gates, saved_products, output } = self;
        let (hidden, width) = (sequences.hidden, sequences.width());
        let (panel, of_part) = (&Gates::pack(level, weights, [hidden, width]), sequences.of_part(GATES));
        let rows = of_part * sequences.steps;
        let gates = gates.chunks_mut(rows * GATES * width).zip(chunks(saved_products, rows * width));
        let parts = before.chunks(of_part * width).zip(gates.zip(output.chunks_mut(rows * hidden)));
        each(
            sequences.time(GATES),
            parts.enumerate(),
            |(part, (before, ((gates, saved_products), output)))| {
                let (sequences, before) = (sequences.part(part * of_part, of_part), Buffer::copy_of(before));
                level.run(Steps { sequences, panel, biases, before, gates, saved_products, output });
            },
        );
    }
}

/// The forward pass of some sequences. The fields are those of [`Forward`].
struct Steps<'a> {
    sequences: Sequences,
    panel: &'a Gates<GATES>,
    biases: [&'a [f32]; 2],
    before: Buffer,
    gates: &'a mut [f32],
    saved_products: &'a mut [f32],
    output: &'a mut [f32],
}

impl Kernel for Steps<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) {
        let Self { sequences, panel, biases: [bias, hidden_bias], mut before, gates, saved_products, output } =
            self;
        let (Sequences { batch, steps, hidden, clip, .. }, width) = (sequences, sequences.width());
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
                            (units(gates, at), units(bias, at), units(hidden_bias, at));
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

/// Computes a step of a block of units. `gates` contains the products of the inputs plus their biases. The
/// gates replace them. `products` are the products of the hidden states plus their biases.
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

/// The backward pass over all steps. Threads share the sequences.
pub struct Backward<'a> {
    pub sequences: Sequences,
    /// Weights of the hidden state, `[hidden, hidden]` for each gate.
    pub weights: [&'a [f32]; GATES],
    /// Gradient of the output, `[rows, hidden]`.
    pub gradient: &'a [f32],
    /// Hidden states before the step of each row, `[rows, width]`.
    pub before: &'a [f32],
    /// Products of the hidden states with the weights of the new gate, as forward saved them,
    /// `[rows, width]`.
    pub products: &'a [f32],
    /// Gates, `[rows, gates, width]`. The gradients of the products of the inputs replace them.
    pub gates: &'a mut [f32],
    /// Whether the gradient of the hidden states before the first step is needed.
    pub of_state: bool,
}

impl Backward<'_> {
    /// Returns three gradients: of the hidden states before the first step, `[batch, width]`; of the products
    /// of the hidden states, `[rows, gates, width]`; and of the biases of the input and of the hidden state,
    /// `[gates, width]` each.
    pub fn run(self, level: Level) -> (Buffer, Buffer, [Buffer; 2]) {
        let Self { sequences, weights, gradient, before, products, gates, of_state } = self;
        let (Sequences { batch, hidden, .. }, width) = (sequences, sequences.width());
        let (panel, of_part) = (&Columns::pack(level, weights, [hidden, width]), sequences.of_part(GATES));
        let rows = of_part * sequences.steps;
        let (mut of_hidden, mut of_products) = (Buffer::zeroed(batch * width), Buffer::new(gates.len()));
        let mut sums = Buffer::zeroed(batch.div_ceil(GROUP) * 2 * GATES * width);
        let known = before.chunks(rows * width).zip(products.chunks(rows * width));
        let known = known.zip(gradient.chunks(rows * hidden).zip(gates.chunks_mut(rows * GATES * width)));
        let of = of_hidden.chunks_mut(of_part * width).zip(of_products.chunks_mut(rows * GATES * width));
        let sums_of_parts = sums.chunks_mut(of_part.div_ceil(GROUP) * 2 * GATES * width);
        let (parts, poll) = (known.zip(of.zip(sums_of_parts)).enumerate(), Poll::current());
        each(2 * sequences.time(GATES), parts, |(part, (known, ((of_hidden, of_products), of_biases)))| {
            let ((before, products), (gradient, gates)) = known;
            let sequences = sequences.part(part * of_part, of_part);
            level.run(StepsBack {
                sequences,
                panel,
                gradient,
                before,
                products,
                gates,
                of_state,
                of_hidden,
                of_products,
                of_biases,
                poll,
            });
        });
        let mut of_biases = [(); 2].map(|()| Buffer::zeroed(GATES * width));
        for sums in sums.chunks_exact(2 * GATES * width) {
            for (of_bias, sums) in of_biases.iter_mut().zip(sums.chunks_exact(GATES * width)) {
                of_bias.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
            }
        }
        (of_hidden, of_products, of_biases)
    }
}

/// The backward pass of some sequences. The fields without documentation are those of [`Backward`].
struct StepsBack<'a> {
    sequences: Sequences,
    panel: &'a Columns<GATES>,
    gradient: &'a [f32],
    before: &'a [f32],
    products: &'a [f32],
    gates: &'a mut [f32],
    of_state: bool,
    /// Gradient of the hidden states, `[batch, width]`: zeros before, and afterwards that of the states
    /// before the first step.
    of_hidden: &'a mut [f32],
    /// Gradient of the products of the hidden states, `[rows, gates, width]`.
    of_products: &'a mut [f32],
    /// Gradients of both biases of each [group](GROUP) of sequences, `[groups, 2, gates, width]`. They are
    /// added.
    of_biases: &'a mut [f32],
    poll: Poll,
}

impl Kernel for StepsBack<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) {
        let Self { sequences, panel, gradient, before, products, gates, of_state, .. } = self;
        let (Sequences { batch, steps, hidden, clip, .. }, width) = (sequences, sequences.width());
        let Self { of_hidden, of_products, of_biases, poll, .. } = self;
        let mut through_products = Buffer::zeroed(batch * width);
        let mut sums = [(); 2].map(|()| Buffer::new(GATES * width));
        for time in (0..steps).rev() {
            for sequence in 0..batch {
                if sequence % GROUP == 0 {
                    sums.iter_mut().for_each(|sums| sums.fill(0.0));
                }
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
                    // The padding may contain infinite gradients. Multiplied by the zeros of the padded
                    // weights, they would give NaN.
                    gate[hidden..].fill(0.0);
                }
                if sequence % GROUP == GROUP - 1 || sequence == batch - 1 {
                    let totals = of_biases[sequence / GROUP * 2 * GATES * width..].chunks_mut(GATES * width);
                    for (totals, sums) in totals.zip(&sums) {
                        totals.iter_mut().zip(&**sums).for_each(|(total, sum)| *total += sum);
                    }
                }
            }
            if time > 0 || of_state {
                let (first, row_step) = (sequences.row(0, sequences.step(time)), sequences.steps);
                let [first, row_step] = [first, row_step].map(|rows| rows * GATES * width);
                let scalars = Scalars { values: of_products, first, term_step: 1, row_step };
                panel.multiply(simd, batch, scalars, &mut through_products);
            }
            poll.call();
        }
        of_hidden.iter_mut().zip(&*through_products).for_each(|(sum, product)| *sum += product);
    }
}

/// Backward of [`step`]. Replaces the gates by the gradients of the products of the inputs. Replaces
/// `of_hidden` by the gradient of the hidden states before the step, without the part that flows through the
/// products of the hidden states. Returns the gradient of the product of the hidden states with the new
/// gate's weights.
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
