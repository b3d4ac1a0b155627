//! Connects a backend by name, with errors that name the option.

use crate::options::ConfigError;
use burn_mpi::lab::{Primitives, connect_primitives};
use burn_mpi::{Backend, Collective, Transport, World, connect as connect_to};

/// All backends, including those that this build does not have.
pub const ALL: [Backend; 3] = Backend::ALL;

/// The gradients' transport over `backend`. All ranks call it.
///
/// # Errors
/// When the build does not have the backend or the ranks cannot connect; all ranks then
/// return an error.
pub fn connect(
    world: &World,
    backend: Backend,
    transport: &Transport,
) -> anyhow::Result<Box<dyn Collective>> {
    backend.check_built().map_err(|problem| ConfigError::new("backend", backend, problem))?;
    Ok(connect_to(world, backend, transport)?)
}

/// The primitives of `backend`. All ranks call it.
///
/// # Errors
/// As [`connect`].
pub fn primitives(
    world: &World,
    backend: Backend,
    transport: &Transport,
) -> anyhow::Result<Box<dyn Primitives>> {
    backend.check_built().map_err(|problem| ConfigError::new("backend", backend, problem))?;
    Ok(connect_primitives(world, backend, transport)?)
}
