//! Options of a collective: its backend and the summation order.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

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

impl Backend {
    /// All backends, whether or not this build includes them.
    pub const ALL: [Self; 3] = [Self::Mpi, Self::Gloo, Self::Nccl];

    /// The name in options and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mpi => "mpi",
            Self::Gloo => "gloo",
            Self::Nccl => "nccl",
        }
    }

    /// Checks that this build includes the backend.
    ///
    /// # Errors
    /// Names the missing package and the feature.
    pub fn check_built(self) -> Result<(), String> {
        match self {
            Self::Mpi if !cfg!(feature = "mpi") => {
                Err("this build lacks mpi, and has ranks as threads alone; build with the feature mpi".into())
            }
            Self::Gloo if !cfg!(feature = "gloo") => {
                Err("this build lacks gloo; choose mpi, or build with the feature gloo (libgloo-dev)".into())
            }
            Self::Nccl if !cfg!(feature = "nccl") => {
                Err("this build lacks nccl; choose mpi or gloo, or build with the feature nccl".into())
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Backend {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "mpi" => Ok(Self::Mpi),
            "gloo" => Ok(Self::Gloo),
            "nccl" => Ok(Self::Nccl),
            _ => Err(format!("unknown backend {text}: choose mpi, gloo or nccl")),
        }
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

impl Reduction {
    /// All orders.
    pub const ALL: [Self; 2] = [Self::Native, Self::Ordered];

    /// The name in options and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Ordered => "ordered",
        }
    }
}

impl FromStr for Reduction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "native" => Ok(Self::Native),
            "ordered" => Ok(Self::Ordered),
            _ => Err(format!("unknown reduction {text}: choose native or ordered")),
        }
    }
}

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
