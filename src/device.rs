//! Compute devices: Burn's backends that this build includes.

use std::fmt;
use std::str::FromStr;

use burn::tensor::Device;
use serde::{Deserialize, Serialize};

/// A compute backend of Burn and its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DeviceKind {
    /// Burn's CPU backend flex, in every build.
    Flex,
    /// Burn's older CPU backend in pure Rust, feature `ndarray`.
    NdArray,
    /// libtorch on the CPU, feature `tch`.
    Tch,
    /// libtorch on the GPU of this index, feature `tch`.
    TchCuda(usize),
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flex => f.pad("flex"),
            Self::NdArray => f.pad("ndarray"),
            Self::Tch => f.pad("tch"),
            Self::TchCuda(index) => write!(f, "tch-cuda:{index}"),
        }
    }
}

impl FromStr for DeviceKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || format!("unknown device {text}: choose flex, ndarray, tch or tch-cuda:N");
        match text {
            "flex" => Ok(Self::Flex),
            "ndarray" => Ok(Self::NdArray),
            "tch" => Ok(Self::Tch),
            _ => {
                let index = text.strip_prefix("tch-cuda:").ok_or_else(unknown)?;
                index.parse().map(Self::TchCuda).map_err(|_| unknown())
            }
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
    /// What can be typed; N is the number of a GPU.
    pub const NAMES: [&str; 4] = ["flex", "ndarray", "tch", "tch-cuda:N"];

    /// Checks that this build includes the device.
    ///
    /// # Errors
    /// The missing feature and the command to build it.
    pub fn check_built(self) -> Result<(), String> {
        let (built, feature) = match self {
            Self::Flex => (true, "flex"),
            Self::NdArray => (cfg!(feature = "ndarray"), "ndarray"),
            Self::Tch | Self::TchCuda(_) => (cfg!(feature = "tch"), "tch"),
        };
        match built {
            true => Ok(()),
            false => Err(format!(
                "this build has no {feature}; build it with `make build DEVICES={feature}`, \
                 which writes the binary to target-{feature}/release"
            )),
        }
    }

    /// Burn's device, without autodiff.
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
            #[allow(unreachable_patterns, reason = "reachable in builds without a device")]
            missing => panic!("this build has no {missing}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_names_are_parsed_as_displayed() {
        for kind in [DeviceKind::Flex, DeviceKind::NdArray, DeviceKind::Tch, DeviceKind::TchCuda(3)] {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert!("tch-cuda:x".parse::<DeviceKind>().is_err());
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
