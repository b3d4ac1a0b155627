//! Errors of the world and of collectives.

use std::fmt;
use std::time::Duration;

#[cfg(feature = "mpi")]
use crate::Launcher;
use crate::{LocalError, process};

/// An error of the world or of a collective. Its text is one line: what happened, on which rank and host, and
/// what to do if that is known.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// An error that every rank returns at the same point.
    #[error(transparent)]
    Shared(SharedError),
    /// A call into the transport returned an error.
    #[error(
        "rank {rank} on {host}: {operation} of {bytes} bytes failed after {:.1} s: {reason}",
        elapsed.as_secs_f64()
    )]
    Operation {
        /// Rank on which the call failed.
        rank: usize,
        /// Host of that rank.
        host: String,
        /// Backend and operation, such as `mpi all-reduce`.
        operation: String,
        /// Size of the operation's buffer.
        bytes: usize,
        /// Time since the call began.
        elapsed: Duration,
        /// The transport's error message.
        reason: String,
    },
    /// The transport has no such operation.
    #[error("{operation} is not supported by {transport}")]
    Unsupported {
        /// The operation, such as `reduce-scatter`.
        operation: &'static str,
        /// The transport's name, such as `mpi`.
        transport: String,
    },
    /// An error of one rank alone.
    #[error("rank {rank} on {host} {reason}")]
    OnRank {
        /// The rank.
        rank: usize,
        /// Its host.
        host: String,
        /// What the rank has or does, as a phrase that follows `rank 1 on node0`.
        reason: String,
    },
    /// MPI did not start.
    #[error("MPI did not start: {0}")]
    Start(String),
    /// Another MPI's launcher started this process, or the process inherited a launcher's variables. MPI
    /// started as a world of one.
    #[cfg(feature = "mpi")]
    #[error("{} {}", launcher.name, why_alone(launcher, mpi))]
    ForeignLauncher {
        /// The launcher.
        launcher: Launcher,
        /// The MPI library of this build.
        mpi: String,
    },
    /// The process manager of the launcher does not answer. The launcher's variables would make MPI end this
    /// process.
    #[cfg(feature = "mpi")]
    #[error(
        "{} started this process as one of several ({}), but no process manager answers, although {variable} makes \
         MPI connect to one: start it with mpirun, or with srun --mpi=pmix (MPICH: pmi2); if a shell inside another job \
         started it, use a new shell, or in bash: {}",
        launcher.name, launcher.variables, unset([launcher.rank_variable(), PMIX, variable])
    )]
    Inherited {
        /// The launcher.
        launcher: Launcher,
        /// A variable that only ranks of a running job should have.
        variable: &'static str,
    },
    /// A launcher started this process, but the environment lacks the launcher's variables.
    #[cfg(feature = "mpi")]
    #[error(
        "{daemon} started this process, but the environment has no launcher variables: MPI would start as a world of \
         one, and each rank would train alone; start the job without env -i and sudo, or let them pass all variables on (sudo -E)"
    )]
    Cleared {
        /// The launcher's program.
        daemon: String,
    },
    /// Several ranks were started by hand, with torchrun's variables.
    #[error(
        "RANK={rank} and WORLD_SIZE={size} are set, but no launcher started this process: ranks that are started one \
         by one do not form an MPI job, and each would train alone. Start them together: mpirun -n {size} --bind-to core \
         {} …; for one process, unset RANK and WORLD_SIZE",
        process::name()
    )]
    ByHand {
        /// `RANK`.
        rank: usize,
        /// `WORLD_SIZE`, above 1.
        size: usize,
    },
    /// A module that cannot be trained data-parallel.
    #[error("this module cannot be trained data-parallel: {0}")]
    Module(String),
    /// An [`ArrivalOrder`](crate::ArrivalOrder) does not fit this module.
    #[error("the ArrivalOrder does not fit this module: {0}")]
    Arrival(String),
    /// A compression, or a [`CompressionState`](crate::CompressionState), that does not fit this module or
    /// the other options.
    #[error("gradients cannot be compressed: {0}")]
    Compression(String),
    /// An earlier step was interrupted, for example by a panic in its backward.
    #[error("gradients cannot be averaged: {0}")]
    Interrupted(&'static str),
    /// A parameter that has no averaged gradient.
    #[error("the parameter {parameter} has no averaged gradient: {reason}")]
    NoGradient {
        /// The parameter's name.
        parameter: String,
        /// The reason.
        reason: MissingGradient,
    },
    /// An optimizer, or its state, that cannot be sharded.
    #[error("the optimizer cannot be sharded: {0}")]
    Sharded(String),
    /// A rank left the job while this rank waited for it.
    #[error("rank {rank} on {host} has left the job (exit code {status}){}", reason_of(*status, reason))]
    Left {
        /// The rank that left.
        rank: usize,
        /// Its host.
        host: String,
        /// Its exit code.
        status: i32,
        /// Its reason; empty if unknown.
        reason: String,
    },
}

