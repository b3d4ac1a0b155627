//! [`Polled`]: a [`Collective`] whose operations make progress whenever this thread polls.
//!
//! The operations of local updates are in flight during later forward and backward passes, which do not know
//! the collective. A list of the thread's collectives lets [`poll`] reach them from inside an operator.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::time::Duration;

use crate::clock::Clock;
use crate::ddp::report::CommTimes;
use crate::{Collective, CommError, Operation, Reduction, Wire, World};

thread_local! {
    /// The collectives of this thread that [`poll`] polls.
    static POLLED: RefCell<Vec<Weak<RefCell<Transfers>>>> = const { RefCell::new(Vec::new()) };
}

/// Makes progress on the operations in flight of every [`Polled`] of this thread, without waiting.
pub(crate) fn poll() {
    POLLED.with_borrow(|all| {
        for transfers in all.iter().filter_map(Weak::upgrade) {
            // A collective that is in a call right now makes progress in that call.
            if let Ok(mut transfers) = transfers.try_borrow_mut() {
                transfers.poll();
            }
        }
    });
}

/// A collective whose sums make progress in [`poll`] until this value is dropped.
pub(crate) struct Polled(Rc<RefCell<Transfers>>);

struct Transfers {
    collective: Box<dyn Collective>,
    clock: Clock,
    /// Number of sums that were started and not waited for.
    unclaimed: usize,
    /// Start of the current period in which a sum is in flight and this rank does not wait; `None` outside
    /// such a period.
    in_flight_since: Option<Duration>,
    /// The error of a poll. The next call that can return an error returns it.
    failure: Option<CommError>,
    times: CommTimes,
    bytes: u64,
}

impl Polled {
    pub fn new(world: &World, collective: Box<dyn Collective>) -> Self {
        let transfers = Rc::new(RefCell::new(Transfers {
            collective,
            clock: world.member().activity.clock.clone(),
            unclaimed: 0,
            in_flight_since: None,
            failure: None,
            times: CommTimes::default(),
            bytes: 0,
        }));
        POLLED.with_borrow_mut(|all| {
            all.retain(|other| other.strong_count() > 0);
            all.push(Rc::downgrade(&transfers));
        });
        Self(transfers)
    }

    /// Starts the sum of `wire` over ranks, as operation `number`.
    pub fn start(&self, number: usize, wire: Wire, how: Reduction) -> Result<(), CommError> {
        let this = &mut *self.0.borrow_mut();
        this.check()?;
        this.bytes += wire.bytes().len() as u64;
        this.collective.start(Operation::all_reduce(number, &wire, how), wire)?;
        this.unclaimed += 1;
        this.in_flight_since.get_or_insert_with(|| this.clock.now());
        Ok(())
    }

    /// Waits for the sum of operation `number`.
    pub fn wait(&self, number: usize) -> Result<Wire, CommError> {
        let this = &mut *self.0.borrow_mut();
        this.check()?;
        this.end_period();
        let began = this.clock.now();
        let sum = this.collective.wait(number)?;
        let ended = this.clock.now();
        this.times.exposed += ended.saturating_sub(began);
        this.unclaimed -= 1;
        this.in_flight_since = (this.unclaimed > 0).then_some(ended);
        Ok(sum)
    }

    /// Makes progress on the sums in flight, without waiting.
    pub fn poll(&self) {
        self.0.borrow_mut().poll();
    }

    /// Runs `copy`, and adds its time to the time of copies.
    pub fn copying<T>(&self, copy: impl FnOnce() -> T) -> T {
        let began = self.0.borrow().clock.now();
        let copied = copy();
        let this = &mut *self.0.borrow_mut();
        this.times.copy += this.clock.now().saturating_sub(began);
        copied
    }

    pub fn times(&self) -> CommTimes {
        self.0.borrow().times
    }

    /// Bytes of the buffers that this rank has passed to sums so far.
    pub fn bytes(&self) -> u64 {
        self.0.borrow().bytes
    }
}

impl Transfers {
    fn check(&mut self) -> Result<(), CommError> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    fn poll(&mut self) {
        if self.unclaimed == 0 || self.failure.is_some() {
            return;
        }
        match self.collective.poll() {
            Ok(0) => self.end_period(),
            Ok(_) => {}
            Err(error) => self.failure = Some(error),
        }
    }

    /// Ends the current period in which a sum is in flight, and adds it to the hidden time.
    fn end_period(&mut self) {
        if let Some(since) = self.in_flight_since.take() {
            self.times.hidden += self.clock.now().saturating_sub(since);
        }
    }
}
