//! Cost model: predicts step time, epoch time, efficiency and sent bytes on 1 to 4096 ranks, from the
//! computing time of one rank and the latency and bandwidth of a link.
//!
//! The time of an all-reduce of n bytes over p ranks follows Thakur, Rabenseifner and Gropp, "Optimization of
//! Collective Communication Operations in MPICH" (IJHPCA 19(1), 2005), section 4.5:
//!
//! - recursive doubling: ⌈log2 p⌉ messages of n bytes, one after the other;
//! - ring (reduce-scatter, then all-gather): 2(p−1) messages of n/p bytes.
//!
//! A reduce-scatter or an all-gather alone has p−1 messages of n/p bytes in a ring, and ⌈log2 p⌉ messages of
//! together n(p−1)/p bytes by recursive halving or doubling (sections 4.1 and 4.3).
//!
//! A message of n bytes takes α + βn: α is the latency of the link, and β the time per byte. The paper's γ,
//! the time of an addition, is omitted: additions run at the speed of memory. Every rank has its own link,
//! and all links work concurrently. Ranks that share a link, such as several ranks on a machine, are slower
//! than predicted.
//!
//! Overlap with backward: gradients become ready evenly over backward's time B and are packed into buckets,
//! which are reduced one after the other. A bucket is reduced as soon as it is full and the previous bucket
//! is complete. Communication after B is exposed: the rank waits for it. The last bucket is full only at B,
//! so a network that fits into one bucket hides no communication. [`Algorithm`] says what else is sent.
//!
//! Each rank keeps its batch size b. An epoch over s samples therefore has ⌈s/(bp)⌉ steps on p ranks.

use super::link::Link;
use super::remarks::step_samples;
use super::runs::{Run, wait_seconds};

/// An all-reduce algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllReduce {
    /// 2(p−1) messages of n/p bytes.
    Ring,
    /// ⌈log2 p⌉ messages of n bytes.
    RecursiveDoubling,
}

impl AllReduce {
    /// All algorithms.
    pub const ALL: [Self; 2] = [Self::Ring, Self::RecursiveDoubling];

    /// Returns the name for tables and plots.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::RecursiveDoubling => "recursive doubling",
        }
    }

    /// Returns what a rank sends in an all-reduce of `bytes` over `ranks`.
    pub fn whole(self, bytes: f64, ranks: usize) -> Transfer {
        let half = self.half(bytes, ranks);
        match self {
            Self::Ring => Transfer { messages: 2.0 * half.messages, bytes: 2.0 * half.bytes },
            Self::RecursiveDoubling => Transfer { bytes: half.messages * bytes, ..half },
        }
    }

    /// Returns what a rank sends in a reduce-scatter or an all-gather of `bytes` over `ranks`.
    pub fn half(self, bytes: f64, ranks: usize) -> Transfer {
        let p = ranks as f64;
        let messages = match self {
            Self::Ring => p - 1.0,
            Self::RecursiveDoubling => p.log2().ceil(),
        };
        Transfer { messages, bytes: bytes * (p - 1.0) / p }
    }
}

/// What a rank sends in one operation of all ranks: messages one after the other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transfer {
    /// Number of messages; 0 on one rank.
    pub messages: f64,
    /// Bytes of all messages together.
    pub bytes: f64,
}

impl Transfer {
    /// Returns the time of the operation in milliseconds.
    ///
    /// The result is the time of a single message with all bytes that one link carries, plus α for each
    /// message after the first. For a link that follows α + βn, the result equals the model above. For a
    /// measured link, the result is more accurate than the sum over messages: switches forward a first burst
    /// without delay, and the sum would count such a burst for each message.
    pub fn ms(self, link: &Link) -> f64 {
        if self.messages == 0.0 {
            return 0.0;
        }
        (link.time_us(self.bytes) + (self.messages - 1.0) * link.latency_us) / 1e3
    }
}

