//! LSTM: Hochreiter and Schmidhuber, "Long short-term memory" (1997).

use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;

use super::panel::{Columns, Gates};
use super::sequences::Sequences;
use crate::extension::{Saved, on_flex};
use crate::flex_tensor::{contiguous, values};
use crate::matrix::Matrix;
use crate::memory::Buffer;
use crate::poll;
use crate::product::multiply;
use crate::simd::math::{sigmoid, tanh};
use crate::simd::{Kernel, Lanes, Level, MAX_LANES, Scalars};

/// Tensors of the operator: inputs, hidden and cell states before the first step, and four for each gate.
const TENSORS: usize = 3 + 4 * 4;

/// An LSTM with gates by sigmoid and states by tanh.
#[derive(Clone)]
pub(crate) struct Lstm {
    /// Weights and bias of the input, then of the hidden state: of the input, output, cell and forget gate. Without a
    /// forget gate, what the input gate lets in replaces as much.
    pub gates: Vec<([Tensor<2>; 2], [Option<Tensor<1>>; 2])>,
    pub batch_first: bool,
    pub reverse: bool,
    /// Maximum magnitude of a cell.
    pub clip: Option<f32>,
}

/// The hidden states of all steps, in the order of `x`, and the last cells. `states` are the hidden states and cells
/// before the first step.
///
/// None if a shape, a type or the backend is not supported.
pub(crate) fn lstm(
    x: &Tensor<3>,
    states: [Option<Tensor<2>>; 2],
    lstm: Lstm,
) -> Option<(Tensor<3>, Tensor<2>)> {
    match lstm.gates.len() {
        4 => run::<4>(x, states, lstm),
        _ => run::<3>(x, states, lstm),
    }
}

fn run<const G: usize>(
    x: &Tensor<3>,
    states: [Option<Tensor<2>>; 2],
    lstm: Lstm,
) -> Option<(Tensor<3>, Tensor<2>)> {
    let device = x.device();
    let mut tensors = vec![x.clone().into_dispatch()];
    tensors
        .extend(states.map(|state| state.unwrap_or_else(|| Tensor::empty([0, 0], &device)).into_dispatch()));
    let absent = || Tensor::<1>::empty([0], &device).into_dispatch();
    for (weights, biases) in lstm.gates {
        for (weights, bias) in weights.into_iter().zip(biases) {
            tensors.extend([weights.into_dispatch(), bias.map_or_else(absent, |bias| bias.into_dispatch())]);
        }
    }
    tensors.resize_with(TENSORS, absent);
    let Ok(tensors) = <[_; TENSORS]>::try_from(tensors) else { unreachable!("resized") };
    let sizes = |tensors: [&FlexTensor; TENSORS]| {
        let sequences = Sequences::of(tensors[0], tensors[5], lstm.batch_first, lstm.reverse)?;
        let states = tensors[1..3].iter().all(|state| sequences.has_state(state));
        let gates = tensors[3..].chunks_exact(4).take(G).all(|gate| sequences.has_gate(gate));
        (states && gates).then_some(sequences)
    };
    let mut last = None;
    let output = on_flex(tensors, sizes, |tensors, sequences, backward| {
        let (output, cells, state) = forward::<G>(tensors, sequences, lstm.clip, backward);
        last =
            Some((cells, LastCells { rows: output.shape().to_vec(), gradient: state.of_last_cells.clone() }));
        (output, state)
    });
    let output = Tensor::<3>::from_dispatch(output.ok()?);
    // An operator has one output: the last cells are one of the first's output, and leave their gradient to it.
    let (cells, saved) = last?;
    let last = on_flex([output.clone().into_dispatch()], |_| Some(()), |_, (), _| (cells, saved));
    Some((output, Tensor::from_dispatch(last.ok()?)))
}

/// A gradient that one operator's backward leaves to another's.
type Left = Arc<Mutex<Option<FlexTensor>>>;

/// Saved for the backward of the last cells.
#[derive(Debug, Clone)]
struct LastCells {
    /// The shape of the output.
    rows: Vec<usize>,
    gradient: Left,
}

impl Saved<1> for LastCells {
    fn backward(self, gradient: FlexTensor, _: bool) -> [Option<FlexTensor>; 1] {
        *self.gradient.lock().unwrap_or_else(PoisonError::into_inner) = Some(gradient);
        // Without a gradient of its output, the other operator's backward would not run.
        let zeros = Buffer::zeroed(self.rows.iter().product());
        [Some(zeros.into_tensor(&self.rows))]
    }
}

