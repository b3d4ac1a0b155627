//! The parameters of a recurrent layer. The parameters of all gates are side by side, so that one product
//! serves all gates. `width` is the number of hidden units, padded to whole vectors.

use burn::backend::flex::FlexTensor;
use burn::backend::{DispatchTensor, TensorMetadata};
use burn::tensor::Tensor;

use crate::kernels::matrix::Matrix;
use crate::kernels::product::multiply;
use crate::kernels::recurrent::repeated::Repeated;
use crate::kernels::recurrent::sequences::Sequences;
use crate::kernels::simd::Level;
use crate::ops::flex_tensor::{contiguous, values};
use crate::runtime::memory::Buffer;
use crate::runtime::poll::Poll;

/// The two weights of a gate, and its two biases. In both pairs, the first tensor is for the input, and the
/// second for the hidden state.
pub type Gate = ([Tensor<2>; 2], [Option<Tensor<1>>; 2]);

/// Positions of a gate's four tensors.
pub const INPUT_WEIGHTS: usize = 0;
pub const INPUT_BIAS: usize = 1;
pub const HIDDEN_WEIGHTS: usize = 2;
pub const HIDDEN_BIAS: usize = 3;

/// Returns the tensors of an operator: inputs, states before the first step, and four tensors of each gate.
/// An empty tensor stands for an absent state, bias or gate.
///
/// # Panics
/// If there are more than `N` tensors.
pub fn tensors<const N: usize>(
    x: &Tensor<3>,
    states: impl IntoIterator<Item = Option<Tensor<2>>>,
    gates: impl IntoIterator<Item = Gate>,
) -> [DispatchTensor; N] {
    let device = x.device();
    let absent = || Tensor::<1>::empty([0], &device).into_dispatch();
    let mut tensors = vec![x.clone().into_dispatch()];
    for state in states {
        tensors.push(state.unwrap_or_else(|| Tensor::empty([0, 0], &device)).into_dispatch());
    }
    for (weights, biases) in gates {
        for (weights, bias) in weights.into_iter().zip(biases) {
            tensors.extend([weights.into_dispatch(), bias.map_or_else(absent, |bias| bias.into_dispatch())]);
        }
    }
    assert!(tensors.len() <= N, "tensors of a recurrent layer");
    tensors.resize_with(N, absent);
    let Ok(tensors) = tensors.try_into() else { unreachable!("resized") };
    tensors
}

/// The parameters of `G` gates.
#[derive(Debug, Clone)]
pub struct Parameters<const G: usize>([[FlexTensor; 4]; G]);

impl<const G: usize> Parameters<G> {
    /// Takes the tensors of the gates, four for each gate. Further tensors are ignored.
    ///
    /// # Panics
    /// If there are fewer than four tensors for each gate.
    pub fn new(tensors: impl IntoIterator<Item = FlexTensor>) -> Self {
        let mut tensors = tensors.into_iter().map(contiguous);
        let mut next = |_| tensors.next().expect("four for each gate");
        Self(std::array::from_fn(|_| std::array::from_fn(&mut next)))
    }

    /// Returns the values of one of the four tensors, for each gate.
    pub fn each(&self, which: usize) -> [&[f32]; G] {
        self.0.each_ref().map(|gate| values(&gate[which]))
    }

    /// Returns the biases of all gates, `[gates, width]`, padded with zeros. Absent biases are zeros.
    pub fn biases(&self, which: usize, sequences: Sequences) -> Buffer {
        let mut biases = Buffer::zeroed(G * sequences.width());
        for (target, bias) in biases.chunks_exact_mut(sequences.width()).zip(self.each(which)) {
            target[..bias.len()].copy_from_slice(bias);
        }
        biases
    }

    /// Returns the input weights of all gates, `[inputs, gates, width]`, padded with zeros.
    fn input_weights(&self, sequences: Sequences) -> Buffer {
        let (hidden, width) = (sequences.hidden, sequences.width());
        let weights = self.each(INPUT_WEIGHTS);
        let mut joined = Buffer::new(sequences.inputs * G * width);
        for (at, target) in joined.chunks_exact_mut(width).enumerate() {
            let (row, gate) = (at / G, at % G);
            target[..hidden].copy_from_slice(&weights[gate][row * hidden..][..hidden]);
            target[hidden..].fill(0.0);
        }
        joined
    }

    /// Returns the products of the inputs and the weights of all gates, `[rows, gates, width]`. A row is the
    /// input of one step of one sequence. If `repeated` is given, each distinct row is multiplied once.
    pub fn multiply_inputs(
        &self,
        level: Level,
        x: &[f32],
        repeated: Option<&Repeated>,
        sequences: Sequences,
    ) -> Buffer {
        let (inputs, columns) = (sequences.inputs, G * sequences.width());
        let weights = self.input_weights(sequences);
        let products = |x: &[f32]| {
            let rows = x.len() / inputs;
            let mut products = Buffer::new(rows * columns);
            let [x, weights] = [Matrix::new(x, [rows, inputs]), Matrix::new(&weights, [inputs, columns])];
            multiply(level, x, weights, &mut products, false);
            products
        };
        match repeated {
            Some(repeated) => repeated.all(&products(&repeated.once(x, inputs)), columns),
            None => products(x),
        }
    }

    /// Returns the gradient of the inputs `x`. `gates` is the gradient of the products that
    /// [`multiply_inputs`](Self::multiply_inputs) returns.
    pub fn of_inputs(&self, level: Level, gates: &[f32], x: &FlexTensor, sequences: Sequences) -> FlexTensor {
        let (rows, columns) = (sequences.rows(), G * sequences.width());
        let weights = self.input_weights(sequences);
        let weights = Matrix::new(&weights, [sequences.inputs, columns]);
        let mut of_x = Buffer::new(rows * sequences.inputs);
        multiply(level, Matrix::new(gates, [rows, columns]), weights.transpose(), &mut of_x, false);
        Poll::current().call();
        of_x.into_tensor(&x.shape())
    }
}

/// Returns the gradients of the four tensors of each gate. The first elements of `weights` and `biases` are
/// the gradients for the input, and the second elements for the hidden state. Each element has the gradients
/// of all gates side by side.
pub fn of_gates(
    gates: usize,
    weights: [&[f32]; 2],
    biases: [&[f32]; 2],
    sequences: Sequences,
) -> impl Iterator<Item = Option<FlexTensor>> {
    let (hidden, width) = (sequences.hidden, sequences.width());
    let of_gate = move |gate: usize| {
        [0, 1].into_iter().flat_map(move |part| {
            let rows = weights[part].chunks_exact(gates * width);
            let mut of_weights = Buffer::new(rows.len() * hidden);
            let shape = [rows.len(), hidden];
            for (target, row) in of_weights.chunks_exact_mut(hidden).zip(rows) {
                target.copy_from_slice(&row[gate * width..][..hidden]);
            }
            let of_bias = Buffer::copy_of(&biases[part][gate * width..][..hidden]);
            [of_weights.into_tensor(&shape), of_bias.into_tensor(&[hidden])].map(Some)
        })
    };
    (0..gates).flat_map(of_gate)
}
