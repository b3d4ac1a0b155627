//! [`World`]: this process's rank, the hosts of all ranks, and small exchanges between ranks, for job setup
//! and agreement on errors.
//!
//! Gradients are sent by a [collective](crate::Collective), not by a world.

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::activity::Waiting;
use crate::calling::{Announcement, calling};
#[cfg(feature = "mpi")]
use crate::collective::mpi::Mpi;
use crate::host::Place;
#[cfg(feature = "mpi")]
use crate::host::oversubscribed;
use crate::member::{Member, Started};
use crate::threads::seat::Seat;
use crate::{CommError, Primitives, SharedError, Wire};

/// All ranks of the job, from the perspective of one of them.
///
/// A world is a handle: clones are cheap and refer to the same job, so a type can hold a world without a
/// lifetime parameter. Dropping the last handle does not finalize MPI. An exit handler finalizes MPI at the
/// end of the process, after `main` has returned, so no value in `main` that uses MPI can outlive MPI. The
/// exit handler gets the exit code: if the `main` of a rank returns an error while other ranks go on, the
/// handler aborts the job instead of waiting for them.
///
/// MPI is called only from the thread that started it. A world, and any type that holds one, is therefore
/// `!Send` and `!Sync`:
///
/// ```compile_fail,E0277
/// fn moves_to_another_thread<T: Send>() {}
/// moves_to_another_thread::<burn_mpi::World>();
/// ```
///
/// ```compile_fail,E0277
/// fn is_used_by_several_threads<T: Sync>() {}
/// is_used_by_several_threads::<burn_mpi::World>();
/// ```
///
/// ```no_run
/// # use burn_mpi::{CommError, World};
/// # fn example() -> Result<(), CommError> {
/// let world = World::init()?;
/// println!("rank {} of {} on {}", world.rank(), world.size(), world.host());
///
/// // Small exchanges: every rank's value, and a sum.
/// let samples: Vec<usize> = world.gather(&(100 + world.rank()))?;
/// let mut total = [samples[world.rank()] as f64];
/// world.sum_f64(&mut total)?;
///
/// // An error on one rank becomes the error of all.
/// let shard = std::fs::read(format!("shard{}.bin", world.rank()));
/// let bytes: Vec<u8> = world.agree(shard)?;
/// # Ok(())
/// # }
/// ```
///
/// User-defined types hold a world and a collective like any other value:
///
/// ```no_run
/// use burn_mpi::{Backend, Collective, CommError, Transport, World, connect};
///
/// struct Trainer {
///     world: World,
///     collective: Box<dyn Collective>,
/// }
///
/// fn trainer(world: &World) -> Result<Trainer, CommError> {
///     let collective = connect(world, Backend::Mpi, &Transport::default())?;
///     Ok(Trainer { world: world.clone(), collective })
/// }
/// ```
#[derive(Clone)]
pub struct World(Rc<Job>);

thread_local! {
    /// The world of this thread. An operator of a module finds it here: Burn's modules are `Send`, so they
    /// cannot hold a world.
    static CURRENT: RefCell<Option<Weak<Job>>> = const { RefCell::new(None) };
}

struct Job {
    member: Rc<Member>,
    /// Where each rank runs. Ranks that are threads share it.
    places: Arc<[Place]>,
    library: String,
    /// This rank's seat if ranks are threads; `None` if ranks are processes of an MPI job.
    seat: Option<Seat>,
    /// The transport of this world's small exchanges.
    control: RefCell<Box<dyn Primitives>>,
    /// Number of exchanges of tensors with a backward so far.
    exchanges: Cell<u64>,
}

impl World {
    /// Makes the world of a process. `place` then sets where the ranks run.
    #[cfg(feature = "mpi")]
    pub(crate) fn new(member: Member, control: Box<dyn Primitives>, library: String) -> Self {
        let (member, control) = (Rc::new(member), RefCell::new(control));
        let (places, exchanges) = (Arc::default(), Cell::default());
        Self(Rc::new(Job { member, places, library, seat: None, control, exchanges }))
    }

