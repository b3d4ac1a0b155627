//! Gradients on their way: filled as backward finishes them, reduced as they
//! fill, read by the optimizer where they lie.

use std::time::{Duration, Instant};

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::wire_type::WireType;
use crate::comm::bucket::{BucketPlan, CONTROL};
use crate::comm::{Collective, CommError, Reduction, Wire};
use crate::ops::gradient_hook::GradientSink;

/// What all ranks said at the end of a step, added up.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Signals {
    /// Ranks whose loss is not a finite number.
    pub not_finite: f32,
    /// Ranks that were asked to stop.
    pub stop: f32,
}

/// Times of a step's communication, added up over steps.
#[derive(Debug, Clone, Copy, Default)]
pub struct CommTimes {
    /// Copying gradients into buckets, and converting them for the wire.
    pub copy: Duration,
    /// Waiting with nothing else to do.
    pub exposed: Duration,
}

/// All buckets of one rank.
pub(super) struct Buckets {
    pub collective: Box<dyn Collective>,
    pub reduction: Reduction,
    pub wire: WireType,
    pub overlap: bool,
    pub plan: BucketPlan,
    pub times: CommTimes,
    /// Times that each parameter is used in the network; its gradient is final
    /// when it has been registered as often.
    pub uses: Vec<usize>,
    /// Order in which gradients became final in this step.
    pub order: Vec<usize>,
    /// Parameters in the order of their registrations in this backward, one
    /// that is used several times as often.
    pub registered: Vec<usize>,
    /// The f32 buffers; one that travels as f32 is away until it is back.
    buffers: Vec<Option<Vec<f32>>>,
    /// The 16-bit buffers, where the wire is narrower.
    narrow: Vec<Option<Wire>>,
    /// Parameters that a bucket still waits for.
    missing: Vec<usize>,
    /// Buckets started; always the first ones, on every rank.
    started: usize,
    weight: f32,
    /// Whether gradients are added to those of an earlier backward.
    adds: bool,
    last_micro: bool,
    failure: Option<CommError>,
}

impl Buckets {
    pub fn new(
        collective: Box<dyn Collective>,
        reduction: Reduction,
        wire: WireType,
        overlap: bool,
        plan: BucketPlan,
        params: usize,
    ) -> Self {
        let mut buckets = Self {
            collective,
            reduction,
            wire,
            overlap,
            times: CommTimes::default(),
            uses: vec![1; params],
            order: Vec::new(),
            registered: Vec::new(),
            buffers: Vec::new(),
            narrow: Vec::new(),
            missing: Vec::new(),
            started: 0,
            weight: 1.0,
            adds: false,
            last_micro: true,
            failure: None,
            plan: plan.clone(),
        };
        buckets.set_plan(plan);
        buckets
    }

    /// Packs the gradients anew. Between steps only.
    pub fn set_plan(&mut self, plan: BucketPlan) {
        let sizes = plan.buckets().iter().map(|bucket| bucket.padded);
        self.buffers = sizes.clone().map(|size| Some(vec![0.0; size])).collect();
        self.narrow = sizes
            .map(|size| match self.wire {
                WireType::F32 => None,
                WireType::Bf16 => Some(Wire::Bf16(vec![bf16::ZERO; size])),
                WireType::F16 => Some(Wire::F16(vec![f16::ZERO; size])),
            })
            .collect();
        self.plan = plan;
    }

    /// Begins a step.
    pub fn begin(&mut self) {
        self.started = 0;
        self.order.clear();
        self.missing.clear();
        self.missing.extend(self.plan.buckets().iter().map(|bucket| bucket.params.len()));
    }

    /// Begins a backward whose gradients count `weight`, the `first` and the
    /// `last` of the step or one between.
    pub fn begin_micro(&mut self, weight: f32, first: bool, last: bool) {
        (self.weight, self.adds, self.last_micro) = (weight, !(first && last), last);
        self.registered.clear();
        if first && !last {
            self.buffers.iter_mut().flatten().for_each(|buffer| buffer.fill(0.0));
        }
    }

    /// Takes a gradient that is final for this backward.
    pub fn take(&mut self, param: usize, gradient: &[f32]) {
        let began = Instant::now();
        let (bucket, range) = self.plan.place(param);
        let weight = self.weight;
        if let Some(buffer) = &mut self.buffers[bucket] {
            let slots = buffer[range].iter_mut().zip(gradient);
            match self.adds {
                false => slots.for_each(|(slot, value)| *slot = value * weight),
                true => slots.for_each(|(slot, value)| *slot += value * weight),
            }
        }
        self.times.copy += began.elapsed();
        if !self.last_micro {
            return;
        }
        self.order.push(param);
        self.missing[bucket] -= 1;
        if let Err(error) = self.start_full() {
            self.failure.get_or_insert(error);
        }
    }