/// The output, the last cells, and what backward needs.
fn forward<const G: usize>(
    tensors: [FlexTensor; TENSORS],
    sequences: Sequences,
    clip: Option<f32>,
    backward: bool,
) -> (FlexTensor, FlexTensor, State<G>) {
    let mut tensors = tensors.into_iter().map(contiguous);
    let [x, hidden, cell] = std::array::from_fn(|_| tensors.next().expect("of the operator"));
    let gates = std::array::from_fn(|_| std::array::from_fn(|_| tensors.next().expect("of the operator")));
    let (level, parameters) = (Level::current(), Parameters::<G>(gates));
    let (rows, width) = (sequences.rows(), sequences.width());
    let mut gates = Buffer::new(rows * G * width);
    let inputs = Matrix::new(values(&x), [rows, sequences.inputs]);
    let weights = sequences.joined(parameters.each(0));
    let weights = Matrix::new(&weights, [sequences.inputs, G * width]);
    multiply(level, inputs, weights, &mut gates, false);
    let mut output = Buffer::new(rows * sequences.hidden);
    let mut cells = Buffer::new(if backward { rows * width } else { 0 });
    let mut cell_state = sequences.padded(&cell);
    level.run(Forward {
        sequences,
        clip: clip.unwrap_or(f32::INFINITY),
        weights: parameters.each(2),
        bias: &parameters.biases(sequences),
        hidden: sequences.padded(&hidden),
        cell: &mut cell_state,
        gates: &mut gates,
        cells: &mut cells,
        output: &mut output,
    });
    let mut shape = x.shape().to_vec();
    shape[2] = sequences.hidden;
    let output = output.into_tensor(&shape);
    let state = State {
        sequences,
        clip,
        x,
        hidden,
        cell,
        parameters,
        gates,
        cells,
        output: output.clone(),
        of_last_cells: Left::default(),
        level,
    };
    (output, sequences.state(&cell_state), state)
}

/// Of each gate, weights and bias of the input, then of the hidden state.
#[derive(Debug, Clone)]
struct Parameters<const G: usize>([[FlexTensor; 4]; G]);

impl<const G: usize> Parameters<G> {
    /// The values of one of the four, of each gate.
    fn each(&self, which: usize) -> [&[f32]; G] {
        self.0.each_ref().map(|gate| values(&gate[which]))
    }

    /// The sums of both biases, side by side.
    fn biases(&self, sequences: Sequences) -> Buffer {
        let mut sums = Buffer::zeroed(G * sequences.width());
        for biases in [self.each(1), self.each(3)] {
            for (sums, bias) in sums.chunks_exact_mut(sequences.width()).zip(biases) {
                sums.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += bias);
            }
        }
        sums
    }
}

/// Values of units, a few vectors of any SIMD level.
type Units = [f32; MAX_LANES];

/// The units from `first` on.
#[inline(always)]
fn units(values: &[f32], first: usize) -> &Units {
    values[first..].first_chunk().expect("rows are padded")
}

/// As [`units`], to be written.
#[inline(always)]
fn units_mut(values: &mut [f32], first: usize) -> &mut Units {
    values[first..].first_chunk_mut().expect("rows are padded")
}

/// Numbers of the gates.
const INPUT: usize = 0;
const OUTPUT: usize = 1;
const CELL: usize = 2;
const FORGET: usize = 3;

/// The steps of forward.
struct Forward<'a, const G: usize> {
    sequences: Sequences,
    clip: f32,
    /// Of the hidden state.
    weights: [&'a [f32]; G],
    bias: &'a [f32],
    /// Padded rows of the states before the first step; those of cells become the last.
    hidden: Buffer,
    cell: &'a mut [f32],
    /// `[rows, gates, width]`: products of the inputs, which become gates.
    gates: &'a mut [f32],
    /// `[rows, width]`, or empty.
    cells: &'a mut [f32],
    output: &'a mut [f32],
}

