//! The gradients of this rank's own samples, for weight updates without other ranks.

use std::ops::Range;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Gradients, Tensor};

use crate::train::AveragedGradients;
use burn_fused::optim::flat;
use burn_mpi::{CommError, ParamLayout, Piece};

/// One gradient for each parameter, in the layout of the network. A parameter without a gradient has zeros.
pub struct OwnGradients {
    values: Vec<f32>,
    /// Range of each parameter in `values`, in visit order.
    ranges: Vec<Range<usize>>,
    /// Indices of the trainable parameters in `ranges`.
    trainable: Vec<usize>,
}

impl OwnGradients {
    /// Returns zeros for the parameters of `layout`.
    pub fn new(layout: &ParamLayout) -> Self {
        let ranges = layout.specs().iter().map(|spec| spec.range.clone()).collect();
        let trainable = (0..layout.specs().len()).filter(|&param| layout.specs()[param].trainable).collect();
        Self { values: vec![0.0; layout.len()], ranges, trainable }
    }

    /// Returns the gradients of trainable parameters, of which each begins where the one before ends.
    pub fn from_values(gradients: &[Vec<f32>]) -> Self {
        let mut end = 0;
        let range = |gradient: &Vec<f32>| {
            end += gradient.len();
            end - gradient.len()..end
        };
        let ranges: Vec<_> = gradients.iter().map(range).collect();
        Self { values: gradients.concat(), trainable: (0..ranges.len()).collect(), ranges }
    }

    /// Sets all gradients to zero.
    pub fn clear(&mut self) {
        self.values.fill(0.0);
    }

    /// Adds `gradients`, which backward has returned for `module`, multiplied by `weight`.
    pub fn add<M: Module>(&mut self, gradients: &mut Gradients, module: &M, weight: f32) {
        module.visit(&mut Adder { gradients, weight, to: self, next: 0 });
    }
}

impl AveragedGradients for OwnGradients {
    fn share_length(&self) -> Result<usize, CommError> {
        Ok(self.trainable.iter().map(|&param| self.ranges[param].len()).sum())
    }

    fn pieces(&mut self) -> Result<Vec<Piece<'_>>, CommError> {
        let (mut pieces, mut start) = (Vec::new(), 0);
        let (mut rest, mut end) = (self.values.as_mut_slice(), 0);
        for &param in &self.trainable {
            let range = self.ranges[param].clone();
            let (gradient, after) = rest[range.start - end..].split_at_mut(range.len());
            (rest, end) = (after, range.end);
            let length = range.len();
            pieces.push(Piece { param, range, start, gradient });
            start += length;
        }
        Ok(pieces)
    }

    fn clip_norm(&mut self, max: f64) -> Result<(), CommError> {
        let squares: f64 = self.pieces()?.iter().map(|piece| flat::square_sum(piece.gradient)).sum();
        let factor = max / (squares.sqrt() + 1e-6);
        if factor < 1.0 {
            self.pieces()?.into_iter().for_each(|piece| _ = flat::scale(piece.gradient, factor as f32));
        }
        Ok(())
    }
}

struct Adder<'a> {
    gradients: &'a mut Gradients,
    weight: f32,
    to: &'a mut OwnGradients,
    /// Index of the next parameter in visit order.
    next: usize,
}

impl ModuleVisitor for Adder<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let range = self.to.ranges[self.next].clone();
        self.next += 1;
        if !param.is_require_grad() {
            return;
        }
        let Some(gradient) = param.val().grad_remove(self.gradients) else { return };
        let data = gradient.into_data().convert_dtype(DType::F32);
        let values = data.as_slice::<f32>().unwrap_or_default();
        let sums = self.to.values[range].iter_mut().zip(values);
        sums.for_each(|(sum, value)| *sum += self.weight * value);
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn weighted_gradients_are_summed_in_visit_order_and_frozen_parameters_have_none() {
        let device = Device::flex().autodiff();
        let param = |values: [f32; 2]| Param::from_tensor(Tensor::<1>::from_floats(values, &device));
        let module = vec![param([1.0, 2.0]), param([5.0, 7.0]).set_require_grad(false), param([3.0, 4.0])];
        let mut own = OwnGradients::new(&ParamLayout::of_module(&module));
        for _ in 0..2 {
            own.clear();
            for weight in [0.25, 0.75] {
                let [a, b, c] = [0, 1, 2].map(|at: usize| module[at].val());
                let loss = (a.clone() * a).sum() + (b * c).sum().mul_scalar(2.0);
                own.add(&mut loss.backward(), &module, weight);
            }
        }
        assert_eq!(own.values, [2.0, 4.0, 0.0, 0.0, 10.0, 14.0]);
        let pieces = own.pieces().unwrap();
        let found: Vec<_> =
            pieces.iter().map(|piece| (piece.param, piece.range.clone(), piece.start)).collect();
        assert_eq!(found, [(0, 0..2, 0), (2, 4..6, 2)]);
        assert_eq!(pieces[1].gradient, [10.0, 14.0]);
        assert_eq!(own.share_length().unwrap(), 4);
        own.clip_norm(1.0).unwrap();
        let norm = own.values.iter().map(|value| value * value).sum::<f32>().sqrt();
        assert!((norm - 1.0).abs() < 1e-5, "{norm}");
    }
}