/// How ranks keep their parameters equal: what they exchange, and when.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Algorithm {
    /// An all-reduce of each bucket of gradients.
    AllReduce,
    /// PowerSGD: two all-reduces of each bucket, of which the second starts after backward. A run only has
    /// the bytes of all of them, so that equal bytes of both, in proportion to the buckets, are assumed.
    PowerSgd {
        /// Bytes of all buckets in both rounds.
        bytes: f64,
    },
    /// A sharded optimizer: a reduce-scatter of each bucket of gradients, and after backward an all-reduce of
    /// the [`CONTROL`] values. Then each of p ranks updates 1/p of the parameters, and an all-gather of each
    /// bucket, as f32, follows.
    Sharded {
        /// Time of the update on one rank, in milliseconds. It is not a part of the time of a step.
        update_ms: f64,
    },
    /// Local updates: every `every` steps, an all-reduce of the change of each fragment, which the backwards
    /// of `delay` steps hide. Without a delay, all of it is exposed.
    Local {
        /// Steps between two all-reduces of a fragment.
        every: usize,
        /// Number of fragments, which take turns.
        fragments: usize,
        /// Steps in which an all-reduce is in flight.
        delay: usize,
    },
}

/// The work of a training: what one rank computes and sends in a step, and how many samples an epoch has.
#[derive(Debug, Clone, PartialEq)]
pub struct Work {
    /// Time of a whole step without waiting for other ranks, in milliseconds.
    pub compute_ms: f64,
    /// Time of backward in milliseconds, a part of `compute_ms`.
    pub backward_ms: f64,
    /// Values of each bucket, in the order of reduction.
    pub buckets: Vec<usize>,
    /// Bytes of a value of a bucket.
    pub width: usize,
    /// Whether buckets are reduced during backward.
    pub overlap: bool,
    /// Number of training samples of all ranks.
    pub samples: usize,
    /// Number of samples of one rank in a step.
    pub batch: usize,
    /// Maximum number of ranks: with more, a rank would have no sample.
    pub most_ranks: usize,
    /// What ranks exchange.
    pub algorithm: Algorithm,
}

impl Work {
    /// Takes the work from the measurements of `run`.
    pub fn from_run(run: &Run) -> Self {
        let (results, params) = (&run.results, run.record.params);
        let number = |field| run.option(field).as_u64().unwrap_or_default() as usize;
        let bucket_mb = run.option("bucket_mb").as_f64().unwrap_or_default();
        let mut compute_ms = results.ms_per_step - 1e3 * wait_seconds(results) / results.steps as f64;
        let algorithm = if !run.option("sync_every").is_null() {
            let (every, fragments) = (number("sync_every").max(1), number("fragments").max(1));
            Algorithm::Local { every, fragments, delay: number("sync_delay") }
        } else if *run.option("shard_optimizer") == true {
            let own = results.step_ms.optimizer;
            compute_ms -= own;
            Algorithm::Sharded { update_ms: own * run.record.world_size as f64 }
        } else if run.text("compress") == "powersgd" {
            Algorithm::PowerSgd { bytes: results.bytes_per_step.unwrap_or_default() }
        } else {
            Algorithm::AllReduce
        };
        // The control values are in the last bucket, but not if each rank gets only a part of it.
        let tail = if let Algorithm::Sharded { .. } = algorithm { 0 } else { CONTROL };
        Self {
            compute_ms: compute_ms.max(0.0),
            backward_ms: results.step_ms.backward,
            buckets: match algorithm {
                Algorithm::Local { fragments, .. } => vec![params.div_ceil(fragments); fragments],
                _ => buckets(params, bucket_limits(params, bucket_mb), tail),
            },
            width: if run.text("grad_dtype") == "f32" { 4 } else { 2 },
            overlap: *run.option("overlap") == true,
            samples: results.per_rank.iter().map(|rank| rank.train_samples).sum(),
            batch: step_samples(|field| run.option(field)),
            most_ranks: [run.record.data.train_samples, run.record.data.test_samples]
                .into_iter()
                .filter(|&samples| samples > 0)
                .fold(MOST_RANKS, usize::min),
            algorithm,
        }
    }