impl<const G: usize> Kernel for Forward<'_, G> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) {
        let Self { sequences, clip, weights, bias, hidden: mut before, cell, gates, cells, output } = self;
        let (Sequences { batch, steps, hidden, .. }, width) = (sequences, sequences.width());
        let panel = Gates::<G>::pack(simd, weights, [hidden, width]);
        let mut after = Buffer::new(batch * width);
        let mut products = Buffer::new(batch * G * MAX_LANES);
        for time in 0..steps {
            for first in (0..width).step_by(MAX_LANES) {
                panel.multiply(simd, first, (batch, &before, width), &mut products);
                for (sequence, products) in products.chunks_exact(G * MAX_LANES).enumerate() {
                    let row = sequences.row(sequence, sequences.step(time));
                    let gates = &mut gates[row * G * width..][..G * width];
                    let mut sums = [[0.0; MAX_LANES]; G];
                    for (gate, sums) in sums.iter_mut().enumerate() {
                        let at = gate * width + first;
                        let (gates, bias) = (units(gates, at), units(bias, at));
                        let products = units(products, gate * MAX_LANES);
                        for lane in 0..MAX_LANES {
                            sums[lane] = gates[lane] + products[lane] + bias[lane];
                        }
                    }
                    let at = sequence * width + first;
                    let cell = units_mut(cell, at);
                    let after = units_mut(&mut after, at);
                    step(&mut sums, clip, cell, after);
                    for (gate, values) in sums.iter().enumerate() {
                        *units_mut(gates, gate * width + first) = *values;
                    }
                    if !cells.is_empty() {
                        *units_mut(cells, row * width + first) = *cell;
                    }
                    let target = &mut output[row * hidden..][first..hidden.min(first + MAX_LANES)];
                    match target.first_chunk_mut() {
                        Some(target) => *target = *after,
                        None => target.copy_from_slice(&after[..target.len()]),
                    }
                }
            }
            std::mem::swap(&mut before, &mut after);
        }
    }
}

/// A step of units: `gates` are sums, and become gates.
#[inline(always)]
fn step<const G: usize>(gates: &mut [Units; G], clip: f32, cell: &mut Units, hidden: &mut Units) {
    for lane in 0..MAX_LANES {
        let (input, output) = (sigmoid(gates[INPUT][lane]), sigmoid(gates[OUTPUT][lane]));
        let candidate = tanh(gates[CELL][lane]);
        (gates[INPUT][lane], gates[OUTPUT][lane], gates[CELL][lane]) = (input, output, candidate);
        let forget = if G > FORGET { sigmoid(gates[G - 1][lane]) } else { 1.0 - input };
        if G > FORGET {
            gates[G - 1][lane] = forget;
        }
        let new = clipped(forget * cell[lane] + input * candidate, clip);
        cell[lane] = new;
        hidden[lane] = output * tanh(new);
    }
}

/// `x` within `-clip` and `clip`; NaN stays.
#[inline(always)]
fn clipped(x: f32, clip: f32) -> f32 {
    let below = if x > clip { clip } else { x };
    if below < -clip { -clip } else { below }
}

/// Saved by forward for backward.
#[derive(Debug, Clone)]
struct State<const G: usize> {
    sequences: Sequences,
    clip: Option<f32>,
    x: FlexTensor,
    /// States before the first step, or empty.
    hidden: FlexTensor,
    cell: FlexTensor,
    parameters: Parameters<G>,
    gates: Buffer,
    cells: Buffer,
    output: FlexTensor,
    of_last_cells: Left,
    level: Level,
}

