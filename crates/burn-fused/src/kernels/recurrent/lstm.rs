//! Forward and backward steps of an LSTM.
//!
//! The products of the inputs with their weights are computed beforehand, for all steps at once. A step
//! multiplies the hidden states by their weights and computes the gates, [`MAX_LANES`] units at a time. In
//! the shapes below, `rows` is the number of steps of all sequences, `gates` is the number of gates, and
//! `width` is the number of hidden units rounded up to whole vectors.
//!
//! In the code, `G` is the number of gates. If it is 3, there is no forget gate, and 1 minus the input gate
//! takes its place.

use super::panel::{Columns, Gates};
use super::sequences::{GROUP, Sequences};
use super::units::{Units, clipped, store_units, units, units_mut};
use crate::kernels::simd::math::{sigmoid, tanh};
use crate::kernels::simd::{Kernel, Lanes, Level, MAX_LANES, Scalars};
use crate::runtime::memory::Buffer;
use crate::runtime::poll::Poll;
use crate::runtime::threads::{chunks, each};

/// Indices of the gates.
const INPUT: usize = 0;
const OUTPUT: usize = 1;
const CELL: usize = 2;
pub const FORGET: usize = 3;

/// The forward pass over all steps. Threads share the sequences.
pub struct Forward<'a, const G: usize> {
    pub sequences: Sequences,
    /// Weights of the hidden state, `[hidden, hidden]` for each gate.
    pub weights: [&'a [f32]; G],
    /// Sums of both biases, `[gates, width]`.
    pub bias: &'a [f32],
    /// Hidden states before the first step, `[batch, width]`.
    pub before: &'a [f32],
    /// Cells before the first step, `[batch, width]`. The cells after the last step replace them.
    pub cell: &'a mut [f32],
    /// Products of the inputs with their weights, `[rows, gates, width]`. The gates replace them.
    pub gates: &'a mut [f32],
    /// Cells after each step, `[rows, width]`. Empty if no backward follows.
    pub cells: &'a mut [f32],
    /// Hidden states after each step, `[rows, hidden]`.
    pub output: &'a mut [f32],
}

impl<const G: usize> Forward<'_, G> {
    /// Computes all steps.
    pub fn run(self, level: Level) {
        let Self { sequences, weights, bias, before, cell, gates, cells, output } = self;
        let (hidden, width) = (sequences.hidden, sequences.width());
        let (panel, of_part) = (&Gates::<G>::pack(level, weights, [hidden, width]), sequences.of_part(G));
        let rows = of_part * sequences.steps;
        let states = before.chunks(of_part * width).zip(cell.chunks_mut(of_part * width));
        let gates = gates.chunks_mut(rows * G * width).zip(chunks(cells, rows * width));
        let parts = states.zip(gates.zip(output.chunks_mut(rows * hidden))).enumerate();
        each(sequences.time(G), parts, |(part, ((before, cell), ((gates, cells), output)))| {
            let (sequences, before) = (sequences.part(part * of_part, of_part), Buffer::copy_of(before));
            level.run(Steps { sequences, panel, bias, before, cell, gates, cells, output });
        });
    }
}

/// The forward pass of some sequences. The fields are those of [`Forward`].
struct Steps<'a, const G: usize> {
    sequences: Sequences,
    panel: &'a Gates<G>,
    bias: &'a [f32],
    before: Buffer,
    cell: &'a mut [f32],
    gates: &'a mut [f32],
    cells: &'a mut [f32],
    output: &'a mut [f32],
}

impl<const G: usize> Kernel for Steps<'_, G> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) {
        let Self { sequences, panel, bias, mut before, cell, gates, cells, output } = self;
        let (Sequences { batch, steps, hidden, clip, .. }, width) = (sequences, sequences.width());
        let mut after = Buffer::new(batch * width);
        let mut products = Buffer::new(batch * G * MAX_LANES);
        for time in 0..steps {
            for first in (0..width).step_by(MAX_LANES) {
                panel.multiply(simd, first, (batch, &before, width), &mut products);
                let row = |sequence| sequences.row(sequence, sequences.step(time));
                // There are two loops over the sequences, because a processor looks ahead only a few hundred
                // instructions. In a single loop, a cell and its hidden state would take more instructions,
                // and the processor would not start the next cell early.
                for (sequence, products) in products.chunks_exact(G * MAX_LANES).enumerate() {
                    let gates = &mut gates[row(sequence) * G * width..][..G * width];
                    let mut values = Values { bias, products, gates, width, first };
                    let cell = units_mut(cell, sequence * width + first);
                    new_cells::<G>(&mut values, clip, cell);
                    if !cells.is_empty() {
                        *units_mut(cells, row(sequence) * width + first) = *cell;
                    }
                }
                for (sequence, products) in products.chunks_exact(G * MAX_LANES).enumerate() {
                    let gates = &mut gates[row(sequence) * G * width..][..G * width];
                    let mut values = Values { bias, products, gates, width, first };
                    let at = sequence * width + first;
                    let hidden_state = units_mut(&mut after, at);
                    new_hidden_states(&mut values, units(cell, at), hidden_state);
                    store_units(&mut output[row(sequence) * hidden..][..hidden], first, hidden_state);
                }
            }
            std::mem::swap(&mut before, &mut after);
        }
    }
}

