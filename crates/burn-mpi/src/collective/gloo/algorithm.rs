//! All-reduce algorithms of gloo, by name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// gloo's all-reduce algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GlooAlgorithm {
    /// Ring: the fewest bytes over each link, and twice as many steps as there
    /// are ranks.
    Ring,
    /// Hypercube: logarithmically many steps.
    Bcube,
    /// Recursive halving and doubling: logarithmically many steps. gloo's older
    /// class, whose timeout applies to each step.
    HalvingDoubling,
}

impl GlooAlgorithm {
    /// All algorithms.
    pub const ALL: [Self; 3] = [Self::Ring, Self::Bcube, Self::HalvingDoubling];

    /// The name in options and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Bcube => "bcube",
            Self::HalvingDoubling => "halving-doubling",
        }
    }
}

impl fmt::Display for GlooAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for GlooAlgorithm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|algorithm| algorithm.name() == text)
            .ok_or_else(|| format!("unknown gloo algorithm {text}: choose ring, bcube or halving-doubling"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn algorithms_are_read_by_name() {
        for algorithm in GlooAlgorithm::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
            let json = serde_json::to_string(&algorithm).unwrap();
            assert_eq!(json, format!("\"{algorithm}\""));
        }
        assert!("tree".parse::<GlooAlgorithm>().unwrap_err().contains("bcube"));
    }
}
