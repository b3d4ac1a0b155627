//! Macro that declares an operator's trait and dispatches it to Burn's backends.

/// Declares the trait of an operator with the code that all operators share:
/// `Dispatch` routes its methods to flex, and with their features to ndarray and
/// libtorch, each with and without autodiff. ndarray runs the methods' default
/// bodies, which compose Burn's operators; so does libtorch, unless the declaration
/// ends in `except Autodiff<LibTorch>`. The implementations for `Flex` and
/// `Autodiff<Flex, C>` are written by hand.
macro_rules! operator {
    ($vis:vis trait $name:ident($($bounds:tt)*) { $($body:tt)* }) => {
        operator!($vis trait $name($($bounds)*) { $($body)* } except Autodiff<LibTorch>);

        #[cfg(feature = "tch")]
        impl<C> $name for burn::backend::Autodiff<burn::backend::LibTorch, C> where
            C: burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy
        {
        }
    };
    ($vis:vis trait $name:ident($($bounds:tt)*) { $($body:tt)* } except Autodiff<LibTorch>) => {
        #[burn::backend::backend_extension(
            Flex,
            NdArray: cfg(feature = "ndarray"),
            LibTorch: cfg(feature = "tch"),
            Autodiff
        )]
        $vis trait $name: $($bounds)* {
            $($body)*
        }

        #[cfg(feature = "ndarray")]
        impl $name for burn::backend::NdArray {}

        #[cfg(feature = "ndarray")]
        impl<C> $name for burn::backend::Autodiff<burn::backend::NdArray, C> where
            C: burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy
        {
        }

        #[cfg(feature = "tch")]
        impl $name for burn::backend::LibTorch {}
    };
}

pub(crate) use operator;