    /// Ends the step: gradients that have not come count as zero, `mine` goes
    /// along, and every bucket is waited for.
    pub fn finish(&mut self, mine: Signals) -> Result<Signals, CommError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        self.zero_missing();
        let last = self.buffers.len() - 1;
        let control = self.plan.buckets()[last].len;
        if let Some(buffer) = &mut self.buffers[last] {
            buffer[control..control + CONTROL].copy_from_slice(&[mine.not_finite, mine.stop]);
        }
        if self.collective.world_size() > 1 {
            self.reduce_rest(last)?;
        }
        let sums = self.buffers[last].as_deref().map(|b| [b[control], b[control + 1]]);
        let [not_finite, stop] = sums.unwrap_or_default();
        Ok(Signals { not_finite, stop })
    }

    /// The averaged gradient of `param` in its bucket, after `finish`.
    pub fn gradient(&self, param: usize) -> &[f32] {
        let (bucket, range) = self.plan.place(param);
        self.buffers[bucket].as_ref().map_or(&[], |buffer| &buffer[range])
    }

    /// The same, to be changed there.
    pub fn gradient_mut(&mut self, param: usize) -> &mut [f32] {
        let (bucket, range) = self.plan.place(param);
        self.buffers[bucket].as_mut().map_or(&mut [], |buffer| &mut buffer[range])
    }

    /// Starts the buckets that are full. They start in order on every rank, as
    /// MPI matches collectives by order; the last one waits for `finish`,
    /// since it carries the signals.
    fn start_full(&mut self) -> Result<(), CommError> {
        let last = self.buffers.len() - 1;
        if self.collective.world_size() == 1 || !self.overlap {
            return Ok(());
        }
        while self.started < last && self.missing[self.started] == 0 {
            let bucket = self.started;
            self.started += 1;
            if let Some(wire) = self.pack(bucket) {
                self.collective.start(bucket, wire, self.reduction)?;
            }
        }
        self.collective.progress()
    }

    fn reduce_rest(&mut self, last: usize) -> Result<(), CommError> {
        let in_flight = self.started;
        // Nothing is left to overlap these with, so they take the blocking
        // call, which is faster than a non-blocking one and a wait. They come
        // after the started ones on every rank.
        for bucket in in_flight..=last {
            if let Some(mut wire) = self.pack(bucket) {
                let began = Instant::now();
                self.collective.all_reduce(&mut wire, self.reduction)?;
                self.times.exposed += began.elapsed();
                self.unpack(bucket, wire);
            }
        }
        for bucket in 0..in_flight {
            let began = Instant::now();
            let wire = self.collective.wait(bucket)?;
            self.times.exposed += began.elapsed();
            self.unpack(bucket, wire);
        }
        Ok(())
    }

    /// The bucket as it travels: its buffer itself, or a narrower copy.
    fn pack(&mut self, bucket: usize) -> Option<Wire> {
        let began = Instant::now();
        let wire = match (self.narrow[bucket].take(), &self.buffers[bucket]) {
            (Some(Wire::Bf16(mut narrow)), Some(wide)) => {
                narrow.convert_from_f32_slice(wide);
                Some(Wire::Bf16(narrow))
            }
            (Some(Wire::F16(mut narrow)), Some(wide)) => {
                narrow.convert_from_f32_slice(wide);
                Some(Wire::F16(narrow))
            }
            _ => self.buffers[bucket].take().map(Wire::F32),
        };
        self.times.copy += began.elapsed();
        wire
    }

    fn unpack(&mut self, bucket: usize, wire: Wire) {
        let began = Instant::now();
        match (wire, &mut self.buffers[bucket]) {
            (Wire::F32(values), buffer) => *buffer = Some(values),
            (Wire::Bf16(narrow), Some(wide)) => {
                narrow.convert_to_f32_slice(wide);
                self.narrow[bucket] = Some(Wire::Bf16(narrow));
            }
            (Wire::F16(narrow), Some(wide)) => {
                narrow.convert_to_f32_slice(wide);
                self.narrow[bucket] = Some(Wire::F16(narrow));
            }
            _ => unreachable!("a bucket comes back as it left"),
        }
        self.times.copy += began.elapsed();
    }

    /// A rank without samples brings no gradient at all; a network with samples
    /// brings all of its gradients. Where a parameter was not used, as in a
    /// branch not taken, its gradient is zero.
    fn zero_missing(&mut self) {
        for param in 0..self.uses.len() {
            let (bucket, range) = self.plan.place(param);
            if self.missing[bucket] == 0 || self.order.contains(&param) {
                continue;
            }
            if let Some(buffer) = &mut self.buffers[bucket] {
                buffer[range].fill(0.0);
            }
        }
        self.missing.fill(0);
    }
}

impl GradientSink for Buckets {
    fn gradient(&mut self, param: usize, n: usize, values: &[f32]) {
        self.registered.push(param);
        if n == self.uses[param] {
            self.take(param, values);
        }
    }

    fn between(&mut self) {
        if self.started > 0
            && let Err(error) = self.collective.progress()
        {
            self.failure.get_or_insert(error);
        }
    }
}
