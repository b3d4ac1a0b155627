//! Cost model: predicts step time, epoch time and efficiency on 1 to 1024 ranks, from the computing time of
//! one rank and the latency and bandwidth of a link.
//!
//! The time of an all-reduce of n bytes over p ranks follows Thakur, Rabenseifner and Gropp, "Optimization of
//! Collective Communication Operations in MPICH" (IJHPCA 19(1), 2005), section 4.5:
//!
//! - recursive doubling: ⌈log2 p⌉ messages of n bytes, one after the other;
//! - ring (reduce-scatter, then all-gather): 2(p−1) messages of n/p bytes.
//!
//! A message of n bytes takes α + βn: α is the latency of the link, and β the time per byte. The paper's γ,
//! the time of an addition, is omitted: additions run at the speed of memory. Every rank has its own link,
//! and all links work concurrently. Ranks that share a link, such as several ranks on a machine, are slower
//! than predicted.
//!
//! Overlap with backward: gradients become ready evenly over backward's time B and are packed into buckets,
//! which are reduced one after the other. A bucket is reduced as soon as it is full and the previous bucket
//! is complete. Communication after B is exposed: the rank waits for it. The last bucket is full only at B,
//! so a network that fits into one bucket hides no communication.
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

    /// Returns the time in µs of an all-reduce of `bytes` over `ranks`.
    ///
    /// The result is the time of a single message with all bytes that one link carries, plus α for each
    /// message after the first. For a link that follows α + βn, the result equals the model above. For a
    /// measured link, the result is more accurate than the sum over messages: switches forward a first burst
    /// without delay, and the sum would count such a burst for each message.
    pub fn time_us(self, link: &Link, bytes: f64, ranks: usize) -> f64 {
        if ranks < 2 {
            return 0.0;
        }
        let p = ranks as f64;
        let (steps, each) = match self {
            Self::Ring => (2.0 * (p - 1.0), bytes / p),
            Self::RecursiveDoubling => (p.log2().ceil(), bytes),
        };
        link.time_us(steps * each) + (steps - 1.0) * link.latency_us
    }
}

/// The work of a training: what one rank computes and sends in a step, and how many samples an epoch has.
#[derive(Debug, Clone, PartialEq)]
pub struct Work {
    /// Time of a whole step without waiting for gradients, in milliseconds.
    pub compute_ms: f64,
    /// Time of backward in milliseconds, a part of `compute_ms`.
    pub backward_ms: f64,
    /// Bytes of each bucket, in the order of reduction.
    pub buckets: Vec<f64>,
    /// Whether buckets are reduced during backward.
    pub overlap: bool,
    /// Number of training samples of all ranks.
    pub samples: usize,
    /// Number of samples of one rank in a step.
    pub batch: usize,
}

impl Work {
    /// Takes the work from the measurements of `run`.
    pub fn from_run(run: &Run) -> Self {
        let results = &run.results;
        let width = if run.text("grad_dtype") == "f32" { 4 } else { 2 };
        let bucket_mb = run.option("bucket_mb").as_f64().unwrap_or_default();
        let (first, capacity) = bucket_limits(run.record.params, bucket_mb);
        Self {
            compute_ms: (results.ms_per_step - 1e3 * wait_seconds(results) / results.steps as f64).max(0.0),
            backward_ms: results.step_ms.backward,
            buckets: buckets(run.record.params, first, capacity)
                .into_iter()
                .map(|values| (values * width) as f64)
                .collect(),
            overlap: *run.option("overlap") == true,
            samples: results.per_rank.iter().map(|rank| rank.train_samples).sum(),
            batch: step_samples(|field| run.option(field)),
        }
    }

    /// Returns the exposed communication of a step on `ranks`, in milliseconds.
    pub fn exposed_ms(&self, link: &Link, algorithm: AllReduce, ranks: usize) -> f64 {
        let total: f64 = self.buckets.iter().sum();
        let (mut filled, mut through) = (0.0, 0.0f64);
        for &bytes in &self.buckets {
            filled += bytes;
            let ready = if self.overlap { self.backward_ms * filled / total } else { self.backward_ms };
            through = through.max(ready) + algorithm.time_us(link, bytes, ranks) / 1e3;
        }
        (through - self.backward_ms).max(0.0)
    }

    /// Returns the time of a step on `ranks`, in milliseconds.
    pub fn step_ms(&self, link: &Link, algorithm: AllReduce, ranks: usize) -> f64 {
        self.compute_ms + self.exposed_ms(link, algorithm, ranks)
    }

    /// Returns the number of steps of an epoch on `ranks`.
    pub fn steps(&self, ranks: usize) -> usize {
        self.samples.div_ceil(self.batch * ranks)
    }

    /// Returns the time of an epoch on `ranks`, in seconds.
    pub fn epoch_s(&self, link: &Link, algorithm: AllReduce, ranks: usize) -> f64 {
        self.steps(ranks) as f64 * self.step_ms(link, algorithm, ranks) / 1e3
    }