/// An error that every rank returns at the same point. One printed line is enough for all ranks, and no rank
/// waits for another.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SharedError {
    /// A rank failed in a call that all ranks make. Every rank returns this error with that rank's reason,
    /// and only rank 0 prints it, so a job prints one line instead of one per rank.
    #[error("rank {rank} on {host}: {reason}")]
    Elsewhere {
        /// The lowest rank that failed.
        rank: usize,
        /// Host of that rank.
        host: String,
        /// Its error.
        reason: String,
    },
    /// Ranks have different values that should be equal.
    #[error("{what} differs between ranks: rank {rank} on {host} has {found}, rank 0 has {expected}")]
    Diverged {
        /// What was compared.
        what: String,
        /// The first rank that differs from rank 0.
        rank: usize,
        /// Host of that rank.
        host: String,
        /// Its value.
        found: String,
        /// Rank 0's value.
        expected: String,
    },
    /// Ranks are in different exchanges.
    #[error(
        "rank {rank} on {host} is in {calls}, and rank 0 in {others}: ranks do not call the same operations in the same \
         order"
    )]
    OutOfStep {
        /// The first rank that is in another exchange than rank 0.
        rank: usize,
        /// Its host.
        host: String,
        /// The calls that `rank` is in.
        calls: String,
        /// The calls that rank 0 is in.
        others: String,
    },
    /// An operation exceeded its deadline.
    #[error(
        "{operation} exceeded the deadline of {} s ({}): rank {rank} on {host} has waited for {:.1} s; {cause}",
        deadline.as_secs_f64(),
        process::deadline_setting(),
        elapsed.as_secs_f64()
    )]
    Deadline {
        /// The lowest rank that waits in the operation.
        rank: usize,
        /// Host of that rank.
        host: String,
        /// Transport and operation, such as `mpi all-reduce of bucket 2`.
        operation: String,
        /// The deadline.
        deadline: Duration,
        /// Time since that rank entered the operation.
        elapsed: Duration,
        /// Which ranks `rank` waits for, or what else is known of the cause.
        cause: String,
    },
    /// The samples of all ranks do not add up to the step's total.
    #[error(
        "the samples that the ranks have passed to backward in this step are {share:.3} times the step's total ({}); in \
         each backward call, pass the rank's own samples in this call, and as total the samples of all ranks in all calls \
         of the step; the last call on each rank must be MicroBatch::Last",
        of_ranks(samples)
    )]
    Shares {
        /// The sum of the ranks' shares, which should be 1. A rank's share is its own samples divided by the
        /// total that it passed.
        share: f32,
        /// For each rank, the samples of its backward calls in the step, and the total that the last of these
        /// calls named.
        samples: Vec<(usize, usize)>,
    },
    /// The compression of [`SyncOptions`](crate::SyncOptions) has no rank that fits the module.
    #[error("gradients cannot be compressed: {0}")]
    Compression(String),
    /// A data set that cannot be divided into batches for all ranks.
    #[error("the data set cannot be sharded: {0}")]
    Sharding(String),
    /// Options of local updates that are wrong, or do not fit the module.
    #[error("local updates: {0}")]
    LocalUpdates(LocalError),
}

