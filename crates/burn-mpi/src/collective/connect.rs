//! Connecting to a transport by its name.

use std::time::Duration;

#[cfg(feature = "mpi")]
use crate::MpiCollective;
use crate::activity::LONGEST;
use crate::{Backend, Collective, CommError, Primitives, World};
#[cfg(feature = "gloo")]
use crate::{GlooAlgorithm, GlooCollective};

/// Transport settings. The defaults work on any network.
///
/// ```
/// use std::time::Duration;
/// use burn_mpi::Transport;
///
/// // A rank may read its data for 10 minutes while the others wait.
/// let patient = Transport { timeout: Duration::from_secs(600), ..Transport::default() };
/// assert_eq!(patient.gloo_algorithm, "ring");
/// ```
#[derive(Debug, Clone)]
pub struct Transport {
    /// Network interface of gloo's connections; detected if `None`.
    pub interface: Option<String>,
    /// gloo's all-reduce algorithm: `ring`, `bcube` or `halving-doubling`.
    pub gloo_algorithm: String,
    /// The GPU of this rank for nccl, counted from 0 among those that the process sees. `None`: the
    /// first one that no lower rank of the machine uses.
    pub gpu: Option<usize>,
    /// Deadline of an operation, on any transport. After it the job aborts with a line
    /// that names the missing ranks.
    pub timeout: Duration,
}

impl Default for Transport {
    fn default() -> Self {
        Self { interface: None, gloo_algorithm: "ring".into(), gpu: None, timeout: Duration::from_secs(120) }
    }
}

/// Connects all ranks over `backend`, or through memory if they are [threads](crate::threads), and sets the
/// deadline of their collectives ([`World::set_deadline`]). All ranks must call it.
///
/// ```no_run
/// # use burn_mpi::{Backend, CommError, Transport, World, connect};
/// # fn example(world: &World) -> Result<(), CommError> {
/// let backend: Backend = "mpi".parse().expect("a backend's name");
/// let collective = connect(world, backend, &Transport::default())?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If this build lacks the backend, or ranks cannot reach each other; [`SharedError::NoNccl`](crate::SharedError::NoNccl) if a
/// rank cannot use NCCL.
pub fn connect(
    world: &World,
    backend: Backend,
    transport: &Transport,
) -> Result<Box<dyn Collective>, CommError> {
    let timeout = transport.timeout.min(LONGEST);
    world.set_deadline(timeout);
    world.check_equal("the transport", &format!("{backend} by {}", transport.gloo_algorithm))?;
    if let Some(seat) = world.seat() {
        return Ok(seat.collective(world));
    }
    world.agree(backend.check_built())?;
    match backend {
        #[cfg(feature = "mpi")]
        Backend::Mpi => Ok(Box::new(MpiCollective::new(world)?)),
        #[cfg(feature = "gloo")]
        Backend::Gloo => {
            let algorithm: GlooAlgorithm = world.agree(transport.gloo_algorithm.parse::<GlooAlgorithm>())?;
            let interface = transport.interface.as_deref();
            let timeout = timeout + crate::lab::MARGIN;
            Ok(Box::new(GlooCollective::connect(world, interface, algorithm, timeout)?))
        }
        #[cfg(feature = "nccl")]
        Backend::Nccl => Ok(Box::new(crate::NcclCollective::connect(world, transport.gpu)?)),
        #[cfg(not(all(feature = "mpi", feature = "gloo", feature = "nccl")))]
        _ => unreachable!("a build without {backend} refuses it"),
    }
}

/// The blocking operations of `backend`. All ranks must call it.
///
/// # Errors
/// As [`connect`].
pub fn connect_primitives(
    world: &World,
    backend: Backend,
    transport: &Transport,
) -> Result<Box<dyn Primitives>, CommError> {
    let _ = transport;
    if backend == Backend::Mpi || world.seat().is_some() {
        return Ok(world.messages());
    }
    world.agree(backend.check_built())?;
    match backend {
        #[cfg(feature = "gloo")]
        Backend::Gloo => {
            let (interface, timeout) =
                (transport.interface.as_deref(), transport.timeout.min(LONGEST) + crate::lab::MARGIN);
            Ok(Box::new(crate::lab::GlooPrimitives::connect(world, interface, timeout)?))
        }
        #[cfg(feature = "nccl")]
        Backend::Nccl => Ok(Box::new(crate::lab::NcclPrimitives::connect(world, transport.gpu)?)),
        _ => unreachable!("a build without {backend} refuses it"),
    }
}
