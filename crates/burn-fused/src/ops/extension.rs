//! Custom operators on Burn's CPU backend, flex, with and without autodiff.
//!
//! [`on_flex`] takes Burn's tensors. If the operator supports the tensors, `on_flex` runs the operator's
//! forward on flex's tensors. If autodiff tracks one of the tensors, `on_flex` also adds a node to autodiff's
//! graph; the node runs the operator's [`Backward`]. If the operator does not support the tensors, `on_flex`
//! returns them, and the caller computes with Burn's operators.

use std::fmt;
use std::marker::PhantomData;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{self, Backward as _, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::{
    Autodiff, AutodiffBackend, BackendTensor, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind,
    Flex, TensorMetadata,
};
use burn::tensor::{DType, Tensor};

use crate::ops::flex_tensor::contiguous;
use crate::runtime::fallback::unsupported;

/// What an operator's forward saves for its backward: the captures of the backward closure.
pub(crate) trait Saved: Clone + Send + 'static {}

impl<F: Clone + Send + 'static> Saved for F {}

/// The backward of an operator with `N` input tensors on flex.
#[derive(Clone)]
pub(crate) struct Backward<F, const N: usize> {
    saved: F,
    /// This is a function pointer rather than a generic closure. With a closure, the kernels would be
    /// compiled again in the user's crate, in codegen units that inline less.
    run: fn(F, FlexTensor, bool) -> [Option<FlexTensor>; N],
}

impl<F: FnOnce(FlexTensor, bool) -> [Option<FlexTensor>; N], const N: usize> Backward<F, N> {
    /// Wraps the closure `backward(gradient, needs_first)`, which returns one gradient for each input tensor.
    /// `gradient` is the gradient of the output, and is contiguous. A gradient may be `None` if its tensor is
    /// absent, and the first gradient also if `needs_first` is false.
    pub fn new(backward: F) -> Self {
        Self { saved: backward, run: |backward, gradient, of_first| backward(gradient, of_first) }
    }
}

impl<F, const N: usize> Backward<F, N> {
    pub fn run(self, gradient: FlexTensor, of_first: bool) -> [Option<FlexTensor>; N] {
        (self.run)(self.saved, gradient, of_first)
    }
}

impl<F, const N: usize> fmt::Debug for Backward<F, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Backward")
    }
}