/// Why a parameter has no averaged gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MissingGradient {
    /// No step has ended yet, or the next step has begun.
    #[error("call reduce or finish first, and read the gradient before the next step begins")]
    NoStep,
    /// No rank's loss depends on the parameter in this step.
    #[error("no rank's loss depends on it in this step")]
    Unused,
    /// The parameter is a buffer, or was frozen when the `GradientSync` was made.
    #[error(
        "it is a buffer, or was frozen when this GradientSync was made; after unfreezing it, make another GradientSync"
    )]
    Frozen,
    /// The parameter had another shape when the `GradientSync` was made.
    #[error("it had another shape when this GradientSync was made")]
    OtherShape,
    /// With [`SyncOptions::shard`](crate::SyncOptions::shard), no rank has the whole gradients.
    #[error(
        "SyncOptions::shard is set, so each rank has only its share of the gradients; call reduce, and then use a \
         ShardedOptimizer or GradientSync::pieces"
    )]
    Sharded,
    /// The module that the `GradientSync` was made for has fewer parameters.
    #[error("the module of this GradientSync has fewer parameters")]
    NoParameter,
}

impl CommError {
    /// Returns whether rank 0 prints this error of [`World::init`](crate::World::init). If so, this rank need
    /// not print it.
    #[cfg(feature = "mpi")]
    pub fn is_rank_0s(&self) -> bool {
        match self {
            Self::ForeignLauncher { launcher, .. } | Self::Inherited { launcher, .. } => {
                launcher.leaves_printing_to_rank_0()
            }
            Self::Shared(_) => process::identity().is_some_and(|(rank, ..)| rank > 0),
            _ => false,
        }
    }

    /// Returns whether every rank returns this same error at the same point.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }
}

/// Lists the samples and totals of the first ranks.
fn of_ranks(samples: &[(usize, usize)]) -> String {
    const SHOWN: usize = 8;
    let rank = |(rank, (own, total)): (usize, &(usize, usize))| format!("rank {rank}: {own} of {total}");
    let shown: Vec<String> = samples.iter().enumerate().take(SHOWN).map(rank).collect();
    let more = if samples.len() > SHOWN { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}

/// The error's text, which Rust prints when `main` returns the error.
impl fmt::Debug for CommError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A single write: several would interleave with the lines of other ranks.
        f.write_str(&self.to_string())
    }
}

/// Says why MPI started as a world of one, and what to do.
#[cfg(feature = "mpi")]
fn why_alone(launcher: &Launcher, mpi: &str) -> String {
    let (variables, rank) = (&launcher.variables, launcher.rank_variable());
    if launcher.is_of(mpi) && !launcher.has_started_this_process() {
        return format!(
            "did not start this process ({variables}): {mpi} started as a world of one, so the variables are \
             inherited from another job; use a new shell, or in bash: {}",
            unset([rank, PMIX])
        );
    }
    format!(
        "started this process as one of several ({variables}), but this build uses {mpi}, which started as a world of \
         one: every process would train alone. Start it with the mpirun of {mpi} or srun --mpi=pmix (MPICH: pmi2), or \
         build it for the launcher's MPI (MPICC names its compiler wrapper); if a shell inside another job started it, \
         unset {rank}"
    )
}

/// A variable of PMIx that several launchers set.
#[cfg(feature = "mpi")]
const PMIX: &str = "PMIX_RANK";

/// Returns a bash command that unsets all variables with the same prefixes, such as `OMPI_` for
/// `OMPI_COMM_WORLD_RANK`.
#[cfg(feature = "mpi")]
fn unset<const N: usize>(variables: [&str; N]) -> String {
    let mut command = "unset".to_owned();
    for variable in variables {
        let family = variable.find('_').map_or(variable, |end| &variable[..=end]);
        let word = format!(" ${{!{family}@}}");
        if !command.contains(&word) {
            command += &word;
        }
    }
    command
}

fn reason_of(status: i32, reason: &str) -> String {
    match (status, reason) {
        (_, reason) if !reason.is_empty() => format!(": {reason}"),
        (0, _) => " before the others".into(),
        _ => "; its own output has the reason".into(),
    }
}
