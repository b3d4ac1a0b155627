//! Makes rank 1 call something else than the other ranks: `mpirun -n 3 differing_calls WHAT mpi|gloo`. Each
//! rank prints the error that it returns.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use burn_mpi::{
    Backend, CommError, Operation, Reduction, Transport, Wire, World, connect, connect_primitives, run,
    set_stall_warning,
};

type Way = fn(&World, Backend, bool) -> Result<(), CommError>;

/// Calls by name. The last argument says whether this rank's call differs.
const WAYS: [(&str, Way); 13] = [
    ("sum", |world, _, odd| world.sum_f64(&mut vec![1.0; if odd { 50_000 } else { 5 }])),
    ("broadcast", |world, _, odd| world.broadcast_f32(&mut vec![1.0; if odd { 7 } else { 100_000 }])),
    ("started", |world, backend, odd| {
        let mut collective = connect(world, backend, &Transport::default())?;
        for length in [30_000, 7] {
            let length = if odd { length / 2 } else { length };
            let buffer = Wire::F32(vec![1.0; length]);
            collective.start(Operation::all_reduce(length, &buffer, Reduction::Native), buffer)?;
            collective.wait(length)?;
        }
        Ok(())
    }),
    ("later", |world, backend, odd| {
        let mut collective = connect(world, backend, &Transport::default())?;
        for turn in 0..100 {
            if turn == 50 {
                world.set_deadline(Duration::from_secs(3));
            }
            let length = if odd && turn == 50 { 40_000 } else { 40 };
            let mut sum = Wire::F32(vec![1.0; length]);
            collective.all_reduce(&mut sum, Reduction::Native)?;
            assert_eq!(sum, Wire::F32(vec![world.size() as f32; length]));
        }
        Ok(())
    }),
    ("later-barrier", |world, backend, odd| {
        let mut on = connect_primitives(world, backend, &Transport::default())?;
        for _ in 0..50 {
            on.all_reduce(&mut Wire::F32(vec![1.0; 40]))?;
            on.barrier()?;
        }
        world.set_deadline(Duration::from_secs(3600));
        set_stall_warning(Duration::from_secs(1));
        if odd { on.barrier() } else { on.all_reduce(&mut Wire::F32(vec![1.0; 40])) }
    }),
    ("whole-broadcast", |world, backend, odd| {
        let mut on = connect_primitives(world, backend, &Transport::default())?;
        on.broadcast(&mut vec![0; if odd { 24 } else { 24_000 }], 0)
    }),
    ("order", |world, backend, odd| {
        let mut collective = connect(world, backend, &Transport::default())?;
        let order = if odd { Reduction::Ordered } else { Reduction::Native };
        collective.all_reduce(&mut Wire::F32(vec![1.0; 1000]), order)
    }),
    ("type", |world, backend, odd| {
        let mut collective = connect(world, backend, &Transport::default())?;
        let [bf16, f16] = [Wire::Bf16(vec![Default::default(); 8]), Wire::F16(vec![Default::default(); 8])];
        collective.all_reduce(&mut if odd { bf16 } else { f16 }, Reduction::Native)
    }),
    ("root", |world, backend, odd| {
        connect_primitives(world, backend, &Transport::default())?.broadcast(&mut [0; 8], usize::from(odd))
    }),
    ("nothing", |world, backend, odd| {
        let length = if odd { 0 } else { 8 };
        connect_primitives(world, backend, &Transport::default())?
            .all_gather(&vec![1; length], &mut vec![0; length * world.size()])
    }),
    ("message", |world, backend, odd| messages(world, backend, odd, &[400])),
    ("later-short-message", |world, backend, odd| messages(world, backend, odd, &[8, 4])),
    ("later-long-message", |world, backend, odd| messages(world, backend, odd, &[8, 4_000_000])),
];

/// Sends messages of these lengths in bytes from rank 1 to rank 0, which receives 8 bytes each time.
fn messages(world: &World, backend: Backend, odd: bool, lengths: &[usize]) -> Result<(), CommError> {
    let mut on = connect_primitives(world, backend, &Transport::default())?;
    for (turn, &length) in lengths.iter().enumerate() {
        if turn > 0 {
            world.set_deadline(Duration::from_secs(3));
        }
        match (odd, world.rank()) {
            (true, _) => on.send(&vec![1; length], 0)?,
            (_, 0) => on.receive(&mut [0; 8], 1)?,
            _ => {}
        }
    }
    world.barrier()
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().unwrap_or_default();
    let Some((_, way)) = WAYS.iter().find(|(name, _)| *name == what) else {
        eprintln!("differing_calls WHAT [mpi|gloo]: WHAT is one of {:?}", WAYS.map(|(name, _)| name));
        return Ok(ExitCode::from(2));
    };
    let backend: Backend = arguments.next().unwrap_or_else(|| "mpi".into()).parse()?;
    Ok(run(|world| {
        let result = way(world, backend, world.rank() == 1);
        if let Err(error) = &result {
            println!("rank {} returns: {error}", world.rank());
        }
        Ok(result?)
    }))
}