    /// Sets where each rank runs.
    ///
    /// # Panics
    /// If this world has been cloned.
    #[cfg(feature = "mpi")]
    pub(crate) fn place(&mut self, places: Vec<Place>) {
        let job = Rc::get_mut(&mut self.0).expect("a world with one handle");
        let member = Rc::make_mut(&mut job.member);
        member.host.clone_from(&places[member.rank].host);
        member.yields = oversubscribed(&places, 1);
        job.places = places.into();
    }

    /// Makes the world of a rank that is a thread.
    pub(crate) fn of_seat(seat: Seat, places: Arc<[Place]>) -> Self {
        let (member, control) = (Rc::new(seat.member().clone()), RefCell::new(seat.operations()));
        let (library, exchanges) = ("no MPI".to_owned(), Cell::default());
        Self(Rc::new(Job { member, places, library, seat: Some(seat), control, exchanges }))
    }

    /// Returns the number of the next exchange of tensors with a backward, from 1. All ranks make these
    /// exchanges in the same order, so an exchange has the same number on every rank.
    pub(crate) fn next_exchange(&self) -> u64 {
        self.0.exchanges.update(|number| number + 1);
        self.0.exchanges.get()
    }

    /// Makes this the world that operators on this thread find.
    pub(crate) fn enter(&self) {
        CURRENT.set(Some(Rc::downgrade(&self.0)));
    }

    /// Returns the world of this thread; `None` if the thread has had none.
    ///
    /// # Panics
    /// If all handles of the world have been dropped.
    pub(crate) fn current() -> Option<Self> {
        const DROPPED: &str = "this thread's World was dropped; keep it until the end of the training";
        CURRENT.with_borrow(|current| current.as_ref().map(|job| Self(job.upgrade().expect(DROPPED))))
    }

    /// Sets the deadline of this rank's later collectives.
    pub fn set_deadline(&self, deadline: Duration) {
        self.member().activity.set_deadline(deadline);
    }

    /// Tells the guard that this rank waits in an operation of a transport, until the returned value is
    /// dropped. The deadline applies to the wait. For transports in other crates: all ranks must call `watch`
    /// for the same operations in the same order.
    ///
    /// If the deadline passes, the error names all three arguments. `transport` is the name that
    /// [`Collective::transport`](crate::Collective::transport) returns, and `operation` a name that
    /// [`Call::name`](crate::Call::name) returns, such as `broadcast`. `bucket` is the bucket of the
    /// operation, if it has one.
    ///
    /// ```no_run
    /// # use burn_mpi::World;
    /// # fn wait_for_the_network() {}
    /// # fn wait(world: &World) {
    /// let _waiting = world.watch("ucc", "all-reduce", Some(2));
    /// wait_for_the_network();
    /// # }
    /// ```
    pub fn watch(&self, transport: &str, operation: &str, bucket: Option<usize>) -> Waiting {
        self.member().enter(transport, operation, bucket)
    }

    /// Returns whether the job has failed and the guard is about to end this process. The guard is a thread
    /// of this process that ends the process if a rank hangs.
    ///
    /// A transport whose operations must be aborted, such as operations on a GPU, calls `is_ending` while it
    /// waits. If `is_ending` has been called at least once, the guard waits one second before it ends the
    /// process, so that the transport can abort its operations.
    pub fn is_ending(&self) -> bool {
        self.member().activity.with(|state| *state.ending.get_or_insert(false))
    }

    /// Describes an operation of `bytes` bytes that starts now, for a transport in another crate. If the
    /// operation fails, the transport passes the description to [`failed`](Self::failed) or
    /// [`broken`](Self::broken). `transport`, `operation` and `bucket` are as in [`watch`](Self::watch).
    pub fn started(
        &self,
        transport: &'static str,
        operation: &'static str,
        bucket: Option<usize>,
        bytes: usize,
    ) -> Started {
        Started { bucket, ..self.member().started(transport, operation, bytes) }
    }

    /// Returns the error of an operation that failed, or was not carried out, for `reason`.
    pub fn failed(&self, started: &Started, reason: impl Into<String>) -> CommError {
        self.member().error(started, reason)
    }

