//! Makes rank 1 fail during training: `mpirun -n 3 fail_on_one_rank HOW mpi|gloo SECONDS`, where SECONDS is
//! the deadline of a collective. Every HOW except `thread-main` must abort the job.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use burn_mpi::{Backend, GradientSync, SyncOptions, Transport, World, connect, connect_primitives, run};

/// Kinds of failure. With the prefix `run-`, the failure happens inside [`run`].
const WAYS: [&str; 12] = [
    "error",
    "panic",
    "exit",
    "return",
    "return-early",
    "message",
    "sleep",
    "barrier",
    "sum",
    "thread",
    "thread-main",
    "stop-at-exit",
];
const STEPS: usize = 6;
const WRONG: usize = 3;

#[derive(Module, Debug)]
struct Net {
    hidden: Linear,
    out: Linear,
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let how = arguments.next().unwrap_or_default();
    if !WAYS.contains(&how.strip_prefix("run-").unwrap_or(&how)) {
        eprintln!("fail_on_one_rank HOW [mpi|gloo] [SECONDS]: HOW is one of {}", WAYS.join(", "));
        return Ok(ExitCode::from(2));
    }
    let backend: Backend = arguments.next().unwrap_or_else(|| "mpi".into()).parse()?;
    let deadline = Duration::from_secs_f64(arguments.next().unwrap_or_else(|| "120".into()).parse()?);
    // Not a failure: the training runs on a spawned thread.
    if how == "thread-main" {
        let job = std::thread::spawn(move || run(|world| train(world, "none", backend, deadline)));
        return job.join().map_err(|_| "the training panicked".into());
    }
    // The same kinds of failure, inside `run` or in a plain `main`.
    if let Some(how) = how.strip_prefix("run-") {
        return Ok(run(|world| train(world, how, backend, deadline)));
    }
    let world = World::init()?;
    train(&world, &how, backend, deadline)?;
    Ok(ExitCode::SUCCESS)
}

fn train(world: &World, how: &str, backend: Backend, deadline: Duration) -> Result<(), Box<dyn Error>> {
    let device = Device::flex().autodiff();
    device.seed(1);
    let net =
        Net { hidden: LinearConfig::new(4, 64).init(&device), out: LinearConfig::new(64, 1).init(&device) };
    let x = Tensor::<2>::ones([8, 4], &device);
    if how == "return-early" && world.rank() == 1 {
        return Ok(());
    }
    let transport = Transport::default().with_timeout(deadline);
    if how == "message" {
        // The message never comes.
        let mut primitives = connect_primitives(world, backend, &transport)?;
        match world.rank() {
            0 => primitives.receive(&mut [0; 8], 1)?,
            1 => {}
            _ => world.barrier()?,
        }
        return Ok(());
    }
    // Small limits give several buckets.
    let options = SyncOptions::default().with_bucket_bytes(256).with_first_bucket_bytes(256);
    let mut sync = GradientSync::of_module(world, connect(world, backend, &transport)?, &net, options);
    for step in 0..STEPS {
        if step == WRONG && world.rank() == 1 {
            match how {
                "error" => Err("shard1.bin: cannot be read")?,
                "panic" => panic!("an index out of range"),
                "exit" => std::process::exit(7),
                "return" => return Ok(()),
                "sleep" => std::thread::sleep(Duration::from_secs(3600)),
                "barrier" => world.barrier()?,
                "thread" => {
                    let other = std::thread::spawn(|| std::process::exit(7));
                    let _ = other.join();
                }
                "sum" => world.sum_f64(&mut [1.0])?,
                _ => {}
            }
        }
        let loss = net.out.forward(net.hidden.forward(x.clone())).mean();
        sync.average(&loss, &net, 8, 8 * world.size())?;
    }
    println!("rank {} is done", world.rank());
    if how == "stop-at-exit" && world.rank() == 1 {
        let own = std::process::id().to_string();
        std::process::Command::new("kill").args(["-STOP", &own]).status()?;
    }
    Ok(())
}