    /// Returns the numbers of ranks to predict for: 1, 2, 4 … up to 4096, or as many as have samples.
    pub fn rank_counts(&self) -> impl Iterator<Item = usize> + use<> {
        let most = self.most_ranks;
        (0..).map(|power| 1 << power).take_while(move |&ranks| ranks <= most)
    }

    /// Returns what a rank sends in a step on `ranks`: operations that may overlap with backward, one for
    /// each bucket, and operations after it. With local updates, these are the operations of `every` steps.
    fn transfers(&self, model: AllReduce, ranks: usize) -> (Vec<Transfer>, Vec<Transfer>) {
        // Ranks pad a bucket, so that it can be cut into equal parts.
        let padded = |values: usize| values.next_multiple_of(ranks) as f64;
        let width = self.width as f64;
        let each = |bytes: &dyn Fn(usize) -> f64, of: fn(AllReduce, f64, usize) -> Transfer| {
            self.buckets.iter().map(|&values| of(model, bytes(values), ranks)).collect::<Vec<_>>()
        };
        match self.algorithm {
            Algorithm::AllReduce => (each(&|values| width * padded(values), AllReduce::whole), Vec::new()),
            Algorithm::PowerSgd { bytes } => {
                let all = self.buckets.iter().sum::<usize>() as f64;
                let round = each(&|values| bytes / 2.0 * values as f64 / all, AllReduce::whole);
                (round.clone(), round)
            }
            Algorithm::Sharded { .. } => {
                let control = AllReduce::RecursiveDoubling.whole(4.0 * CONTROL as f64, ranks);
                let gather = each(&|values| 4.0 * padded(values), AllReduce::half);
                let after = [control].into_iter().chain(gather).collect();
                (each(&|values| width * padded(values), AllReduce::half), after)
            }
            Algorithm::Local { .. } => {
                let message = |values: usize| width * (values + NOTE * ranks) as f64;
                (Vec::new(), each(&message, AllReduce::whole))
            }
        }
    }

    /// Returns the bytes that a rank sends to other ranks in a step on `ranks`.
    pub fn sent_bytes(&self, model: AllReduce, ranks: usize) -> f64 {
        let (during, after) = self.transfers(model, ranks);
        let bytes: f64 = during.iter().chain(&after).map(|transfer| transfer.bytes).sum();
        if let Algorithm::Local { every, .. } = self.algorithm { bytes / every as f64 } else { bytes }
    }

    /// Returns the exposed communication of a step on `ranks`, in milliseconds.
    pub fn exposed_ms(&self, link: &Link, model: AllReduce, ranks: usize) -> f64 {
        let (during, after) = self.transfers(model, ranks);
        if let Algorithm::Local { every, fragments, delay } = self.algorithm {
            // Only backward polls the transport, which makes hardly any progress otherwise. A fragment has
            // the link until the next one starts.
            let hidden = delay.min(every / fragments) as f64 * self.backward_ms;
            let exposed = |transfer: &Transfer| (transfer.ms(link) - hidden).max(0.0);
            return after.iter().map(exposed).sum::<f64>() / every as f64;
        }
        let total: usize = self.buckets.iter().sum();
        let (mut filled, mut through) = (0, 0.0f64);
        for (values, transfer) in self.buckets.iter().zip(during) {
            filled += values;
            let share = if self.overlap { filled as f64 / total as f64 } else { 1.0 };
            through = through.max(self.backward_ms * share) + transfer.ms(link);
        }
        (through - self.backward_ms).max(0.0) + after.iter().map(|transfer| transfer.ms(link)).sum::<f64>()
    }

    /// Returns the computing time of a step on `ranks`, in milliseconds.
    pub fn compute_ms_on(&self, ranks: usize) -> f64 {
        match self.algorithm {
            Algorithm::Sharded { update_ms } => self.compute_ms + update_ms / ranks as f64,
            _ => self.compute_ms,
        }
    }

