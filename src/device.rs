//! Compute devices: the backends of Burn that a build may include, and their names in `--device`.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use burn::tensor::Device;
use serde::{Deserialize, Serialize};

/// A compute backend of Burn and its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum DeviceKind {
    /// Burn's CPU backend flex, in every build.
    Flex,
    /// Burn's older CPU backend in pure Rust, feature `ndarray`.
    NdArray,
    /// libtorch on the CPU, feature `tch`.
    Tch,
    /// libtorch on the GPU with this index, feature `tch`.
    TchCuda(usize),
    /// Burn's CUDA backend on the GPU with this index, feature `cuda`. Without an index, the ranks of a
    /// machine take its visible GPUs in turn.
    Cuda(Option<usize>),
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flex => f.pad("flex"),
            Self::NdArray => f.pad("ndarray"),
            Self::Tch => f.pad("tch"),
            Self::TchCuda(index) => write!(f, "tch-cuda:{index}"),
            Self::Cuda(None) => f.pad("cuda"),
            Self::Cuda(Some(index)) => write!(f, "cuda:{index}"),
        }
    }
}

impl FromStr for DeviceKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || "choose flex, ndarray, tch, tch-cuda:N, cuda or cuda:N".to_owned();
        let (name, index) = text.split_once(':').map_or((text, None), |(name, index)| (name, Some(index)));
        // An index is accepted only as Rust prints it: without a sign and without leading zeros.
        let number = |index: &str| index.parse::<usize>().ok().filter(|number| number.to_string() == index);
        let index = index.map(|index| number(index).ok_or_else(unknown)).transpose()?;
        match (name, index) {
            ("flex", None) => Ok(Self::Flex),
            ("ndarray", None) => Ok(Self::NdArray),
            ("tch", None) => Ok(Self::Tch),
            ("tch-cuda", Some(index)) => Ok(Self::TchCuda(index)),
            ("cuda", index) => Ok(Self::Cuda(index)),
            _ => Err(unknown()),
        }
    }
}

impl TryFrom<String> for DeviceKind {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<DeviceKind> for String {
    fn from(kind: DeviceKind) -> Self {
        kind.to_string()
    }
}

impl DeviceKind {
    /// Checks that this build includes the device.
    ///
    /// # Errors
    /// If the build does not include the device. The error names the missing feature and the command to build
    /// it.
    pub fn check_built(self) -> Result<(), String> {
        let (built, feature) = match self {
            Self::Flex => (true, "flex"),
            Self::NdArray => (cfg!(feature = "ndarray"), "ndarray"),
            Self::Tch | Self::TchCuda(_) => (cfg!(feature = "tch"), "tch"),
            Self::Cuda(_) => (cfg!(feature = "cuda"), "cuda"),
        };
        if built {
            Ok(())
        } else {
            Err(format!(
                "this build does not include {feature}: run `make build DEVICES={feature}`, \
                 which writes the binary to target-{feature}/release"
            ))
        }
    }

    /// Whether tensors are in host memory.
    pub fn is_cpu(self) -> bool {
        matches!(self, Self::Flex | Self::NdArray | Self::Tch)
    }

    /// Returns the index of the GPU, which is the index in the device's name. For `cuda` without an index,
    /// returns the index that [`use_gpu`] has set, or `None` if `use_gpu` has not been called. Returns `None`
    /// for a CPU.
    pub fn gpu(self) -> Option<usize> {
        match self {
            Self::TchCuda(index) => Some(index),
            Self::Cuda(index) => index.or(GPU.get().copied()),
            _ => None,
        }
    }

    /// Returns Burn's device, without autodiff.
    ///
    /// # Panics
    /// If [`check_built`](Self::check_built) fails.
    #[allow(deprecated, reason = "ndarray and tch are deprecated upstream, and still supported here")]
    pub fn device(self) -> Device {
        match self {
            Self::Flex => Device::flex(),
            #[cfg(feature = "ndarray")]
            Self::NdArray => Device::ndarray(),
            #[cfg(feature = "tch")]
            Self::Tch => Device::libtorch(),
            #[cfg(feature = "tch")]
            Self::TchCuda(index) => Device::libtorch_cuda(index),
            #[cfg(feature = "cuda")]
            Self::Cuda(_) => Device::cuda(self.gpu().unwrap_or_default()),
            #[allow(unreachable_patterns, reason = "reachable in builds without a device")]
            missing => panic!("this build has no {missing}"),
        }
    }
}

/// The GPU of [`DeviceKind::Cuda`] without an index. One value per process is enough: a process runs one
/// command on one device.
static GPU: OnceLock<usize> = OnceLock::new();

/// Sets the GPU that [`DeviceKind::Cuda`] without an index uses. Without a call, the first GPU is used. Only
/// the first call has an effect.
pub fn use_gpu(number: usize) {
    _ = GPU.set(number);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_names_are_parsed_as_displayed() {
        use DeviceKind::{Cuda, Flex, NdArray, Tch, TchCuda};
        for kind in [Flex, NdArray, Tch, TchCuda(3), Cuda(None), Cuda(Some(1))] {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        for text in ["tch-cuda:x", "cuda:", "cuda:-1", "cuda:+1", "cuda:01", "flex:0", "tch-cuda"] {
            assert!(text.parse::<DeviceKind>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_missing_device_is_named_with_its_build_command() {
        assert_eq!(DeviceKind::Flex.check_built(), Ok(()));
        if !cfg!(feature = "ndarray") {
            let message = DeviceKind::NdArray.check_built().unwrap_err();
            assert!(message.contains("make build DEVICES=ndarray"), "{message}");
        }
    }
}
