//! The transports that `--backend` selects, and how ranks connect over them.

use burn_mpi::{Backend, Collective, CommError, Primitives, Transport, World, connect, connect_primitives};
#[cfg(feature = "nccl")]
use burn_mpi_nccl::NcclCollective;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::values::display_names;

/// A transport of the gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum BackendKind {
    /// MPI's own collectives.
    Mpi,
    /// The gloo library over TCP, feature `gloo`.
    Gloo,
    /// NVIDIA's NCCL between GPUs, feature `nccl`.
    Nccl,
}

display_names!(BackendKind);

/// The error of `--backend nccl` in a build without nccl.
const NO_NCCL: &str = "this build does not include nccl: choose mpi or gloo, or run `make build DEVICES=nccl`, which \
                       writes the binary to target-nccl/release";

impl BackendKind {
    /// Checks that this build includes the transport.
    ///
    /// # Errors
    /// If this build lacks the transport. The error says what to choose, or how to build with the transport.
    pub fn check_built(self) -> Result<(), String> {
        match self {
            Self::Mpi => Backend::Mpi.check_built(),
            Self::Gloo => Backend::Gloo.check_built(),
            Self::Nccl if cfg!(feature = "nccl") => Ok(()),
            Self::Nccl => Err(NO_NCCL.into()),
        }
    }

    /// Connects all ranks. All ranks must call this method. NCCL uses GPU number `gpu`. If `gpu` is `None`,
    /// NCCL uses the first GPU that no lower rank of the machine uses.
    ///
    /// # Errors
    /// If this build lacks the transport, if ranks cannot reach each other, or if a rank has no GPU for NCCL.
    #[cfg_attr(not(feature = "nccl"), expect(unused_variables, reason = "NCCL alone takes a GPU"))]
    pub fn connect(
        self,
        world: &World,
        transport: &Transport,
        gpu: Option<usize>,
    ) -> Result<Box<dyn Collective>, CommError> {
        match self {
            Self::Mpi => connect(world, Backend::Mpi, transport),
            Self::Gloo => connect(world, Backend::Gloo, transport),
            #[cfg(feature = "nccl")]
            Self::Nccl => {
                world.set_deadline(transport.timeout);
                Ok(Box::new(NcclCollective::connect(world, gpu)?))
            }
            #[cfg(not(feature = "nccl"))]
            Self::Nccl => world.agree(Err(NO_NCCL)),
        }
    }

    /// Connects all ranks for blocking operations, such as a broadcast. All ranks must call this method.
    ///
    /// # Errors
    /// Returns the errors of [`connect`](Self::connect).
    #[cfg_attr(not(feature = "nccl"), expect(unused_variables, reason = "NCCL alone takes a GPU"))]
    pub fn connect_primitives(
        self,
        world: &World,
        transport: &Transport,
        gpu: Option<usize>,
    ) -> Result<Box<dyn Primitives>, CommError> {
        match self {
            Self::Mpi => connect_primitives(world, Backend::Mpi, transport),
            Self::Gloo => connect_primitives(world, Backend::Gloo, transport),
            #[cfg(feature = "nccl")]
            Self::Nccl => Ok(Box::new(NcclCollective::connect(world, gpu)?)),
            #[cfg(not(feature = "nccl"))]
            Self::Nccl => world.agree(Err(NO_NCCL)),
        }
    }
}

#[cfg(all(test, not(feature = "nccl")))]
mod tests {
    use burn_mpi::threads::{Options, run};

    use super::*;

    #[test]
    fn a_build_without_nccl_says_how_to_build_it() {
        let nccl = BackendKind::Nccl;
        assert_eq!(nccl.check_built(), Err(NO_NCCL.to_owned()));
        // Programs that skip `check_built` get the same error when they connect.
        let connect = |world: &World| nccl.connect(world, &Transport::default(), None).map(|_| ());
        let primitives =
            |world: &World| nccl.connect_primitives(world, &Transport::default(), None).map(|_| ());
        for refused in [run(2, &Options::default(), connect), run(2, &Options::default(), primitives)] {
            let error = refused.unwrap_err().error;
            assert!(error.starts_with("rank 0 on ") && error.ends_with(NO_NCCL), "{error}");
        }
    }
}
