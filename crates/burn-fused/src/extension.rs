//! Macro that declares an operator's trait and dispatches it to Burn's backends.

/// Declares the trait of an operator with the code that all operators share:
/// `Dispatch` routes its methods to flex, and with their features to ndarray,
/// libtorch and CubeCL's backend (CUDA), each with and without autodiff. ndarray and
/// CUDA run the methods' default bodies, which compose Burn's operators; so does
/// libtorch, unless the declaration ends in `except Autodiff<LibTorch>`. The implementations for `Flex` and
/// `Autodiff<Flex, C>` are written by hand, and so are those of all backends with
/// autodiff if the declaration ends in `except Autodiff`.
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
        operator!($vis trait $name($($bounds)*) { $($body)* } except Autodiff);

        #[cfg(feature = "ndarray")]
        impl<C> $name for burn::backend::Autodiff<burn::backend::NdArray, C> where
            C: burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy
        {
        }

        #[cfg(feature = "cuda")]
        impl<C> $name for burn::backend::Autodiff<burn::backend::Cube, C> where
            C: burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy
        {
        }
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

pub(crate) use operator;
