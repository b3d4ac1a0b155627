//! Sends the buckets of a step with a [`Compression`].
//!
//! The first round of a bucket takes the place of the bucket's all-reduce: it starts during backward, in the
//! order of the buckets. MPI matches operations by order, so a later round must not start when its previous
//! one happens to be complete. Later rounds start at the end of the step: wait for round 0 of bucket 0, start
//! its round 1, wait for round 0 of bucket 1, start its round 1, and so on. The rounds of several buckets are
//! then in flight at the same time.
//!
//! Buckets are decompressed last, because a step can turn out to be one that keeps nothing of the exchange
//! ([`Buckets::finish`]). The first round of the last bucket tells: it carries the control values.

use crate::compress::{Compression, GradientBucket};
use crate::ddp::buckets::{Buckets, share_tolerance};
use crate::ddp::buffers::{BucketPlan, CONTROL};
use crate::ddp::options::WireType;
use crate::ddp::report::SyncEvent;
use crate::{CommError, Operation, Wire};

/// A compression, and the values that it exchanges.
pub(crate) struct Compressor {
    pub compression: Box<dyn Compression>,
    /// One for each bucket.
    exchanges: Vec<Exchange>,
}

/// Values of a bucket that are summed over ranks, and then their sums.
#[derive(Default)]
struct Exchange {
    values: Vec<f32>,
    /// The values in the 16-bit type in which they are sent; `None` in flight, and if f32 is sent.
    narrow: Option<Wire>,
    progress: Progress,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Progress {
    /// The bucket is averaged: without compression, or all its rounds are over and it is decompressed.
    #[default]
    Averaged,
    /// This round is in flight.
    InFlight(usize),
    /// All rounds are over.
    Summed,
}

impl Progress {
    fn is_over(self) -> bool {
        !matches!(self, Self::InFlight(_))
    }
}

impl Exchange {
    /// Returns the values as they are sent.
    fn pack(&mut self, wire: WireType) -> Wire {
        if wire == WireType::F32 {
            return Wire::F32(std::mem::take(&mut self.values));
        }
        let mut narrow = self.narrow.take().unwrap_or_else(|| Wire::zeros(wire.element(), 0));
        narrow.resize(self.values.len());
        narrow.narrow(&self.values);
        narrow
    }

    /// Takes back what [`pack`](Self::pack) returned, after it was summed over ranks.
    fn unpack(&mut self, wire: Wire) {
        match wire {
            Wire::F32(values) => self.values = values,
            narrow => {
                narrow.widen(&mut self.values);
                self.narrow = Some(narrow);
            }
        }
    }
}

impl Compressor {
    pub fn new(compression: Box<dyn Compression>, plan: &BucketPlan) -> Self {
        let mut compressor = Self { compression, exchanges: Vec::new() };
        compressor.set_plan(plan);
        compressor
    }

    /// Forgets the values of all buckets, because there are others now.
    pub fn set_plan(&mut self, plan: &BucketPlan) {
        self.exchanges.clear();
        self.exchanges.resize_with(plan.buckets().len(), Exchange::default);
    }
}

impl Buckets {
    /// Begins to compress a bucket. Returns its first round as it is sent, or `None` if the bucket is sent
    /// without compression.
    pub(super) fn first_round(&mut self, bucket: usize) -> Option<Wire> {
        self.compressing(|this, Compressor { compression, exchanges }| {
            let spec = &this.plan.buckets()[bucket];
            let (gradients, tail) = this.buffers.slots(bucket, 0..spec.padded)?.split_at_mut(spec.len);
            let exchange = &mut exchanges[bucket];
            exchange.progress = Progress::Averaged;
            exchange.values.clear();
            let view = GradientBucket::new(&this.plan, bucket, None);
            compression.begin(&view, gradients, &mut exchange.values).then(|| {
                exchange.progress = Progress::InFlight(0);
                // The control values, in the last bucket.
                exchange.values.extend_from_slice(tail);
                exchange.pack(this.options.wire)
            })
        })
    }

