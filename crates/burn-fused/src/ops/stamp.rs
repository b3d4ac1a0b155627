//! A callback at a point of the backward pass, to measure the backward of single layers.
//!
//! Backward runs inside Burn's autodiff, where a program cannot insert code. [`stamp_backward`] is therefore
//! an identity operator between two layers: its backward runs between the backwards of the two layers.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients as Container;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, backend_extension};
use burn::tensor::Tensor;

/// Returns `x` unchanged. Its backward calls `stamp(id)` on the thread that runs backward, as soon as the
/// gradient of `x` is complete, and passes the gradient on. Without autodiff, and for a tensor that needs no
/// gradient, `stamp` is not called.
///
/// ```
/// use std::cell::Cell;
///
/// use burn::tensor::{Device, Tensor};
/// use burn_fused::stamp_backward;
///
/// thread_local!(static LAST: Cell<usize> = const { Cell::new(0) });
///
/// let x = Tensor::<1>::ones([3], &Device::flex().autodiff()).require_grad();
/// let y = stamp_backward(x.clone() * 2.0, 7, |id| LAST.set(id));
/// let gradients = y.sum().backward();
/// assert_eq!(LAST.get(), 7);
/// assert_eq!(x.grad(&gradients).map(|gradient| gradient.dims()), Some([3]));
/// ```
pub fn stamp_backward<const D: usize>(x: Tensor<D>, id: usize, stamp: fn(usize)) -> Tensor<D> {
    Tensor::from_dispatch(<Dispatch as Stamped>::stamped(x.into_dispatch(), (stamp, id)))
}

/// The callback and its argument.
type Stamp = (fn(usize), usize);

#[backend_extension(
    Flex,
    NdArray: cfg(feature = "ndarray"),
    LibTorch: cfg(feature = "tch"),
    Cube: cfg(feature = "cuda"),
    Autodiff
)]
trait Stamped: Backend {
    fn stamped(x: FloatTensor<Self>, _stamp: Stamp) -> FloatTensor<Self> {
        x
    }
}

impl Stamped for Flex {}

#[cfg(feature = "ndarray")]
impl Stamped for burn::backend::NdArray {}

#[cfg(feature = "tch")]
impl Stamped for burn::backend::LibTorch {}

#[cfg(feature = "cuda")]
impl Stamped for burn::backend::Cube {}

// Every backend runs backward in Burn's autodiff, so this implementation is the only one that calls the
// callback.
impl<B: Stamped, C: CheckpointStrategy> Stamped for Autodiff<B, C> {
    fn stamped(x: FloatTensor<Self>, stamp: Stamp) -> FloatTensor<Self> {
        let (x, node) = x.into_parts();
        match Backward::<B, 1>::prepare::<C>(StampBackward, [node]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish(stamp, x),
            OpsKind::UnTracked(prepared) => prepared.finish(x),
        }
    }
}

#[derive(Debug)]
struct StampBackward;

impl<B: Backend> Backward<B, 1> for StampBackward {
    type State = Stamp;

    fn backward(self, ops: Ops<Stamp, 1>, grads: &mut Container, _checkpointer: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        let (stamp, id) = ops.state;
        stamp(id);
        let [parent] = ops.parents;
        if let Some(parent) = parent {
            grads.register::<B>(parent.id, gradient);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use burn::tensor::{DType, Device};

    use super::*;

    thread_local!(static ORDER: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) });

    fn note(id: usize) {
        ORDER.with_borrow_mut(|order| order.push(id));
    }

    #[test]
    fn stamps_come_in_reverse_order_and_gradients_are_unchanged() {
        let device = Device::flex().autodiff();
        for dtype in [DType::F32, DType::BF16] {
            let x = Tensor::<1>::from_floats([1.0, -2.0, 3.0], &device).require_grad();
            let first = stamp_backward(x.clone().cast(dtype) * 3.0, 1, note);
            let second = stamp_backward(first.clone() * first, 2, note);
            let gradients = second.cast(DType::F32).sum().backward();
            assert_eq!(ORDER.take(), [2, 1], "{dtype:?}");
            let found = x.grad(&gradients).expect("a gradient").into_data();
            assert_eq!(found.iter::<f32>().collect::<Vec<_>>(), [18.0, -36.0, 54.0]);
        }
    }

    #[test]
    fn a_tensor_without_gradient_is_not_stamped() {
        let device = Device::flex().autodiff();
        let weight = Tensor::<1>::ones([2], &device).require_grad();
        let samples = stamp_backward(Tensor::<1>::ones([2], &device), 3, note);
        let plain = stamp_backward(Tensor::<1>::ones([2], &Device::flex()), 4, note);
        assert_eq!(plain.dims(), [2]);
        (samples * weight).sum().backward();
        assert!(ORDER.take().is_empty());
    }
}
