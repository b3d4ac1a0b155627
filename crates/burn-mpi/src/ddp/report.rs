//! [`SyncReport`]: what averaging gradients over ranks costs, and whether it overlaps with backward.
//! Gradients are sent in buckets, each of which contains several gradients. This module also defines the
//! events that a profile records.

use std::fmt;
use std::time::Duration;

use crate::ddp::options::WireType;

/// Communication times of this rank, summed over steps.
#[derive(Debug, Clone, Copy, Default)]
pub struct CommTimes {
    /// Copying gradients into buckets, and converting them for sending and after receiving. With
    /// [`SyncOptions::shard`](crate::SyncOptions::shard), also copying updated parameters into and out of
    /// buckets. One rank copies a gradient only to scale it or to add it to another micro-batch's.
    pub copy: Duration,
    /// Compressing and decompressing gradients, during backward and after it, with the conversion of what is
    /// sent.
    pub compress: Duration,
    /// Hidden communication: buckets were in flight while backward ran.
    pub hidden: Duration,
    /// Exposed communication: waiting with nothing else to do.
    pub exposed: Duration,
}

/// Whether buckets are reduced during backward.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Overlap {
    /// Buckets are reduced during backward.
    Active,
    /// Buckets are reduced after backward.
    Inactive(NoOverlap),
}

/// Why buckets are not reduced during backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoOverlap {
    /// There is one rank.
    OneRank,
    /// An option disables the overlap.
    Off,
    /// All gradients are in one bucket.
    OneBucket,
    /// The first step, which determines the order in which gradients become final, has not ended yet.
    NotLearned,
    /// Gradients of this compute backend can be read only after backward.
    Device,
}

impl fmt::Display for NoOverlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OneRank => "there is only one rank",
            Self::Off => "it is switched off",
            Self::OneBucket => "all gradients are in one bucket",
            Self::NotLearned => "the order in which gradients become final is learned in the first step",
            Self::Device => {
                "gradients of this device can be read only after backward; overlap needs flex, ndarray, tch or cuda"
            }
        })
    }
}

/// One bucket of the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketReport {
    /// Its parameters, by name.
    pub parameters: Vec<String>,
    /// Bytes of its gradients without compression, in the type in which gradients are sent. With
    /// [`SyncOptions::shard`](crate::SyncOptions::shard), its updated parameters are sent too, as f32: a
    /// reduce-scatter and an all-gather each send half of an all-reduce's bytes.
    pub bytes: usize,
}

/// Cost of averaging gradients so far on this rank; displayed as one line.
///
/// ```no_run
/// # use burn_mpi::{GradientSync, NoOverlap, Overlap};
/// # fn example(sync: &GradientSync) {
/// let report = sync.report();
/// println!("{report}");
/// if report.overlap == Overlap::Inactive(NoOverlap::OneBucket) {
///     println!("{} bytes fit into one bucket", report.bytes());
/// }
/// let exposed = report.ms_per_step(report.times.exposed);
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct SyncReport {
    /// Number of steps finished.
    pub steps: usize,
    /// The buckets, in the order in which they start. With one rank, these are the buckets of several ranks.
    pub buckets: Vec<BucketReport>,
    /// The type in which gradients are sent.
    pub wire: WireType,
    /// Whether buckets are reduced during backward.
    pub overlap: Overlap,
    /// Times, summed over steps.
    pub times: CommTimes,
    /// Bytes that this rank has passed to all-reduces, summed over steps: gradients or what a compression
    /// sends in their place, control values, and second all-reduces. 0 with one rank. A reduce-scatter counts
    /// as half an all-reduce, and so does an all-gather. A transport may send more or fewer bytes than the
    /// length of a buffer.
    pub sent: u64,
    /// Whether gradients are compressed.
    pub is_compressed: bool,
    /// Number of steps in which, on at least one rank, a gradient was added or changed after its bucket had
    /// started. Such a step needs a second all-reduce.
    pub late_steps: usize,
    /// Number of steps in which at least one rank with samples did not use a parameter. Such a step needs a
    /// short second all-reduce. Steps that `late_steps` counts are not counted here.
    pub incomplete_steps: usize,
}

impl SyncReport {
    /// Bytes of gradients in a step without compression, in the type in which gradients are sent.
    pub fn bytes(&self) -> usize {
        self.buckets.iter().map(|bucket| bucket.bytes).sum()
    }

    /// Bytes that this rank has passed to all-reduces, per step. See [`sent`](Self::sent).
    pub fn sent_per_step(&self) -> f64 {
        self.sent as f64 / self.steps.max(1) as f64
    }

