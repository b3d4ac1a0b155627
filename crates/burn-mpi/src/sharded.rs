//! [`ShardedDataset`]: shards any Burn data set over the ranks of a job.

use std::error::Error;
use std::sync::{Arc, mpsc};
use std::thread;

use burn::data::dataset::Dataset;

use crate::calling::calling;
use crate::process::{defer_panics, message_of};
use crate::{CommError, SampleOrder, ShardPlan, SharedError, World};

/// This rank's shard of a data set, in batches: one batch for each step. All ranks have the same number of
/// steps.
///
/// Sharding is strided: rank `r` of `w` has the samples `r`, `r + w`, `r + 2w`, … of the sample order. This
/// order is the data set's, or the order that [`shuffle`](Self::shuffle) draws. Nothing is padded or dropped.
/// Shards therefore differ by one sample at most. The union of all ranks' batches of a step is the batch of a
/// single process whose batch size is `w` times as large. The last batch of a rank may be smaller than
/// another rank's, or empty. A rank with an empty batch still takes part in the step.
///
/// ```no_run
/// # use burn::data::dataset::InMemDataset;
/// # use burn::{module::Module, optim::ModuleOptimizer, tensor::Tensor};
/// # use burn_mpi::{GradientSync, MicroBatch, ShardedDataset, World};
/// # fn train<M: Module>(
/// #     world: &World, mut model: M, optimizer: &mut ModuleOptimizer, sync: &mut GradientSync,
/// #     samples: InMemDataset<[f32; 2]>, loss_of: fn(&M, &[[f32; 2]]) -> Tensor<1>,
/// # ) -> Result<M, Box<dyn std::error::Error>> {
/// let mut data = ShardedDataset::new(world, samples, 32)?;
/// for epoch in 0..10 {
///     data.shuffle(world, 1, epoch)?;
///     for batch in data.batches() {
///         let batch = batch?;
///         if !batch.is_empty() {
///             let loss = loss_of(&model, &batch.items);
///             sync.backward(&loss, &model, batch.len(), batch.total, MicroBatch::Last)?;
///         }
///         let gradients = sync.finish(&model)?;
///         model = optimizer.step(1e-3, model, gradients);
///     }
/// }
/// # Ok(model)
/// # }
/// ```
///
/// `ShardedDataset` is itself a data set, of this rank's samples, so it works with Burn's data loaders and
/// transforms.
#[derive(Debug)]
pub struct ShardedDataset<D> {
    dataset: Arc<D>,
    plan: ShardPlan,
    rank: usize,
    /// The indices of this rank's samples in the data set, in the order in which the rank uses them.
    numbers: Arc<[u32]>,
    drops_last: bool,
}

/// Clones share the data set.
impl<D> Clone for ShardedDataset<D> {
    fn clone(&self) -> Self {
        let (dataset, numbers) = (Arc::clone(&self.dataset), Arc::clone(&self.numbers));
        Self { dataset, numbers, ..*self }
    }
}

/// This rank's batch of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct RankBatch<I> {
    /// This rank's samples; empty if its shard is exhausted.
    pub items: Vec<I>,
    /// Number of samples of all ranks in the step.
    pub total: usize,
    /// The step of the epoch, from 0.
    pub step: usize,
}

impl<I> RankBatch<I> {
    /// Returns the number of this rank's samples.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns whether this rank has no samples in the step.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

/// The error of a data set that cannot read the samples of a step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot read the samples of step {step}: {source}")]
pub struct BatchError<E: Error + 'static> {
    /// The step of the epoch, from 0.
    pub step: usize,
    /// The data set's error.
    pub source: E,
}

impl<D> ShardedDataset<D> {
    /// Makes this rank's shard of `dataset`, in the order of the data set, for batches of `batch_size`
    /// samples on each rank. All ranks must call it, with the same data set.
    ///
    /// # Errors
    /// On all ranks: [`SharedError::Diverged`](crate::SharedError::Diverged) names a rank with another number
    /// of samples or another batch size; [`SharedError::Elsewhere`](crate::SharedError::Elsewhere) names a
    /// rank that would have no sample; [`SharedError::Sharding`](crate::SharedError::Sharding) if the batch
    /// size is 0, or there are more than `u32::MAX` samples. Other errors come from the transport.
    pub fn new<I, E>(world: &World, dataset: D, batch_size: usize) -> Result<Self, CommError>
    where
        D: Dataset<I, E>,
        E: Error + Send + Sync + 'static,
    {
        let samples = dataset.len();
        world.check_equal("the data set (samples, batch size)", &format!("{samples}, {batch_size}"))?;
        if batch_size == 0 {
            return Err(CommError::Shared(SharedError::Sharding(
                "the batch size is 0; use 1 or more".into(),
            )));
        }
        if u32::try_from(samples).is_err() {
            let most = u32::MAX;
            let reason = format!("it has {samples} samples; at most {most} are supported");
            return Err(CommError::Shared(SharedError::Sharding(reason)));
        }
        world.check_samples(samples)?;
        let plan = ShardPlan { samples, world_size: world.size(), batch_size };
        let numbers = plan.shard(world.rank(), SampleOrder::Sequential).into();
        Ok(Self { dataset: Arc::new(dataset), plan, rank: world.rank(), numbers, drops_last: false })
    }

