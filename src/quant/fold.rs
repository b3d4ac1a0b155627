//! Real weights and biases of a group, with its batch norm's running statistics folded
//! into them.

use burn::tensor::Tensor;

use super::{Group, Product};
use crate::model::RunningAffine;

/// Real weights and biases.
#[derive(Debug, Clone)]
pub(super) struct Folded {
    /// In PyTorch's layout: outputs first.
    pub weights: Vec<f32>,
    /// One for each output.
    pub bias: Vec<f32>,
}

impl Group<'_> {
    /// The weights and biases of the group in evaluation.
    pub(super) fn folded(&self) -> Folded {
        let (weights, bias) = match self.product {
            Product::Conv(conv) => (values_of(conv.weight.val()), conv.bias.as_ref()),
            Product::Linear(linear) => (values_of(linear.weight.val().transpose()), linear.bias.as_ref()),
        };
        let outputs = self.product.outputs();
        let bias = bias.map_or_else(|| vec![0.0; outputs], |bias| values_of(bias.val()));
        let mut folded = Folded { weights, bias };
        if let Some(norm) = self.norm {
            let RunningAffine { factor, shift } = norm.running_affine();
            let (factor, shift) = (values_of(factor), values_of(shift));
            let of_output = folded.weights.len() / outputs.max(1);
            for (row, &factor) in folded.weights.chunks_exact_mut(of_output).zip(&factor) {
                row.iter_mut().for_each(|weight| *weight *= factor);
            }
            for (bias, (factor, shift)) in folded.bias.iter_mut().zip(factor.iter().zip(&shift)) {
                *bias = *bias * factor + shift;
            }
        }
        folded
    }
}

/// The values of a tensor of f32.
pub(super) fn values_of<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec().unwrap_or_else(|_| unreachable!("they are f32"))
}
