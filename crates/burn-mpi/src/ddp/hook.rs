//! Copies each gradient into its bucket during backward, as soon as the gradient is final. A bucket is a
//! buffer of several gradients, which is sent to the other ranks while backward continues.
//!
//! Burn returns gradients only after backward. However, its autodiff can call a hook whenever it registers a
//! gradient; Burn uses this for its own distributed mode. Here an identity operator on the loss installs the
//! hook. The backward of this operator runs before the backward of all other operators, and replaces Burn's
//! gradient container with a container that calls the hook.
//!
//! The hook works on flex, and on ndarray, libtorch and CUDA if their features are enabled. On other
//! backends, [`backward`] returns the buckets at once, and gradients are collected after Burn's backward.

#![cfg_attr(
    any(feature = "ndarray", feature = "tch"),
    allow(deprecated, reason = "ndarray and tch are deprecated upstream, and users ask for them")
)]

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::marker::PhantomData;

#[cfg(feature = "cuda")]
use burn::backend::Cube;
#[cfg(feature = "tch")]
use burn::backend::LibTorch;
#[cfg(feature = "ndarray")]
use burn::backend::NdArray;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::{DistributedRegistration, Gradients as Container};
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorPrimitive, backend_extension};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::container::TensorContainer;
#[cfg(any(feature = "ndarray", feature = "tch", feature = "cuda"))]
use burn::tensor::read_sync;
use burn::tensor::{DType, FloatDType, Gradients, Tensor};

use crate::ParamLayout;
use crate::collective::polled;
use crate::ddp::buckets::Buckets;

/// State of a hooked backward, which the hook fills.
pub struct HookedBackward {
    /// For the node of each parameter in the autodiff graph, the parameter's index. Every step has new nodes.
    params: HashMap<u64, usize>,
    /// Number of registrations of each parameter's gradient so far.
    times: Vec<usize>,
    /// Parameters in the order of their registrations. A parameter that is used several times occurs several
    /// times.
    pub registered: Vec<usize>,
    /// For each parameter, the gradient that a bucket took; `None` if no bucket took it.
    pub taken: Vec<Option<Taken>>,
    pub buckets: Box<Buckets>,
}

/// A gradient at the time when a bucket took it.
pub struct Taken {
    kept: FlexTensor,
    /// Whether autodiff added to the gradient after a bucket took it.
    pub changed_after_take: bool,
}

impl Taken {
    /// Returns the values as one contiguous slice, in the row-major order of the parameter's shape.
    pub fn values(&self) -> Cow<'_, [f32]> {
        match self.kept.as_slice::<f32>() {
            Some(values) => Cow::Borrowed(values),
            None => self.kept.to_contiguous().as_slice::<f32>().unwrap_or_default().to_vec().into(),
        }
    }

    /// Returns whether `gradient` has the same bits as the gradient that the bucket took.
    pub(crate) fn has_bits_of(&self, gradient: &[f32]) -> bool {
        let values = self.values();
        let same_bits = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
        // The same memory means the same values: `kept` shares it, and flex does not write to shared memory.
        std::ptr::eq(&*values, gradient)
            || (values.len() == gradient.len() && values.iter().zip(gradient).all(same_bits))
    }
}

/// Runs the backward of `loss`, and passes each gradient of a parameter of `module` to `buckets` as soon as
/// it is final. Returns all gradients, including those that buckets took.
///
/// # Errors
/// If the module is on a backend without the hook, returns the buckets at once.
pub fn backward<M: Module>(
    loss: &Tensor<1>,
    module: &M,
    buckets: Box<Buckets>,
) -> Result<(Gradients, HookedBackward), Box<Buckets>> {
    let Some((params, count)) = nodes_of(module) else { return Err(buckets) };
    let hooked: Tensor<1> =
        Tensor::from_dispatch(<Dispatch as HookedLoss>::hook(loss.clone().into_dispatch()));
    let taken = (0..count).map(|_| None).collect();
    let registered = Vec::with_capacity(count);
    HOOKED.set(Some(HookedBackward { params, times: vec![0; count], registered, taken, buckets }));
    let gradients = hooked.backward();
    Ok((gradients, HOOKED.take().expect("only this function removes it, and backward runs on this thread")))
}

/// Returns the graph nodes of `module`'s parameters; no nodes if a trainable parameter is on a backend
/// without the hook.
pub(crate) fn nodes<M: Module>(module: &M) -> impl Iterator<Item = u64> {
    nodes_of(module).into_iter().flat_map(|(nodes, _)| nodes.into_keys())
}

/// Runs the backward of `loss`. Meanwhile, the operations of [`polled`] make progress, if the backend has the
/// hook.
pub(crate) fn polled_backward(loss: &Tensor<1>) -> Gradients {
    // Without buckets, the hook only polls.
    let hooked: Tensor<1> =
        Tensor::from_dispatch(<Dispatch as HookedLoss>::hook(loss.clone().into_dispatch()));
    hooked.backward()
}

/// Makes progress on everything in flight, from inside one long operator: on the buckets of a
/// [`GradientSync`](crate::GradientSync) during its backward on this thread, and at any time on the fragments
/// of the [`LocalUpdates`](crate::LocalUpdates) of this thread.
pub fn poll() {
    polled::poll();
    HOOKED.with_borrow_mut(|hooked| {
        if let Some(hooked) = hooked {
            hooked.buckets.poll();
        }
    });
}

