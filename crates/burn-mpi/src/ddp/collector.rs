//! Gradients taken from Burn after backward, and returned to it.

use burn::backend::Flex;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Gradients, Tensor, TensorData};

use super::hook::Taken;
use crate::CommError;

/// Where gradients are.
pub(crate) enum Source<'a> {
    /// As a backward has left them.
    Backward(&'a mut Gradients),
    /// As a program has computed them.
    Program(GradientsParams),
}

/// Passes on each parameter's gradient: all of it if nothing was `taken` during backward, the difference if
/// it has changed since, and nothing if it has not.
pub(crate) fn collect<M: Module>(
    source: Source<'_>,
    module: &M,
    taken: &[Option<Taken>],
    add: &mut dyn FnMut(usize, &[f32]),
) {
    module.visit(&mut Collector { source, taken, add, next: 0 });
}

struct Collector<'a> {
    source: Source<'a>,
    taken: &'a [Option<Taken>],
    add: &'a mut dyn FnMut(usize, &[f32]),
    next: usize,
}

impl ModuleVisitor for Collector<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let index = self.next;
        self.next += 1;
        let taken = self.taken.get(index).and_then(Option::as_ref);
        let gradient = match &mut self.source {
            _ if taken.is_some_and(|taken| !taken.outgrown) => None,
            Source::Backward(gradients) if param.is_require_grad() => param.grad_remove(gradients),
            Source::Backward(_) => None,
            Source::Program(gradients) => gradients.remove::<D>(param.id),
        };
        let Some(gradient) = gradient else { return };
        read(gradient, &mut |values| match taken {
            None => (self.add)(index, values),
            Some(taken) => {
                let grown = values.iter().zip(taken.values()).map(|(all, taken)| all - taken);
                (self.add)(index, &grown.collect::<Vec<f32>>());
            }
        });
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

/// The gradients of `module`'s parameters as Burn's optimizers take them;
/// `gradient` returns each by index in visit order, or `None`.
///
/// # Errors
/// The first error of `gradient`.
pub(crate) fn register<'a, M: Module>(
    module: &M,
    gradient: impl Fn(usize) -> Result<Option<&'a [f32]>, CommError>,
) -> Result<GradientsParams, CommError> {
    let mut register = Register { gradient, gradients: GradientsParams::new(), next: 0, failure: None };
    module.visit(&mut register);
    register.failure.map_or(Ok(register.gradients), Err)
}

struct Register<G> {
    gradient: G,
    gradients: GradientsParams,
    next: usize,
    failure: Option<CommError>,
}

impl<'a, G: Fn(usize) -> Result<Option<&'a [f32]>, CommError>> ModuleVisitor for Register<G> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let index = self.next;
        self.next += 1;
        if !param.is_require_grad() {
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
