//! Gradients taken from Burn after backward, and returned to it.

use std::collections::HashSet;

use burn::backend::Flex;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Gradients, Tensor, TensorData};

use super::hook::Taken;
use crate::CommError;

/// Passes on each parameter's gradient after backward: all of it if nothing was
/// `taken` during backward, the difference if it has changed since, and nothing
/// if it has not.
pub(crate) fn collect<M: Module>(
    gradients: Gradients,
    module: &M,
    taken: &[Option<Taken>],
    add: &mut dyn FnMut(usize, &[f32]),
) {
    module.visit(&mut Collector { gradients, taken, add, seen: HashSet::new(), next: 0 });
}

struct Collector<'a> {
    gradients: Gradients,
    taken: &'a [Option<Taken>],
    add: &'a mut dyn FnMut(usize, &[f32]),
    /// Tied parameters are visited several times; the first index owns the
    /// gradient.
    seen: HashSet<ParamId>,
    next: usize,
}

impl ModuleVisitor for Collector<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let index = self.next;
        self.next += 1;
        if !param.is_require_grad() || !self.seen.insert(param.id) {
            return;
        }
        let taken = self.taken.get(index).and_then(Option::as_ref);
        if taken.is_some_and(|taken| !taken.outgrown) {
            return;
        }
        let Some(gradient) = param.val().grad_remove(&mut self.gradients) else { return };
        // Flex's memory is read in place.
        if let Ok(gradient) = gradient.clone().try_into_primitive::<Flex>() {
            match gradient.as_slice::<f32>() {
                Some(values) => self.hand_over(index, values, taken),
                None => {
                    let gradient = gradient.to_contiguous();
                    self.hand_over(index, gradient.as_slice::<f32>().unwrap_or_default(), taken);
                }
            }
        } else {
            let data = gradient.into_data().convert_dtype(DType::F32);
            self.hand_over(index, data.as_slice::<f32>().unwrap_or_default(), taken);
        }
    }
}

impl Collector<'_> {
    fn hand_over(&mut self, index: usize, values: &[f32], taken: Option<&Taken>) {
        match taken {
            None => (self.add)(index, values),
            Some(taken) => {
                let grown = values.iter().zip(taken.values()).map(|(all, taken)| all - taken);
                (self.add)(index, &grown.collect::<Vec<f32>>());
            }
        }
    }
}

/// The gradients of `module`'s parameters as Burn's optimizers take them;
/// `gradient` returns each by index in visit order, or `None`.
///
/// # Errors
/// The first error of `gradient`.
pub(crate) fn register<'a, M: Module>(
    module: &M,
    gradient: impl Fn(usize) -> Result<Option<&'a [f32]>, CommError>,
) -> Result<GradientsParams, CommError> {
    let seen = HashSet::new();
    let mut register = Register { gradient, gradients: GradientsParams::new(), seen, next: 0, failure: None };
    module.visit(&mut register);
    register.failure.map_or(Ok(register.gradients), Err)
}

struct Register<G> {
    gradient: G,
    gradients: GradientsParams,
    seen: HashSet<ParamId>,
    next: usize,
    failure: Option<CommError>,
}

impl<'a, G: Fn(usize) -> Result<Option<&'a [f32]>, CommError>> ModuleVisitor for Register<G> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let index = self.next;
        self.next += 1;
        if !param.is_require_grad() || !self.seen.insert(param.id) {
            return;
        }
        match (self.gradient)(index) {
            Ok(Some(values)) => {
                let value = param.val();
                let data = TensorData::new(values.to_vec(), value.dims());
                self.gradients.register(param.id, Tensor::<D>::from_data(data, &value.device().inner()));
            }
            Ok(None) => {}
            Err(error) => {
                self.failure.get_or_insert(error);
            }
        }
    }
}
