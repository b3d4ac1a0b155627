//! A learner's state between ranks: burn-train gives its optimizer and scheduler to checkpointers
//! alone.

use std::sync::{Arc, Mutex, PoisonError};

use burn::lr_scheduler::LrSchedulerRecord;
use burn::module::Module;
use burn::nn::DropoutConfig;
use burn::optim::{AdamConfig, OptimizerRecord};
use burn::store::ModuleRecord;
use burn::tensor::Bytes;
use burn::train::checkpoint::{
    AsyncCheckpointer, Checkpoint, Checkpointer, CheckpointerError, CheckpointingAction,
    CheckpointingStrategy,
};
use burn::train::metric::store::EventStoreClient;
use burn::train::{Learner, LearnerModel, LearningCheckpointer};

use crate::{CommError, World};

/// Gives `learner` the optimizer and the scheduler of rank 0's. All ranks must call it, with equal
/// modules.
pub(super) fn broadcast<M: LearnerModel>(
    world: &World,
    learner: Learner<M>,
    store: &EventStoreClient,
) -> Result<Learner<M>, CommError> {
    let mine = match world.is_root() {
        true => bytes_of(&learner, store).map(Some),
        false => Ok(None),
    };
    let [model, optimizer, scheduler] = world.agree(mine)?.unwrap_or_default();
    let model = record(world.broadcast_bytes(model)?)?;
    let optimizer = record(world.broadcast_bytes(optimizer)?)?;
    let scheduler = record(world.broadcast_bytes(scheduler)?)?;
    let loading = LearningCheckpointer::new(
        AsyncCheckpointer::new(Memory::<ModuleRecord>::of(model)),
        AsyncCheckpointer::new(Memory::<OptimizerRecord>::of(optimizer)),
        AsyncCheckpointer::new(Memory::<LrSchedulerRecord>::of(scheduler)),
        Box::new(Always),
    );
    Ok(loading.load_checkpoint(learner, 0))
}

/// The bytes of a learner's module, optimizer and scheduler.
fn bytes_of<M: LearnerModel>(
    learner: &Learner<M>,
    store: &EventStoreClient,
) -> Result<[Vec<u8>; 3], CheckpointerError> {
    let (model, optimizer, scheduler) = (Memory::default(), Memory::default(), Memory::default());
    LearningCheckpointer::new(
        AsyncCheckpointer::<ModuleRecord>::new(model.clone()),
        AsyncCheckpointer::<OptimizerRecord>::new(optimizer.clone()),
        AsyncCheckpointer::<LrSchedulerRecord>::new(scheduler.clone()),
        Box::new(Always),
    )
    .checkpoint(learner, 0, store);
    // Dropping the checkpointer has waited for its threads.
    Ok([model.into_bytes()?, optimizer.into_bytes()?, scheduler.into_bytes()?])
}

fn record<R: Checkpoint>(bytes: Vec<u8>) -> Result<R, CommError> {
    R::checkpoint_from_bytes(Bytes::from_bytes_vec(bytes))
        .map_err(|error| CommError::Start(format!("rank 0's learner cannot be read: {error}")))
}

/// A checkpoint in memory.
struct Memory<R>(Arc<Mutex<Option<R>>>);

impl<R> Clone for Memory<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<R> Default for Memory<R> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(None)))
    }
}

impl<R: Checkpoint> Memory<R> {
    fn of(record: R) -> Self {
        Self(Arc::new(Mutex::new(Some(record))))
    }

    fn take(&self) -> Result<R, CheckpointerError> {
        let record = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        record.ok_or_else(|| CheckpointerError::Unknown("no record was saved".into()))
    }

    fn into_bytes(self) -> Result<Vec<u8>, CheckpointerError> {
        let bytes = self.take()?.checkpoint_into_bytes().map_err(CheckpointerError::Record)?;
        Ok(bytes.to_vec())
    }
}

impl<R: Checkpoint> Checkpointer<R> for Memory<R> {
    fn save(&self, _epoch: usize, record: R) -> Result<(), CheckpointerError> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(record);
        Ok(())
    }

    fn delete(&self, _epoch: usize) -> Result<(), CheckpointerError> {
        Ok(())
    }

    fn restore(&self, _epoch: usize) -> Result<R, CheckpointerError> {
        self.take()
    }
}

/// Saves whenever it is asked.
struct Always;

impl CheckpointingStrategy for Always {
    fn checkpointing(&mut self, _epoch: usize, _store: &EventStoreClient) -> Vec<CheckpointingAction> {
        vec![CheckpointingAction::Save]
    }
}

/// The checkpointer of ranks other than 0: reads and writes nothing. Its records leave a learner as
/// it is until rank 0's arrives.
pub(super) struct Unread;

/// A record that changes nothing of a learner.
pub(super) trait Empty: Checkpoint {
    fn empty() -> Self;
}

impl Empty for ModuleRecord {
    fn empty() -> Self {
        DropoutConfig::new(0.0).init().into_record().allow_partial(true)
    }
}

impl Empty for OptimizerRecord {
    fn empty() -> Self {
        AdamConfig::new().init().to_record()
    }
}

impl Empty for LrSchedulerRecord {
    fn empty() -> Self {
        Self::new()
    }
}

impl<R: Empty> Checkpointer<R> for Unread {
    fn save(&self, _epoch: usize, _record: R) -> Result<(), CheckpointerError> {
        Ok(())
    }

    fn delete(&self, _epoch: usize) -> Result<(), CheckpointerError> {
        Ok(())
    }

    fn restore(&self, _epoch: usize) -> Result<R, CheckpointerError> {
        Ok(R::empty())
    }
}
