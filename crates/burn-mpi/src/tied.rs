//! Tied parameters: one parameter in several fields of a module, such as the embedding and the output layer
//! of a language model.

use std::any::Any;
use std::collections::{HashMap, HashSet};

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::Tensor;

use crate::tensors;

/// Returns `module` with each tied parameter as one tensor again: the tensor of its first field. A parameter
/// is tied if several fields that get gradients have the same [`ParamId`], as a clone of the parameter does. A
/// frozen clone, such as the teacher of a distillation, is not tied, and stays as it is.
///
/// Burn's optimizers update a tied parameter in its first field only, and Burn's records have its values for
/// each field. Call this function after each step of Burn's optimizer, and after a record is loaded. Functions of this
/// crate that return a module, such as [`ShardedOptimizer::step`](crate::ShardedOptimizer::step), do it
/// themselves.
///
/// ```
/// use burn::module::{Module, Param};
/// use burn::nn::{Embedding, EmbeddingConfig};
/// use burn::optim::{GradientsParams, SgdConfig};
/// use burn::tensor::{Device, Int, Tensor};
/// use burn_mpi::tie_parameters;
///
/// #[derive(Module, Debug)]
/// struct Model {
///     embedding: Embedding,
///     output: Param<Tensor<2>>,
/// }
///
/// let device = Device::flex().autodiff();
/// let embedding = EmbeddingConfig::new(5, 3).init(&device);
/// let model = Model { output: embedding.weight.clone(), embedding };
///
/// let tokens = Tensor::<2, Int>::from_data([[1, 4]], &device);
/// let scores = model.embedding.forward(tokens).matmul(model.output.val().transpose().unsqueeze());
/// let gradients = GradientsParams::from_grads(scores.mean().backward(), &model);
/// let model = tie_parameters(SgdConfig::new().init().step(0.1, model, gradients));
/// assert_eq!(model.output.val().into_data(), model.embedding.weight.val().into_data());
/// ```
pub fn tie_parameters<M: Module>(module: M) -> M {
    let (mut seen, mut tied) = (HashSet::new(), HashMap::new());
    tensors::visit(&module, &mut |id, spec, _| {
        if spec.trainable && !seen.insert(id) {
            tied.insert(id, None);
        }
    });
    if tied.is_empty() { module } else { module.map(&mut Tie { tied }) }
}

/// Replaces tied parameters by the parameter of their first field.
struct Tie {
    /// Each tied parameter, as a `Param<Tensor<D>>`; `None` until its first field.
    tied: HashMap<ParamId, Option<Box<dyn Any>>>,
}

impl ModuleMapper for Tie {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.tied.get_mut(&param.id) {
            Some(_) if !param.is_require_grad() => param,
            None => param,
            Some(first @ None) => {
                *first = Some(Box::new(param.clone()));
                param
            }
            Some(Some(first)) => first.downcast_ref::<Param<Tensor<D>>>().cloned().unwrap_or(param),
        }
    }
}
