//! Determines from a time line which rank waited longest for which other rank.

use std::collections::BTreeMap;

use super::RankTrace;
use crate::spans::Logged;
use run_record::count;

/// Returns a line such as `rank 0 waited 12.3 ms for rank 1 in 20 steps (…)`, or `None` if no rank waited.
///
/// The slowest rank has the longest median compute time of a step. The line reports the longest total wait of
/// one rank for the slowest rank. If no rank waited for the slowest rank, the line reports the longest total
/// wait of one rank for another.
///
/// An all-reduce cannot complete before the last rank has started it. A rank's call counts as waiting from
/// the beginning of the call until the last rank has started the all-reduce.
pub fn longest_wait(ranks: &[RankTrace]) -> Option<String> {
    // When each rank started each bucket, by step and bucket.
    let starts: Vec<BTreeMap<(usize, usize), i64>> = ranks
        .iter()
        .map(|rank| rank.buckets.iter().map(|bucket| ((bucket.step, bucket.index), bucket.begin)).collect())
        .collect();
    let mut waited: BTreeMap<(usize, usize), i64> = BTreeMap::new();
    for (waiter, rank) in ranks.iter().enumerate() {
        for bucket in &rank.buckets {
            let Some((straggler, start)) = last(&starts, (bucket.step, bucket.index)) else { continue };
            for call in bucket.calls.iter().filter(|_| straggler != waiter) {
                let wait = call.end_ns.min(start) - call.begin_ns;
                if wait > 0 {
                    *waited.entry((waiter, straggler)).or_default() += wait;
                }
            }
        }
    }
    let compute: Vec<f64> = ranks.iter().map(median_compute_ms).collect();
    let slowest = (0..ranks.len()).max_by(|&a, &b| compute[a].total_cmp(&compute[b]));
    let longest = waited.iter().max_by_key(|((_, rank), total)| (Some(*rank) == slowest, **total));
    let (&(waiter, straggler), &total) = longest?;
    let (total_ms, steps) = (1e-6 * total as f64, ranks[waiter].steps().count());
    // Compute time excludes the calls that start buckets and wait for them.
    Some(format!(
        "rank {waiter} waited {} ms for rank {straggler} in {} ({} ms per step; median compute time per step: rank \
         {straggler} {} ms, rank {waiter} {} ms)",
        short(total_ms),
        count(steps, "step"),
        short(total_ms / steps.max(1) as f64),
        short(compute[straggler]),
        short(compute[waiter])
    ))
}

/// Returns the last rank that started a bucket, and the time of its start. `None` if some rank has not
/// started the bucket.
fn last(starts: &[BTreeMap<(usize, usize), i64>], bucket: (usize, usize)) -> Option<(usize, i64)> {
    let times: Option<Vec<i64>> = starts.iter().map(|rank| rank.get(&bucket).copied()).collect();
    times?.into_iter().enumerate().max_by_key(|(_, start)| *start)
}

fn median_compute_ms(rank: &RankTrace) -> f64 {
    let mut exposed: BTreeMap<usize, i64> = BTreeMap::new();
    for call in rank.buckets.iter().flat_map(|bucket| &bucket.calls) {
        *exposed.entry(call.step).or_default() += call.end_ns - call.begin_ns;
    }
    let compute = |step: &Logged| step.end_ns - step.begin_ns - exposed.get(&step.step).unwrap_or(&0);
    let mut times: Vec<i64> = rank.steps().map(compute).collect();
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, |&ns| 1e-6 * ns as f64)
}

fn short(ms: f64) -> String {
    match ms {
        ms if ms >= 10.0 => format!("{ms:.1}"),
        ms => format!("{ms:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::trace::Bucket;
    use crate::spans::REST;

    /// Makes a rank with steps of 10 ms. Each pair has two times of a step in ms: when the step starts its
    /// only bucket, and when its wait ends.
    fn rank(steps: &[[i64; 2]]) -> RankTrace {
        let mut trace = RankTrace { operators: Vec::new(), spans: Vec::new(), buckets: Vec::new() };
        for (at, &[start, end]) in steps.iter().enumerate() {
            let step = at + 1;
            let span = |row, begin, end| {
                let [begin_ns, end_ns] = [begin, end].map(|ms: i64| 1_000_000 * (10 * at as i64 + ms));
                Logged { row, step, begin_ns, end_ns }
            };
            trace.spans.push(span(REST, 0, 10));
            let call = span(1, start, end);
            let (begin, end, parameters) = (call.begin_ns, call.end_ns, String::new());
            let (index, lane, bytes, hidden, calls) = (0, 0, 8, 0, vec![call]);
            trace.buckets.push(Bucket { step, index, lane, begin, end, bytes, parameters, hidden, calls });
        }
        trace
    }

    #[test]
    fn ranks_wait_for_the_last_to_start_a_bucket() {
        // Rank 2 starts last in two steps, rank 0 in one.
        let ranks = [
            rank(&[[2, 8], [1, 9], [5, 6]]),
            rank(&[[4, 8], [4, 9], [3, 6]]),
            rank(&[[7, 8], [8, 9], [4, 6]]),
        ];
        let found = longest_wait(&ranks).expect("a wait");
        for fact in
            ["rank 0 waited 12.0 ms for rank 2", "3 steps", "4.000 ms", "rank 2 9.000 ms", "rank 0 4.000 ms"]
        {
            assert!(found.contains(fact), "{fact}: {found}");
        }
    }

    #[test]
    fn one_long_step_does_not_make_a_straggler() {
        // Rank 0 is slower in all steps but the last.
        let ranks = [rank(&[[7, 8], [7, 8], [1, 9]]), rank(&[[5, 8], [5, 8], [8, 9]])];
        let found = longest_wait(&ranks).expect("a wait");
        assert!(
            found.starts_with("rank 1 waited 4.000 ms for rank 0") && found.contains("3 steps"),
            "{found}"
        );
    }

    #[test]
    fn one_rank_waits_for_none() {
        assert_eq!(longest_wait(&[rank(&[[2, 8]])]), None);
        assert_eq!(longest_wait(&[]), None);
        let unlike = [rank(&[[2, 8]]), rank(&[])];
        assert_eq!(longest_wait(&unlike), None, "a bucket that one rank lacks");
    }
}