    /// Returns the time of a step on `ranks`, in milliseconds.
    pub fn step_ms(&self, link: &Link, model: AllReduce, ranks: usize) -> f64 {
        self.compute_ms_on(ranks) + self.exposed_ms(link, model, ranks)
    }

    /// Returns the number of steps of an epoch on `ranks`.
    pub fn steps(&self, ranks: usize) -> usize {
        self.samples.div_ceil(self.batch * ranks)
    }

    /// Returns the time of an epoch on `ranks`, in seconds.
    pub fn epoch_s(&self, link: &Link, model: AllReduce, ranks: usize) -> f64 {
        self.steps(ranks) as f64 * self.step_ms(link, model, ranks) / 1e3
    }

    /// Returns the parallel efficiency on `ranks`, in percent.
    pub fn efficiency(&self, link: &Link, model: AllReduce, ranks: usize) -> f64 {
        self.efficiency_of(ranks, self.epoch_s(link, model, ranks))
    }

    /// Returns the parallel efficiency in percent if an epoch on `ranks` takes `epoch_s` seconds.
    pub fn efficiency_of(&self, ranks: usize, epoch_s: f64) -> f64 {
        let alone = self.steps(1) as f64 * self.compute_ms_on(1) / 1e3;
        100.0 * alone / (ranks as f64 * epoch_s)
    }
}

/// Number of values that follow the gradients in the last bucket. They are not gradients, but all ranks need
/// their sums in each step.
pub const CONTROL: usize = 5;

/// Number of values of each rank that follow the change of a fragment. Must agree with burn-mpi's local
/// updates.
const NOTE: usize = 16;

/// Returns the maximum number of values of the first bucket and of each other bucket, for a network of
/// `params` parameters. Must agree with the limits that burn-mpi computes from `--bucket-mb`.
pub fn bucket_limits(params: usize, bucket_mb: f64) -> (usize, usize) {
    const PARTS: usize = 8;
    const LEAST_BYTES: usize = 1 << 20;
    let bytes = |mb: f64| (mb * f64::from(1 << 20)) as usize;
    (bytes(bucket_mb.min(1.0)) / 4, bytes(bucket_mb).min((4 * params / PARTS).max(LEAST_BYTES)) / 4)
}

/// Returns the number of values of each bucket, as if parameters could be split anywhere. The first bucket
/// contains at most `first` values, and every bucket at most `capacity`. The last bucket contains `tail`
/// values in addition.
fn buckets(params: usize, (first, capacity): (usize, usize), tail: usize) -> Vec<usize> {
    let (mut left, mut buckets) = (params.max(1), Vec::new());
    while left > 0 {
        let limit = if buckets.is_empty() { first.min(capacity) } else { capacity };
        let size = left.min(limit.max(1));
        buckets.push(size);
        left -= size;
    }
    if let Some(last) = buckets.last_mut() {
        *last += tail;
    }
    buckets
}

