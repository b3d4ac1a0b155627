//! Sizes of a batch of sequences, and the layout of its rows.
//!
//! A row is one sequence at one step. The rows of a sequence are contiguous. Rows of gates and states are
//! padded to whole vectors: a row has `width` values, and the first `hidden` values belong to units.

use crate::kernels::simd::MAX_LANES;
use crate::runtime::memory::Buffer;
use crate::runtime::threads::threads_for;

/// Number of sequences whose gradients of the biases are summed together. The sums of groups are added in
/// order, so they do not depend on the number of threads.
pub const GROUP: usize = 4;

/// Sizes, the order of steps in time, and the limit of states.
#[derive(Debug, Clone, Copy)]
pub struct Sequences {
    pub batch: usize,
    pub steps: usize,
    /// Number of values in a row of inputs.
    pub inputs: usize,
    /// Number of hidden units.
    pub hidden: usize,
    /// Whether time runs from the last step to the first.
    pub reverse: bool,
    /// Maximum magnitude of a hidden state of GRU, or of a cell of LSTM.
    pub clip: f32,
}

impl Sequences {
    /// Number of values in a padded row.
    pub fn width(self) -> usize {
        self.hidden.next_multiple_of(MAX_LANES)
    }

    /// Number of rows in a batch.
    pub fn rows(self) -> usize {
        self.batch * self.steps
    }

    /// Returns the index of the row of a sequence at a step.
    #[inline(always)]
    pub fn row(self, sequence: usize, step: usize) -> usize {
        sequence * self.steps + step
    }

    /// Approximate time in nanoseconds that `gates` gates take on one thread, in all steps.
    pub fn time(self, gates: usize) -> usize {
        self.rows() * gates * self.width() * (64 + self.hidden) / 64
    }

    /// Divides the sequences for the threads. Returns the number of sequences in a part: whole
    /// [groups](GROUP).
    pub fn of_part(self, gates: usize) -> usize {
        self.batch.div_ceil(threads_for(self.time(gates))).next_multiple_of(GROUP)
    }

    /// The same for `count` of the sequences, beginning with sequence `first`.
    pub fn part(self, first: usize, count: usize) -> Self {
        Self { batch: count.min(self.batch - first), ..self }
    }

    /// Returns the step that is computed at `time`. `time` counts from 0, in the order of computation.
    #[inline(always)]
    pub fn step(self, time: usize) -> usize {
        if self.reverse { self.steps - 1 - time } else { time }
    }

    /// Copies states into padded rows. The padding is zero. If `state` is empty, all values are zero.
    pub fn padded(self, state: &[f32]) -> Buffer {
        let mut padded = Buffer::zeroed(self.batch * self.width());
        for (target, row) in padded.chunks_exact_mut(self.width()).zip(state.chunks(self.hidden)) {
            target[..self.hidden].copy_from_slice(row);
        }
        padded
    }

    /// Joins each row of inputs with the hidden state before the row's step. Returns a matrix
    /// `[rows, inputs + padded]`. Zeros fill the state up to `padded` values. `output` has the hidden state
    /// after the step of each row. The states before the first step are `initial`, or zeros if `initial` is
    /// empty.
    pub fn inputs_and_states(self, x: &[f32], output: &[f32], initial: &[f32], padded: usize) -> Buffer {
        let Self { inputs, hidden, .. } = self;
        let mut rows = Buffer::new(self.rows() * (inputs + padded));
        for sequence in 0..self.batch {
            for time in 0..self.steps {
                let row = self.row(sequence, self.step(time));
                let (input, state) = rows[row * (inputs + padded)..][..inputs + padded].split_at_mut(inputs);
                input.copy_from_slice(&x[row * inputs..][..inputs]);
                state[hidden..].fill(0.0);
                match time {
                    0 if initial.is_empty() => state.fill(0.0),
                    0 => state[..hidden].copy_from_slice(&initial[sequence * hidden..][..hidden]),
                    _ => {
                        let before = self.row(sequence, self.step(time - 1));
                        state[..hidden].copy_from_slice(&output[before * hidden..][..hidden]);
                    }
                }
            }
        }
        rows
    }
}