    /// Returns the error of an operation after its connection broke for `reason`.
    ///
    /// A connection breaks when the peer exits. If a peer announces within 3 seconds that it leaves, the
    /// result is [`CommError::Left`] with the peer's reason. Otherwise, the result is the error of
    /// [`failed`](Self::failed). Ranks that are threads announce nothing.
    pub fn broken(&self, started: &Started, reason: String) -> CommError {
        self.member().broken(started, Member::PEER_REASON_TIMEOUT, reason)
    }

    /// Returns this process's rank, from 0.
    pub fn rank(&self) -> usize {
        self.0.member.rank
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> usize {
        self.0.member.size
    }

    /// Returns whether this is rank 0, which writes the files and shows progress.
    pub fn is_root(&self) -> bool {
        self.rank() == 0
    }

    /// Returns this rank's host name.
    pub fn host(&self) -> &str {
        &self.0.member.host
    }

    /// Returns where each rank runs, in rank order.
    pub fn places(&self) -> &[Place] {
        &self.0.places
    }

    /// Returns the MPI library in use, such as `Open MPI v4.1.4`; `no MPI` if ranks are threads.
    pub fn mpi_library(&self) -> &str {
        &self.0.library
    }

    /// Sends all later exchanges of this world and its clones over `control` instead of MPI. A job on another
    /// transport then uses MPI only to start. All ranks must call it at the same point.
    pub fn exchange_over(&self, control: Box<dyn Primitives>) {
        self.0.control.replace(control);
    }

    pub(crate) fn member(&self) -> &Rc<Member> {
        &self.0.member
    }

    /// Returns the MPI of this process.
    ///
    /// # Panics
    /// If ranks are threads.
    #[cfg(feature = "mpi")]
    pub(crate) fn mpi(&self) -> Mpi {
        assert!(self.seat().is_none(), "ranks that are threads have no MPI");
        // SAFETY: a world without a seat is made by `World::init`, after MPI has started and on the thread
        // that started it. A world is not `Send`, so the current thread is the one that started MPI. Only the
        // exit handler finalizes MPI.
        unsafe { Mpi::new(Rc::clone(self.member())) }
    }

    pub(crate) fn seat(&self) -> Option<&Seat> {
        self.0.seat.as_ref()
    }

    pub(crate) fn control(&self) -> &RefCell<Box<dyn Primitives>> {
        &self.0.control
    }

    /// Gathers `mine` of every rank, in rank order. `mine` must have the same length on all ranks.
    pub(crate) fn all_gather_bytes(&self, mine: &[u8]) -> Result<Vec<u8>, CommError> {
        let mut all = vec![0; mine.len() * self.size()];
        self.control().borrow_mut().all_gather(mine, &mut all)?;
        Ok(all)
    }

    /// Gathers every rank's value, in rank order, on every rank.
    ///
    /// Values are sent as CBOR, which supports NaN, 128-bit integers, bytes and maps with any keys.
    /// `Some(())` and `Some(None)` arrive as `None`.
    ///
    /// # Errors
    /// If the transport fails. On all ranks: [`SharedError::Elsewhere`](crate::SharedError::Elsewhere) names
    /// the first rank whose value cannot be serialized, such as a path that is not UTF-8;
    /// [`SharedError::OutOfStep`](crate::SharedError::OutOfStep) names a rank that is in another call of this
    /// crate. [`CommError::OnRank`] if `T` cannot be deserialized from its own serialization.
    pub fn gather<T: Serialize + DeserializeOwned>(&self, mine: &T) -> Result<Vec<T>, CommError> {
        self.gathered(mine, "gather", |padded| self.all_gather_bytes(padded))
    }

    /// Broadcasts rank 0's value. The `value` of other ranks is not read. Values are encoded as by
    /// [`gather`](Self::gather).
    ///
    /// # Errors
    /// If the transport fails. If rank 0's value cannot be serialized or deserialized, the error is the same
    /// as that of [`gather`](Self::gather). [`CommError::OnRank`] if rank 0 is in another call of this crate.
    pub fn broadcast<T: Serialize + DeserializeOwned>(&self, value: &T) -> Result<T, CommError> {
        let bytes = self.broadcast_bytes(if self.is_root() { written(value) } else { Vec::new() })?;
        self.read(0, &bytes)
    }

    /// Broadcasts rank 0's bytes. The `bytes` of other ranks are not read, and may have another length.
    ///
    /// # Errors
    /// If the transport fails. [`CommError::OnRank`] if rank 0 is in another call of this crate.
    pub fn broadcast_bytes(&self, mut bytes: Vec<u8>) -> Result<Vec<u8>, CommError> {
        let exchange = Announcement::for_exchange("broadcast", 0, self.host());
        let mut header = [bytes.len() as u64, exchange.tag];
        self.control().borrow_mut().broadcast(bytemuck::bytes_of_mut(&mut header), 0)?;
        let [length, tag] = header;
        if tag != exchange.tag {
            // The other ranks continue. They see the error when this rank exits.
            let reason = format!("this rank is in {}, but rank 0 is in another call", exchange.name);
            return Err(self.unreadable(reason));
        }
        bytes.resize(length as usize, 0);
        self.control().borrow_mut().broadcast(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Gathers every rank's value on rank 0, in rank order. Other ranks get an empty vector.
    #[cfg(feature = "train")]
    pub(crate) fn gather_on_root<T: Serialize + DeserializeOwned>(
        &self,
        mine: &T,
    ) -> Result<Vec<T>, CommError> {
        let all = self.gathered(mine, "gather_on_root", |padded| {
            let mut all = vec![0; if self.is_root() { padded.len() * self.size() } else { 0 }];
            self.control().borrow_mut().gather(padded, &mut all, 0)?;
            Ok(all)
        })?;
        Ok(if self.is_root() { all } else { Vec::new() })
    }

    /// Overwrites `values` on every rank with rank 0's.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn broadcast_f32(&self, values: &mut [f32]) -> Result<(), CommError> {
        self.control().borrow_mut().broadcast(bytemuck::cast_slice_mut(values), 0)
    }

    /// Sends the `values` of rank `from` to rank `to`, which overwrites its own `values` of the same length.
    /// Returns at once on other ranks, and on all ranks if `from` and `to` are equal.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn pass_f32(&self, values: &mut [f32], from: usize, to: usize) -> Result<(), CommError> {
        let (bytes, mut control) = (bytemuck::cast_slice_mut(values), self.control().borrow_mut());
        match self.rank() {
            _ if from == to => Ok(()),
            rank if rank == from => control.send(bytes, to),
            rank if rank == to => control.receive(bytes, from),
            _ => Ok(()),
        }
    }

    /// Sums `values` over all ranks, in place.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn sum_f64(&self, values: &mut [f64]) -> Result<(), CommError> {
        let mut buffer = Wire::F64(values.to_vec());
        self.control().borrow_mut().all_reduce(&mut buffer)?;
        if let Wire::F64(sums) = buffer {
            values.copy_from_slice(&sums);
        }
        Ok(())
    }

