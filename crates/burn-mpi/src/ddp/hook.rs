//! Backward hook: reports final gradients during backward.
//!
//! Burn returns gradients only after backward. However, its autodiff can call a hook at every
//! gradient that it registers, which Burn uses for its own distributed mode. An identity
//! operator on the loss installs that hook: its backward runs first of all, and replaces the
//! gradient container with one that has the hook.
//!
//! Only Burn's flex backend is hooked; on others [`backward`] returns the loss, and gradients
//! are collected afterwards.

#![cfg_attr(
    any(feature = "ndarray", feature = "tch"),
    allow(deprecated, reason = "deprecated upstream, and asked for by users")
)]

use std::cell::RefCell;
use std::collections::HashMap;

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
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorPrimitive, backend_extension};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::container::TensorContainer;
use burn::tensor::{Gradients, Tensor};

/// Receives gradients during backward. It is moved into thread-local storage for the hook and
/// back, so it holds no borrow.
pub trait GradientSink: 'static {
    /// The gradient of parameter `param` (its index in visit order) was accumulated for the
    /// `n`-th time in this backward, from 1. Returns whether the sink takes `values` as
    /// final; if so, it is not called again for this parameter.
    fn gradient(&mut self, param: usize, n: usize, values: &[f32]) -> bool;

    /// Another gradient was registered: an opportunity to poll transfers.
    fn between(&mut self);
}

/// The result of a hooked backward.
pub struct Hooked<S> {
    /// All gradients, including those that were taken.
    pub gradients: Gradients,
    /// The sink.
    pub sink: S,
    /// Parameters in the order of their registrations; one that is used several times occurs
    /// as often.
    pub registered: Vec<usize>,
    /// The gradient that the sink took of each parameter, if any.
    pub taken: Vec<Option<Taken>>,
}

/// A gradient at the time when the sink took it.
pub struct Taken {
    /// Shares memory with the gradient itself, unless that has changed.
    values: FlexTensor,
    /// Whether the gradient was accumulated further afterwards.
    pub outgrown: bool,
}

impl Taken {
    /// The values, in the layout of the parameter.
    pub fn values(&self) -> Vec<f32> {
        self.values.to_contiguous().as_slice::<f32>().unwrap_or_default().to_vec()
    }
}

/// Runs `loss`'s backward; every gradient of a parameter of `module` is passed to `sink` as
/// soon as it is registered.
///
/// # Errors
/// If the module is not on the flex backend, returns the sink at once.
pub fn backward<M: Module, S: GradientSink>(loss: &Tensor<1>, module: &M, sink: S) -> Result<Hooked<S>, S> {
    let Some((params, count)) = nodes_of(module) else {
        return Err(sink);
    };
    let hooked = Tensor::<1>::from_dispatch(<Dispatch as HookedLoss>::hook(loss.clone().into_dispatch()));
    let taken = (0..count).map(|_| None).collect();
    let registered = Vec::with_capacity(count);
    let watch =
        Watch { params, times: vec![0; count], registered, taken, sink: Box::new(Holder(Some(sink))) };
    WATCH.set(Some(watch));
    let gradients = hooked.backward();
    let left = WATCH.take().and_then(|Watch { mut sink, registered, taken, .. }| {
        let holder: &mut dyn std::any::Any = sink.as_any();
        let sink = holder.downcast_mut::<Holder<S>>().and_then(|holder| holder.0.take())?;
        Some((sink, registered, taken))
    });
    match left {
        Some((sink, registered, taken)) => Ok(Hooked { gradients, sink, registered, taken }),
        None => unreachable!("only this function removes the sink, and backward runs on this thread"),
    }
}

/// Polls transfers from inside an operator's long backward. Does nothing outside a backward
/// of a [`GradientSync`](crate::GradientSync) on this thread.
pub fn poll() {
    WATCH.with_borrow_mut(|watch| {
        if let Some(sink) = watch.as_mut().and_then(|watch| watch.sink.sink()) {
            sink.between();
        }
    });
}

thread_local! {
    /// The backward in progress on this thread. Backward is synchronous and runs on the
    /// caller's thread, and the hook must be `Send`, which a transport is not: so the hook
    /// carries no data and finds all of it here.
    static WATCH: RefCell<Option<Watch>> = const { RefCell::new(None) };
}

struct Watch {
    /// Parameter of each graph node. Nodes are new in every step.
    params: HashMap<u64, usize>,
    /// Registrations of each parameter's gradient.
    times: Vec<usize>,
    registered: Vec<usize>,
    taken: Vec<Option<Taken>>,
    sink: Box<dyn AnySink>,
}

/// A sink that can be downcast to its type.
trait AnySink {
    fn sink(&mut self) -> Option<&mut dyn GradientSink>;
    fn as_any(&mut self) -> &mut dyn std::any::Any;
}

struct Holder<S>(Option<S>);

