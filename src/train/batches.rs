//! Reads the samples of each training step, and augments them if `--augment` is given.
//!
//! Augmentation depends on the seed, the epoch and the sample's index in the data set. It does not depend on
//! the rank or the batch, so a sample has the same bytes for every number of ranks.

use std::borrow::Cow;
use std::ops::Range;

use burn::tensor::{Device, Tensor};

use super::{RunConfig, TrainError};
use crate::machine;
use crate::model::inputs;
use burn_mpi::{SampleOrder as Order, ShardPlan, World};
use data::augment::Augmentation;
use data::{DataError, Description, Normalizer, SampleSource, Shard, Split};

/// One rank's samples of a step or of a test batch: bytes, possibly augmented, and labels. With
/// `--accumulate`, a step splits them into several micro-batches.
#[derive(Debug, Clone)]
pub struct LabelledBytes<'a> {
    /// All samples, one after the other, as the data set stores them.
    pub bytes: Cow<'a, [u8]>,
    /// The class of each sample.
    pub labels: &'a [u16],
    /// Converts the bytes to floats.
    pub normalizer: &'a Normalizer,
}

impl<'a> LabelledBytes<'a> {
    /// Number of samples.
    pub fn count(&self) -> usize {
        self.labels.len()
    }

    /// Returns the normalized samples of `range` as a batch on `device`, and their classes.
    pub fn batch(&self, range: Range<usize>, device: &Device) -> (Tensor<4>, &'a [u16]) {
        let size = self.bytes.len() / self.labels.len().max(1);
        let bytes = &self.bytes[range.start * size..range.end * size];
        let values = self.normalizer.values(bytes);
        (inputs(values, self.normalizer.shape(), device), &self.labels[range])
    }
}

/// Reads a shard's samples and augments them.
#[derive(Debug)]
pub struct Batches {
    normalizer: Normalizer,
    augment: Option<Augmentation>,
    shape: [usize; 3],
    seed: u64,
    augmented: Vec<u8>,
}

impl Batches {
    /// Returns batches with the augmentation and seed of `options`, and the shape and normalization of
    /// `description`.
    pub fn new(options: &RunConfig, description: &Description) -> Self {
        Self {
            normalizer: Normalizer::new(description),
            augment: options.recipe.augment,
            shape: description.shape,
            seed: options.seed,
            augmented: Vec::new(),
        }
    }

    /// Returns the samples `from..from + count` of `shard`, or fewer at its end. With `--augment`, the
    /// samples are augmented for `epoch`.
    ///
    /// # Errors
    /// If the samples are on disk and cannot be read.
    pub fn samples<'a>(
        &'a mut self,
        shard: &'a Shard,
        from: usize,
        count: usize,
        epoch: usize,
    ) -> Result<LabelledBytes<'a>, DataError> {
        let (bytes, labels) = shard.read(from, count)?;
        let normalizer = &self.normalizer;
        let Some(augment) = self.augment else { return Ok(LabelledBytes { bytes, labels, normalizer }) };
        self.augmented.clear();
        self.augmented.extend_from_slice(&bytes);
        let images = self.augmented.chunks_exact_mut(self.shape.iter().product());
        for (image, &number) in images.zip(shard.numbers(from, count)) {
            augment.apply(image, self.shape, self.seed, epoch as u64, u64::from(number));
        }
        Ok(LabelledBytes { bytes: Cow::Borrowed(&self.augmented), labels, normalizer })
    }
}

/// Opens this rank's shard of a split, in memory or on disk as `options` say, and checks that all ranks have
/// the same data set.
///
/// # Errors
/// If some rank cannot read its samples, if ranks have different data sets, or if the transport fails.
pub(super) fn shard(
    world: &World,
    options: &RunConfig,
    source: &SampleSource,
    split: Split,
    order: Order,
) -> Result<(ShardPlan, Shard), TrainError> {
    let plan = |split| options.plan(source, split, world.size());
    let of_host = world.places().iter().filter(|place| place.host == world.host()).count();
    let samples = Split::ALL.map(|split| plan(split).samples).iter().sum::<usize>() as u64;
    let bytes = samples * source.description().sample_bytes() as u64 / world.size() as u64 * of_host as u64;
    let on_disk = options.data.samples_in.on_disk(bytes, machine::usable_memory(world.host()).0);
    let plan = plan(split);
    let numbers = plan.shard(world.rank(), order);
    let shard = world.agree(Shard::open(source, split, plan.samples, numbers, on_disk))?;
    let what = format!("the {} set's digest", if split == Split::Train { "training" } else { "test" });
    world.check_equal(&what, &source.description().digest(shard.digest()))?;
    Ok((plan, shard))
}

