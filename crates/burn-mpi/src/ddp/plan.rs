//! Bucket plan: which gradients are sent together.
//!
//! Many small all-reduces cost many latencies; one large one cannot start before the last
//! gradient is final. So gradients are packed into buckets in the order in which backward
//! finishes them, as in Li et al., "PyTorch Distributed" (VLDB 2020). The first bucket is
//! small, so that communication starts early.

use std::ops::Range;

/// Values at the end of the last bucket, summed over ranks: values that all ranks need in
/// the same step are sent without an additional message.
pub const CONTROL: usize = 5;

/// The packing of all gradients, the same on every rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketPlan {
    buckets: Vec<BucketSpec>,
    /// Bucket and offset in it, for each parameter with gradients.
    places: Vec<Option<(usize, Range<usize>)>>,
}

/// One bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketSpec {
    /// Its parameters, in order of arrival.
    pub params: Vec<usize>,
    /// Number of values of its parameters.
    pub len: usize,
    /// Length of the buffer: with control values, rounded up to a multiple of
    /// the world size so that it can be cut into chunks.
    pub padded: usize,
}

impl BucketPlan {
    /// Packs the parameters of the given lengths in `order` into buckets of at most
    /// `capacity` values, the first of at most `first`. A parameter larger than that gets
    /// a separate bucket. The last bucket has room for the control values and `carried` more.
    pub fn new(
        lengths: &[usize],
        order: &[usize],
        (first, capacity): (usize, usize),
        carried: usize,
        world_size: usize,
    ) -> Self {
        let mut buckets: Vec<BucketSpec> = Vec::new();
        let mut places = vec![None; lengths.len()];
        for &param in order {
            let length = lengths[param];
            let limit = if buckets.len() <= 1 { first.min(capacity) } else { capacity };
            let fits = |bucket: &BucketSpec| bucket.len + length <= limit;
            if !buckets.last().is_some_and(fits) {
                buckets.push(BucketSpec { params: Vec::new(), len: 0, padded: 0 });
            }
            let index = buckets.len() - 1;
            let bucket = &mut buckets[index];
            places[param] = Some((index, bucket.len..bucket.len + length));
            bucket.params.push(param);
            bucket.len += length;
        }
        if buckets.is_empty() {
            // Without trainable parameters, the control values still need a bucket.
            buckets.push(BucketSpec { params: Vec::new(), len: 0, padded: 0 });
        }
        let last = buckets.len().saturating_sub(1);
        for (index, bucket) in buckets.iter_mut().enumerate() {
            let control = if index == last { CONTROL + carried } else { 0 };
            bucket.padded = (bucket.len + control).next_multiple_of(world_size);
        }
        Self { buckets, places }
    }

    /// The buckets, in the order in which they fill.
    pub fn buckets(&self) -> &[BucketSpec] {
        &self.buckets
    }

    /// Bucket of parameter `param`, and its offset in that bucket's buffer. One without gradients is in none.
    pub fn place(&self, param: usize) -> Option<(usize, Range<usize>)> {
        self.places[param].clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_has_one_place() {
        let lengths = [10, 200, 30, 5, 1000, 7];
        let order = [5, 4, 3, 2, 1, 0];
        let plan = BucketPlan::new(&lengths, &order, (20, 240), 0, 4);
        let mut seen: Vec<usize> = plan.buckets().iter().flat_map(|b| b.params.clone()).collect();
        assert_eq!(seen, order);
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3, 4, 5]);
        for (param, &length) in lengths.iter().enumerate() {
            let (bucket, range) = plan.place(param).unwrap();
            assert_eq!(range.len(), length);
            assert!(range.end <= plan.buckets()[bucket].len);
        }
        assert_eq!(plan.buckets()[0].params, [5], "the first bucket is small");
        assert_eq!(plan.buckets()[1].params, [4], "a large parameter has its own");
        let last = plan.buckets().last().unwrap();
        assert!(last.padded >= last.len + CONTROL && last.padded.is_multiple_of(4));
    }

    #[test]
    fn without_parameters_there_is_a_bucket_for_the_control_values() {
        let plan = BucketPlan::new(&[], &[], (20, 240), 0, 2);
        assert_eq!(plan.buckets().len(), 1);
        assert_eq!(plan.buckets()[0].padded, CONTROL.next_multiple_of(2));
    }
}