/// What the gates of a block of units are computed from.
struct Values<'a> {
    bias: &'a [f32],
    products: &'a [f32],
    /// Products of the inputs. The gates replace them.
    gates: &'a mut [f32],
    width: usize,
    first: usize,
}

impl Values<'_> {
    /// Returns the sums that a gate applies its function to: products of inputs and hidden states, plus
    /// biases.
    #[inline(always)]
    fn sums(&self, gate: usize) -> Units {
        let at = gate * self.width + self.first;
        let (inputs, bias) = (units(self.gates, at), units(self.bias, at));
        let products = units(self.products, gate * MAX_LANES);
        let mut sums = [0.0; MAX_LANES];
        for lane in 0..MAX_LANES {
            sums[lane] = inputs[lane] + products[lane] + bias[lane];
        }
        sums
    }

    #[inline(always)]
    fn set(&mut self, gate: usize, values: &Units) {
        *units_mut(self.gates, gate * self.width + self.first) = *values;
    }
}

/// Computes the input, candidate and forget gates, and the new cells.
#[inline(always)]
fn new_cells<const G: usize>(values: &mut Values<'_>, clip: f32, cell: &mut Units) {
    let [mut input, mut candidate] = [INPUT, CELL].map(|gate| values.sums(gate));
    let mut forget = if G > FORGET { values.sums(FORGET) } else { [0.0; MAX_LANES] };
    for lane in 0..MAX_LANES {
        input[lane] = sigmoid(input[lane]);
        candidate[lane] = tanh(candidate[lane]);
        forget[lane] = if G > FORGET { sigmoid(forget[lane]) } else { 1.0 - input[lane] };
        cell[lane] = clipped(forget[lane] * cell[lane] + input[lane] * candidate[lane], clip);
    }
    values.set(INPUT, &input);
    values.set(CELL, &candidate);
    if G > FORGET {
        values.set(FORGET, &forget);
    }
}

/// Computes the output gate and the new hidden states.
#[inline(always)]
fn new_hidden_states(values: &mut Values<'_>, cell: &Units, hidden: &mut Units) {
    let mut output = values.sums(OUTPUT);
    for lane in 0..MAX_LANES {
        output[lane] = sigmoid(output[lane]);
        hidden[lane] = output[lane] * tanh(cell[lane]);
    }
    values.set(OUTPUT, &output);
}

/// The backward pass over all steps. Threads share the sequences.
pub struct Backward<'a, const G: usize> {
    pub sequences: Sequences,
    /// Weights of the hidden state, `[hidden, hidden]` for each gate.
    pub weights: [&'a [f32]; G],
    /// Gradient of the output, `[rows, hidden]`.
    pub gradient: &'a [f32],
    /// Cells before the first step, `[batch, width]`.
    pub first_cells: &'a [f32],
    /// Cells after each step, `[rows, width]`.
    pub cells: &'a [f32],
    /// Gates, `[rows, gates, width]`. The gradients of the sums that the gates were computed from replace
    /// them.
    pub gates: &'a mut [f32],
    /// Gradient of the cells after the last step, `[batch, width]`. The gradient of the cells before the
    /// first step replaces it.
    pub of_cell: &'a mut [f32],
    /// Whether the gradient of the hidden states before the first step is needed.
    pub of_state: bool,
}

impl<const G: usize> Backward<'_, G> {
    /// Returns two gradients: of the hidden states before the first step, `[batch, width]`, and of the bias,
    /// `[gates, width]`.
    pub fn run(self, level: Level) -> [Buffer; 2] {
        let Self { sequences, weights, gradient, first_cells, cells, gates, of_cell, of_state } = self;
        let (Sequences { batch, hidden, .. }, width) = (sequences, sequences.width());
        let (panel, of_part) = (&Columns::<G>::pack(level, weights, [hidden, width]), sequences.of_part(G));
        let rows = of_part * sequences.steps;
        let mut found = [batch * width, G * width].map(Buffer::zeroed);
        let [of_hidden, of_bias] = found.each_mut().map(|buffer| &mut buffer[..]);
        let mut sums = Buffer::zeroed(batch.div_ceil(GROUP) * G * width);
        let known = gradient.chunks(rows * hidden).zip(first_cells.chunks(of_part * width));
        let known = known.zip(cells.chunks(rows * width).zip(gates.chunks_mut(rows * G * width)));
        let states = of_cell.chunks_mut(of_part * width).zip(of_hidden.chunks_mut(of_part * width));
        let sums_of_parts = sums.chunks_mut(of_part.div_ceil(GROUP) * G * width);
        let (parts, poll) = (known.zip(states.zip(sums_of_parts)).enumerate(), Poll::current());
        each(2 * sequences.time(G), parts, |(part, (known, ((of_cell, of_hidden), of_bias)))| {
            let ((gradient, first_cells), (cells, gates)) = known;
            let sequences = sequences.part(part * of_part, of_part);
            level.run(StepsBack {
                sequences,
                panel,
                gradient,
                first_cells,
                cells,
                gates,
                of_cell,
                of_state,
                of_hidden,
                of_bias,
                poll,
            });
        });
        for sums in sums.chunks_exact(of_bias.len()) {
            of_bias.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
        }
        found
    }
}