    /// Leaves out the last step of an epoch if it has fewer samples than the others, so that every step has a
    /// whole batch of every rank. If the order is shuffled, each epoch leaves out other samples.
    /// [`steps`](Self::steps) counts the remaining steps; [`plan`](Self::plan) and the length stay those of all
    /// samples. All ranks must call it.
    ///
    /// # Errors
    /// [`SharedError::Sharding`](crate::SharedError::Sharding) if no step would be left.
    pub fn drop_last(mut self) -> Result<Self, CommError> {
        self.drops_last = true;
        if self.steps() > 0 {
            return Ok(self);
        }
        let ShardPlan { samples, world_size, batch_size } = self.plan;
        Err(CommError::Shared(SharedError::Sharding(format!(
            "drop_last leaves no step: {world_size} ranks with batches of {batch_size} need {} samples, but the data \
             set has {samples}; use a smaller batch size",
            world_size.saturating_mul(batch_size)
        ))))
    }

    /// Replaces the order of the samples by a permutation of the whole data set that is drawn from `seed` and
    /// `epoch`. All ranks must call it.
    ///
    /// # Errors
    /// [`SharedError::Diverged`](crate::SharedError::Diverged) names a rank with another seed or epoch. With
    /// different orders, some samples would be used twice, and others never. Other errors come from the
    /// transport.
    pub fn shuffle(&mut self, world: &World, seed: u64, epoch: u64) -> Result<(), CommError> {
        let _calling = calling("shuffle");
        world.check_equal("the shuffled order", &format!("seed {seed}, epoch {epoch}"))?;
        self.numbers = self.plan.shard(self.rank, SampleOrder::Shuffled { seed, epoch }).into();
        Ok(())
    }

    /// Returns the number of samples, the number of ranks and the batch size.
    pub fn plan(&self) -> &ShardPlan {
        &self.plan
    }

    /// Returns the number of steps of an epoch, the same on every rank.
    pub fn steps(&self) -> usize {
        let ShardPlan { samples, world_size, batch_size } = self.plan;
        if self.drops_last { samples / world_size / batch_size } else { self.plan.steps() }
    }

    /// Returns the batches of an epoch, one for each step. A batch is read when the iterator reaches it.
    ///
    /// # Panics
    /// If the data set returns more or fewer samples than it was asked for.
    pub fn batches<I, E>(&self) -> impl Iterator<Item = Result<RankBatch<I>, BatchError<E>>>
    where
        D: Dataset<I, E>,
        E: Error + Send + Sync + 'static,
    {
        (0..self.steps()).map(|step| self.batch(step))
    }

    /// Returns the batches of an epoch, as [`batches`](Self::batches) does, but reads them on a thread, up to
    /// `ahead` batches before they are used. This helps if the data set waits for a disk or a network. The
    /// thread shares the core of a rank that is bound to one core.
    ///
    /// ```
    /// use burn::data::dataset::InMemDataset;
    /// use burn_mpi::ShardedDataset;
    /// use burn_mpi::threads::{Options, run};
    ///
    /// let read = run(2, &Options::default(), |world| {
    ///     let data = ShardedDataset::new(world, InMemDataset::new(vec![1, 2, 3, 4, 5]), 2)?;
    ///     let batches = data.prefetch(4).map(|batch| Ok(batch?.items));
    ///     batches.collect::<Result<Vec<_>, Box<dyn std::error::Error>>>()
    /// });
    /// assert_eq!(read.unwrap(), [[vec![1, 3], vec![5]], [vec![2, 4], vec![]]]);
    /// ```
    ///
    /// # Panics
    /// As [`batches`](Self::batches), if the data set panics, or if no thread can be started.
    pub fn prefetch<I, E>(
        &self,
        ahead: usize,
    ) -> impl Iterator<Item = Result<RankBatch<I>, BatchError<E>>> + use<D, I, E>
    where
        D: Dataset<I, E> + 'static,
        I: Send + 'static,
        E: Error + Send + Sync + 'static,
    {
        // The thread has one more batch in its hands while the channel is full.
        let (sender, batches) = mpsc::sync_channel(ahead.min(self.steps()).saturating_sub(1));
        let (shard, mut steps) = (self.clone(), 0..self.steps());
        let read = move || {
            // A batch that is never used must not end the job.
            defer_panics();
            // Sending fails if the iterator was dropped.
            let _ = (0..shard.steps()).try_for_each(|step| sender.send(shard.batch(step)));
        };
        let thread = thread::Builder::new().name("prefetch".to_owned());
        let mut thread = Some(thread.spawn(read).expect("a thread can be started"));
        std::iter::from_fn(move || {
            steps.next()?;
            if let Ok(batch) = batches.recv() {
                return Some(batch);
            }
            // The thread sends every batch, unless it panics.
            steps = 0..0;
            match thread.take()?.join() {
                Err(panic) => panic!("{}", message_of(panic.as_ref())),
                Ok(()) => None,
            }
        })
    }

    /// Reads this rank's batch of `step`.
    fn batch<I, E>(&self, step: usize) -> Result<RankBatch<I>, BatchError<E>>
    where
        D: Dataset<I, E>,
        E: Error + Send + Sync + 'static,
    {
        let own = self.plan.batch_len(self.rank, step);
        let first = step * self.plan.batch_size;
        let items = self.get_many((first..first + own).collect());
        let items = items.map_err(|source| BatchError { step, source })?;
        assert_eq!(
            items.len(),
            own,
            "Dataset::get_many returned another number of samples than it was asked for"
        );
        Ok(RankBatch { items, total: self.plan.global_batch_len(step), step })
    }
}

impl<D, I, E> Dataset<I, E> for ShardedDataset<D>
where
    D: Dataset<I, E>,
    E: Error + Send + Sync + 'static,
{
    fn get(&self, index: usize) -> Result<I, E> {
        self.dataset.get(self.numbers[index] as usize)
    }

    fn get_many(&self, indexes: Vec<usize>) -> Result<Vec<I>, E> {
        self.dataset.get_many(indexes.into_iter().map(|index| self.numbers[index] as usize).collect())
    }

    fn len(&self) -> usize {
        self.numbers.len()
    }
}
