//! Options of a collective: its backend and the summation order.

use serde::{Deserialize, Serialize};

use crate::named::named;

/// A transport of this crate, as the option of [`connect`](crate::connect). Transports of
/// other crates return their own name from
/// [`Collective::transport`](crate::Collective::transport).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// MPI's own collectives.
    Mpi,
    /// The gloo library over TCP.
    Gloo,
    /// NVIDIA's NCCL between GPUs.
    Nccl,
}

named!(Backend, "backend": Mpi = "mpi", Gloo = "gloo", Nccl = "nccl");

impl Backend {
    /// Checks that this build includes the backend.
    ///
    /// # Errors
    /// Names the missing package and the feature.
    pub fn check_built(self) -> Result<(), String> {
        let (is_built, lacking) = match self {
            Self::Mpi => {
                (cfg!(feature = "mpi"), "mpi, and has ranks as threads alone; build with the feature mpi")
            }
            Self::Gloo => {
                (cfg!(feature = "gloo"), "gloo; choose mpi, or build with the feature gloo (libgloo-dev)")
            }
            Self::Nccl => {
                (cfg!(feature = "nccl"), "nccl; choose mpi or gloo, or build with the feature nccl")
            }
        };
        is_built.then_some(()).ok_or_else(|| format!("this build lacks {lacking}"))
    }
}

/// The order in which the ranks' values are summed. Floating-point sums depend on it from
/// three ranks on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reduction {
    /// The backend's own all-reduce, in the order of its algorithm. Over mpi, two ranks on two machines
    /// exchange halves during backward; the sum of two has one order, so the bits are the same.
    Native,
    /// In rank order, independent of backend and topology: each rank sums one chunk of
    /// all ranks' buffers and sends the sum to all. It transfers as many bytes as a
    /// reduce-scatter and an all-gather.
    Ordered,
}

named!(Reduction, "reduction": Native = "native", Ordered = "ordered");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_are_read_by_name() {
        assert_eq!("gloo".parse(), Ok(Backend::Gloo));
        assert!("ucc".parse::<Backend>().unwrap_err().contains("mpi, gloo or nccl"));
        assert!(Backend::ALL.iter().all(|backend| backend.name().parse() == Ok(*backend)));
    }
}