/// Returns the order in which the training visits the samples in `epoch`.
pub(super) fn order_of(options: &RunConfig, epoch: u64) -> Order {
    if options.data.shuffle { Order::Shuffled { seed: options.seed, epoch } } else { Order::Sequential }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::SamplesIn;
    use data::generate::noise;

    #[test]
    fn samples_stay_on_disk_where_they_take_more_than_half_of_the_memory() {
        let of =
            |samples_in: SamplesIn| [(50, 100), (51, 100), (51, 0)].map(|(b, m)| samples_in.on_disk(b, m));
        assert_eq!(of(SamplesIn::Auto), [false, true, false]);
        assert_eq!((of(SamplesIn::Memory), of(SamplesIn::Disk)), ([false; 3], [true; 3]));
    }

    #[test]
    fn the_batches_of_a_step_are_the_next_samples_of_the_order_for_every_world_size() {
        let source = noise([1, 2, 3], 10, 101);
        let all = Shard::first(&source, Split::Train, 101).unwrap();
        for (world_size, batch_size) in [(1, 32), (2, 16), (3, 10), (4, 8)] {
            let plan = ShardPlan { samples: 101, world_size, batch_size };
            let order = Order::Shuffled { seed: 5, epoch: 1 };
            let load =
                |rank| Shard::open(&source, Split::Train, 101, plan.shard(rank, order), false).unwrap();
            let shards: Vec<Shard> = (0..world_size).map(load).collect();
            let mut used = 0;
            for step in 0..plan.steps() {
                let mut union = Vec::new();
                for (rank, shard) in shards.iter().enumerate() {
                    let numbers = shard.numbers(step * batch_size, batch_size);
                    let (bytes, classes) = shard.read(step * batch_size, batch_size).unwrap();
                    assert_eq!(numbers.len(), plan.batch_len(rank, step));
                    for (slot, &number) in numbers.iter().enumerate() {
                        let (image, class) = all.read(number as usize, 1).unwrap();
                        assert_eq!((&bytes[slot * 6..][..6], classes[slot]), (&*image, class[0]));
                    }
                    union.extend_from_slice(numbers);
                }
                let mut expected = order.samples(101)[used..used + union.len()].to_vec();
                used += union.len();
                union.sort_unstable();
                expected.sort_unstable();
                assert_eq!(union, expected, "{world_size} ranks, step {step}");
            }
            assert_eq!(used, 101);
        }
    }

    #[test]
    fn augmented_samples_depend_on_neither_batches_nor_ranks() {
        let source = noise([3, 32, 32], 10, 24);
        let batches = |augment: Option<&str>| Batches {
            normalizer: Normalizer::new(source.description()),
            augment: augment.map(|names| names.parse().unwrap()),
            shape: source.description().shape,
            seed: 5,
            augmented: Vec::new(),
        };
        let shard = |rank, world_size| {
            let plan = ShardPlan { samples: 24, world_size, batch_size: 8 };
            let order = Order::Shuffled { seed: 5, epoch: 1 };
            Shard::open(&source, Split::Train, 24, plan.shard(rank, order), false).unwrap()
        };
        let (mut changing, mut plain) = (batches(Some("crop,flip,jitter,rotate")), batches(None));
        let alone = shard(0, 1);
        let whole = changing.samples(&alone, 0, 24, 1).unwrap().bytes.into_owned();
        assert_ne!(whole, *plain.samples(&alone, 0, 24, 1).unwrap().bytes);
        assert_ne!(whole, *changing.samples(&alone, 0, 24, 2).unwrap().bytes, "another epoch");
        let size = whole.len() / 24;
        for rank in 0..3 {
            let own = shard(rank, 3);
            let parts = [
                changing.samples(&own, 0, 5, 1).unwrap().bytes.to_vec(),
                changing.samples(&own, 5, 5, 1).unwrap().bytes.to_vec(),
            ];
            let dealt: Vec<u8> = whole.chunks(size).skip(rank).step_by(3).flatten().copied().collect();
            assert!(parts.concat() == dealt, "rank {rank}");
        }
    }
}
