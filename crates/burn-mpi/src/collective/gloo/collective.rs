//! Collectives over gloo: native, or sums in rank order.

use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::algorithm::GlooAlgorithm;
use super::job::{Job, all_reduce};
use super::{Context, NAME};
use crate::collective::mpi::MpiWorld;
use crate::guard::activity;
use crate::{Collective, CommError, Operation, Reduction, Wire, World};

/// [`Collective`] over gloo's TCP connections.
///
/// gloo blocks, so a worker thread runs the operations that [`start`](Collective::start)
/// takes, one bucket after the other. A blocking operation runs on the caller's thread
/// once nothing is in flight, which saves the handover to that thread; all ranks run the
/// same operations in the same order.
///
/// Sums of a reduce-scatter are always in rank order: gloo has no reduce-scatter.
///
/// It is `!Send` and `!Sync`, as is any type that holds it:
///
/// ```compile_fail,E0277
/// fn moves_to_another_thread<T: Send>() {}
/// moves_to_another_thread::<burn_mpi::GlooCollective>();
/// ```
///
/// ```compile_fail,E0277
/// fn is_used_by_several_threads<T: Sync>() {}
/// is_used_by_several_threads::<burn_mpi::GlooCollective>();
/// ```
pub struct GlooCollective {
    mpi: Rc<MpiWorld>,
    context: Arc<Mutex<Context>>,
    algorithm: GlooAlgorithm,
    /// Ends the thread when dropped.
    jobs: Option<Sender<Job>>,
    results: Receiver<Finished>,
    thread: Option<JoinHandle<()>>,
    /// Buckets that the thread has not returned, and their operations.
    in_flight: Vec<(usize, Operation)>,
    finished: Vec<Finished>,
}

/// A bucket that the thread returns.
struct Finished {
    bucket: usize,
    operation: Operation,
    result: Result<Wire, CommError>,
}

impl GlooCollective {
    /// Connects all ranks of `world` over the named network interface, or over one that
    /// reaches all ranks. No operation waits longer than `timeout` for another rank. All
    /// ranks must call it, and all return an error if one fails.
    ///
    /// # Errors
    /// If there is no such interface, or a rank is not reached in time.
    pub fn connect(
        world: &World,
        interface: Option<&str>,
        algorithm: GlooAlgorithm,
        timeout: Duration,
    ) -> Result<Self, CommError> {
        let context = Arc::new(Mutex::new(Context::connect(world, interface, timeout)?));
        let (jobs, orders) = channel::<Job>();
        let (reports, results) = channel();
        let shared = Arc::clone(&context);
        let serve = move || {
            for job in orders {
                let (bucket, operation) = (job.bucket, job.operation);
                let result = job.run(&mut lock(&shared), algorithm);
                if reports.send(Finished { bucket, operation, result }).is_err() {
                    break;
                }
            }
        };
        let thread = std::thread::Builder::new().name("gloo".into()).spawn(serve);
        let thread = world.agree(thread.map_err(|error| format!("gloo's thread did not start: {error}")))?;
        Ok(Self {
            mpi: Rc::clone(world.mpi()),
            context,
            algorithm,
            jobs: Some(jobs),
            results,
            thread: Some(thread),
            in_flight: Vec::new(),
            finished: Vec::new(),
        })
    }

    /// Waits until the thread returns one bucket.
    fn receive(&mut self) -> Result<(), CommError> {
        let Ok(finished) = self.results.recv() else {
            return Err(self.thread_is_gone());
        };
        self.note(finished);
        Ok(())
    }

    fn note(&mut self, finished: Finished) {
        self.in_flight.retain(|(bucket, _)| *bucket != finished.bucket);
        self.finished.push(finished);
    }

    /// The context, once no bucket is in flight: operations of two threads would be in a
    /// different order on each rank.
    fn settled(&mut self) -> Result<MutexGuard<'_, Context>, CommError> {
        while !self.in_flight.is_empty() {
            self.receive()?;
        }
        self.first_error()?;
        Ok(lock(&self.context))
    }

    /// The error of a bucket that the thread has returned.
    fn first_error(&mut self) -> Result<(), CommError> {
        match self.finished.iter().position(|finished| finished.result.is_err()) {
            Some(at) => self.finished.remove(at).result.map(drop),
            None => Ok(()),
        }
    }

    /// The operation of a bucket that was started and not returned to the caller.
    fn operation_of(&self, bucket: usize) -> Option<Operation> {
        let finished = self.finished.iter().map(|finished| (finished.bucket, finished.operation));
        self.in_flight.iter().copied().chain(finished).find(|(number, _)| *number == bucket).map(|(_, o)| o)
    }

    fn thread_is_gone(&self) -> CommError {
        lock(&self.context).error("operation", 0, Instant::now(), "gloo's thread has ended".into())
    }
}

/// A panic on the other thread leaves the context as an error would.
fn lock(context: &Mutex<Context>) -> MutexGuard<'_, Context> {
    context.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Collective for GlooCollective {
    fn transport(&self) -> &str {
        NAME
    }

    fn connection(&self) -> Option<String> {
        Some(lock(&self.context).connection())
    }

    fn world_size(&self) -> usize {
        self.mpi.size
    }

    fn start(&mut self, bucket: usize, operation: Operation, buffer: Wire) -> Result<(), CommError> {
        assert!(self.operation_of(bucket).is_none(), "bucket {bucket} is in flight");
        let started = Instant::now();
        operation.check(NAME, &buffer, &self.mpi)?;
        let job = Job { bucket, operation, buffer, started };
        match self.jobs.as_ref().map(|jobs| jobs.send(job)) {
            Some(Ok(())) => {
                self.in_flight.push((bucket, operation));
                Ok(())
            }
            _ => Err(self.thread_is_gone()),
        }
    }

    /// The thread makes progress by itself; this only checks for errors.
    fn poll(&mut self) -> Result<usize, CommError> {
        while let Ok(finished) = self.results.try_recv() {
            self.note(finished);
        }
        self.first_error()?;
        Ok(self.in_flight.len())
    }

    fn is_done(&self, bucket: usize) -> bool {
        self.finished.iter().any(|finished| finished.bucket == bucket)
    }

    fn wait(&mut self, bucket: usize) -> Result<Wire, CommError> {
        let Some(operation) = self.operation_of(bucket) else {
            panic!("bucket {bucket} is waited for without having been started")
        };
        let _waiting = activity::enter(NAME, operation.name(), Some(bucket));
        loop {
            if let Some(at) = self.finished.iter().position(|finished| finished.bucket == bucket) {
                return self.finished.swap_remove(at).result;
            }
            self.receive()?;
        }
    }

    fn all_reduce(&mut self, buffer: &mut Wire, how: Reduction) -> Result<(), CommError> {
        let algorithm = self.algorithm;
        let _waiting = activity::enter(NAME, "all-reduce", None);
        all_reduce(&mut *self.settled()?, buffer, how, algorithm)
    }

    fn broadcast(&mut self, buffer: &mut Wire, root: usize) -> Result<(), CommError> {
        let _waiting = activity::enter(NAME, "broadcast", None);
        self.settled()?.broadcast(buffer.bytes_mut(), root)
    }

    fn barrier(&mut self) -> Result<(), CommError> {
        let _waiting = activity::enter(NAME, "barrier", None);
        self.settled()?.barrier()
    }
}

impl Drop for GlooCollective {
    /// If buckets are still in flight, as after an error, the thread is left to its
    /// timeout; it owns all its memory.
    fn drop(&mut self) {
        self.jobs = None;
        if self.in_flight.is_empty()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}