/// The backward pass of some sequences. The fields without documentation are those of [`Backward`].
struct StepsBack<'a, const G: usize> {
    sequences: Sequences,
    panel: &'a Columns<G>,
    gradient: &'a [f32],
    first_cells: &'a [f32],
    cells: &'a [f32],
    gates: &'a mut [f32],
    of_cell: &'a mut [f32],
    of_state: bool,
    /// Gradient of the hidden states, `[batch, width]`: zeros before, and afterwards that of the states
    /// before the first step.
    of_hidden: &'a mut [f32],
    /// Gradient of the bias of each [group](GROUP) of sequences, `[groups, gates, width]`. It is added.
    of_bias: &'a mut [f32],
    poll: Poll,
}

impl<const G: usize> Kernel for StepsBack<'_, G> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) {
        let Self { sequences, panel, gradient, first_cells, cells, gates, of_cell, of_state, .. } = self;
        let (Sequences { batch, steps, hidden, clip, .. }, width) = (sequences, sequences.width());
        let Self { of_hidden, of_bias, poll, .. } = self;
        let mut sums = Buffer::new(G * width);
        for time in (0..steps).rev() {
            for sequence in 0..batch {
                if sequence % GROUP == 0 {
                    sums.fill(0.0);
                }
                let row = sequences.row(sequence, sequences.step(time));
                let gates = &mut gates[row * G * width..][..G * width];
                let after = &cells[row * width..][..width];
                let before = match time {
                    0 => &first_cells[sequence * width..][..width],
                    _ => &cells[sequences.row(sequence, sequences.step(time - 1)) * width..][..width],
                };
                let of_hidden = &mut of_hidden[sequence * width..][..width];
                let gradient = &gradient[row * hidden..][..hidden];
                of_hidden.iter_mut().zip(gradient).for_each(|(sum, gradient)| *sum += gradient);
                for first in (0..width).step_by(MAX_LANES) {
                    let mut values = [[0.0; MAX_LANES]; G];
                    for (gate, values) in values.iter_mut().enumerate() {
                        *values = *units(gates, gate * width + first);
                    }
                    let cells = [units(before, first), units(after, first)];
                    let of_cell = units_mut(of_cell, sequence * width + first);
                    step_back(&mut values, clip, cells, units(of_hidden, first), of_cell);
                    for (gate, values) in values.iter().enumerate() {
                        let at = gate * width + first;
                        *units_mut(gates, at) = *values;
                        for (sum, value) in units_mut(&mut sums, at).iter_mut().zip(values) {
                            *sum += value;
                        }
                    }
                }
                for gate in gates.chunks_exact_mut(width) {
                    // The padding may contain infinite gradients. Multiplied by the zeros of the padded
                    // weights, they would give NaN.
                    gate[hidden..].fill(0.0);
                }
                if sequence % GROUP == GROUP - 1 || sequence == batch - 1 {
                    let of_bias = &mut of_bias[sequence / GROUP * G * width..][..G * width];
                    of_bias.iter_mut().zip(sums.iter()).for_each(|(total, sum)| *total += sum);
                }
            }
            if time > 0 || of_state {
                let (first, row_step) = (sequences.row(0, sequences.step(time)), sequences.steps);
                let [first, row_step] = [first, row_step].map(|rows| rows * G * width);
                let scalars = Scalars { values: gates, first, term_step: 1, row_step };
                panel.multiply(simd, batch, scalars, of_hidden);
            }
            poll.call();
        }
    }
}

/// Backward of a step of a block of units. Replaces the gates by the gradients of their sums, and `of_cell`
/// by the gradient of the cells before the step.
#[inline(always)]
fn step_back<const G: usize>(
    gates: &mut [Units; G],
    clip: f32,
    [before, after]: [&Units; 2],
    of_hidden: &Units,
    of_cell: &mut Units,
) {
    for lane in 0..MAX_LANES {
        let [input, output, candidate] = [INPUT, OUTPUT, CELL].map(|gate| gates[gate][lane]);
        let forget = if G > FORGET { gates[G - 1][lane] } else { 1.0 - input };
        let bounded = tanh(after[lane]);
        let passed = of_cell[lane] + of_hidden[lane] * output * (1.0 - bounded * bounded);
        let new = forget * before[lane] + input * candidate;
        let passed = if new > clip || new < -clip { 0.0 } else { passed };
        let of_forget = passed * before[lane];
        let of_input = if G > FORGET { passed * candidate } else { passed * candidate - of_forget };
        gates[INPUT][lane] = of_input * input * (1.0 - input);
        gates[OUTPUT][lane] = of_hidden[lane] * bounded * output * (1.0 - output);
        gates[CELL][lane] = passed * input * (1.0 - candidate * candidate);
        if G > FORGET {
            gates[G - 1][lane] = of_forget * forget * (1.0 - forget);
        }
        of_cell[lane] = passed * forget;
    }
}