    /// Converts one of the `times`, which are summed over steps, to milliseconds per step.
    pub fn ms_per_step(&self, time: Duration) -> f64 {
        1e3 * time.as_secs_f64() / self.steps.max(1) as f64
    }
}

/// One line, such as `3 buckets of 40.1 KB together, overlap active; per step 0.020 ms copied, …`.
impl fmt::Display for SyncReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.buckets.len();
        write!(f, "{count} bucket{} of ", if count == 1 { "" } else { "s" })?;
        write_bytes(f, self.bytes() as f64)?;
        if count > 1 {
            f.write_str(" together")?;
        }
        if self.is_compressed {
            f.write_str(", compressed to ")?;
            write_bytes(f, self.sent_per_step())?;
        }
        match &self.overlap {
            Overlap::Active => f.write_str(", overlap active")?,
            Overlap::Inactive(reason) => write!(f, ", no overlap: {reason}")?,
        }
        let CommTimes { copy, compress, hidden, exposed } = self.times;
        write!(
            f,
            "; per step {:.3} ms copied, {:.3} ms hidden, {:.3} ms exposed",
            self.ms_per_step(copy),
            self.ms_per_step(hidden),
            self.ms_per_step(exposed)
        )?;
        if self.is_compressed {
            write!(f, ", {:.3} ms compressing", self.ms_per_step(compress))?;
        }
        if self.late_steps > 0 {
            write!(f, "; {} of {} steps with late gradients", self.late_steps, self.steps)?;
        }
        if self.incomplete_steps > 0 {
            write!(f, "; {} of {} steps with unused parameters", self.incomplete_steps, self.steps)?;
        }
        Ok(())
    }
}

fn write_bytes(f: &mut fmt::Formatter<'_>, bytes: f64) -> fmt::Result {
    let mb = f64::from(1 << 20);
    if bytes < mb { write!(f, "{:.1} KB", bytes / 1024.0) } else { write!(f, "{:.1} MB", bytes / mb) }
}

/// An event of gradient averaging on this rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncEvent {
    /// The backward of a loss has ended. Gradients that are not in buckets yet are collected next.
    BackwardEnd,
    /// All gradients are in buckets.
    CollectEnd,
    /// This rank begins to copy gradients into buckets, to convert them for sending or after receiving, to
    /// compress them or to decompress them.
    CopyBegin,
    /// The work of the last [`CopyBegin`](Self::CopyBegin) has ended.
    CopyEnd,
    /// This thread begins a call that starts the all-reduce of a bucket or waits for it, or its reduce-scatter
    /// and all-gather with [`SyncOptions::shard`](crate::SyncOptions::shard). The number is the bucket's index
    /// in [`SyncReport::buckets`](crate::SyncReport::buckets).
    BucketBegin(usize),
    /// The call of the last [`BucketBegin`](Self::BucketBegin) has returned.
    BucketEnd(usize),
    /// Number of buckets in flight after a poll during backward. Buckets complete in the order in which they
    /// started, or nearly so.
    InFlight(usize),
}

/// A function that receives events, on the thread that trains.
pub type SyncWatch = fn(SyncEvent);

#[cfg(test)]
mod tests {
    use super::*;

    fn report(buckets: usize, overlap: Overlap) -> SyncReport {
        let bucket = BucketReport { parameters: vec!["a".into()], bytes: 8_000 };
        SyncReport {
            steps: 4,
            buckets: vec![bucket; buckets],
            wire: WireType::F32,
            overlap,
            times: CommTimes {
                copy: Duration::from_millis(4),
                compress: Duration::from_millis(6),
                hidden: Duration::from_millis(8),
                exposed: Duration::from_millis(2),
            },
            sent: 24_000,
            is_compressed: false,
            late_steps: 0,
            incomplete_steps: 0,
        }
    }

    #[test]
    fn a_report_says_whether_overlap_is_active_and_why_not() {
        assert_eq!(
            report(2, Overlap::Active).to_string(),
            "2 buckets of 15.6 KB together, overlap active; per step 1.000 ms copied, 2.000 ms hidden, 0.500 ms exposed"
        );
        let text = report(1, Overlap::Inactive(NoOverlap::OneBucket)).to_string();
        assert!(
            text.starts_with(&format!("1 bucket of 7.8 KB, no overlap: {};", NoOverlap::OneBucket)),
            "{text}"
        );
        let compressed = SyncReport { is_compressed: true, ..report(2, Overlap::Active) };
        assert_eq!(
            compressed.to_string(),
            "2 buckets of 15.6 KB together, compressed to 5.9 KB, overlap active; per step 1.000 ms copied, 2.000 ms \
             hidden, 0.500 ms exposed, 1.500 ms compressing"
        );
    }
}
