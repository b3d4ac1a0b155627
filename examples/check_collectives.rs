//! Checks gloo's collectives against arithmetic and against MPI's, on as many
//! ranks as there are: `mpirun -n 4 check_collectives`. With `time` it times
//! both; `timeout` lets one rank stay away, `death` has one killed.

use std::error::Error;
use std::time::{Duration, Instant};

use burn_mpi::{
    Collective, GlooAlgorithm, GlooCollective, GlooContext, MpiCollective, Reduction, Wire, World,
};
use half::{bf16, f16};

type Outcome = Result<(), Box<dyn Error>>;

const TIMEOUT: Duration = Duration::from_secs(20);

fn main() -> Outcome {
    let world = World::init()?;
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next();
    let interface = std::env::var("GLOO_INTERFACE").ok();
    let interface = interface.as_deref();
    match command.as_deref() {
        None => {
            sums(&world, interface)?;
            ordered_and_in_flight(&world, interface)?;
            other_operations(&world, interface)?;
            unknown_interface(&world)?;
            timeout(&world, interface)
        }
        Some("time") => time(&world, interface),
        Some("timeout") => timeout(&world, interface),
        Some("death") => death(&world, interface),
        Some(other) => Err(format!("unknown check {other}").into()),
    }
}

/// Small integers, which every type adds up without rounding.
fn value(rank: usize, index: usize) -> f32 {
    ((rank * 7 + index * 3) % 9) as f32
}

fn wire(kind: usize, length: usize, value: impl Fn(usize) -> f32) -> Wire {
    let values = (0..length).map(value);
    match kind {
        0 => Wire::F32(values.collect()),
        1 => Wire::F64(values.map(f64::from).collect()),
        2 => Wire::Bf16(values.map(bf16::from_f32).collect()),
        _ => Wire::F16(values.map(f16::from_f32).collect()),
    }
}

fn sums(world: &World, interface: Option<&str>) -> Outcome {
    for algorithm in GlooAlgorithm::ALL {
        let mut gloo = GlooCollective::connect(world, interface, algorithm, TIMEOUT)?;
        for kind in 0..4 {
            for length in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 31, 33, 1001, 4250, 65_537, 1_000_003] {
                let mut buffer = wire(kind, length, |i| value(world.rank(), i));
                gloo.all_reduce(&mut buffer, Reduction::Native)?;
                let sum = wire(kind, length, |i| (0..world.size()).map(|r| value(r, i)).sum());
                assert!(buffer == sum, "{algorithm}: type {kind}, {length} elements");
            }
        }
        report(world, &format!("{algorithm}: sums of all types and lengths are right"))?;
    }
    Ok(())
}

/// Values whose sum depends on the order of addition.
fn awkward(rank: usize, index: usize) -> f32 {
    ((rank * 31 + index * 17) as f32 * 0.37).sin() * 10f32.powi((index % 7) as i32 - 3)
}

fn ordered_and_in_flight(world: &World, interface: Option<&str>) -> Outcome {
    let mut gloo = GlooCollective::connect(world, interface, GlooAlgorithm::Ring, TIMEOUT)?;
    let mut mpi = MpiCollective::new(world)?;
    for kind in 0..4 {
        for length in [1, 2, 1063, 250_000].map(|chunk| chunk * world.size()) {
            let buffer = wire(kind, length, |i| awkward(world.rank(), i));
            let (mut by_gloo, mut by_mpi) = (buffer.clone(), buffer);
            gloo.all_reduce(&mut by_gloo, Reduction::Ordered)?;
            mpi.all_reduce(&mut by_mpi, Reduction::Ordered)?;
            assert!(by_gloo.bytes() == by_mpi.bytes(), "ordered: type {kind}, {length} elements");
        }
    }
    report(world, "ordered sums of gloo and MPI are equal bit for bit")?;

    for how in [Reduction::Native, Reduction::Ordered] {
        let lengths = [4250, 1, 100_000, 17, 3_000].map(|length| length * world.size());
        for (bucket, &length) in lengths.iter().enumerate() {
            gloo.start(bucket, wire(bucket % 4, length, |i| value(world.rank(), i + bucket)), how)?;
            gloo.progress()?;
        }
        for bucket in [3, 0, 4] {
            check_bucket(&mut gloo, world, bucket, lengths[bucket])?;
        }
        // A blocking operation while buckets are in flight comes after them.
        let mut buffer = wire(0, 5, |_| 1.0);
        gloo.all_reduce(&mut buffer, Reduction::Native)?;
        assert_eq!(buffer, wire(0, 5, |_| world.size() as f32));
        gloo.barrier()?;
        for bucket in [1, 2] {
            check_bucket(&mut gloo, world, bucket, lengths[bucket])?;
        }
    }
    report(world, "buckets in flight come back summed, in any order")
}

