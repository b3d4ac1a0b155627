//! The setting that selects the algorithm of convolutions.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

/// Algorithm of convolutions with many channels on flex, Burn's CPU backend. The setting has no effect on two
/// other kinds: convolutions with few channels are computed directly, and convolutions of bf16 images with 16
/// or more input and output channels run on AMX tiles if
/// [`Bf16Products::Amx`](crate::precision::Bf16Products::Amx) is in use.
///
/// ```
/// use burn_fused::conv::Algorithm;
///
/// assert_eq!(Algorithm::current(), Algorithm::Winograd);
/// Algorithm::Gemm.use_algorithm();
/// assert_eq!(Algorithm::current(), Algorithm::Gemm);
/// assert_eq!("winograd".parse(), Ok(Algorithm::Winograd));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// Winograd F(4x4, 3x3) if it is faster for the shape of a convolution, and im2col + GEMM otherwise. The
    /// largest error of Winograd is 1e-6 to 3e-6 of the largest result. This is two to six times the error of
    /// im2col + GEMM..
    Winograd,
    /// im2col + GEMM.
    Gemm,
}

static USES_GEMM: AtomicBool = AtomicBool::new(false);

impl Algorithm {
    /// All algorithms; the first is the default.
    pub const ALL: [Self; 2] = [Self::Winograd, Self::Gemm];

    /// The name: `winograd` or `gemm`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Winograd => "winograd",
            Self::Gemm => "gemm",
        }
    }

    /// The algorithm in use: [`Winograd`](Self::Winograd), unless [`use_algorithm`](Self::use_algorithm)
    /// selected another.
    pub fn current() -> Self {
        if USES_GEMM.load(Ordering::Relaxed) { Self::Gemm } else { Self::Winograd }
    }

    /// Makes later convolutions of this process use `self`. The setting has no effect on shapes for which
    /// only one algorithm is used. The backward of a convolution uses the algorithm of its forward.
    pub fn use_algorithm(self) {
        USES_GEMM.store(self == Self::Gemm, Ordering::Relaxed);
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|algorithm| algorithm.name() == text);
        found.ok_or_else(|| format!("unknown algorithm {text}: choose winograd or gemm"))
    }
}
