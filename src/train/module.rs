//! Whole modules between ranks, for programs that bring their own.

use burn::module::Module;

use crate::comm::{CommError, World};
use crate::model::{ParamLayout, sha256};

/// `module` with rank 0's parameters and buffers.
///
/// # Errors
/// When the transport fails.
pub fn broadcast_module<M: Module>(world: &World, module: M) -> Result<M, CommError> {
    let layout = ParamLayout::of(&module);
    let mut values = layout.read(&module);
    world.broadcast_f32(&mut values)?;
    Ok(layout.write(module, &values))
}

/// Checks that `module` has the same bits on every rank.
///
/// # Errors
/// [`CommError::Diverged`] names the first rank that differs from rank 0.
pub fn check_equal_weights<M: Module>(world: &World, module: &M) -> Result<(), CommError> {
    let values = ParamLayout::of(module).read(module);
    world.check_equal("the weights' digest", &sha256(&values))
}