    /// Returns the parallel efficiency on `ranks`, in percent.
    pub fn efficiency(&self, link: &Link, algorithm: AllReduce, ranks: usize) -> f64 {
        self.efficiency_of(ranks, self.epoch_s(link, algorithm, ranks))
    }

    /// Returns the parallel efficiency in percent if an epoch on `ranks` takes `epoch_s` seconds.
    pub fn efficiency_of(&self, ranks: usize, epoch_s: f64) -> f64 {
        let alone = self.steps(1) as f64 * self.compute_ms / 1e3;
        100.0 * alone / (ranks as f64 * epoch_s)
    }
}

/// Number of values that follow the gradients in the last bucket. They are not gradients, but all ranks need
/// their sums in each step.
pub const CONTROL: usize = 5;

/// Returns the maximum number of values of the first bucket and of each other bucket, for a network of
/// `params` parameters. Must agree with the limits that burn-mpi computes from `--bucket-mb`.
pub fn bucket_limits(params: usize, bucket_mb: f64) -> (usize, usize) {
    const PARTS: usize = 8;
    const LEAST_BYTES: usize = 1 << 20;
    let bytes = |mb: f64| (mb * f64::from(1 << 20)) as usize;
    (bytes(bucket_mb.min(1.0)) / 4, bytes(bucket_mb).min((4 * params / PARTS).max(LEAST_BYTES)) / 4)
}

/// Returns the number of values of each bucket, as if parameters could be split anywhere. The first bucket
/// contains at most `first` values, and every bucket at most `capacity`. The last bucket contains the
/// [`CONTROL`] values in addition.
fn buckets(params: usize, first: usize, capacity: usize) -> Vec<usize> {
    let (mut left, mut buckets) = (params.max(1), Vec::new());
    while left > 0 {
        let limit = if buckets.is_empty() { first.min(capacity) } else { capacity };
        let size = left.min(limit.max(1));
        buckets.push(size);
        left -= size;
    }
    if let Some(last) = buckets.last_mut() {
        *last += CONTROL;
    }
    buckets
}

/// Returns the job sizes to predict for, in ranks: 1, 2, 4 … 1024.
pub fn rank_counts() -> impl Iterator<Item = usize> {
    (0..=10).map(|power| 1 << power)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(buckets: &[f64], overlap: bool) -> Work {
        Work {
            compute_ms: 10.0,
            backward_ms: 6.0,
            buckets: buckets.to_vec(),
            overlap,
            samples: 60_000,
            batch: 32,
        }
    }

    #[test]
    fn the_cost_models_are_those_of_the_paper() {
        let link = Link::new(50.0, 80.0);
        let beta = 0.1;
        for p in [2usize, 4, 8, 1024] {
            let (ranks, n) = (p as f64, 17_000.0);
            let ring = 2.0 * (ranks - 1.0) * (50.0 + beta * n / ranks);
            let doubling = ranks.log2() * (50.0 + beta * n);
            assert!((AllReduce::Ring.time_us(&link, n, p) - ring).abs() < 1e-6);
            assert!((AllReduce::RecursiveDoubling.time_us(&link, n, p) - doubling).abs() < 1e-6);
        }
        assert_eq!(AllReduce::Ring.time_us(&link, 17_000.0, 1), 0.0);
    }

    #[test]
    fn one_bucket_hides_nothing_and_several_hide_all_but_the_last() {
        let link = Link::new(0.0, 8.0);
        let ring = |work: Work| work.exposed_ms(&link, AllReduce::Ring, 2);
        // With 8 Mbit/s and two ranks, a byte takes 1 µs.
        assert!((ring(work(&[4000.0], true)) - 4.0).abs() < 1e-9);
        // The buckets are ready at 3 and 6 ms and take 2 ms each, so only the second one is exposed.
        assert!((ring(work(&[2000.0, 2000.0], true)) - 2.0).abs() < 1e-9);
        assert!((ring(work(&[2000.0, 2000.0], false)) - 4.0).abs() < 1e-9);
        // The link is the bottleneck: 3 + 5 + 5 − 6 ms.
        assert!((ring(work(&[5000.0, 5000.0], true)) - 7.0).abs() < 1e-9);
    }

    #[test]
    fn an_epoch_has_whole_steps() {
        let (work, link) = (work(&[1.0], true), Link::new(0.0, 1e12));
        assert_eq!([1, 2, 1024].map(|ranks| work.steps(ranks)), [1875, 938, 2]);
        assert!((work.epoch_s(&link, AllReduce::Ring, 2) - 9.38).abs() < 1e-3);
        assert!((work.efficiency(&link, AllReduce::Ring, 1) - 100.0).abs() < 1e-9);
        assert!(work.efficiency(&link, AllReduce::Ring, 1024) < 92.0, "2 steps instead of 1.83");
    }

    #[test]
    fn buckets_contain_every_value_once() {
        assert_eq!(buckets(4266, 262_144, 262_144), [4266 + CONTROL]);
        assert_eq!(buckets(10, 2, 4), [2, 4, 4 + CONTROL]);
    }
}
