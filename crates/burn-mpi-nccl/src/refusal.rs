//! Why a rank cannot use NCCL, and what to do: the reasons with their error messages.

use burn_mpi::{CommError, SharedError};
use serde::{Deserialize, Serialize};

/// A rank that cannot use NCCL, and why. It is the lowest rank that cannot use the driver or NCCL's library.
/// If all ranks can use both, it is the lowest rank that gets no GPU. All ranks get the same refusal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank} on {host}: {reason}")]
#[non_exhaustive]
pub struct Refusal {
    /// The rank that cannot use NCCL.
    pub rank: usize,
    /// Host of that rank.
    pub host: String,
    /// Why the rank cannot use NCCL, and what to do.
    pub reason: NoNccl,
}

impl From<Refusal> for CommError {
    fn from(Refusal { rank, host, reason }: Refusal) -> Self {
        Self::Shared(SharedError::Elsewhere { rank, host, reason: reason.to_string() })
    }
}

/// Why a rank cannot use NCCL, and what to do. The message follows `rank N on HOST: `.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum NoNccl {
    /// NVIDIA's driver is missing, does not start, or cannot list its GPUs.
    #[error("nccl needs NVIDIA's driver: {reason}; {}, or choose mpi or gloo", driver_remedy(reason))]
    Driver {
        /// The error of the loader or of the driver.
        reason: String,
    },
    /// NCCL's library is missing or too old.
    #[error(
        "nccl needs NVIDIA's NCCL library: {reason}; install NCCL 2.10 or newer (Debian: libnccl2) where the loader \
         finds it (LD_LIBRARY_PATH), or choose mpi or gloo"
    )]
    Library {
        /// The error of the loader or of NCCL.
        reason: String,
    },
    /// The process sees no GPU.
    #[error(
        "nccl needs a GPU, but this process sees none; run on a machine with an NVIDIA GPU that \
         CUDA_VISIBLE_DEVICES does not hide, or choose mpi or gloo"
    )]
    Gpu,
    /// The GPU that the rank was told to use does not exist.
    #[error(
        "nccl was told to use GPU {wanted}, but this process sees {found} {}, numbered from 0; choose another number",
        if *found == 1 { "GPU" } else { "GPUs" }
    )]
    GpuNumber {
        /// Number of the GPU, from 0.
        wanted: usize,
        /// Number of GPUs that the process sees.
        found: usize,
    },
    /// Another rank uses the GPU.
    #[error(
        "its GPU ({gpu}) is already used by rank {other} on {host}, and NCCL needs one GPU for each rank; {}, or choose \
         mpi or gloo",
        remedy(*gpus, *ranks)
    )]
    SharedGpu {
        /// Name and identifier of the GPU.
        gpu: String,
        /// The lower rank that uses the GPU.
        other: usize,
        /// Host of the lower rank.
        host: String,
        /// Number of the machine's GPUs that its ranks see.
        gpus: usize,
        /// Number of ranks on the machine.
        ranks: usize,
    },
}

impl NoNccl {
    /// All values that [`short`](Self::short) returns.
    pub const SHORT: [&str; 4] = ["no driver", "no library", "no GPU", "shared GPU"];

    /// The reason in two words, for a cell of a table.
    pub fn short(&self) -> &'static str {
        Self::SHORT[match self {
            Self::Driver { .. } => 0,
            Self::Library { .. } => 1,
            Self::Gpu | Self::GpuNumber { .. } => 2,
            Self::SharedGpu { .. } => 3,
        }]
    }
}

/// Returns what to do about a driver that cannot be used for this reason.
pub fn driver_remedy(reason: &str) -> &'static str {
    if reason.contains("cannot open shared object file") {
        "run on a machine with an NVIDIA GPU"
    } else {
        "repair the driver of this machine (nvidia-smi shows whether it works)"
    }
}

fn remedy(gpus: usize, ranks: usize) -> String {
    if gpus < ranks {
        format!("start at most {gpus} {} on this machine", if gpus == 1 { "rank" } else { "ranks" })
    } else {
        // There are enough GPUs, but several ranks see only the same GPU, or were told to use the same GPU.
        "let each rank see a different GPU (CUDA_VISIBLE_DEVICES)".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_driver_is_to_be_repaired() {
        let driver = |reason: &str| NoNccl::Driver { reason: reason.into() }.to_string();
        let missing = driver("libcuda.so.1: cannot open shared object file: No such file or directory");
        assert!(missing.contains("libcuda.so.1: ") && missing.contains("NVIDIA GPU"), "{missing}");
        assert!(missing.ends_with("mpi or gloo") && !missing.contains("nvidia-smi"), "{missing}");
        let broken = driver("cuInit returned CUDA_ERROR_SYSTEM_DRIVER_MISMATCH");
        assert!(broken.contains("nvidia-smi") && broken.ends_with("mpi or gloo"), "{broken}");
    }

    #[test]
    fn a_shared_gpu_is_refused_with_the_remedy_that_fits() {
        let shared = |gpus| NoNccl::SharedGpu {
            gpu: "X (GPU-1)".into(),
            other: 0,
            host: "node0".into(),
            gpus,
            ranks: 2,
        };
        let text = shared(1).to_string();
        assert!(
            text.contains("rank 0 on node0")
                && text.contains("X (GPU-1)")
                && text.contains("at most 1 rank "),
            "{text}"
        );
        assert!(shared(2).to_string().contains("CUDA_VISIBLE_DEVICES"));
        assert_eq!(shared(2).short(), "shared GPU");
    }
}
