//! Connects the ranks of a job over a transport: [`connect`] and [`connect_primitives`]. This module also
//! defines their options, the backend (MPI or gloo) and the settings of the transport, and the order of sums.

use std::time::Duration;

use derive_setters::Setters;
use serde::{Deserialize, Serialize};

#[cfg(feature = "mpi")]
use super::compared::Checked;
#[cfg(feature = "mpi")]
use super::mpi::calls::MpiLink;
#[cfg(feature = "mpi")]
use super::pending::PendingOps;
use crate::activity::LONGEST;
use crate::named::named;
use crate::{Collective, CommError, Primitives, World};

/// Transport settings. The defaults work on any network.
///
/// ```
/// use std::time::Duration;
/// use burn_mpi::{GlooAlgorithm, Transport};
///
/// // A rank may read its data for 10 minutes while the others wait.
/// let patient = Transport::default().with_timeout(Duration::from_secs(600));
/// assert_eq!(patient.gloo_algorithm, GlooAlgorithm::Ring);
/// ```
#[derive(Debug, Clone, Setters)]
#[setters(prefix = "with_")]
#[non_exhaustive]
pub struct Transport {
    /// Network interface of gloo's connections; detected if `None`.
    #[setters(into)]
    pub interface: Option<String>,
    /// gloo's all-reduce algorithm.
    pub gloo_algorithm: GlooAlgorithm,
    /// Deadline of each operation, on any transport; [`connect`] sets it. If an operation exceeds the
    /// deadline, the job aborts with a line that names the missing ranks.
    pub timeout: Duration,
}

impl Default for Transport {
    fn default() -> Self {
        Self { interface: None, gloo_algorithm: GlooAlgorithm::Ring, timeout: Duration::from_secs(120) }
    }
}

/// Connects all ranks over `backend`, or through memory if the ranks are [threads](crate::threads). Sets the
/// deadline of collectives ([`World::set_deadline`]). All ranks must call `connect`.
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
/// If this build lacks the backend, if ranks choose different backends or gloo algorithms, if `transport`
/// names a network interface that does not exist, or if ranks cannot reach each other.
pub fn connect(
    world: &World,
    backend: Backend,
    transport: &Transport,
) -> Result<Box<dyn Collective>, CommError> {
    let timeout = transport.timeout.min(LONGEST);
    world.set_deadline(timeout);
    world
        .check_equal("the transport", &format!("{backend} (gloo algorithm {})", transport.gloo_algorithm))?;
    if let Some(seat) = world.seat() {
        return Ok(seat.collective(world));
    }
    world.agree(backend.check_built())?;
    match backend {
        #[cfg(feature = "mpi")]
        Backend::Mpi => Ok(Box::new(PendingOps::over(world, MpiLink::new(world.mpi())?))),
        #[cfg(feature = "gloo")]
        Backend::Gloo => {
            let interface = transport.interface.as_deref();
            let timeout = timeout + crate::guard::MARGIN;
            Ok(Box::new(crate::GlooCollective::connect(world, interface, transport.gloo_algorithm, timeout)?))
        }
        #[cfg(not(all(feature = "mpi", feature = "gloo")))]
        _ => unreachable!("a build without {backend} rejects it"),
    }
}

/// Connects all ranks over `backend` for blocking operations only. All ranks must call it.
///
/// # Errors
/// If this build lacks the backend, if `transport` names a network interface that does not exist, or if ranks
/// cannot reach each other.
pub fn connect_primitives(
    world: &World,
    backend: Backend,
    transport: &Transport,
) -> Result<Box<dyn Primitives>, CommError> {
    let _ = transport;
    if let Some(seat) = world.seat() {
        return Ok(seat.operations());
    }
    world.agree(backend.check_built())?;
    match backend {
        #[cfg(feature = "mpi")]
        Backend::Mpi => Ok(Box::new(Checked::over(MpiLink::new(world.mpi())?))),
        #[cfg(feature = "gloo")]
        Backend::Gloo => {
            let timeout = transport.timeout.min(LONGEST) + crate::guard::MARGIN;
            let gloo = super::gloo::GlooThread::connect(world, transport.interface.as_deref(), timeout)?;
            Ok(Box::new(Checked::over(gloo)))
        }
        #[cfg(not(all(feature = "mpi", feature = "gloo")))]
        _ => unreachable!("a build without {backend} rejects it"),
    }
}

/// A transport of this crate, which [`connect`](crate::connect) takes as an option. Transports of other
/// crates are not values of this enum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// MPI's own collectives.
    Mpi,
    /// The gloo library over TCP.
    Gloo,
}

named!(Backend, "backend": Mpi = "mpi", Gloo = "gloo");

impl Backend {
    /// Checks that this build includes the backend.
    ///
    /// # Errors
    /// If the build does not include the backend. The error names the missing feature and package.
    pub fn check_built(self) -> Result<(), String> {
        let (is_built, lacking) = match self {
            Self::Mpi => (
                cfg!(feature = "mpi"),
                "mpi, so its ranks can only be threads; build burn-mpi with the feature mpi",
            ),
            Self::Gloo => (
                cfg!(feature = "gloo"),
                "gloo; choose mpi, or build burn-mpi with the feature gloo (libgloo-dev)",
            ),
        };
        is_built.then_some(()).ok_or_else(|| format!("this build lacks {lacking}"))
    }
}

/// The order in which the ranks' values are summed. A floating-point sum over three or more ranks depends on
/// this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reduction {
    /// The backend's own all-reduce, in the order of its algorithm. There is one exception: over mpi, two
    /// ranks on two machines run a non-blocking all-reduce by exchanging halves of their buffers and summing
    /// them. A sum of two values has only one order, so the exception does not change the bits.
    Native,
    /// In rank order, independent of backend and topology. Each rank receives one chunk of every rank's
    /// buffer, sums these chunks in rank order, and sends the sum to all ranks. An ordered sum transfers the
    /// same number of bytes as a reduce-scatter followed by an all-gather.
    Ordered,
}

named!(Reduction, "reduction": Native = "native", Ordered = "ordered");

/// gloo's all-reduce algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GlooAlgorithm {
    /// Ring: the fewest bytes over each link. The number of steps grows with the number of ranks.
    Ring,
    /// Hypercube: the number of steps grows with the logarithm of the number of ranks.
    Bcube,
    /// Recursive halving and doubling: the number of steps grows with the logarithm of the number of ranks.
    /// It uses gloo's older interface, whose timeout applies to each step instead of the whole operation.
    HalvingDoubling,
}

named!(GlooAlgorithm, "gloo algorithm": Ring = "ring", Bcube = "bcube", HalvingDoubling = "halving-doubling");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_are_read_by_name() {
        assert_eq!("gloo".parse(), Ok(Backend::Gloo));
        assert!("ucc".parse::<Backend>().unwrap_err().contains("mpi or gloo"));
        assert!(Backend::ALL.iter().all(|backend| backend.name().parse() == Ok(*backend)));
    }

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
