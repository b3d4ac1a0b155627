//! Burn's backends whose gradients are reported during backward, and how their values are read.

use std::borrow::Cow;
use std::collections::HashMap;

#[cfg(feature = "cuda")]
use burn::backend::Cube;
#[cfg(feature = "tch")]
use burn::backend::LibTorch;
#[cfg(feature = "ndarray")]
use burn::backend::NdArray;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients as Container;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
#[cfg(any(feature = "ndarray", feature = "tch", feature = "cuda"))]
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, backend_extension};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
#[cfg(any(feature = "ndarray", feature = "tch", feature = "cuda"))]
use burn::tensor::{DType, read_sync};

use super::Registration;

/// A gradient as it was when the sink took it.
pub(super) enum Kept {
    /// flex's memory, shared with the gradient until that changes.
    Shared(FlexTensor),
    /// A copy of another device's memory.
    #[cfg_attr(not(any(feature = "ndarray", feature = "tch", feature = "cuda")), expect(dead_code))]
    Copied(Vec<f32>),
}

impl Kept {
    /// The values, in the layout of the parameter.
    pub(super) fn values(&self) -> Cow<'_, [f32]> {
        match self {
            Self::Shared(tensor) => match tensor.as_slice::<f32>() {
                Some(values) => Cow::Borrowed(values),
                None => tensor.to_contiguous().as_slice::<f32>().unwrap_or_default().to_vec().into(),
            },
            Self::Copied(values) => Cow::Borrowed(values),
        }
    }
}

/// A backend whose gradients the hook reads.
pub(super) trait Readable: Backend {
    /// Passes the values of `gradient` to `take`; none if they cannot be read, so that they are
    /// collected after backward.
    fn read(gradient: &FloatTensor<Self>, take: &mut dyn FnMut(&[f32])) -> Option<Kept>;
}

impl Readable for Flex {
    fn read(gradient: &FlexTensor, take: &mut dyn FnMut(&[f32])) -> Option<Kept> {
        match gradient.as_slice::<f32>() {
            Some(values) => take(values),
            // A strided view; read in its own order, it is copied first.
            None => take(gradient.to_contiguous().as_slice::<f32>()?),
        }
        // The clone shares memory; a later accumulation makes a new tensor.
        Some(Kept::Shared(gradient.clone()))
    }
}

/// Backends whose values are copied: a GPU's through the pinned memory of its backend, as soon as
/// the kernels that compute them have run.
macro_rules! copied {
    ($($feature:literal $backend:ident),+) => {$(
        #[cfg(feature = $feature)]
        impl Readable for $backend {
            fn read(gradient: &FloatTensor<Self>, take: &mut dyn FnMut(&[f32])) -> Option<Kept> {
                let data = read_sync(Self::float_into_data(gradient.clone())).ok()?;
                let values = data.convert_dtype(DType::F32).try_into_vec::<f32>().ok()?;
                take(&values);
                Some(Kept::Copied(values))
            }
        }

        #[cfg(feature = $feature)]
        impl HookedLoss for $backend {}
    )+};
}

copied!("ndarray" NdArray, "tch" LibTorch, "cuda" Cube);

#[backend_extension(
    Flex,
    NdArray: cfg(feature = "ndarray"),
    LibTorch: cfg(feature = "tch"),
    Cube: cfg(feature = "cuda"),
    Autodiff
)]
trait HookedLoss: Backend {
    /// The same loss, with a backward that installs the hook; without autodiff there is none.
    fn hook(loss: FloatTensor<Self>) -> FloatTensor<Self> {
        loss
    }
}

impl HookedLoss for Flex {}

impl<B: Readable, C: CheckpointStrategy> HookedLoss for Autodiff<B, C> {
    fn hook(loss: FloatTensor<Self>) -> FloatTensor<Self> {
        let (loss, node) = loss.into_parts();
        match Backward::<B, 1>::prepare::<C>(InstallHook, [node]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish((), loss),
            OpsKind::UnTracked(prepared) => prepared.finish(loss),
        }
    }
}

/// `loss`, whose backward installs the hook.
pub(super) fn hooked(loss: Tensor<1>) -> Tensor<1> {
    Tensor::from_dispatch(<Dispatch as HookedLoss>::hook(loss.into_dispatch()))
}

/// The identity, whose backward installs the hook.
#[derive(Debug)]
struct InstallHook;

impl<B: Readable> Backward<B, 1> for InstallHook {
    type State = ();

    fn backward(self, ops: Ops<(), 1>, grads: &mut Container, _checkpointer: &mut Checkpointer) {
        let root = grads.consume::<B>(&ops.node);
        let registration = Box::new(Registration::<B>::default());
        *grads = Container::new_distributed::<B>(ops.node.clone(), root.clone(), registration);
        // The new container starts with its own root gradient.
        grads.consume::<B>(&ops.node);
        if let [Some(parent)] = ops.parents {
            grads.register::<B>(parent.id, root);
        }
    }
}

/// Graph nodes of a module's parameters, and the number of parameters including those that
/// get no gradients; `None` if one is on a backend that is not hooked.
pub(super) fn nodes_of<M: Module>(module: &M) -> Option<(HashMap<u64, usize>, usize)> {
    let mut visitor = NodeVisitor { nodes: HashMap::new(), next: 0, is_hooked: true };
    module.visit(&mut visitor);
    visitor.is_hooked.then_some((visitor.nodes, visitor.next))
}

struct NodeVisitor {
    nodes: HashMap<u64, usize>,
    next: usize,
    is_hooked: bool,
}

impl ModuleVisitor for NodeVisitor {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let index = self.next;
        self.next += 1;
        if !param.is_require_grad() {
            return;
        }
        match node_of(param.val()) {
            // A tied parameter is visited several times; the first index owns it.
            Some(node) => _ = self.nodes.entry(node).or_insert(index),
            None => self.is_hooked = false,
        }
    }
}

/// The graph node of a parameter, if its backend is hooked.
fn node_of<const D: usize>(value: Tensor<D>) -> Option<u64> {
    /// The node if the tensor is on the backend.
    macro_rules! on {
        ($backend:ident) => {
            if let Ok(primitive) = value.clone().try_into_primitive::<Autodiff<$backend>>() {
                return Some(primitive.id().value);
            }
        };
    }
    on!(Flex);
    #[cfg(feature = "ndarray")]
    on!(NdArray);
    #[cfg(feature = "tch")]
    on!(LibTorch);
    #[cfg(feature = "cuda")]
    on!(Cube);
    None
}
