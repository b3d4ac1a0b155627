//! Backward hook: reports final gradients during backward.
//!
//! Burn returns gradients only after backward. However, its autodiff can call a hook at every
//! gradient that it registers, which Burn uses for its own distributed mode. An identity
//! operator on the loss installs that hook: its backward runs first of all, and replaces the
//! gradient container with one that has the hook.
//!
//! flex, and with their features ndarray, libtorch and CUDA are hooked ([`backends`]); on others
//! [`backward`] returns the sink, and gradients are collected afterwards.

#![cfg_attr(
    any(feature = "ndarray", feature = "tch"),
    allow(deprecated, reason = "deprecated upstream, and asked for by users")
)]

mod backends;

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::marker::PhantomData;

use burn::backend::TensorPrimitive;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::grads::DistributedRegistration;
use burn::module::Module;
use burn::tensor::container::TensorContainer;
use burn::tensor::{Gradients, Tensor};

use self::backends::{Kept, Readable, hooked, nodes_of};

/// Receives gradients during backward. It is moved into thread-local storage for the hook and
/// back, so it holds no borrow.
pub trait GradientSink: Any {
    /// Whether the gradient of parameter `param` (its index in visit order) is final once it was
    /// accumulated for the `n`-th time in this backward, from 1.
    fn is_final(&self, param: usize, n: usize) -> bool;

    /// Takes the gradient of `param`, which is final; at most once in a backward.
    fn take(&mut self, param: usize, values: &[f32]);

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
    kept: Kept,
    /// Whether the gradient was accumulated further afterwards.
    pub changed_after_take: bool,
}

impl Taken {
    /// The values, in the layout of the parameter.
    pub fn values(&self) -> Vec<f32> {
        self.kept.values().into_owned()
    }

    /// Whether `gradient` has the same bits.
    pub(crate) fn is(&self, gradient: &[f32]) -> bool {
        let values = self.kept.values();
        let same_bits = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
        // The same memory has not changed: that of a tensor that is shared is not written to.
        std::ptr::eq(&*values, gradient)
            || (values.len() == gradient.len() && values.iter().zip(gradient).all(same_bits))
    }
}

/// Runs `loss`'s backward; every gradient of a parameter of `module` is passed to `sink` as
/// soon as it is registered.
///
/// # Errors
/// If the module is on a backend without the hook, returns the sink at once.
pub fn backward<M: Module, S: GradientSink>(loss: &Tensor<1>, module: &M, sink: S) -> Result<Hooked<S>, S> {
    let Some((params, count)) = nodes_of(module) else {
        return Err(sink);
    };
    let hooked = hooked(loss.clone());
    let taken = (0..count).map(|_| None).collect();
    let registered = Vec::with_capacity(count);
    WATCH.set(Some(Watch { params, times: vec![0; count], registered, taken, sink: Box::new(sink) }));
    let gradients = hooked.backward();
    let Some(Watch { sink, registered, taken, .. }) = WATCH.take() else {
        unreachable!("only this function removes it, and backward runs on this thread")
    };
    let sink: Box<dyn Any> = sink;
    match sink.downcast::<S>() {
        Ok(sink) => Ok(Hooked { gradients, sink: *sink, registered, taken }),
        Err(_) => unreachable!("it was made of this type"),
    }
}

/// The graph nodes of `module`'s parameters, where backends are hooked.
pub(crate) fn nodes<M: Module>(module: &M) -> impl Iterator<Item = u64> {
    nodes_of(module).into_iter().flat_map(|(nodes, _)| nodes.into_keys())
}

/// Polls transfers from inside an operator's long backward. Does nothing outside a backward
/// of a [`GradientSync`](crate::GradientSync) on this thread.
pub fn poll() {
    WATCH.with_borrow_mut(|watch| {
        if let Some(watch) = watch {
            watch.sink.between();
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
    sink: Box<dyn GradientSink>,
}

/// The hook itself, for gradients of backend `B`.
struct Registration<B>(PhantomData<fn() -> B>);

impl<B> Default for Registration<B> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<B: Readable> DistributedRegistration for Registration<B> {
    fn on_register(&mut self, id: &NodeId, container: &mut TensorContainer<u64>) {
        WATCH.with_borrow_mut(|watch| {
            let Some(Watch { params, times, registered, taken, sink }) = watch else { return };
            let Some(&param) = params.get(&id.value) else {
                return sink.between();
            };
            let gradient = container.get_mut_ref::<TensorPrimitive<B>>(&id.value);
            let Some(TensorPrimitive::Float(gradient)) = gradient else { return };
            times[param] += 1;
            registered.push(param);
            if let Some(taken) = &mut taken[param] {
                taken.changed_after_take = true;
                return sink.between();
            }
            if sink.is_final(param, times[param]) {
                let kept = B::read(gradient, &mut |values| sink.take(param, values));
                taken[param] = kept.map(|kept| Taken { kept, changed_after_take: false });
            }
        });
    }
}