/// Maximum number of ranks to predict for.
pub const MOST_RANKS: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    /// Buckets of f32 values. Over the link of 8 Mbit/s below, a byte takes 1 µs.
    fn work(buckets: &[usize], overlap: bool) -> Work {
        Work {
            compute_ms: 10.0,
            backward_ms: 6.0,
            buckets: buckets.to_vec(),
            width: 4,
            overlap,
            samples: 60_000,
            batch: 32,
            most_ranks: MOST_RANKS,
            algorithm: Algorithm::AllReduce,
        }
    }

    /// Checks the exposed milliseconds and the sent bytes of a step on two and on four ranks, in a ring.
    fn check(work: &Work, expected: [(f64, f64); 2]) {
        let link = Link::new(0.0, 8.0);
        for (ranks, (exposed, sent)) in [2, 4].into_iter().zip(expected) {
            let found = work.exposed_ms(&link, AllReduce::Ring, ranks);
            assert!((found - exposed).abs() < 1e-9, "{ranks} ranks: {found} ms, not {exposed}: {work:?}");
            let found = work.sent_bytes(AllReduce::Ring, ranks);
            assert!((found - sent).abs() < 1e-9, "{ranks} ranks: {found} bytes, not {sent}: {work:?}");
        }
        for model in AllReduce::ALL {
            assert_eq!((work.exposed_ms(&link, model, 1), work.sent_bytes(model, 1)), (0.0, 0.0));
        }
    }

    #[test]
    fn the_cost_models_are_those_of_the_paper() {
        let link = Link::new(50.0, 80.0);
        let beta = 0.1;
        for p in [2usize, 4, 8, 1024] {
            let (ranks, n) = (p as f64, 17_000.0);
            let (ring, doubling) = (AllReduce::Ring, AllReduce::RecursiveDoubling);
            let part = beta * n * (ranks - 1.0) / ranks;
            for (transfer, expected) in [
                (ring.whole(n, p), 2.0 * (ranks - 1.0) * (50.0 + beta * n / ranks)),
                (doubling.whole(n, p), ranks.log2() * (50.0 + beta * n)),
                (ring.half(n, p), (ranks - 1.0) * 50.0 + part),
                (doubling.half(n, p), ranks.log2() * 50.0 + part),
            ] {
                assert!((1e3 * transfer.ms(&link) - expected).abs() < 1e-6, "{transfer:?} on {p}");
            }
        }
        assert_eq!(AllReduce::Ring.whole(17_000.0, 1).ms(&link), 0.0);
        assert_eq!(AllReduce::RecursiveDoubling.whole(10.0, 5), Transfer { messages: 3.0, bytes: 30.0 });
    }

    #[test]
    fn one_bucket_hides_nothing_and_several_hide_all_but_the_last() {
        check(&work(&[1000], true), [(4.0, 4000.0), (6.0, 6000.0)]);
        // On two ranks, the buckets are ready at 3 and 6 ms and take 2 ms each: only the second is exposed.
        check(&work(&[500, 500], true), [(2.0, 4000.0), (3.0, 6000.0)]);
        check(&work(&[500, 500], false), [(4.0, 4000.0), (6.0, 6000.0)]);
        // The link is the bottleneck: 3 + 4 + 4 − 6 ms.
        check(&work(&[1000, 1000], true), [(5.0, 8000.0), (9.0, 12_000.0)]);
        // On four ranks, 7 values are sent as 8.
        check(&work(&[7], true), [(0.032, 32.0), (0.048, 48.0)]);
    }

    #[test]
    fn the_second_round_of_powersgd_is_exposed() {
        let algorithm = Algorithm::PowerSgd { bytes: 8000.0 };
        // On two ranks, each round of a bucket takes 2 ms. The first rounds start at 3 and 6 ms.
        check(&Work { algorithm, ..work(&[5000, 5000], true) }, [(2.0 + 4.0, 8000.0), (3.0 + 6.0, 12_000.0)]);
        // 8 ms of first rounds, and buckets of different sizes.
        check(&Work { algorithm, ..work(&[1000, 3000], false) }, [(8.0, 8000.0), (12.0, 12_000.0)]);
    }

    #[test]
    fn shares_are_gathered_after_an_update_that_ranks_divide() {
        let algorithm = Algorithm::Sharded { update_ms: 4.0 };
        let sharded = Work { algorithm, ..work(&[1000, 1000], true) };
        // On two ranks, half of a bucket takes 2 ms. The control values have 20 bytes, and two rounds on four
        // ranks.
        check(&sharded, [(2.0 + 0.02 + 4.0, 8020.0), (3.0 + 0.04 + 6.0, 12_040.0)]);
        assert_eq!([1, 2, 4].map(|ranks| sharded.compute_ms_on(ranks)), [14.0, 12.0, 11.0]);
        // Gradients of 16 bits, but parameters of 32.
        let sharded = Work { width: 2, ..sharded };
        check(&sharded, [(1.0 + 0.02 + 4.0, 6020.0), (1.5 + 0.04 + 6.0, 9040.0)]);
        let step = sharded.step_ms(&Link::new(0.0, 8.0), AllReduce::Ring, 2);
        assert!((step - (12.0 + 5.02)).abs() < 1e-9, "{step}");
    }

    #[test]
    fn backwards_of_local_steps_hide_what_is_in_flight() {
        let local = |every, delay| Work {
            backward_ms: 2.0,
            algorithm: Algorithm::Local { every, fragments: 2, delay },
            ..work(&[500, 500], true)
        };
        // A message has 500 values and 16 of each rank: 2.128 ms on two ranks, and 1.5 times 2.256 ms on
        // four.
        let sent = |every: f64| [2.0 * 2128.0 / every, 2.0 * 3384.0 / every];
        for (every, delay, exposed) in
            [(4, 0, [2.128, 3.384]), (4, 1, [0.128, 1.384]), (4, 3, [0.0, 0.0]), (2, 1, [0.128, 1.384])]
        {
            let steps = every as f64;
            let expected = [0, 1].map(|n| (2.0 * exposed[n] / steps, sent(steps)[n]));
            check(&local(every, delay), expected);
        }
        // With a delay of the whole period, the next fragment waits for the link after one step.
        check(&local(2, 2), [(0.128, 2128.0), (1.384, 3384.0)]);
    }

    #[test]
    fn an_epoch_has_whole_steps() {
        let (work, link) = (work(&[1], true), Link::new(0.0, 1e12));
        assert_eq!([1, 2, 1024].map(|ranks| work.steps(ranks)), [1875, 938, 2]);
        assert!((work.epoch_s(&link, AllReduce::Ring, 2) - 9.38).abs() < 1e-3);
        assert!((work.efficiency(&link, AllReduce::Ring, 1) - 100.0).abs() < 1e-9);
        assert!(work.efficiency(&link, AllReduce::Ring, 1024) < 92.0, "2 steps instead of 1.83");
    }

    #[test]
    fn buckets_contain_every_value_once() {
        assert_eq!(buckets(4266, (262_144, 262_144), CONTROL), [4266 + CONTROL]);
        assert_eq!(buckets(10, (2, 4), CONTROL), [2, 4, 4 + CONTROL]);
    }

    #[test]
    fn a_run_has_what_its_algorithm_needs() {
        let of = |ranks, changes: &[(&str, serde_json::Value)]| {
            let mut run = crate::testing::run((ranks, 1), &["--epochs=1"], 2.0);
            run.record.config.extend(changes.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
            run.results.step_ms.optimizer = 0.25;
            (Work::from_run(&run), run.results.ms_per_step)
        };
        let (plain, step) = of(2, &[]);
        assert_eq!((plain.algorithm, &plain.buckets[..]), (Algorithm::AllReduce, &[4271][..]));
        assert!((plain.compute_ms - 0.9 * step).abs() < 1e-9, "a tenth is exposed: {plain:?}");
        let (sharded, _) = of(2, &[("shard_optimizer", true.into())]);
        assert_eq!(
            (sharded.algorithm, &sharded.buckets[..]),
            (Algorithm::Sharded { update_ms: 0.5 }, &[4266][..])
        );
        assert!((sharded.compute_ms_on(2) - plain.compute_ms).abs() < 1e-9);
        let (compressed, _) = of(2, &[("compress", "powersgd".into())]);
        assert_eq!(compressed.algorithm, Algorithm::PowerSgd { bytes: 17_064.0 });
        let (local, _) =
            of(1, &[("sync_every", 6.into()), ("fragments", 3.into()), ("sync_delay", 1.into())]);
        assert_eq!(local.algorithm, Algorithm::Local { every: 6, fragments: 3, delay: 1 });
        assert_eq!(local.buckets, [1422; 3]);
    }
}
