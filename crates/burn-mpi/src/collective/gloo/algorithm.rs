//! All-reduce algorithms of gloo, by name.

use serde::{Deserialize, Serialize};

use crate::named::named;

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

named!(GlooAlgorithm, "gloo algorithm": Ring = "ring", Bcube = "bcube", HalvingDoubling = "halving-doubling");

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
