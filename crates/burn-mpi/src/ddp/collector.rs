//! Reads gradients from Burn after backward, and returns averaged gradients to Burn. During backward, some
//! gradients may already have been copied into buckets, the buffers that are sent to other ranks.

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Gradients, Tensor, TensorData};

use super::buckets::values_in;
use super::hook::Taken;
use crate::CommError;

/// Passes to `add` the part of each parameter's gradient that no bucket took during backward. If the gradient
/// is not in `taken`, this part is the whole gradient. If autodiff added to the gradient after a bucket took
/// it, this part is the increase. In all other cases, `add` is not called.
pub(crate) fn collect<M: Module>(
    mut gradients: Gradients,
    module: &M,
    taken: &[Option<Taken>],
    add: &mut dyn FnMut(usize, FlexTensor),
) {
    let taken = |param: usize| taken.get(param).and_then(Option::as_ref);
    let skip = |param: usize| taken(param).is_some_and(|taken| !taken.changed_after_take);
    let take = &mut |param: usize, gradient: Option<FlexTensor>| match (gradient, taken(param)) {
        (Some(gradient), None) => add(param, gradient),
        (Some(gradient), Some(taken)) => {
            let grown: Vec<f32> =
                values_in(&gradient).iter().zip(&*taken.values()).map(|(all, taken)| all - taken).collect();
            let length = grown.len();
            add(param, FlexTensor::from_data(TensorData::new(grown, [length])));
        }
        (None, _) => {}
    };
    module.visit(&mut Collector { source: Source::Backward(&mut gradients), skip: &skip, take, next: 0 });
}

/// Calls `take` with the index in visit order and the gradient of each parameter of `module`, as
/// [`to_flex`] returns it. The gradient is `None` if the parameter has no gradient. Leaves out parameters for
/// which `skip` returns true.
pub(crate) fn each<M: Module>(
    gradients: &GradientsParams,
    module: &M,
    skip: &dyn Fn(usize) -> bool,
    take: &mut dyn FnMut(usize, Option<FlexTensor>),
) {
    module.visit(&mut Collector { source: Source::Params(gradients), skip, take, next: 0 });
}

/// The gradients of a backward, as autodiff returns them or as Burn's optimizers take them.
enum Source<'a> {
    /// Each gradient is removed when it is read, as by `GradientsParams::from_grads`. If two parameters with
    /// different ids are one tensor, only the first has its gradient.
    Backward(&'a mut Gradients),
    Params(&'a GradientsParams),
}

struct Collector<'a> {
    source: Source<'a>,
    skip: &'a dyn Fn(usize) -> bool,
    take: &'a mut dyn FnMut(usize, Option<FlexTensor>),
    next: usize,
}

impl ModuleVisitor for Collector<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let index = self.next;
        self.next += 1;
        if (self.skip)(index) {
            return;
        }
        // A frozen clone of a parameter has its id, and no gradient.
        let gradient = || match &mut self.source {
            Source::Backward(gradients) => param.val().grad_remove(gradients),
            Source::Params(gradients) => gradients.get::<D>(param.id),
        };
        let gradient = param.is_require_grad().then(gradient).flatten();
        (self.take)(index, gradient.map(to_flex));
    }
}

/// Returns `tensor` as a contiguous f32 tensor on flex. If it is one already, the result shares its memory.
pub(super) fn to_flex<const D: usize>(tensor: Tensor<D>) -> FlexTensor {
    if let Ok(primitive) = tensor.clone().try_into_primitive::<Flex>()
        && primitive.as_slice::<f32>().is_some()
    {
        return primitive;
    }
    FlexTensor::from_data(tensor.into_data().convert_dtype(DType::F32))
}

/// Returns the gradients of `module`'s parameters as Burn's optimizers take them. For each trainable
/// parameter, calls `gradient` with the parameter's index in visit order and its shape. `gradient` returns
/// `None` if the parameter has no gradient.
///
/// # Errors
/// The first error of `gradient`.
pub(crate) fn register<M: Module>(
    module: &M,
    gradient: impl FnMut(usize, Vec<usize>) -> Result<Option<FlexTensor>, CommError>,
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

impl<G: FnMut(usize, Vec<usize>) -> Result<Option<FlexTensor>, CommError>> ModuleVisitor for Register<G> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let index = self.next;
        self.next += 1;
        if !param.is_require_grad() {
            return;
        }
        let value = param.val();
        match (self.gradient)(index, value.dims().to_vec()) {
            Ok(Some(gradient)) => {
                let mut gradient = Tensor::<D>::from_primitive::<Flex>(gradient);
                if gradient.dtype() != value.dtype() {
                    gradient = gradient.cast(value.dtype());
                }
                self.gradients.register(param.id, gradient.to_device(&value.device().inner()));
            }
            Ok(None) => {}
            Err(error) => {
                self.failure.get_or_insert(error);
            }
        }
    }
}
