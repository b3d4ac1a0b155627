//! The memory of buckets: f32 values, and 16-bit copies that are sent.

use std::ops::Range;

use super::plan::BucketPlan;
use crate::Wire;
use crate::ddp::options::WireType;

/// A buffer for each bucket of a plan.
pub(super) struct Buffers {
    /// The f32 buffers; one that is sent as f32 is absent while in flight.
    wide: Vec<Option<Vec<f32>>>,
    /// The 16-bit buffers, if the wire type is narrower.
    narrow: Vec<Option<Wire>>,
}

impl Buffers {
    /// Zeros.
    pub fn new(plan: &BucketPlan, wire: WireType) -> Self {
        let sizes = plan.buckets().iter().map(|bucket| bucket.padded);
        Self {
            wide: sizes.clone().map(|size| Some(vec![0.0; size])).collect(),
            narrow: sizes
                .map(|size| (wire != WireType::F32).then(|| Wire::of(wire.element(), size)))
                .collect(),
        }
    }

    /// Values of a bucket; `None` while it is in flight.
    pub fn values(&self, bucket: usize, range: Range<usize>) -> Option<&[f32]> {
        self.wide[bucket].as_ref().map(|buffer| &buffer[range])
    }

    /// The same, mutable.
    pub fn slots(&mut self, bucket: usize, range: Range<usize>) -> Option<&mut [f32]> {
        self.wide[bucket].as_mut().map(|buffer| &mut buffer[range])
    }

    /// Whether a bucket is sent as a narrower copy.
    pub fn is_narrow(&self, bucket: usize) -> bool {
        self.narrow[bucket].is_some()
    }

    /// The bucket as sent: its buffer itself, or a narrower copy.
    pub fn pack(&mut self, bucket: usize) -> Option<Wire> {
        match (self.narrow[bucket].take(), &self.wide[bucket]) {
            (Some(mut narrow), Some(wide)) => {
                narrow.narrow(wide);
                Some(narrow)
            }
            _ => self.wide[bucket].take().map(Wire::F32),
        }
    }

    /// Takes back the buffer from [`pack`](Self::pack), summed.
    pub fn unpack(&mut self, bucket: usize, wire: Wire) {
        match (wire, &mut self.wide[bucket]) {
            (Wire::F32(values), buffer) => *buffer = Some(values),
            (narrow, Some(wide)) => {
                narrow.widen(wide);
                self.narrow[bucket] = Some(narrow);
            }
            _ => unreachable!("a bucket comes back as it left"),
        }
    }
}
