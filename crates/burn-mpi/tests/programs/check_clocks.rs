//! Compares the measured offsets between the clocks of ranks on one host with the true offsets. Start it with
//! `mpirun -n N check_clocks [mpi|gloo]`.
//!
//! All processes of a host share its monotonic clock. Each rank counts time from a different moment, and
//! reads this moment on the host's clock. The true offsets are therefore known.

use std::error::Error;
use std::time::{Duration, Instant};

use burn_mpi::{Backend, Transport, World, connect_primitives};

fn main() -> Result<(), Box<dyn Error>> {
    let world = World::init()?;
    let backend: Backend = std::env::args().nth(1).unwrap_or_else(|| "mpi".into()).parse()?;
    world.exchange_over(connect_primitives(&world, backend, &Transport::default())?);
    // The moments are seconds apart, so that an offset of the wrong sign or rank is detected.
    let since = Instant::now() - Duration::from_secs(1 + world.rank() as u64);
    let (began, uncertain): (Vec<i64>, Vec<i64>) = world.gather(&beginning(since))?.into_iter().unzip();
    let offsets = world.clock_offsets(|| since.elapsed())?;
    assert_eq!(offsets.len(), world.size());
    assert_eq!(offsets, world.gather(&offsets)?[0], "offsets must be the same on every rank");
    for (rank, offset) in offsets.iter().enumerate() {
        let expected = began[0] - began[rank];
        let apart = (offset.offset_ns - expected).abs();
        let allowed = offset.error_ns as i64 + uncertain[0] + uncertain[rank];
        assert!(apart <= allowed, "rank {rank}: {offset:?}, but the true offset is {expected} ns");
        assert!(rank == 0 || offset.error_ns > 0, "rank {rank}: {offset:?}");
        let now = since.elapsed().as_nanos() as i64;
        assert!(rank != world.rank() || (0..=now).contains(&offset.at_ns), "rank {rank}: {offset:?}");
    }
    println!("rank {}: clock offsets are right", world.rank());
    world.barrier()?;
    Ok(())
}

/// Returns `since` on the host's clock, in ns, and its uncertainty. Reads the host's clock between two
/// readings of `since`. Repeats this, and keeps the reading with the least uncertainty, in which the process
/// was not interrupted.
fn beginning(since: Instant) -> (i64, i64) {
    let elapsed = || since.elapsed().as_nanos() as i64;
    let reading = |_| {
        let (before, now, after) = (elapsed(), host_clock(), elapsed());
        (now - after, after - before)
    };
    (0..1000).map(reading).min_by_key(|(_, uncertain)| *uncertain).expect("readings")
}

/// Reads the host's monotonic clock, in ns.
fn host_clock() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for the call, which writes one timespec.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    assert_eq!(failed, 0);
    1_000_000_000 * time.tv_sec + time.tv_nsec
}
