//! Checks what happens if a rank stays away, leaves or dies.

use std::time::Duration;

use burn_mpi::{
    Backend, Collective, CommError, GlooAlgorithm, GlooCollective, Operation, Reduction, SharedError, World,
    chunk_range, connect_primitives,
};

use crate::values::wire;
use crate::{Outcome, TIMEOUT, report, transport};

/// Deadline of an operation that a rank misses, if the deadline is what ends the job.
pub const DEADLINE: Duration = Duration::from_secs(2);

/// Makes the last rank miss the second of two operations. It returns an error (`leave`), comes much later
/// than the deadline (`stay`) or is stopped (`stop`). Each of these ends the job.
pub fn miss(world: &World, collective: &mut dyn Collective, how: &str, operation: &str) -> Outcome {
    let length = 10_007;
    let mine = match operation {
        "reduce-scatter" => 0..length,
        "all-gather" => chunk_range(length, world.size(), world.rank()),
        other => return Err(format!("unknown operation {other}").into()),
    };
    for bucket in 0..2 {
        if bucket == 1 && world.rank() + 1 == world.size() {
            match how {
                "leave" => return Err("the disk is full".into()),
                // SAFETY: kill takes any arguments. This call stops this process and nothing else.
                "stop" => drop(unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) }),
                "stay" => std::thread::sleep(Duration::from_secs(3600)),
                other => return Err(format!("unknown failure {other}").into()),
            }
        }
        let buffer = wire(0, mine.len(), |_| 1.0);
        let operation = match operation {
            "reduce-scatter" => Operation::reduce_scatter(bucket, &buffer, Reduction::Native),
            _ => Operation::all_gather(bucket, &buffer, length),
        };
        collective.start(operation, buffer)?;
        collective.wait(bucket)?;
    }
    Err("no error, although a rank stayed away".into())
}

pub fn unknown_interface(world: &World) -> Outcome {
    let refused = connect_primitives(world, Backend::Gloo, &transport(Some("nosuch0"), TIMEOUT));
    let text = refused.err().ok_or("an interface that does not exist was accepted")?.to_string();
    assert!(text.contains("nosuch0") && text.contains("lo (127.0.0.1)"), "{text}");
    if world.size() > 1 {
        let named = transport(world.is_root().then_some("lo"), TIMEOUT);
        let named = connect_primitives(world, Backend::Gloo, &named);
        let error = named.err().ok_or("an interface named on one rank only was accepted")?;
        let CommError::Shared(SharedError::Diverged { what, rank: 1, .. }) = &error else {
            panic!("{error}")
        };
        assert_eq!(what, "Transport::interface");
    }
    report(world, &text)
}

/// Checks that the other ranks get an error if the last rank stays away from an all-reduce.
pub fn timeout(world: &World, interface: Option<&str>) -> Outcome {
    if world.size() == 1 {
        return Ok(());
    }
    let mut all = Vec::new();
    for algorithm in GlooAlgorithm::ALL {
        all.push(GlooCollective::connect(world, interface, algorithm, DEADLINE)?);
    }
    if world.rank() + 1 < world.size() {
        // All are started before the first wait, so that their timeouts pass at the same time.
        for gloo in &mut all {
            let buffer = wire(0, 10_000, |_| 1.0);
            gloo.start(Operation::all_reduce(2, &buffer, Reduction::Native), buffer)?;
        }
        for (gloo, algorithm) in all.iter_mut().zip(GlooAlgorithm::ALL) {
            let error = gloo.wait(2).err().ok_or("no error, although a rank stayed away")?;
            println!("rank {}: {algorithm}: {error}", world.rank());
            let CommError::Operation { operation, bytes, .. } = &error else { panic!("{error}") };
            assert_eq!((operation.as_str(), *bytes), ("gloo all-reduce of bucket 2", 40_000));
            let again = gloo.all_reduce(&mut wire(0, 1, |_| 1.0), Reduction::Native);
            let again = again.err().ok_or("an operation over broken connections succeeded")?.to_string();
            assert!(again.contains("broke earlier"), "{again}");
        }
    }
    world.barrier()?;
    report(world, "a rank that stays away causes an error after the timeout")
}

/// Kills the last rank while the others wait for it.
pub fn death(world: &World, interface: Option<&str>) -> Outcome {
    let mut gloo = GlooCollective::connect(world, interface, GlooAlgorithm::HalvingDoubling, TIMEOUT)?;
    let mut buffer = wire(0, 4_000_000, |_| 1.0);
    for step in 0.. {
        if step == 20 && world.rank() + 1 == world.size() {
            // SAFETY: kill takes any arguments. This call ends this process and nothing else.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        if let Err(error) = gloo.all_reduce(&mut buffer, Reduction::Native) {
            eprintln!("rank {}: {error}", world.rank());
            return Err(error.into());
        }
    }
    Ok(())
}
