//! A network's parameters as run directories have them.

use burn_mpi::ParamLayout;
use run_record::{Layout, TensorSpec};

/// The layout of checkpoints of a network with these parameters.
pub fn stored(layout: &ParamLayout) -> Layout {
    let tensor = |spec: &burn_mpi::ParamSpec| TensorSpec {
        name: spec.name.clone(),
        shape: spec.shape.clone(),
        range: spec.range.clone(),
        transposed: spec.transposed,
    };
    Layout(layout.specs().iter().map(tensor).collect())
}
