//! Who keeps a rank waiting, from what the other guards answer.

use std::cmp::Ordering;

use super::activity::{self, Seen};
use super::messages::{Header, SILENT};
use super::{Guard, operation};

impl Guard {
    /// Names the ranks that keep this rank waiting: those that do not answer, then those that are
    /// in no operation. A rank that waits in an earlier operation waits for them as well.
    pub(super) fn cause(&self, seen: Seen, answers: &[Option<Header>]) -> String {
        let is_here =
            |answer: &Header| answer[2] > seen.entered || (answer[2] == seen.entered && answer[3] == 1);
        let others = || (0..answers.len()).filter(|&rank| rank != self.rank);
        let name = |rank: usize| format!("rank {rank} on {}", self.hosts[rank]);
        let list = |ranks: Vec<usize>| ranks.into_iter().map(name).collect::<Vec<_>>().join(", ");
        let departed = activity::departed();
        let silent: Vec<usize> = others().filter(|&rank| answers[rank].is_none()).collect();
        if let Some(departure) = departed.iter().find(|departure| silent.contains(&departure.rank)) {
            return departure.error().to_string();
        }
        if !silent.is_empty() {
            let time = SILENT.as_secs();
            return format!(
                "missing: {} (no answer for {time} s: stopped, ended, cut off or very slow)",
                list(silent)
            );
        }
        let behind = |rank: &usize| answers[*rank].is_some_and(|answer| !is_here(&answer));
        let busy: Vec<usize> =
            others().filter(behind).filter(|&rank| answers[rank].is_some_and(|a| a[3] == 0)).collect();
        if !busy.is_empty() {
            return format!("missing: {} (alive, and has not called it)", list(busy));
        }
        let elsewhere =
            others().find_map(|rank| Some(format!("{} {}", name(rank), where_else(seen, answers[rank]?)?)));
        elsewhere.unwrap_or_else(|| "all ranks are in it, so the network between them is to blame".to_owned())
    }
}

/// Where a rank is that answers so, if it is not in the operation of `seen`.
///
/// A rank can complete an operation that another one is still in, as the root of a broadcast does. So where the two
/// are at different operations, these may be the same for both, with a message on the way that does not arrive.
fn where_else(seen: Seen, [_, _, entered, waits, what, ..]: Header) -> Option<String> {
    const LOST: &str = "a message between them is lost or late, or ranks do not call the same operations";
    let in_what = format!("in {}", operation::describe(what));
    match entered.cmp(&seen.entered) {
        Ordering::Equal if what == seen.what => None,
        Ordering::Equal => Some(format!("is {in_what}: ranks do not call the same operations")),
        Ordering::Less => Some(format!("is before it, {in_what}: {LOST}")),
        Ordering::Greater if waits == 0 => Some(format!("is past it: {LOST}")),
        Ordering::Greater => Some(format!("is past it, {in_what}: {LOST}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_operation_earlier_or_later_is_no_other_operation() {
        let what = |name| operation::encode("mpi", operation::number_of(name), None);
        let seen = Seen { entered: 7, what: what("all-gather"), waited: None };
        let answer = |entered, waits, name| where_else(seen, [1, 1, entered, waits, what(name), 1, 0]);
        assert_eq!(answer(7, 1, "all-gather"), None);
        let other = answer(7, 1, "barrier").expect("another operation");
        assert_eq!(other, "is in mpi barrier: ranks do not call the same operations");
        for (entered, waits, start) in [
            (6, 1, "is before it, in mpi all-gather: a message "),
            (8, 1, "is past it, in mpi all-gather: a message "),
            (8, 0, "is past it: a message "),
        ] {
            let found = answer(entered, waits, "all-gather").expect("another place");
            assert!(found.starts_with(start), "{found}");
        }
    }
}
