//! Ends MPI (`MPI_Finalize`) in an exit handler of the process.
//!
//! `main` may return an error on one rank while the other ranks wait for it in a collective. `MPI_Finalize`
//! at the end of `main` would then wait for the other ranks, and the other ranks would wait for this rank. So
//! MPI is finalized in an exit handler, which the C library calls with the exit code. The handler notifies
//! the guards of the other ranks (threads that end the job if a rank hangs). It then enters a barrier with
//! the other ranks on a separate communicator. If the other ranks do not arrive, a rank with an exit code
//! other than 0 aborts the job.
//!
//! With some MPI libraries `MPI_Finalize` may never return. There, `process_manager.rs` ends the job instead.
//!
//! MPI ends after `main` has returned. So no value in `main` that uses MPI can outlive MPI.

use std::ffi::{c_int, c_void};
use std::rc::Rc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use mpi::ffi;
use parking_lot::Mutex;

use crate::collective::mpi::{Mpi, NAME, is_mpi_thread, library_text};
use crate::guard::exit_together;
use crate::guard::process_manager::ProcessManager;
use crate::member::Member;
use crate::messages::WAITS;
use crate::process::{print_line, print_of};
use crate::run::wait_until_read;

// A program may train on a spawned thread and join it. The handler then runs on the main thread, although the
// spawned thread started MPI. The spawned thread has ended, so it is inside no MPI operation. The MPI
// standard does not guarantee that another thread can finalize MPI, but both Open MPI and MPICH do it
// correctly.

/// How long a rank with an error waits for the others to exit as well.
const GRACE: Duration = Duration::from_secs(2);
/// How long `MPI_Finalize` may take. Ranks of MPICH were observed to wait for each other in `MPI_Finalize`
/// forever, after all output was written. If a rank was stopped in `MPI_Finalize`, the guards name that rank
/// after the deadline.
const FINALIZE: Duration = Duration::from_secs(30);

struct Arranged {
    member: Member,
    communicator: ffi::MPI_Comm,
}

// SAFETY: the communicator is a handle of an object inside MPI, and not thread-local. Only the exit handler
// uses it, while no other thread is inside MPI.
unsafe impl Send for Arranged {}

static ARRANGED: Mutex<Option<Arranged>> = Mutex::new(None);

#[cfg(target_env = "gnu")]
unsafe extern "C" {
    /// Registers a function that receives the exit code (glibc's `stdlib.h`).
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Registers the exit handler that finalizes MPI. Called once by all ranks, on the thread that started MPI.
pub(crate) fn arrange(mpi: &Mpi) -> Result<(), crate::CommError> {
    let communicator = mpi.duplicate()?;
    let arranged = Arranged { member: Member::clone(mpi), communicator };
    *ARRANGED.lock() = Some(arranged);
    #[cfg(target_env = "gnu")]
    // SAFETY: the handler has a static lifetime and does not unwind: it calls nothing that panics.
    let refused = unsafe { on_exit(with_status, std::ptr::null_mut()) };
    #[cfg(not(target_env = "gnu"))]
    // SAFETY: the handler has a static lifetime and does not unwind: it calls nothing that panics.
    let refused = unsafe { libc::atexit(without_status) };
    if refused != 0 {
        let (rank, host) = (mpi.rank, mpi.host.clone());
        let reason = "cannot register the exit handler that finalizes MPI".into();
        return Err(crate::CommError::OnRank { rank, host, reason });
    }
    Ok(())
}

/// Disables the exit handler: the process is about to abort the whole job.
pub(crate) fn cancel() {
    if let Some(mut arranged) = ARRANGED.try_lock() {
        *arranged = None;
    }
}

#[cfg(target_env = "gnu")]
extern "C" fn with_status(status: c_int, _argument: *mut c_void) {
    finalize(status);
}

/// C libraries other than glibc do not pass the exit code. With them, an error on one rank aborts the job
/// only when the deadline of another rank passes.
#[cfg(not(target_env = "gnu"))]
extern "C" fn without_status() {
    finalize(0);
}

fn finalize(status: i32) {
    let arranged = ARRANGED.try_lock().and_then(|mut arranged| arranged.take());
    let Some(Arranged { member, communicator }) = arranged else { return };
    // SAFETY: MPI runs until this function ends it. Whenever this function calls MPI, no other thread is
    // inside MPI.
    let mpi = unsafe { Mpi::new(Rc::new(member)) };
    let tell = |how: &str| {
        let (rank, host) = (mpi.rank, &mpi.host);
        print_line(&format!("rank {rank} on {host} exits with exit code {status} {how}: aborting the job"));
        wait_until_read();
    };
    if !is_mpi_thread() && (status != 0 || mpi.activity.now().waited.is_some()) {
        // The process exits without MPI_Finalize, and its launcher aborts the job.
        return tell("on a thread that did not start MPI");
    }
    mpi.activity.with(|state| state.leaving = Some(status));
    if mpi.size > 1 && !everyone_leaves(&mpi, communicator, status) {
        tell("while other ranks are still running");
        // SAFETY: MPI runs, and no other thread is inside it. MPI_Abort may return or call `exit`, which
        // would run this handler again: `_exit` does not.
        unsafe {
            ffi::MPI_Abort(ffi::RSMPI_COMM_WORLD, status);
            libc::_exit(status)
        }
    }
    // SAFETY: MPI's library itself uses the socket only in MPI_Init, which has returned, and in MPI_Finalize,
    // which this process does not call if the result is `Some`. Nothing else in this process owns the socket.
    if let Some(mut manager) = unsafe { ProcessManager::instead_of_finalize(&library_text()) } {
        if let Err(error) = manager.finalize(|| mpi.progress(communicator)) {
            print_line(&format!(
                "the process manager did not acknowledge that this rank has finalized: {error}"
            ));
        }
        exit_together();
        return;
    }
    let (finalizing, finalized) = mpsc::channel::<()>();
    let _ = std::thread::Builder::new().name("leave".into()).spawn(move || {
        if finalized.recv_timeout(FINALIZE) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        print_of(
            WAITS,
            &format!("MPI_Finalize did not return within {} s; exiting without it", FINALIZE.as_secs()),
        );
        exit_together();
        wait_until_read();
        // SAFETY: exits this process at once; exit handlers would wait for MPI.
        unsafe { libc::_exit(status) }
    });
    // SAFETY: MPI runs, no other thread is inside it, and this process does not use MPI after its exit
    // handlers.
    unsafe { ffi::MPI_Finalize() };
    drop(finalizing);
    exit_together();
}

/// Waits until every rank leaves, and returns true. If this rank leaves with an error and not all ranks have
/// announced that they leave, gives up after [`GRACE`] and returns false. Also returns false if MPI fails.
fn everyone_leaves(mpi: &Mpi, communicator: ffi::MPI_Comm, status: i32) -> bool {
    let began = Instant::now();
    let started = mpi.started(NAME, "barrier", 0);
    let Ok(mut request) = mpi.start_barrier(communicator, &started) else { return false };
    // Once all ranks have announced that they leave, this rank waits for them, however slow they are.
    let all_have_left = || mpi.activity.departed().len() + 1 == mpi.size;
    loop {
        match mpi.test(&mut request, &started) {
            Ok(true) => return true,
            Ok(false) if status == 0 || began.elapsed() < GRACE || all_have_left() => {}
            _ => return false,
        }
        if began.elapsed() < Duration::from_millis(20) {
            mpi.pause()
        } else {
            std::thread::sleep(Duration::from_millis(2))
        }
    }
}