    /// Barrier: waits until every rank has called `barrier`.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn barrier(&self) -> Result<(), CommError> {
        self.control().borrow_mut().barrier()
    }

    /// Returns the value of `mine` if no rank passes an error. Otherwise, all ranks return the error of the
    /// lowest rank that passes one. So no rank waits for a rank that has left, and the job prints one line
    /// instead of one per rank.
    ///
    /// # Errors
    /// The error of the lowest failing rank, or the transport's.
    pub fn agree<T, E: Display>(&self, mine: Result<T, E>) -> Result<T, CommError> {
        let _calling = calling("agree");
        // The reason becomes part of a line, so it must not contain line breaks.
        let mine = mine.map_err(|error| format!("{error:#}").replace('\n', " "));
        let all: Vec<(usize, Option<String>)> = self.gather_distinct(&mine.as_ref().err().cloned())?;
        if let Some((rank, reason)) = all.into_iter().find_map(|(rank, reason)| Some((rank, reason?))) {
            return Err(self.elsewhere(rank, reason));
        }
        mine.map_err(|reason| self.elsewhere(self.rank(), reason))
    }

    /// Calls `body` on rank 0 only. Returns its value there, and the default value on other ranks.
    ///
    /// # Errors
    /// On every rank, rank 0's error, or the transport's.
    pub(crate) fn on_root<T: Default, E: Display>(
        &self,
        body: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, CommError> {
        self.agree(if self.is_root() { body() } else { Ok(T::default()) })
    }

    /// Prints the error with which this rank leaves, and records it for the other ranks.
    #[cfg(any(feature = "mpi", feature = "train"))]
    pub(crate) fn report(&self, error: &(dyn std::error::Error + 'static)) {
        let text = error.to_string();
        match error.downcast_ref::<CommError>() {
            // All ranks return a shared error, and rank 0 prints it.
            Some(shared) if shared.is_shared() && !self.is_root() => {}
            // A `CommError` already names its rank.
            Some(_) => crate::process::print_line(&text),
            None => crate::process::print_line(&format!("rank {} on {}: {text}", self.rank(), self.host())),
        }
        self.member().activity.with(|state| state.reason = text);
    }

    /// Checks that `mine` is the same text on every rank.
    ///
    /// # Errors
    /// [`SharedError::Diverged`](crate::SharedError::Diverged) names the first rank that differs from rank 0.
    /// Other errors come from the transport.
    pub fn check_equal(&self, what: &str, mine: &str) -> Result<(), CommError> {
        let _calling = calling(format!("check_equal of {what}"));
        match &self.gather_distinct(&mine.to_owned())?[..] {
            [(_, expected), (rank, found), ..] => Err(self.diverged(what, *rank, found, expected)),
            _ => Ok(()),
        }
    }

    /// Returns the error of `rank`, which differs from rank 0 in `what`.
    pub(crate) fn diverged(
        &self,
        what: impl Into<String>,
        rank: usize,
        found: impl ToString,
        expected: impl ToString,
    ) -> CommError {
        let (host, found, expected) = (self.host_of(rank), found.to_string(), expected.to_string());
        CommError::Shared(SharedError::Diverged { what: what.into(), rank, host, found, expected })
    }

    /// Returns the error that all ranks return because `rank` failed.
    fn elsewhere(&self, rank: usize, reason: String) -> CommError {
        CommError::Shared(SharedError::Elsewhere { rank, host: self.host_of(rank), reason })
    }

    pub(crate) fn host_of(&self, rank: usize) -> String {
        self.places()[rank].host.clone()
    }

    /// Checks that a data set of `samples` samples has at least one sample for each rank. `samples` is equal
    /// on all ranks.
    #[cfg(feature = "data")]
    pub(crate) fn check_samples(&self, samples: usize) -> Result<(), CommError> {
        if samples >= self.size() {
            return Ok(());
        }
        let ranks = self.size();
        let reason = format!(
            "gets no sample: each rank needs one, but the data set has {samples} for {ranks} ranks; use fewer ranks or \
             more samples"
        );
        Err(self.elsewhere(samples, reason))
    }

    /// Decodes the bytes that `rank` has encoded with [`written`].
    pub(crate) fn read<T: DeserializeOwned>(&self, rank: usize, bytes: &[u8]) -> Result<T, CommError> {
        let sent = ciborium::from_reader::<Result<T, String>, _>(bytes);
        let sent = sent.map_err(|error| self.unreadable(format!("from rank {rank}: {error}")))?;
        sent.map_err(|reason| self.elsewhere(rank, reason))
    }

    /// Returns an error of this rank alone.
    pub(crate) fn wrong(&self, reason: String) -> CommError {
        CommError::OnRank { rank: self.rank(), host: self.host().to_owned(), reason }
    }

    fn unreadable(&self, reason: String) -> CommError {
        self.wrong(format!(
            "received a message that it cannot read ({reason}): check that all ranks call the same operations and \
             run the same binary"
        ))
    }
}

/// Encodes `value`, or the reason why it cannot be serialized. The reason is sent in place of the value: if
/// this rank returned without sending, the other ranks would wait for it.
pub(crate) fn written<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Err(error) = ciborium::into_writer(&Ok::<_, String>(value), &mut bytes) {
        let reason = match error {
            ciborium::ser::Error::Value(reason) => reason,
            ciborium::ser::Error::Io(error) => error.to_string(),
        };
        bytes.clear();
        let refused = Err::<(), _>(format!("a value cannot be sent to the other ranks: {reason}"));
        ciborium::into_writer(&refused, &mut bytes).expect("writing a string to a vector cannot fail");
    }
    bytes
}
