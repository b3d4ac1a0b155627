//! Collectives over MPI: native, or sums in rank order.

use super::request::MpiRequests;
use crate::collective::pending::PendingOps;
use crate::{CommError, World};

/// [`Collective`](crate::Collective) over all ranks of the job.
///
/// Open MPI makes progress on a non-blocking operation only inside MPI calls, so
/// [`poll`](crate::Collective::poll) must be called often to overlap it.
///
/// It is `!Send` and `!Sync`: MPI is called only from the thread that started it.
///
/// ```compile_fail,E0277
/// fn moves_to_another_thread<T: Send>() {}
/// moves_to_another_thread::<burn_mpi::MpiCollective>();
/// ```
///
/// ```compile_fail,E0277
/// fn is_used_by_several_threads<T: Sync>() {}
/// is_used_by_several_threads::<burn_mpi::MpiCollective>();
/// ```
pub type MpiCollective = PendingOps<MpiRequests>;

impl MpiCollective {
    /// The collective of `world`. All ranks must call it.
    ///
    /// # Errors
    /// When MPI fails; [`CommError::Transport`] if the ranks of `world` are threads.
    pub fn new(world: &World) -> Result<Self, CommError> {
        Ok(Self::over(world, MpiRequests::new(world.mpi()?.0.clone())?))
    }
}
