//! Composes the warning and the error of a rank that waits too long. Both name the ranks that it waits for.
//!
//! A [`Wait`] says what all ranks are doing. In an MPI job, the guard asks the other ranks; the guard is a
//! thread of each process that checks deadlines. If ranks are threads, the hub, which passes their messages,
//! knows what they are doing.

use std::cmp::Ordering;
use std::time::Duration;

use crate::activity::{Departure, Status};
use crate::host::named_ranks;
use crate::member::Member;
use crate::{CommError, SharedError, process};

/// A rank that waits, and what is known of the other ranks.
pub(crate) struct Wait<'a> {
    pub member: &'a Member,
    /// Host names, by rank.
    pub hosts: &'a [String],
    /// What the waiting rank is doing.
    pub seen: &'a Status,
    /// What each rank is doing, by rank; `None` for a rank that does not answer.
    pub answers: &'a [Option<Status>],
    /// How long the waiting rank has waited for the missing answers.
    pub silent: Duration,
    /// Ranks that have announced that they leave.
    pub departed: &'a [Departure],
}

impl Wait<'_> {
    /// Returns the error of a wait that exceeds the deadline. `waited` is the length of the wait so far.
    pub fn deadline(&self, waited: Duration) -> CommError {
        CommError::Shared(SharedError::Deadline {
            rank: self.member.rank,
            host: self.member.host.clone(),
            operation: self.seen.what.clone(),
            deadline: self.member.activity.with(|state| state.deadline),
            elapsed: waited,
            cause: self.cause(),
        })
    }

    /// Returns the error if the answers prove that the job cannot continue: rank 0 and another rank wait in
    /// blocking collectives with the same number and different names. Each of them waits for the other to enter
    /// its own collective, and neither can. Waits for collectives in flight prove nothing, because ranks may
    /// wait for them in any order.
    pub fn deadlock(&self) -> Option<CommError> {
        let of_rank = |rank: usize| {
            if rank == self.member.rank { Some(self.seen) } else { self.answers[rank].as_ref() }
        };
        let is_waiting = |status: &&Status| status.blocking.is_some() && status.waited.is_some();
        let root = of_rank(0).filter(is_waiting)?;
        let differs = |other: &&Status| other.blocking == root.blocking && other.what != root.what;
        let find = |rank| Some((rank, of_rank(rank).filter(is_waiting).filter(differs)?));
        let (rank, other) = (1..self.answers.len()).find_map(find)?;
        let (host, calls, others) = (self.hosts[rank].clone(), other.what.clone(), root.what.clone());
        Some(CommError::Shared(SharedError::OutOfStep { rank, host, calls, others }))
    }

    /// Returns the warning that a rank prints before the deadline. `waited` is the length of the wait so far.
    pub fn stall(&self, waited: Duration) -> String {
        format!(
            "{}: rank {} on {} has waited for {:.0} s; {}; the job aborts at its deadline of {} s ({})",
            self.seen.what,
            self.member.rank,
            self.member.host,
            waited.as_secs_f64(),
            self.cause(),
            self.member.activity.with(|state| state.deadline).as_secs_f64(),
            process::deadline_setting()
        )
    }

    /// Names the ranks that keep this rank waiting:
    /// - the ranks that do not answer; if one of them has announced that it leaves, only this rank, with its
    ///   reason;
    /// - if all ranks answer, the ranks that are in no operation and have entered no operation after this
    ///   one;
    /// - if there are no such ranks, the first rank that is in another operation than this one or has
    ///   completed this one. This rank is named last, because it may itself wait for the ranks above.
    fn cause(&self) -> String {
        let Self { seen, answers, .. } = *self;
        let others = || (0..answers.len()).filter(|&rank| rank != self.member.rank);
        let name = |rank: usize| format!("rank {rank} on {}", self.hosts[rank]);
        let silent: Vec<usize> = others().filter(|&rank| answers[rank].is_none()).collect();
        if let Some(departure) = self.departed.iter().find(|departure| silent.contains(&departure.rank)) {
            return departure.error().to_string();
        }
        if !silent.is_empty() {
            return format!(
                "missing: {} (no answer for {} s: stopped, exited, unreachable or very slow)",
                named_ranks(&silent, self.hosts),
                self.silent.as_secs()
            );
        }
        let is_busy = |answer: &Status| answer.waited.is_none() && answer.entered <= seen.entered;
        let busy: Vec<usize> = others().filter(|&rank| answers[rank].as_ref().is_some_and(is_busy)).collect();
        if !busy.is_empty() {
            return format!(
                "missing: {} (running, but not in this operation)",
                named_ranks(&busy, self.hosts)
            );
        }
        let elsewhere = others()
            .find_map(|rank| Some(format!("{} {}", name(rank), where_else(seen, answers[rank].as_ref()?)?)));
        elsewhere.unwrap_or_else(|| {
            "all ranks are in this operation: check the network between the hosts, and that all ranks call the \
             operation with the same sizes, buckets and reductions"
                .to_owned()
        })
    }
}

/// Says in which operation the rank of `answer` is; `None` if it is in the same operation as `seen`.
///
/// A rank can complete an operation while another rank is still in it, as the root of a broadcast does. Two
/// ranks in different operations may therefore have made the same calls; then a message between the two ranks
/// is late or lost.
fn where_else(seen: &Status, answer: &Status) -> Option<String> {
    const LOST: &str =
        "a message between the two ranks is late or lost, or ranks do not call the same operations";
    let what = &answer.what;
    match answer.entered.cmp(&seen.entered) {
        Ordering::Equal if answer.what == seen.what => None,
        Ordering::Equal => Some(format!("is in {what}: ranks do not call the same operations")),
        Ordering::Less => Some(format!("is in an earlier operation ({what}): {LOST}")),
        Ordering::Greater if answer.waited.is_none() => Some(format!("has completed this operation: {LOST}")),
        Ordering::Greater => Some(format!("is in a later operation ({what}): {LOST}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_operation_earlier_or_later_is_no_other_operation() {
        let what = |name| format!("mpi {name}");
        let seen = Status { entered: 7, what: what("all-gather"), waited: None, peer: None, blocking: None };
        let answer = |entered, waits: u8, name| {
            let waited = (waits == 1).then_some(Duration::ZERO);
            where_else(&seen, &Status { entered, what: what(name), waited, ..seen.clone() })
        };
        assert_eq!(answer(7, 1, "all-gather"), None);
        let other = answer(7, 1, "barrier").expect("another operation");
        assert!(other.starts_with("is in mpi barrier: "), "{other}");
        for (entered, waits, start) in [
            (6, 1, "is in an earlier operation (mpi all-gather): "),
            (8, 1, "is in a later operation (mpi all-gather): "),
            (8, 0, "has completed this operation: "),
        ] {
            let found = answer(entered, waits, "all-gather").expect("another place");
            assert!(found.starts_with(start), "{found}");
        }
    }
}