thread_local! {
    /// The backward in progress on this thread. The hook must be `Send`, and a transport is not, so the hook
    /// carries no data and finds its state here. This works because backward is synchronous and runs on the
    /// caller's thread.
    static HOOKED: RefCell<Option<HookedBackward>> = const { RefCell::new(None) };
}

/// The hook for gradients of backend `B`. It is also the identity operator whose backward installs the hook.
#[derive(Debug)]
struct Hook<B>(PhantomData<fn() -> B>);

impl<B: Readable> DistributedRegistration for Hook<B> {
    fn on_register(&mut self, id: &NodeId, container: &mut TensorContainer<u64>) {
        HOOKED.with_borrow_mut(|hooked| {
            let Some(HookedBackward { params, times, registered, taken, buckets }) = hooked else {
                return polled::poll();
            };
            let Some(&param) = params.get(&id.value) else {
                return buckets.poll();
            };
            let gradient = container.get_mut_ref::<TensorPrimitive<B>>(&id.value);
            let Some(TensorPrimitive::Float(gradient)) = gradient else { return };
            times[param] += 1;
            registered.push(param);
            if let Some(taken) = &mut taken[param] {
                taken.changed_after_take = true;
                return buckets.poll();
            }
            if buckets.uses[param] == times[param] {
                let kept = B::read(gradient, &mut |values| buckets.take(param, values));
                taken[param] = kept.map(|kept| Taken { kept, changed_after_take: false });
            }
        });
    }
}

/// A backend from which the hook reads gradients.
pub(super) trait Readable: Backend {
    /// Passes the values of `gradient` to `take`, and returns them. On flex, the result shares the gradient's
    /// memory until the gradient changes; on other backends, it is a copy. Returns `None` if the values
    /// cannot be read; they are then collected after backward.
    fn read(gradient: &FloatTensor<Self>, take: &mut dyn FnMut(&[f32])) -> Option<FlexTensor>;
}

impl Readable for Flex {
    fn read(gradient: &FlexTensor, take: &mut dyn FnMut(&[f32])) -> Option<FlexTensor> {
        // The clone shares memory; a later accumulation makes a new tensor.
        let kept = match gradient.dtype() {
            DType::F32 => gradient.clone(),
            _ => Self::float_cast(gradient.clone(), FloatDType::F32),
        };
        match kept.as_slice::<f32>() {
            Some(values) => take(values),
            // A strided view is copied into contiguous memory first.
            None => take(kept.to_contiguous().as_slice::<f32>()?),
        }
        Some(kept)
    }
}

/// Backends from which values are copied. A GPU's values are copied through the pinned memory of its backend,
/// as soon as the kernels that compute them have run.
macro_rules! copied {
    ($($feature:literal $backend:ident),+) => {$(
        #[cfg(feature = $feature)]
        impl Readable for $backend {
            fn read(gradient: &FloatTensor<Self>, take: &mut dyn FnMut(&[f32])) -> Option<FlexTensor> {
                let data = read_sync(Self::float_into_data(gradient.clone())).ok()?;
                let data = data.convert_dtype(DType::F32);
                take(data.as_slice::<f32>().ok()?);
                Some(FlexTensor::from_data(data))
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
    /// Returns the same loss, with a backward that installs the hook. A backend without autodiff has no
    /// backward, and returns the loss unchanged.
    fn hook(loss: FloatTensor<Self>) -> FloatTensor<Self> {
        loss
    }
}

impl HookedLoss for Flex {}

impl<B: Readable, C: CheckpointStrategy> HookedLoss for Autodiff<B, C> {
    fn hook(loss: FloatTensor<Self>) -> FloatTensor<Self> {
        let (loss, node) = loss.into_parts();
        match Backward::<B, 1>::prepare::<C>(Hook::<B>(PhantomData), [node]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish((), loss),
            OpsKind::UnTracked(prepared) => prepared.finish(loss),
        }
    }
}

impl<B: Readable> Backward<B, 1> for Hook<B> {
    type State = ();

    fn backward(self, ops: Ops<(), 1>, grads: &mut Container, _checkpointer: &mut Checkpointer) {
        let root = grads.consume::<B>(&ops.node);
        *grads = Container::new_distributed::<B>(ops.node.clone(), root.clone(), Box::new(self));
        // The new container starts with its own root gradient, which is removed here.
        grads.consume::<B>(&ops.node);
        if let [Some(parent)] = ops.parents {
            grads.register::<B>(parent.id, root);
        }
    }
}

/// Returns the parameter index of each graph node, and the number of all parameters, including parameters
/// without gradients. `None` if a trainable parameter is on a backend without the hook.
pub(super) fn nodes_of<M: Module>(module: &M) -> Option<(HashMap<u64, usize>, usize)> {
    let mut visitor = NodeVisitor { nodes: HashMap::new(), next: 0, is_hooked: true };
    module.visit(&mut visitor);
    visitor.is_hooked.then_some((visitor.nodes, visitor.next))
}

/// Returns the first parameter that `layout` has as tied, but is another tensor than the parameter that it is
/// tied to. `None` on a backend without the hook.
pub(super) fn untied<M: Module>(module: &M, layout: &ParamLayout) -> Option<usize> {
    let tied = layout.tied();
    if tied.is_empty() {
        return None;
    }
    let (nodes, _) = nodes_of(module)?;
    tied.into_iter().find(|param| nodes.values().any(|owner| owner == param))
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

/// Returns the graph node of a parameter; `None` if its backend has no hook.
fn node_of<const D: usize>(value: Tensor<D>) -> Option<u64> {
    /// Returns from `node_of` with the graph node, if the tensor is on `$backend`.
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
