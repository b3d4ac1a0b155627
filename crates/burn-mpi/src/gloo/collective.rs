//! Gradients over gloo: its all-reduce, or one that adds in rank order.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::GlooContext;
use crate::gloo::algorithm::GlooAlgorithm;
use crate::guard::activity;
use crate::{Backend, Collective, Reduction, Wire};
use crate::{CommError, World};

/// [`Collective`] over gloo's TCP connections.
///
/// gloo blocks, so what [`start`](Collective::start) takes is done by a thread
/// of its own, one bucket after the other. A blocking operation runs on the
/// caller's thread once nothing is in flight any more, which saves the way to
/// that thread and back; so all ranks do the same in the same order.
pub struct GlooCollective {
    context: Arc<Mutex<GlooContext>>,
    algorithm: GlooAlgorithm,
    world_size: usize,
    /// Ends the thread when it is dropped.
    jobs: Option<Sender<Job>>,
    results: Receiver<Finished>,
    thread: Option<JoinHandle<()>>,
    /// Number of buckets that the thread has not given back.
    in_flight: usize,
    finished: Vec<Finished>,
}

/// A bucket on its way to the thread.
struct Job {
    bucket: usize,
    buffer: Wire,
    how: Reduction,
    started: Instant,
}

/// A bucket on its way back.
struct Finished {
    bucket: usize,
    result: Result<Wire, CommError>,
}

impl GlooCollective {
    /// Connects all ranks of `world` over the network interface named, or over
    /// one that reaches all ranks. No operation waits longer than `timeout`
    /// for another rank. All ranks call it, and all return an error if one
    /// fails.
    ///
    /// # Errors
    /// When there is no such interface, or a rank is not reached in time.
    pub fn connect(
        world: &World,
        interface: Option<&str>,
        algorithm: GlooAlgorithm,
        timeout: Duration,
    ) -> Result<Self, CommError> {
        let context = GlooContext::connect(world, interface, timeout)?;
        let world_size = context.size();
        let context = Arc::new(Mutex::new(context));
        let (jobs, orders) = channel::<Job>();
        let (reports, results) = channel();
        let shared = Arc::clone(&context);
        let serve = move || {
            for job in orders {
                let bucket = job.bucket;
                let result = job.run(&mut lock(&shared), algorithm);
                if reports.send(Finished { bucket, result }).is_err() {
                    break;
                }
            }
        };
        let thread = std::thread::Builder::new().name("gloo".into()).spawn(serve);
        let thread = world.agree(thread.map_err(|error| format!("gloo's thread did not start: {error}")))?;
        Ok(Self {
            context,
            algorithm,
            world_size,
            jobs: Some(jobs),
            results,
            thread: Some(thread),
            in_flight: 0,
            finished: Vec::new(),
        })
    }

    /// Waits for the thread to give one bucket back.
    fn receive(&mut self) -> Result<(), CommError> {
        let Ok(finished) = self.results.recv() else {
            return Err(self.thread_is_gone());
        };
        self.in_flight -= 1;
        self.finished.push(finished);
        Ok(())
    }

    /// The context, once no bucket is under way: operations of two threads
    /// would meet in another order on each rank.
    fn settled(&mut self) -> Result<MutexGuard<'_, GlooContext>, CommError> {
        while self.in_flight > 0 {
            self.receive()?;
        }
        self.first_error()?;
        Ok(lock(&self.context))
    }

    /// What went wrong with a bucket that the thread has given back.
    fn first_error(&mut self) -> Result<(), CommError> {
        match self.finished.iter().position(|finished| finished.result.is_err()) {
            Some(at) => self.finished.remove(at).result.map(drop),
            None => Ok(()),
        }
    }

    fn thread_is_gone(&self) -> CommError {
        lock(&self.context).error("all-reduce", 0, Instant::now(), "gloo's thread has ended".into())
    }
}

impl Job {
    fn run(mut self, context: &mut GlooContext, algorithm: GlooAlgorithm) -> Result<Wire, CommError> {
        match reduce(context, &mut self.buffer, self.how, algorithm) {
            Ok(()) => Ok(self.buffer),
            Err(error) => Err(of_bucket(error, self.bucket, self.started)),
        }
    }
}

fn reduce(
    context: &mut GlooContext,
    buffer: &mut Wire,
    how: Reduction,
    algorithm: GlooAlgorithm,
) -> Result<(), CommError> {
    match how {
        Reduction::Native => context.all_reduce(buffer, algorithm),
        Reduction::Ordered => context.all_reduce_ordered(buffer),
    }
}

/// Says which bucket an error is of, and counts from when that was started.
fn of_bucket(error: CommError, bucket: usize, started: Instant) -> CommError {
    match error {
        CommError::Operation { rank, host, operation, bytes, reason, .. } => CommError::Operation {
            rank,
            host,
            operation: format!("{operation} of bucket {bucket}"),
            bytes,
            elapsed: started.elapsed(),
            reason,
        },
        other => other,
    }
}

/// A panic of the other thread leaves the context as an error would.
fn lock(context: &Mutex<GlooContext>) -> MutexGuard<'_, GlooContext> {
    context.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Collective for GlooCollective {
    fn backend(&self) -> Backend {
        Backend::Gloo
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn all_reduce(&mut self, buffer: &mut Wire, how: Reduction) -> Result<(), CommError> {
        let algorithm = self.algorithm;
        let _waiting = activity::enter(Backend::Gloo, "all-reduce", None);
        reduce(&mut *self.settled()?, buffer, how, algorithm)
    }

    fn start(&mut self, bucket: usize, buffer: Wire, how: Reduction) -> Result<(), CommError> {
        let job = Job { bucket, buffer, how, started: Instant::now() };
        match self.jobs.as_ref().map(|jobs| jobs.send(job)) {
            Some(Ok(())) => {
                self.in_flight += 1;
                Ok(())
            }
            _ => Err(self.thread_is_gone()),
        }
    }

    /// The thread moves buckets on by itself; this only learns of errors.
    fn progress(&mut self) -> Result<(), CommError> {
        while let Ok(finished) = self.results.try_recv() {
            self.in_flight -= 1;
            self.finished.push(finished);
        }
        self.first_error()
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn wait(&mut self, bucket: usize) -> Result<Wire, CommError> {
        let _waiting = activity::enter(Backend::Gloo, "all-reduce", Some(bucket));
        loop {
            if let Some(at) = self.finished.iter().position(|finished| finished.bucket == bucket) {
                return self.finished.swap_remove(at).result;
            }
            if self.in_flight == 0 {
                unreachable!("bucket {bucket} is waited for without having been started");
            }
            self.receive()?;
        }
    }

    fn barrier(&mut self) -> Result<(), CommError> {
        let _waiting = activity::enter(Backend::Gloo, "barrier", None);
        self.settled()?.barrier()
    }
}

impl Drop for GlooCollective {
    /// Where buckets are still under way, as after an error, the thread is
    /// left to its timeout; it owns all that it touches.
    fn drop(&mut self) {
        self.jobs = None;
        if self.in_flight == 0
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_their_bucket() {
        let error = CommError::Operation {
            rank: 1,
            host: "node0".into(),
            operation: "gloo all-reduce".into(),
            bytes: 4,
            elapsed: Duration::ZERO,
            reason: "Timed out".into(),
        };
        let text = of_bucket(error, 2, Instant::now()).to_string();
        assert!(text.starts_with("rank 1 on node0: gloo all-reduce of bucket 2 of 4 bytes failed"), "{text}");
    }
}
