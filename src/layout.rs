//! Converts the parameter layout of a network for checkpoints. The layout lists the name and shape of each
//! parameter, and its range in a flat buffer of all parameters.

use burn_mpi::ParamLayout;
use run_record::{Layout, TensorSpec};

/// Converts a network's parameter layout to the type that checkpoints store. `run_record` does not depend on
/// `burn_mpi`, so it has its own type.
pub fn stored(layout: &ParamLayout) -> Layout {
    let tensor = |spec: &burn_mpi::ParamSpec| TensorSpec {
        name: spec.name.clone(),
        shape: spec.shape.clone(),
        range: spec.range.clone(),
        transposed: spec.transposed,
    };
    Layout(layout.specs().iter().map(tensor).collect())
}