impl<S: GradientSink> AnySink for Holder<S> {
    fn sink(&mut self) -> Option<&mut dyn GradientSink> {
        self.0.as_mut().map(|sink| sink as &mut dyn GradientSink)
    }

    fn as_any(&mut self) -> &mut dyn std::any::Any {
        self
    }
}

/// The hook itself.
struct Registration;

impl DistributedRegistration for Registration {
    fn on_register(&mut self, id: &NodeId, container: &mut TensorContainer<u64>) {
        WATCH.with_borrow_mut(|watch| {
            let Some(Watch { params, times, registered, taken, sink }) = watch else { return };
            let Some(sink) = sink.sink() else { return };
            let Some(&param) = params.get(&id.value) else {
                return sink.between();
            };
            let gradient = container.get_mut_ref::<TensorPrimitive<Flex>>(&id.value);
            let Some(TensorPrimitive::Float(gradient)) = gradient else { return };
            times[param] += 1;
            registered.push(param);
            if let Some(taken) = &mut taken[param] {
                taken.outgrown = true;
                return sink.between();
            }
            let is_final = match gradient.as_slice::<f32>() {
                Some(values) => sink.gradient(param, times[param], values),
                // A strided view; read in its own order, it is copied first.
                None => {
                    let gradient = gradient.to_contiguous();
                    gradient
                        .as_slice::<f32>()
                        .is_some_and(|values| sink.gradient(param, times[param], values))
                }
            };
            if is_final {
                // The clone shares memory; a later accumulation makes a new tensor.
                taken[param] = Some(Taken { values: gradient.clone(), outgrown: false });
            }
        });
    }
}

#[cfg_attr(all(feature = "ndarray", feature = "tch"), backend_extension(Flex, NdArray, LibTorch, Autodiff))]
#[cfg_attr(all(feature = "ndarray", not(feature = "tch")), backend_extension(Flex, NdArray, Autodiff))]
#[cfg_attr(all(not(feature = "ndarray"), feature = "tch"), backend_extension(Flex, LibTorch, Autodiff))]
#[cfg_attr(not(any(feature = "ndarray", feature = "tch")), backend_extension(Flex, Autodiff))]
trait HookedLoss: Backend {
    /// The same loss, with a backward that installs the hook if possible.
    fn hook(loss: FloatTensor<Self>) -> FloatTensor<Self> {
        loss
    }
}

impl HookedLoss for Flex {}
#[cfg(feature = "ndarray")]
impl HookedLoss for NdArray {}
#[cfg(feature = "ndarray")]
impl<C: CheckpointStrategy> HookedLoss for Autodiff<NdArray, C> {}
#[cfg(feature = "tch")]
impl HookedLoss for LibTorch {}
#[cfg(feature = "tch")]
impl<C: CheckpointStrategy> HookedLoss for Autodiff<LibTorch, C> {}

impl<C: CheckpointStrategy> HookedLoss for Autodiff<Flex, C> {
    fn hook(loss: FloatTensor<Self>) -> FloatTensor<Self> {
        let (loss, node) = loss.into_parts();
        match InstallHook.prepare::<C>([node]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish((), loss),
            OpsKind::UnTracked(prepared) => prepared.finish(loss),
        }
    }
}

/// The identity, whose backward installs the hook.
#[derive(Debug)]
struct InstallHook;

impl Backward<Flex, 1> for InstallHook {
    type State = ();

    fn backward(self, ops: Ops<(), 1>, grads: &mut Container, _checkpointer: &mut Checkpointer) {
        let root = grads.consume::<Flex>(&ops.node);
        *grads = Container::new_distributed::<Flex>(ops.node.clone(), root.clone(), Box::new(Registration));
        // The new container starts with its own root gradient.
        grads.consume::<Flex>(&ops.node);
        if let [Some(parent)] = ops.parents {
            grads.register::<Flex>(parent.id, root);
        }
    }
}

/// Graph nodes of a module's parameters, and the number of parameters including those that
/// get no gradients; `None` if it is not on flex.
fn nodes_of<M: Module>(module: &M) -> Option<(HashMap<u64, usize>, usize)> {
    let mut visitor = NodeVisitor { nodes: HashMap::new(), next: 0, on_flex: true };
    module.visit(&mut visitor);
    visitor.on_flex.then_some((visitor.nodes, visitor.next))
}

struct NodeVisitor {
    nodes: HashMap<u64, usize>,
    next: usize,
    on_flex: bool,
}

impl ModuleVisitor for NodeVisitor {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let index = self.next;
        self.next += 1;
        if !param.is_require_grad() {
            return;
        }
        match param.val().try_into_primitive::<Autodiff<Flex>>() {
            Ok(primitive) => {
                // A tied parameter is visited several times; the first index owns it.
                self.nodes.entry(primitive.id().value).or_insert(index);
            }
            Err(_) => self.on_flex = false,
        }
    }
}
