//! Gradients taken from Burn after backward, where the hook did not hand them
//! over while it ran.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Gradients, Tensor};

use super::buckets::Buckets;

/// Hands over the `wanted` parameters' gradients after backward, in reverse
/// visit order.
pub(super) fn collect<M: Module>(
    gradients: Gradients,
    module: &M,
    buckets: &mut Buckets,
    wanted: impl Fn(usize) -> bool,
) {
    let mut visitor = Collector { gradients, next: 0, found: Vec::new() };
    module.visit(&mut visitor);
    for (param, values) in visitor.found.into_iter().rev().filter(|(param, _)| wanted(*param)) {
        buckets.take(param, &values);
    }
}

struct Collector {
    gradients: Gradients,
    next: usize,
    found: Vec<(usize, Vec<f32>)>,
}

impl ModuleVisitor for Collector {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let index = self.next;
        self.next += 1;
        if !param.is_require_grad() {
            return;
        }
        if let Some(gradient) = param.val().grad_remove(&mut self.gradients) {
            let data = gradient.into_data().convert_dtype(DType::F32);
            self.found.push((index, data.try_into_vec().unwrap_or_default()));
        }
    }
}