fn check_bucket(gloo: &mut GlooCollective, world: &World, bucket: usize, length: usize) -> Outcome {
    let sum = wire(bucket % 4, length, |i| (0..world.size()).map(|r| value(r, i + bucket)).sum());
    assert!(gloo.wait(bucket)? == sum, "bucket {bucket}");
    Ok(())
}

fn other_operations(world: &World, interface: Option<&str>) -> Outcome {
    let (rank, size) = (world.rank(), world.size());
    let mut gloo = GlooContext::connect(world, interface, TIMEOUT)?;
    for length in [1, 7, 100_001] {
        let part = |r: usize| vec![r as u8 + 1; length];
        let everyone: Vec<u8> = (0..size).flat_map(part).collect();
        let zeros = vec![0; everyone.len()];
        for root in 0..size {
            let mut all = zeros.clone();
            gloo.gather(&part(rank), &mut all, root)?;
            assert!(all == if rank == root { everyone.clone() } else { zeros.clone() }, "gather");

            let mut mine = vec![0; length];
            gloo.scatter(if rank == root { &everyone } else { &[] }, &mut mine, root)?;
            assert!(mine == part(rank), "scatter");

            let mut bytes = if rank == root { part(9) } else { part(0) };
            gloo.broadcast(&mut bytes, root)?;
            assert!(bytes == part(9), "broadcast");

            for kind in 0..4 {
                let mut buffer = wire(kind, length, |i| value(rank, i));
                gloo.reduce(&mut buffer, root)?;
                let sum = wire(kind, length, |i| (0..size).map(|r| value(r, i)).sum());
                assert!(rank != root || buffer == sum, "reduce: type {kind}, {length} elements");
            }
        }
        let mut all = zeros.clone();
        gloo.all_gather(&part(rank), &mut all)?;
        assert!(all == everyone, "all-gather");

        let from: Vec<u8> = (0..size).flat_map(|to| vec![(rank * size + to) as u8; length]).collect();
        gloo.all_to_all(&from, &mut all)?;
        let want: Vec<u8> = (0..size).flat_map(|r| vec![(r * size + rank) as u8; length]).collect();
        assert!(all == want, "all-to-all");

        gloo.barrier()?;
        // Round the ring, one rank after the other.
        let mut token = part(7);
        if size > 1 && rank == 0 {
            gloo.send(&token, 1, 5)?;
            token.fill(0);
            gloo.receive(&mut token, size - 1, 5)?;
        } else if size > 1 {
            token.fill(0);
            gloo.receive(&mut token, rank - 1, 5)?;
            gloo.send(&token, (rank + 1) % size, 5)?;
        }
        assert!(token == part(7), "send and receive");
    }
    report(
        world,
        "gather, scatter, broadcast, reduce, all-gather, all-to-all, barrier, send and receive work",
    )
}

fn unknown_interface(world: &World) -> Outcome {
    let refused = GlooContext::connect(world, Some("nosuch0"), TIMEOUT);
    let text = refused.err().ok_or("an interface that is not there was taken")?.to_string();
    assert!(text.contains("nosuch0") && text.contains("lo (127.0.0.1)"), "{text}");
    report(world, &text)
}

