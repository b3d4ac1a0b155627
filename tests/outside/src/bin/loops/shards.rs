//! Shards of a data set: their samples, the order of the samples, and errors.

use std::error::Error;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use burn::data::dataset::{Dataset, DatasetError, InMemDataset};
use burn_mpi::{CommError, ShardedDataset, SharedError, World};

const SAMPLES: usize = 53;

fn numbers(count: usize) -> InMemDataset<usize> {
    InMemDataset::new((0..count).collect())
}

pub fn check(world: &World) -> Result<(), Box<dyn Error>> {
    let mut data = ShardedDataset::new(world, numbers(SAMPLES), 4)?;
    let mut orders = Vec::new();
    for epoch in 0..3 {
        if epoch > 0 {
            data.shuffle(world, 5, epoch)?;
        }
        let mine: Vec<Vec<usize>> =
            data.batches().map(|batch| Ok(batch?.items)).collect::<Result<_, Box<dyn Error>>>()?;
        let through: Vec<usize> = (0..data.len()).map(|index| data.get(index)).collect::<Result<_, _>>()?;
        let ahead = data.prefetch(1 + epoch as usize).map(|batch| Ok(batch?.items));
        if ahead.collect::<Result<Vec<_>, Box<dyn Error>>>()? != mine {
            return Err("a thread reads other batches".into());
        }
        if mine.concat() != through {
            return Err("the samples of the shard differ from the samples of its batches".into());
        }
        let ranks: Vec<Vec<Vec<usize>>> = world.gather(&mine)?;
        let lengths: Vec<usize> = ranks.iter().map(|batches| batches.concat().len()).collect();
        let steps = ranks.iter().all(|batches| batches.len() == data.steps());
        if !steps || lengths.iter().max() > lengths.iter().min().map(|least| least + 1).as_ref() {
            return Err(format!("the shards have {lengths:?} samples").into());
        }
        let mut all: Vec<usize> = ranks.concat().concat();
        orders.push(all.clone());
        all.sort_unstable();
        if all != (0..SAMPLES).collect::<Vec<_>>() {
            return Err(format!("not every sample was used exactly once: {all:?}").into());
        }
    }
    if orders[0] == orders[1] || orders[1] == orders[2] {
        return Err("two epochs have the same order".into());
    }
    let whole = data.clone().drop_last()?;
    let lengths: Vec<_> =
        whole.batches().map(|batch| batch.map(|batch| batch.len())).collect::<Result<_, _>>()?;
    if lengths != vec![4; SAMPLES / (4 * world.size())] || whole.prefetch(usize::MAX).count() != whole.steps()
    {
        return Err(format!("drop_last keeps batches of {lengths:?}").into());
    }
    match ShardedDataset::new(world, numbers(SAMPLES), SAMPLES + 1)?.drop_last() {
        Err(CommError::Shared(SharedError::Sharding(_))) => {}
        _ => return Err("drop_last left no step".into()),
    }
    unused_panic(world)?;
    let last = world.size() - 1;
    let off = usize::from(world.rank() == last && last > 0);
    refused(
        world,
        ShardedDataset::new(world, numbers(SAMPLES - off), 4),
        |error| matches!(error, CommError::Shared(SharedError::Diverged { rank, .. }) if *rank == last),
    )?;
    refused(
        world,
        ShardedDataset::new(world, numbers(SAMPLES), 4 + off),
        |error| matches!(error, CommError::Shared(SharedError::Diverged { rank, .. }) if *rank == last),
    )?;
    refused(
        world,
        data.shuffle(world, 5 + off as u64, 0),
        |error| matches!(error, CommError::Shared(SharedError::Diverged { rank, .. }) if *rank == last),
    )?;
    match ShardedDataset::new(world, numbers(SAMPLES), 0) {
        Err(CommError::Shared(SharedError::Sharding(_))) => {}
        _ => return Err("a batch size of 0 was accepted".into()),
    }
    match ShardedDataset::new(world, numbers(last), 4) {
        Err(CommError::Shared(SharedError::Elsewhere { rank, .. })) if rank == last => Ok(()),
        _ => Err("fewer samples than ranks were accepted".into()),
    }
}

/// Checks the result of a call in which the last rank differs from the others: all ranks must get the same
/// `expected` error. A single rank has nothing to differ from, and must get no error.
pub fn refused<T>(
    world: &World,
    result: Result<T, CommError>,
    expected: impl Fn(&CommError) -> bool,
) -> Result<(), Box<dyn Error>> {
    let text = result.as_ref().err().map(ToString::to_string);
    let same = world.gather(&text)?.iter().all(|theirs| *theirs == text);
    match result {
        Ok(_) if world.size() == 1 => Ok(()),
        Err(error) if same && error.is_shared() && expected(&error) => Ok(()),
        Err(error) => Err(format!("another error, or not on all ranks: {error}").into()),
        Ok(_) => Err("no error although ranks differ".into()),
    }
}

/// A data set that panics at the sample `first_bad` and after. The thread that reads it has a clone of `read`.
struct Panics {
    first_bad: usize,
    _read: Arc<()>,
}

impl Dataset<usize> for Panics {
    fn get(&self, index: usize) -> Result<usize, DatasetError> {
        assert!(index < self.first_bad, "a bug in the data set that no step meets");
        Ok(index)
    }

    fn len(&self) -> usize {
        SAMPLES
    }
}

/// A panic in a batch that was read ahead and is not used must not end the job.
fn unused_panic(world: &World) -> Result<(), Box<dyn Error>> {
    let read = Arc::new(());
    let panics = Panics { first_bad: 4 * world.size(), _read: Arc::clone(&read) };
    let mut batches = ShardedDataset::new(world, panics, 4)?.prefetch(2);
    batches.next().ok_or("no batch")??;
    let began = Instant::now();
    while Arc::strong_count(&read) > 1 {
        if began.elapsed() > Duration::from_secs(60) {
            return Err("the thread that reads ahead does not end".into());
        }
        sleep(Duration::from_millis(1));
    }
    Ok(())
}
