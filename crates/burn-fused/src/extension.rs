//! Declares operators and dispatches them to Burn's backends.

use std::fmt::Debug;
use std::marker::PhantomData;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
pub(crate) use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex};

use crate::flex_tensor::contiguous;

/// What forward saves of an operator of `N` tensors on flex, for backward.
pub(crate) trait Saved<const N: usize>: Clone + Debug + Send + 'static {
    /// The gradients of the tensors from that of the output, which is contiguous; the first is not
    /// needed unless `of_first`.
    fn backward(self, gradient: FlexTensor, of_first: bool) -> [Option<FlexTensor>; N];
}

/// An operator of `tensors` on the graph of autodiff. `forward` computes the output and, if there is a
/// backward, what that needs.
pub(crate) fn on_graph<C: CheckpointStrategy, S: Saved<N>, const N: usize>(
    tensors: [FloatTensor<Autodiff<Flex, C>>; N],
    forward: impl FnOnce([FlexTensor; N], bool) -> (FlexTensor, S),
) -> FloatTensor<Autodiff<Flex, C>> {
    let mut inputs = [const { None }; N];
    let mut parts = inputs.iter_mut();
    let nodes = tensors.map(|tensor| {
        let (input, node) = tensor.into_parts();
        *parts.next().expect("one for each") = Some(input);
        node
    });
    let inputs = inputs.map(|input| input.expect("one for each"));
    match FusedBackward(PhantomData::<fn(S)>).prepare::<C>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => {
            let (output, saved) = forward(inputs, true);
            prepared.finish(saved, output)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(forward(inputs, false).0),
    }
}

#[derive(Debug)]
struct FusedBackward<S>(PhantomData<fn(S)>);

impl<S: Saved<N>, const N: usize> Backward<Flex, N> for FusedBackward<S> {
    type State = S;

    fn backward(self, ops: Ops<S, N>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let gradient = contiguous(grads.consume::<Flex>(&ops.node));
        let mut found = ops.state.backward(gradient, ops.parents[0].is_some());
        // Those of a layer's parameters before that of its input, which earlier layers wait for.
        for n in (0..N).rev() {
            if let (Some(parent), Some(gradient)) = (&ops.parents[n], found[n].take()) {
                grads.register::<Flex>(parent.id, gradient);
            }
        }
    }
}

/// Declares the trait of an operator with the code that all operators share:
/// `Dispatch` routes its methods to flex, and with their features to ndarray,
/// libtorch and CubeCL's backend (CUDA), each with and without autodiff. ndarray and
/// CUDA run the methods' default bodies, which compose Burn's operators; so does
/// libtorch, unless the declaration ends in `except Autodiff<LibTorch>`. The implementations for `Flex` and
/// `Autodiff<Flex, C>` are written by hand or by [`fused_operator`], and so are those of all backends with
/// autodiff if the declaration ends in `except Autodiff`.
macro_rules! operator {
    ($vis:vis trait $name:ident($($bounds:tt)*) { $($body:tt)* }) => {
        $crate::extension::operator!($vis trait $name($($bounds)*) { $($body)* } except Autodiff<LibTorch>);

        #[cfg(feature = "tch")]
        impl<C: $crate::extension::CheckpointStrategy> $name for burn::backend::Autodiff<burn::backend::LibTorch, C> {}
    };
    ($vis:vis trait $name:ident($($bounds:tt)*) { $($body:tt)* } except Autodiff<LibTorch>) => {
        $crate::extension::operator!($vis trait $name($($bounds)*) { $($body)* } except Autodiff);

        #[cfg(feature = "ndarray")]
        impl<C: $crate::extension::CheckpointStrategy> $name for burn::backend::Autodiff<burn::backend::NdArray, C> {}

        #[cfg(feature = "cuda")]
        impl<C: $crate::extension::CheckpointStrategy> $name for burn::backend::Autodiff<burn::backend::Cube, C> {}
    };
    ($vis:vis trait $name:ident($($bounds:tt)*) { $($body:tt)* } except Autodiff) => {
        #[burn::backend::backend_extension(
            Flex,
            NdArray: cfg(feature = "ndarray"),
            LibTorch: cfg(feature = "tch"),
            Cube: cfg(feature = "cuda"),
            Autodiff
        )]
        $vis trait $name: $($bounds)* {
            $($body)*
        }

        #[cfg(feature = "ndarray")]
        impl $name for burn::backend::NdArray {}

        #[cfg(feature = "tch")]
        impl $name for burn::backend::LibTorch {}

        #[cfg(feature = "cuda")]
        impl $name for burn::backend::Cube {}
    };
}

/// Declares an [`operator`] of float tensors and at most one other argument that has one output, with its
/// implementations for flex. `$shape` returns the sizes of tensors that the operator supports; `$forward`
/// takes the tensors, their sizes, the argument and whether backward follows, and returns the output and
/// what is [`Saved`]. Other tensors go to `$composed`, of Burn's operators.
macro_rules! fused_operator {
    (
        $vis:vis trait $name:ident($($bounds:tt)*) {
            fn $function:ident([$($tensor:ident),*] $(, $argument:ident: $type:ty)?) =
                $shape:ident, $forward:ident or $composed:ident;
        } $($except:tt)*
    ) => {
        $crate::extension::operator! {
            $vis trait $name($($bounds)*) {
                fn $function($($tensor: burn::backend::tensor::FloatTensor<Self>,)* $($argument: $type)?) -> burn::backend::tensor::FloatTensor<Self> {
                    $composed::<Self>([$($tensor),*] $(, $argument)?)
                }
            } $($except)*
        }

        impl $name for burn::backend::Flex {
            fn $function($($tensor: burn::backend::tensor::FloatTensor<Self>,)* $($argument: $type)?) -> burn::backend::tensor::FloatTensor<Self> {
                match $shape([$(&$tensor),*]) {
                    Some(shape) => $forward([$($tensor),*], shape, $($argument,)? false).0,
                    None => $composed::<Self>([$($tensor),*] $(, $argument)?),
                }
            }
        }

        impl<C: $crate::extension::CheckpointStrategy> $name for burn::backend::Autodiff<burn::backend::Flex, C> {
            fn $function($($tensor: burn::backend::tensor::FloatTensor<Self>,)* $($argument: $type)?) -> burn::backend::tensor::FloatTensor<Self> {
                match $shape([$($tensor.primitive()),*]) {
                    Some(shape) => $crate::extension::on_graph::<C, _, _>([$($tensor),*], |tensors, backward| {
                        $forward(tensors, shape, $($argument,)? backward)
                    }),
                    None => $composed::<Self>([$($tensor),*] $(, $argument)?),
                }
            }
        }
    };
}

pub(crate) use {fused_operator, operator};