    /// Sums every bucket over ranks, with all rounds. Decompresses the buckets if the step is
    /// [regular](Self::is_regular). [`decompress`](Self::decompress) does so later in other steps.
    pub(super) fn exchange(&mut self, last: usize) -> Result<(), CommError> {
        let began = self.clock.now();
        let (copied, compressed) = (self.times.copy, self.times.compress);
        while self.step.started <= last {
            self.start_next()?;
        }
        // The control values are known after the first round of the last bucket.
        let (mut is_regular, mut averaged) = (false, 0);
        for round in 0.. {
            let mut is_over = true;
            for bucket in 0..=last {
                match self.progress(bucket) {
                    Progress::Averaged if round == 0 => {
                        let wire = self.wait(bucket)?;
                        self.unpack(bucket, wire, 0);
                    }
                    Progress::InFlight(_) => is_over &= !self.next_round(bucket, round)?,
                    _ => {}
                }
                while is_regular && averaged <= bucket && self.progress(averaged).is_over() {
                    self.decompress(averaged, None);
                    averaged += 1;
                }
            }
            is_regular = self.is_regular(last);
            if is_over {
                break;
            }
        }
        if is_regular {
            (averaged..=last).for_each(|bucket| self.decompress(bucket, None));
        }
        let own = (self.times.copy - copied) + (self.times.compress - compressed);
        self.times.exposed += (self.clock.now() - began).saturating_sub(own);
        Ok(())
    }

    /// Returns whether the step ends without an error and without a second all-reduce, as the control values
    /// say.
    fn is_regular(&self, last: usize) -> bool {
        let start = self.plan.buckets()[last].len;
        let control = self.buffers.values(last, start..start + CONTROL);
        let Some(&[_, _, irregular, with_backward, share]) = control else { return false };
        irregular == 0.0 && with_backward > 0.0 && (share - 1.0).abs() <= share_tolerance(self.options.wire)
    }

    fn progress(&self, bucket: usize) -> Progress {
        self.compressor
            .as_ref()
            .map_or(Progress::Averaged, |compressor| compressor.exchanges[bucket].progress)
    }

    /// Waits for `round` of a bucket, and starts the next one. Returns whether there is a next one.
    fn next_round(&mut self, bucket: usize, round: usize) -> Result<bool, CommError> {
        let wire = self.wait(bucket)?;
        let next = self.compressing(|this, Compressor { compression, exchanges }| {
            let exchange = &mut exchanges[bucket];
            exchange.unpack(wire);
            let spec = &this.plan.buckets()[bucket];
            let (gradients, tail) = this.buffers.slots(bucket, 0..spec.padded)?.split_at_mut(spec.len);
            if round == 0 {
                let own = exchange.values.len() - tail.len();
                tail.copy_from_slice(&exchange.values[own..]);
                exchange.values.truncate(own);
            }
            let view = GradientBucket::new(&this.plan, bucket, None);
            let more = compression.next(&view, gradients, round, &mut exchange.values);
            exchange.progress = if more { Progress::InFlight(round + 1) } else { Progress::Summed };
            more.then(|| exchange.pack(this.options.wire))
        });
        let has_next = next.is_some();
        if let Some(wire) = next {
            let operation = Operation::all_reduce(bucket, &wire, self.options.reduction);
            self.start(bucket, operation, wire)?;
        }
        Ok(has_next)
    }

    /// Overwrites the gradients of a bucket with their averages, if its rounds are over. `with_gradient` has
    /// the number of ranks with a gradient of each parameter; `None` if every parameter has one on some rank.
    fn decompress(&mut self, bucket: usize, with_gradient: Option<&[f32]>) {
        if self.progress(bucket) != Progress::Summed {
            return;
        }
        self.compressing(|this, Compressor { compression, exchanges }| {
            let exchange = &mut exchanges[bucket];
            exchange.progress = Progress::Averaged;
            let gradients = this.buffers.slots(bucket, 0..this.plan.buckets()[bucket].len)?;
            let view = GradientBucket::new(&this.plan, bucket, with_gradient);
            compression.finish(&view, gradients, &exchange.values);
            for (param, range) in view.params() {
                if !view.has_gradient(param) {
                    gradients[range].fill(0.0);
                }
            }
            Some(())
        });
    }

    /// Decompresses the buckets of an irregular step that keeps the exchange.
    pub(super) fn decompress_all(&mut self, with_gradient: &[f32]) {
        let buckets = self.plan.buckets().len();
        (0..buckets).for_each(|bucket| self.decompress(bucket, Some(with_gradient)));
    }

    /// Runs `body`, which compresses or decompresses, and adds its time to the compression time. `body` and
    /// this function return `None` if there is no compression.
    fn compressing<T>(&mut self, body: impl FnOnce(&mut Self, &mut Compressor) -> Option<T>) -> Option<T> {
        let mut compressor = self.compressor.take()?;
        let began = self.clock.now();
        self.notify(SyncEvent::CopyBegin);
        let result = body(self, &mut compressor);
        self.notify(SyncEvent::CopyEnd);
        self.compressor = Some(compressor);
        self.times.compress += self.clock.now() - began;
        result
    }
}
