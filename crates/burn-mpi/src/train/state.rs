//! Copies the state of a learner from rank 0 to the other ranks.
//!
//! burn-train gives a learner's optimizer and scheduler only to checkpointers. So they are read and replaced
//! through checkpointers that keep records in memory.

use std::sync::Arc;

use burn::lr_scheduler::LrSchedulerRecord;
use burn::module::Module;
use burn::nn::DropoutConfig;
use burn::optim::OptimizerRecord;
use burn::tensor::Bytes;
use burn::train::checkpoint::{
    AsyncCheckpointer, Checkpoint, Checkpointer, CheckpointerError, KeepLastNCheckpoints,
};
use burn::train::metric::store::EventStoreClient;
use burn::train::{Learner, LearnerModel, LearningCheckpointer, SupervisedTraining};
use parking_lot::Mutex;

use crate::{CommError, World};

/// Gives `learner` the module, the optimizer and the scheduler of rank 0's learner. All ranks must call it,
/// with equal modules.
pub(super) fn broadcast<M: LearnerModel>(
    world: &World,
    learner: &mut Learner<M>,
    store: &EventStoreClient,
) -> Result<(), CommError> {
    let [model, optimizer, scheduler] = world.on_root(|| bytes_of(learner, store))?;
    // The module is sent too, because the optimizer's record refers to its ids.
    learner.load_model(record(world, model)?);
    learner.load_optim(record(world, optimizer)?);
    learner.load_scheduler(record(world, scheduler)?);
    Ok(())
}

/// Returns the bytes of a learner's module, optimizer and scheduler.
fn bytes_of<M: LearnerModel>(
    learner: &Learner<M>,
    store: &EventStoreClient,
) -> Result<[Vec<u8>; 3], CheckpointerError> {
    let (model, optimizer, scheduler) = Default::default();
    LearningCheckpointer::new(
        AsyncCheckpointer::new(MemoryCheckpointer(Arc::clone(&model))),
        AsyncCheckpointer::new(MemoryCheckpointer(Arc::clone(&optimizer))),
        AsyncCheckpointer::new(MemoryCheckpointer(Arc::clone(&scheduler))),
        // This strategy saves at every call, and deletes nothing at the first call.
        Box::new(KeepLastNCheckpoints::new(1)),
    )
    .checkpoint(learner, 0, store);
    // The checkpointer above has been dropped, and its drop has waited for its threads.
    Ok([into_bytes(&model)?, into_bytes(&optimizer)?, into_bytes(&scheduler)?])
}

fn into_bytes<R: Checkpoint>(slot: &Slot<R>) -> Result<Vec<u8>, CheckpointerError> {
    Ok(take(slot)?.checkpoint_into_bytes().map_err(CheckpointerError::Record)?.to_vec())
}

/// Reads the record in rank 0's bytes, which all ranks receive.
fn record<R: Checkpoint>(world: &World, bytes: Vec<u8>) -> Result<R, CommError> {
    R::checkpoint_from_bytes(Bytes::from_bytes_vec(world.broadcast_bytes(bytes)?))
        .map_err(|error| world.wrong(format!("cannot read rank 0's learner: {error}")))
}

/// Gives a training on a rank other than 0 checkpointers that read and write no files. Loading the records of
/// these checkpointers leaves a learner unchanged. [`broadcast`] later loads rank 0's state.
pub(super) fn without_files<M: LearnerModel>(training: SupervisedTraining<M>) -> SupervisedTraining<M> {
    let of_no_parameters = DropoutConfig::new(0.0).init().into_record().allow_partial(true);
    training.with_custom_checkpointers(
        MemoryCheckpointer::from_record(of_no_parameters),
        MemoryCheckpointer::from_record(OptimizerRecord::default()),
        MemoryCheckpointer::from_record(LrSchedulerRecord::new()),
    )
}

type Slot<R> = Arc<Mutex<Option<R>>>;

fn take<R>(slot: &Slot<R>) -> Result<R, CheckpointerError> {
    slot.lock().take().ok_or_else(|| CheckpointerError::Unknown("no record was saved".into()))
}

/// A checkpoint in memory.
struct MemoryCheckpointer<R>(Slot<R>);

impl<R> MemoryCheckpointer<R> {
    fn from_record(record: R) -> Self {
        Self(Arc::new(Mutex::new(Some(record))))
    }
}

impl<R: Checkpoint> Checkpointer<R> for MemoryCheckpointer<R> {
    fn save(&self, _epoch: usize, record: R) -> Result<(), CheckpointerError> {
        *self.0.lock() = Some(record);
        Ok(())
    }

    fn delete(&self, _epoch: usize) -> Result<(), CheckpointerError> {
        Ok(())
    }

    fn restore(&self, _epoch: usize) -> Result<R, CheckpointerError> {
        take(&self.0)
    }
}