impl<const G: usize> Saved<TENSORS> for State<G> {
    fn backward(self, gradient: FlexTensor, of_input: bool) -> [Option<FlexTensor>; TENSORS] {
        let Self { sequences, level, x, hidden, cell, parameters, mut gates, cells, .. } = self;
        let (poll, width, rows) = (poll::current(), sequences.width(), sequences.rows());
        let of_last_cells = self.of_last_cells.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut of_cell = match of_last_cells {
            Some(gradient) => sequences.padded(&gradient),
            None => Buffer::zeroed(sequences.batch * width),
        };
        let mut of_hidden = Buffer::zeroed(sequences.batch * width);
        let mut of_bias = Buffer::zeroed(G * width);
        level.run(Backward {
            sequences,
            clip: self.clip.unwrap_or(f32::INFINITY),
            weights: parameters.each(2),
            gradient: values(&gradient),
            cell: &sequences.padded(&cell),
            cells: &cells,
            gates: &mut gates,
            of_cell: &mut of_cell,
            of_hidden: &mut of_hidden,
            of_bias: &mut of_bias,
            of_states: !values(&hidden).is_empty(),
            poll,
        });
        let of_gates = Matrix::new(&gates, [rows, G * width]);
        let of_weights = |values: &[f32], inputs: usize| {
            let mut joined = Buffer::new(inputs * G * width);
            multiply(level, Matrix::new(values, [rows, inputs]).transpose(), of_gates, &mut joined, false);
            poll();
            sequences.separate::<G>(&joined)
        };
        let mut of_input_weights = of_weights(values(&x), sequences.inputs).map(Some);
        let before = sequences.before(values(&self.output), values(&hidden));
        let mut of_hidden_weights = of_weights(&before, sequences.hidden).map(Some);
        let of_x = of_input.then(|| {
            let weights = sequences.joined(parameters.each(0));
            let weights = Matrix::new(&weights, [sequences.inputs, G * width]);
            let mut of_x = Buffer::new(rows * sequences.inputs);
            multiply(level, of_gates, weights.transpose(), &mut of_x, false);
            poll();
            of_x.into_tensor(&x.shape())
        });
        let mut gradients = [const { None }; TENSORS];
        gradients[0] = of_x;
        gradients[1] = (!values(&hidden).is_empty()).then(|| sequences.state(&of_hidden));
        gradients[2] = (!values(&cell).is_empty()).then(|| sequences.state(&of_cell));
        for (gate, gradients) in gradients[3..].chunks_exact_mut(4).take(G).enumerate() {
            let bias = &of_bias[gate * width..][..sequences.hidden];
            let of_bias = || Buffer::copy_of(bias).into_tensor(&[sequences.hidden]);
            let of_weights = [&mut of_input_weights, &mut of_hidden_weights].map(|all| all[gate].take());
            let [of_input, of_hidden] = of_weights;
            gradients.clone_from_slice(&[of_input, Some(of_bias()), of_hidden, Some(of_bias())]);
        }
        gradients
    }
}

/// The steps of backward.
struct Backward<'a, const G: usize> {
    sequences: Sequences,
    clip: f32,
    /// Of the hidden state.
    weights: [&'a [f32]; G],
    /// Of the output.
    gradient: &'a [f32],
    /// Padded rows of the cells before the first step.
    cell: &'a [f32],
    /// `[rows, width]`.
    cells: &'a [f32],
    /// `[rows, gates, width]`, which become gradients of the sums.
    gates: &'a mut [f32],
    /// Padded rows of gradients: of the last states first, then of those before the first step.
    of_cell: &'a mut [f32],
    of_hidden: &'a mut [f32],
    /// Zeros.
    of_bias: &'a mut [f32],
    /// Whether the gradient of the hidden states before the first step is needed.
    of_states: bool,
    poll: fn(),
}

impl<const G: usize> Kernel for Backward<'_, G> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) {
        let Self { sequences, clip, weights, gradient, gates, of_cell, of_hidden, of_bias, .. } = self;
        let (Sequences { batch, steps, hidden, .. }, width) = (sequences, sequences.width());
        let panel = Columns::<G>::pack(simd, weights, [hidden, width]);
        let mut sums = Buffer::new(G * width);
        for time in (0..steps).rev() {
            sums.fill(0.0);
            for sequence in 0..batch {
                let row = sequences.row(sequence, sequences.step(time));
                let gates = &mut gates[row * G * width..][..G * width];
                let cells = &self.cells[row * width..][..width];
                let before = match time {
                    0 => &self.cell[sequence * width..][..width],
                    _ => &self.cells[sequences.row(sequence, sequences.step(time - 1)) * width..][..width],
                };
                let of_hidden = &mut of_hidden[sequence * width..][..width];
                let gradient = &gradient[row * hidden..][..hidden];
                of_hidden.iter_mut().zip(gradient).for_each(|(sum, gradient)| *sum += gradient);
                for first in (0..width).step_by(MAX_LANES) {
                    let mut values = [[0.0; MAX_LANES]; G];
                    for (gate, values) in values.iter_mut().enumerate() {
                        *values = *units(gates, gate * width + first);
                    }
                    let cells = [units(before, first), units(cells, first)];
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
                    // Zero times the infinite gradient of a unit beyond the hidden ones would be NaN.
                    gate[hidden..].fill(0.0);
                }
            }
            of_bias.iter_mut().zip(sums.iter()).for_each(|(total, sum)| *total += sum);
            if time > 0 || self.of_states {
                let (first, row_step) = (sequences.row(0, sequences.step(time)), sequences.stride());
                let [first, row_step] = [first, row_step].map(|rows| rows * G * width);
                let scalars = Scalars { values: gates, first, term_step: 1, row_step };
                panel.multiply(simd, batch, scalars, of_hidden);
            }
            (self.poll)();
        }
    }
}

/// The gradients of a [`step`]: of the sums into `gates`, and of the cells before, into `of_cell`.
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
