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
    gradients: &mut Gradients,
    module: &M,
    taken: &[Option<Taken>],
    add: &mut dyn FnMut(usize, &[f32]),
) {
    module.visit(&mut Collector { gradients, taken, add, seen: HashSet::new(), next: 0 });
}

struct Collector<'a> {
    gradients: &'a mut Gradients,
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
        if !param.is_require_grad() {
            return;
        }
        // With nothing taken, the first of tied parameters removes the gradient of all.
        if !self.taken.is_empty() && !self.seen.insert(param.id) {
            return;
        }
        let taken = self.taken.get(index).and_then(Option::as_ref);
        if taken.is_some_and(|taken| !taken.outgrown) {
            return;
        }
        let Some(gradient) = param.grad_remove(self.gradients) else { return };
        read(gradient, &mut |values| self.hand_over(index, values, taken));
    }
}

/// Passes on the values of a gradient; flex's memory is read in place.
fn read<const D: usize>(gradient: Tensor<D>, values: &mut dyn FnMut(&[f32])) {
    let Ok(primitive) = gradient.clone().try_into_primitive::<Flex>() else {
        let data = gradient.into_data().convert_dtype(DType::F32);
        return values(data.as_slice::<f32>().unwrap_or_default());
    };
    match primitive.as_slice::<f32>() {
        Some(slice) => values(slice),
        None => values(primitive.to_contiguous().as_slice::<f32>().unwrap_or_default()),
    }
}

/// Passes on the gradients of `module`'s parameters that a program has computed itself.
pub(crate) fn collect_params<M: Module>(
    gradients: GradientsParams,
    module: &M,
    add: &mut dyn FnMut(usize, &[f32]),
) {
    module.visit(&mut ParamsCollector { gradients, add, next: 0 });
}

struct ParamsCollector<'a> {
    gradients: GradientsParams,
    add: &'a mut dyn FnMut(usize, &[f32]),
    next: usize,
}

impl ModuleVisitor for ParamsCollector<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let index = self.next;
        self.next += 1;
        // The first of tied parameters removes the gradient of all.
        if let Some(gradient) = self.gradients.remove::<D>(param.id) {
            read(gradient, &mut |values| (self.add)(index, values));
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