/// Runs an operator on float tensors on flex, and returns its output.
///
/// `sizes` returns the sizes of the tensors if the operator supports them. `forward` takes the tensors, their
/// sizes and whether a backward pass follows; it returns the output and its backward.
///
/// # Errors
/// Returns the tensors if the operator does not support them, or if one is not a float tensor on flex. The
/// caller then computes with Burn's operators.
pub(crate) fn on_flex<F: Saved, T, const N: usize>(
    tensors: [DispatchTensor; N],
    sizes: impl FnOnce([&FlexTensor; N]) -> Option<T>,
    forward: impl FnOnce([FlexTensor; N], T, bool) -> (FlexTensor, Backward<F, N>),
) -> Result<DispatchTensor, [DispatchTensor; N]> {
    let found = tensors.each_ref().map(primitive);
    let sizes = if found.iter().all(Option::is_some) {
        sizes(found.map(|tensor| tensor.expect("all are there")))
    } else {
        None
    };
    let Some(sizes) = sizes else { return Err(tensors) };
    let none = DispatchAutodiffContext::Disabled;
    let autodiff = tensors.iter().fold(none, |all, tensor| all.merge(tensor.autodiff));
    let (mut inputs, mut nodes) = ([const { None }; N], [const { None }; N]);
    for (at, tensor) in tensors.into_iter().enumerate() {
        let kind = match tensor.kind {
            DispatchTensorKind::Autodiff(kind) => *kind,
            kind => kind,
        };
        let DispatchTensorKind::Flex(tensor) = kind else { unreachable!("it is on flex") };
        let tensor = match tensor {
            BackendTensor::Float(tensor) if autodiff == none => {
                inputs[at] = Some(tensor);
                continue;
            }
            // This tensor is a constant; autodiff tracks another of the tensors.
            BackendTensor::Float(tensor) => Autodiff::<Flex>::from_inner(tensor),
            BackendTensor::Autodiff(tensor) => tensor,
            _ => unreachable!("it is of floats"),
        };
        let (input, node) = tensor.into_parts();
        (inputs[at], nodes[at]) = (Some(input), Some(node));
    }
    let inputs = inputs.map(|input| input.expect("one for each"));
    if autodiff == none {
        let output = BackendTensor::Float(forward(inputs, sizes, false).0);
        return Ok(DispatchTensor { kind: DispatchTensorKind::Flex(output), autodiff });
    }
    let nodes = nodes.map(|node| node.expect("one for each"));
    // With checkpointing, backward computes the outputs of memory-bound operators again instead of storing
    // them. This operator is declared compute-bound, so it is never computed again, and the checkpointing
    // strategy does not matter.
    let prepared = Fused(PhantomData::<fn(Backward<F, N>)>).prepare::<NoCheckpointing>(nodes).compute_bound();
    let output = match prepared.stateful() {
        OpsKind::Tracked(prepared) => {
            let (output, backward) = forward(inputs, sizes, true);
            prepared.finish(backward, output)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(forward(inputs, sizes, false).0),
    };
    let output = DispatchTensorKind::Flex(BackendTensor::Autodiff(output));
    Ok(DispatchTensor { kind: DispatchTensorKind::Autodiff(Box::new(output)), autodiff })
}

/// Runs [`on_flex`]. If the operator does not support the tensors, logs the reason for the module `name` and
/// returns `composed(tensors)`, which computes the same with Burn's operators.
pub(crate) fn on_flex_or<F: Saved, T, const N: usize, const D: usize>(
    name: &str,
    tensors: [DispatchTensor; N],
    sizes: impl FnOnce([&FlexTensor; N]) -> Option<T>,
    forward: impl FnOnce([FlexTensor; N], T, bool) -> (FlexTensor, Backward<F, N>),
    composed: impl FnOnce([DispatchTensor; N]) -> Tensor<D>,
) -> Tensor<D> {
    match on_flex(tensors, sizes, forward) {
        Ok(output) => Tensor::from_dispatch(output),
        Err(tensors) => composed(unsupported_tensors(name, tensors)),
    }
}

/// Logs with [`unsupported`] why `on_flex` returned these tensors, and returns them. The first tensor is the
/// input of the module.
pub(crate) fn unsupported_tensors<const N: usize>(
    module: &str,
    tensors: [DispatchTensor; N],
) -> [DispatchTensor; N] {
    let found: Option<Vec<_>> = tensors.iter().map(primitive).collect();
    let what = match found {
        None => "backends other than flex".into(),
        Some(found) if found[0].shape().num_elements() == 0 => "empty inputs".into(),
        Some(found) => {
            let mut types: Vec<DType> = found.iter().map(|tensor| tensor.dtype()).collect();
            types.dedup();
            match types[..] {
                [DType::F32] => "the shapes or options of this call".into(),
                _ => format!("types {types:?}"),
            }
        }
    };
    unsupported(module, &what);
    tensors
}

/// Returns the flex tensor of a float tensor, whether autodiff tracks it or not. Returns `None` for a tensor
/// of another type or backend.
pub(crate) fn primitive(tensor: &DispatchTensor) -> Option<&FlexTensor> {
    let kind = match &tensor.kind {
        DispatchTensorKind::Autodiff(kind) => kind,
        kind => kind,
    };
    match kind {
        DispatchTensorKind::Flex(BackendTensor::Float(tensor)) => Some(tensor),
        DispatchTensorKind::Flex(BackendTensor::Autodiff(tensor)) => Some(tensor.primitive()),
        _ => None,
    }
}

#[derive(Debug)]
struct Fused<B>(PhantomData<fn(B)>);

impl<F: Saved, const N: usize> ops::Backward<Flex, N> for Fused<Backward<F, N>> {
    type State = Backward<F, N>;

    fn backward(self, ops: Ops<Backward<F, N>, N>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let gradient = contiguous(grads.consume::<Flex>(&ops.node));
        let mut found = ops.state.run(gradient, ops.parents[0].is_some());
        // Gradients are registered in reverse order: first those of a layer's parameters, last the gradient
        // of its input, with which the backward pass continues in earlier layers.
        for n in (0..N).rev() {
            if let (Some(parent), Some(gradient)) = (&ops.parents[n], found[n].take()) {
                grads.register::<Flex>(parent.id, gradient);
            }
        }
    }
}