/// The last rank stays away from an all-reduce that the others wait for.
fn timeout(world: &World, interface: Option<&str>) -> Outcome {
    if world.size() == 1 {
        return Ok(());
    }
    for algorithm in GlooAlgorithm::ALL {
        let limit = Duration::from_millis(400);
        let mut gloo = GlooCollective::connect(world, interface, algorithm, limit)?;
        let started = Instant::now();
        if world.rank() + 1 < world.size() {
            gloo.start(2, wire(0, 10_000, |_| 1.0), Reduction::Native)?;
            let text = gloo.wait(2).err().ok_or("a rank was not missed")?.to_string();
            println!("rank {}: {algorithm}: {text}", world.rank());
            assert!(text.contains("gloo all-reduce of bucket 2 of 40000 bytes failed after"), "{text}");
            assert!(started.elapsed() < limit * 4, "{:?}", started.elapsed());
            let again = gloo.barrier().err().ok_or("broken connections were used")?.to_string();
            assert!(again.contains("broke earlier"), "{again}");
        }
        world.barrier()?;
    }
    report(world, "a rank that stays away is an error after the timeout")
}

/// The last rank is killed while the others wait for it.
fn death(world: &World, interface: Option<&str>) -> Outcome {
    let mut gloo = GlooCollective::connect(world, interface, GlooAlgorithm::HalvingDoubling, TIMEOUT)?;
    let started = Instant::now();
    let mut buffer = wire(0, 4_000_000, |_| 1.0);
    for step in 0.. {
        if step == 20 && world.rank() + 1 == world.size() {
            // SAFETY: ends this process and nothing else.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        if let Err(error) = gloo.all_reduce(&mut buffer, Reduction::Native) {
            eprintln!("rank {} after {:?}: {error}", world.rank(), started.elapsed());
            return Err(error.into());
        }
    }
    Ok(())
}

fn time(world: &World, interface: Option<&str>) -> Outcome {
    for (length, rounds) in [(4250, 200), (250_000, 40), (3_400_000, 20)] {
        let length = usize::next_multiple_of(length, world.size());
        let mut rows = Vec::new();
        let mut mpi = MpiCollective::new(world)?;
        rows.push(("mpi".to_owned(), median(world, &mut mpi, length, rounds)?));
        for algorithm in GlooAlgorithm::ALL {
            let mut gloo = GlooCollective::connect(world, interface, algorithm, TIMEOUT)?;
            rows.push((algorithm.to_string(), median(world, &mut gloo, length, rounds)?));
        }
        for (name, [native, started, ordered]) in rows {
            if world.is_root() {
                println!(
                    "{:>9} bytes  {name:<17} {native:>8.0} us   started and waited for {started:>8.0} us   \
                     ordered {ordered:>8.0} us",
                    length * 4
                );
            }
        }
    }
    Ok(())
}

/// Microseconds of a blocking, a started, and a blocking ordered all-reduce.
fn median(
    world: &World,
    transport: &mut dyn Collective,
    length: usize,
    rounds: usize,
) -> Result<[f64; 3], Box<dyn Error>> {
    let mut buffer = wire(0, length, |_| 0.0);
    let mut medians = [0.0; 3];
    for (way, median) in medians.iter_mut().enumerate() {
        let mut times = Vec::with_capacity(rounds);
        for round in 0..rounds + 5 {
            world.barrier()?;
            let started = Instant::now();
            if way == 1 {
                transport.start(0, buffer, Reduction::Native)?;
                buffer = transport.wait(0)?;
            } else {
                let how = if way == 0 { Reduction::Native } else { Reduction::Ordered };
                transport.all_reduce(&mut buffer, how)?;
            }
            if round >= 5 {
                times.push(started.elapsed().as_secs_f64() * 1e6);
            }
        }
        times.sort_by(f64::total_cmp);
        *median = times[times.len() / 2];
    }
    Ok(medians)
}

/// Says on rank 0 what all ranks have found.
fn report(world: &World, text: &str) -> Outcome {
    world.barrier()?;
    if world.is_root() {
        println!("ok: {text}");
    }
    Ok(())
}
