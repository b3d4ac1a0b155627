//! The end of a rank: MPI is finalized when the process exits, and not before.
//!
//! `main` may return an error on one rank while the others wait for it in a
//! collective. `MPI_Finalize` would wait for them, and they for this rank. So a
//! handler, which the C library calls with the exit code when the process ends,
//! tells the other ranks' guards, and meets the other ranks in a barrier of its
//! own. If they do not come, a rank with an exit code other than 0 ends the job.
//!
//! MPI therefore runs for as long as any Rust code does, and no value that uses
//! it can outlive it.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mpi::ffi;

use crate::collective::mpi::request::Communicator;
use crate::collective::mpi::{MpiWorld, library};
use crate::guard::activity;

// A program may run its training on a thread of its own and join it; the handler
// then runs on another thread, when the one that used MPI is in no operation. MPI
// promises nothing for that, and both Open MPI and MPICH end well.

/// How long a rank with an error waits for the others to end as well.
const GRACE: Duration = Duration::from_secs(2);
/// How long MPI may take to end. MPICH's ranks were seen to wait for each other
/// for ever there, with everything written and said.
const FINALIZE: Duration = Duration::from_secs(20);

struct Farewell {
    mpi: MpiWorld,
    communicator: Communicator,
}

// SAFETY: the communicator is a name for an object inside MPI, and no memory of a
// thread. The exit handler alone uses it, while no other thread is inside MPI.
unsafe impl Send for Farewell {}

static FAREWELL: Mutex<Option<Farewell>> = Mutex::new(None);

#[cfg(target_env = "gnu")]
unsafe extern "C" {
    /// Registers a function of the exit code (glibc's `stdlib.h`).
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Finalizes MPI when this process exits. Called once, on the thread that
/// started MPI, by all ranks.
pub(crate) fn arrange(mpi: &MpiWorld) -> Result<(), crate::CommError> {
    let communicator = mpi.duplicate()?;
    let farewell = Farewell { mpi: mpi.clone(), communicator };
    *FAREWELL.lock().unwrap_or_else(PoisonError::into_inner) = Some(farewell);
    // SAFETY: the handlers are functions that live as long as the program, and
    // do not unwind: they call nothing that panics.
    #[cfg(target_env = "gnu")]
    let refused = unsafe { on_exit(with_status, std::ptr::null_mut()) };
    #[cfg(not(target_env = "gnu"))]
    let refused = unsafe { libc::atexit(without_status) };
    match refused {
        0 => Ok(()),
        _ => Err(crate::CommError::Start("the C library takes no exit handler".into())),
    }
}

/// Drops the arrangement: the process is about to end the whole job.
pub(crate) fn cancel() {
    if let Ok(mut farewell) = FAREWELL.try_lock() {
        *farewell = None;
    }
}

#[cfg(target_env = "gnu")]
extern "C" fn with_status(status: c_int, _argument: *mut c_void) {
    say(status);
}

/// Other C libraries do not tell the exit code: there an error on one rank ends
/// the job when another one's deadline passes.
#[cfg(not(target_env = "gnu"))]
extern "C" fn without_status() {
    say(0);
}

fn say(status: i32) {
    let farewell = FAREWELL.try_lock().ok().and_then(|mut farewell| farewell.take());
    let Some(Farewell { mpi, communicator }) = farewell else { return };
    if !library::is_mpi_thread() && (status != 0 || activity::now().waited.is_some()) {
        // The process ends without MPI_Finalize, and its launcher ends the job.
        return;
    }
    activity::leave(status);
    if mpi.size > 1 && !everyone_leaves(&mpi, communicator, status) {
        crate::run::say(&format!(
            "rank {} on {} ends with exit code {status} while others go on: ending the job",
            mpi.rank, mpi.host
        ));
        // SAFETY: MPI runs, and no other thread is inside it. MPI_Abort may return or
        // call `exit`, which would run this handler again: `_exit` does not.
        unsafe {
            ffi::MPI_Abort(ffi::RSMPI_COMM_WORLD, status);
            libc::_exit(status)
        }
    }
    let _ = std::thread::Builder::new().name("leave".into()).spawn(move || {
        std::thread::sleep(FINALIZE);
        crate::run::say(&format!("MPI does not end; leaving it after {} s", FINALIZE.as_secs()));
        // SAFETY: ends this process at once; exit handlers would wait for MPI.
        unsafe { libc::_exit(status) }
    });
    // SAFETY: MPI runs, no other thread is inside it, and nothing of this process
    // uses it after exit handlers.
    unsafe { ffi::MPI_Finalize() };
}

/// Waits until every rank leaves; gives up after a while where this one leaves
/// with an error.
fn everyone_leaves(mpi: &MpiWorld, communicator: Communicator, status: i32) -> bool {
    let began = Instant::now();
    let Ok(mut request) = mpi.start_barrier(communicator) else { return false };
    loop {
        match mpi.test(&mut request, 0, began) {
            Ok(true) => return true,
            Ok(false) if status == 0 || began.elapsed() < GRACE => {}
            _ => return false,
        }
        match began.elapsed() < Duration::from_millis(20) {
            true => mpi.pause(),
            false => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}
