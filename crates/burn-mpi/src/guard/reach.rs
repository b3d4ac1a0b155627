//! Whether the guards of other ranks answer at all.
//!
//! A firewall may let MPI's connections through and drop the guards' messages. A rank that hangs is
//! then not named, and one that is stopped on its way out not noticed: worth a warning in good time.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Guard;
use super::messages::News;

/// Times after the guard's start at which rank 0 asks those that have not answered yet.
const ASK: [Duration; 3] = [Duration::from_secs(10), Duration::from_secs(20), Duration::from_secs(30)];
/// When it gives up.
const END: Duration = Duration::from_secs(33);

/// What rank 0 knows of the ways to the other ranks and back.
pub(super) struct Reach {
    unanswered: BTreeSet<usize>,
    asked: usize,
}

impl Reach {
    /// Before any question of rank `rank`, of `size` ranks; ranks other than the first ask nothing.
    pub(super) fn new(rank: usize, size: usize) -> Self {
        Self { unanswered: (1..size).filter(|_| rank == 0).collect(), asked: 0 }
    }

    /// Records an answer to a question of this rank.
    pub(super) fn note(&mut self, rank: usize) {
        if self.asked > 0 {
            self.unanswered.remove(&rank);
        }
    }

    /// Calls `ask` for ranks that are to be asked now, so long after the guard's start; returns, once,
    /// those that have answered no question.
    pub(super) fn check(&mut self, elapsed: Duration, ask: impl FnMut(usize)) -> Option<Vec<usize>> {
        if ASK.get(self.asked).is_some_and(|&at| elapsed >= at) {
            self.asked += 1;
            self.unanswered.iter().copied().for_each(ask);
        }
        let is_over = elapsed >= END && self.asked == ASK.len();
        (is_over && !self.unanswered.is_empty())
            .then(|| std::mem::take(&mut self.unanswered).into_iter().collect())
    }
}

impl Guard {
    /// Warns of ranks whose guards do not answer this one's.
    pub(super) fn check_reach(&self, reach: &mut Reach, elapsed: Duration) {
        let ask = |rank: usize| self.send(&News::Question, &self.peers[rank]);
        for rank in reach.check(elapsed, ask).unwrap_or_default() {
            log::warn!(
                "rank {rank} on {} does not answer over UDP: it was stopped or is very slow, or a firewall drops the \
                 messages, and then a job in which it hangs may not end",
                self.hosts[rank]
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The course of a minute on rank `rank` of 4, if rank 1 answers at once, rank 3 from its second
    /// question on, and rank 2 never.
    fn course(rank: usize) -> Vec<String> {
        let (mut reach, mut course) = (Reach::new(rank, 4), Vec::new());
        for second in 0..60 {
            let mut asked = Vec::new();
            let unreached = reach.check(Duration::from_secs(second), |rank| asked.push(rank));
            if !asked.is_empty() {
                course.push(format!("{second} s: asks {asked:?}"));
            }
            course.extend(unreached.map(|ranks| format!("{second} s: misses {ranks:?}")));
            let answers = asked.iter().filter(|&&rank| rank == 1 || (rank == 3 && second >= 20));
            answers.for_each(|&rank| reach.note(rank));
        }
        course
    }

    #[test]
    fn a_rank_that_answers_none_of_three_questions_is_told_once() {
        let expected = ["10 s: asks [1, 2, 3]", "20 s: asks [2, 3]", "30 s: asks [2]", "33 s: misses [2]"];
        assert_eq!(course(0), expected);
    }

    #[test]
    fn only_the_first_rank_asks() {
        assert_eq!(course(1), Vec::<String>::new());
    }
}
