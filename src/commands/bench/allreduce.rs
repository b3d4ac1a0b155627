//! `mpiburn bench allreduce`: measures the latency and bandwidth of all-reduces, for each message size and
//! backend. It follows the method of the OSU micro-benchmarks.
//!
//! Each iteration times one call with every method, so that other load on the machine affects all methods
//! alike. A method is a backend and an order of summation. An untimed barrier before each call starts the
//! ranks together. The latency of a call is the mean over ranks, as in OSU's benchmarks.

use clap::ValueEnum;
use half::{bf16, f16};

use super::{has_no_gpu, job, publish, sizes, timed, warn_if_not_representative};
use crate::commands::{on_root, outputs};
use crate::options::{AllreduceArgs, ConfigError};
use crate::train::BackendKind;
use burn_mpi::{Collective, CommError, Reduction, Transport, Wire, WireType, World};
use run_report::allreduce::human_size;
use run_report::allreduce::latency_plot;
use run_report::plots::Plot;
use run_report::{LatencyRow, benchmarks};

/// Messages of up to this number of bytes are timed 1,000 times by default, larger messages 100 times. Calls
/// with small messages are short, and many of them are needed to measure their spread.
const SMALL: usize = 64 << 10;

/// An all-reduce method to time: a backend and an order of summation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AllReduceMethod {
    name: &'static str,
    backend: BackendKind,
    how: Reduction,
}

const METHODS: [AllReduceMethod; 6] = [
    AllReduceMethod { name: "mpi", backend: BackendKind::Mpi, how: Reduction::Native },
    AllReduceMethod { name: "ordered", backend: BackendKind::Mpi, how: Reduction::Ordered },
    AllReduceMethod { name: "gloo", backend: BackendKind::Gloo, how: Reduction::Native },
    AllReduceMethod { name: "gloo-ordered", backend: BackendKind::Gloo, how: Reduction::Ordered },
    AllReduceMethod { name: "nccl", backend: BackendKind::Nccl, how: Reduction::Native },
    AllReduceMethod { name: "nccl-ordered", backend: BackendKind::Nccl, how: Reduction::Ordered },
];

pub fn run(world: &World, args: &AllreduceArgs) -> anyhow::Result<()> {
    let (sizes, methods) = (sizes_of(args)?, methods(args.backends.as_deref())?);
    if let Some(path) = args.plot.as_ref().filter(|path| !Plot::is_saved_as(path)) {
        return Err(ConfigError::new("plot", path.display(), "must end in .svg or .png").into());
    }
    outputs::check_on_root(world, &[("csv", args.csv.as_ref()), ("plot", args.plot.as_ref())], &[])?;
    warn_if_not_representative(world);
    let rows = measure(world, args, &sizes, methods)?;
    let title = format!("all-reduce of {}, {}", args.dtype, job(world));
    on_root(world, || {
        let heading = format!("{title}; a call's latency is the mean over ranks");
        publish(&heading, &benchmarks::table(&rows), args.csv.as_deref(), &rows)?;
        Ok(args.plot.as_ref().map_or(Ok(()), |path| latency_plot(title, &rows).save(path))?)
    })?;
    Ok(())
}

fn sizes_of(args: &AllreduceArgs) -> Result<Vec<usize>, ConfigError> {
    let refused = |problem| ConfigError::new("sizes", &args.sizes, problem);
    sizes::parse(&args.sizes, args.dtype.bytes()).map_err(refused)
}

/// Returns the methods that `names` lists. If `names` is `None`, returns all methods of this build.
fn methods(names: Option<&str>) -> Result<Vec<AllReduceMethod>, ConfigError> {
    let Some(names) = names else {
        return Ok(METHODS.into_iter().filter(|m| m.backend.check_built().is_ok()).collect());
    };
    let mut chosen: Vec<AllReduceMethod> = Vec::new();
    for name in names.split(',').map(str::trim) {
        let unknown = || {
            let known = METHODS.map(|method| method.name).join(", ");
            format!("choose from {known}")
        };
        let method = METHODS.into_iter().find(|method| method.name == name).ok_or_else(unknown);
        let built = method.and_then(|method| method.backend.check_built().map(|()| method));
        let method = built.map_err(|problem| ConfigError::new("backends", name, problem))?;
        if !chosen.contains(&method) {
            chosen.push(method);
        }
    }
    Ok(chosen)
}

/// Times every size with every method. Returns one row for each size and method, ordered by size. If the user
/// named no methods, and some rank has no GPU for a backend, leaves out that backend's methods.
fn measure(
    world: &World,
    args: &AllreduceArgs,
    sizes: &[usize],
    mut methods: Vec<AllReduceMethod>,
) -> anyhow::Result<Vec<LatencyRow>> {
    let (mut backends, is_named) = (Vec::new(), args.backends.is_some());
    for &backend in BackendKind::value_variants() {
        if methods.iter().all(|method| method.backend != backend) {
            backends.push(None);
        } else if !is_named && has_no_gpu(world, backend)?.is_some() {
            methods.retain(|method| method.backend != backend);
            backends.push(None);
        } else {
            backends.push(Some(backend.connect(world, &Transport::default(), None)?));
        }
    }
    let mut rows = Vec::new();
    for &bytes in sizes {
        let iterations = args.iterations.unwrap_or(if bytes <= SMALL { 1000 } else { 100 });
        if world.is_root() {
            log::debug!("{}: {iterations} iterations", human_size(bytes));
        }
        let mut latencies = time_size(world, args.dtype, &methods, &mut backends, bytes, iterations)?;
        world.sum_f64(&mut latencies)?;
        latencies.iter_mut().for_each(|sum| *sum /= world.size() as f64);
        for (method, latencies) in methods.iter().zip(latencies.chunks_exact(iterations)) {
            rows.push(LatencyRow::of_all_reduce(method.name, bytes, world.size(), latencies.to_vec()));
        }
    }
    Ok(rows)
}

/// Returns this rank's times in µs for one message size: first those of the first method, one for each
/// iteration, then those of the second method, and so on.
fn time_size(
    world: &World,
    dtype: WireType,
    methods: &[AllReduceMethod],
    backends: &mut [Option<Box<dyn Collective>>],
    bytes: usize,
    iterations: usize,
) -> anyhow::Result<Vec<f64>> {
    let mut call = |method: &AllReduceMethod, buffer: &mut Wire| -> Result<f64, CommError> {
        let Some(backend) = &mut backends[method.backend as usize] else {
            unreachable!("each method's backend is connected");
        };
        Ok(timed(world, || backend.all_reduce(buffer, method.how))?.as_secs_f64() * 1e6)
    };
    let mut buffers: Vec<Wire> = Vec::new();
    for method in methods {
        let mut buffer = wire(dtype, bytes / dtype.bytes(), term);
        call(method, &mut buffer)?;
        world.agree(check(method, &buffer, world.size()))?;
        // The timed calls sum zeros: other values would grow with each call and overflow the type.
        buffer.bytes_mut().fill(0);
        buffers.push(buffer);
    }
    let mut times = vec![0.0; methods.len() * iterations];
    for turn in 0..warm_up(iterations) + iterations {
        for (i, (method, buffer)) in methods.iter().zip(&mut buffers).enumerate() {
            let time = call(method, buffer)?;
            if let Some(turn) = turn.checked_sub(warm_up(iterations)) {
                times[i * iterations + turn] = time;
            }
        }
    }
    Ok(times)
}

/// Returns the number of untimed calls at the start. They open connections and touch the buffers' memory
/// pages.
fn warm_up(iterations: usize) -> usize {
    (iterations / 10).max(5)
}

/// Returns the value that every rank contributes at index `i` to the first call, whose sum is checked.
fn term(i: usize) -> f32 {
    (i % 7 + 1) as f32
}

/// Makes a buffer of `length` values of type `dtype`: `value(i)` at index `i`.
fn wire(dtype: WireType, length: usize, value: impl Fn(usize) -> f32) -> Wire {
    let values = (0..length).map(value);
    match dtype {
        WireType::F32 => Wire::F32(values.collect()),
        WireType::Bf16 => Wire::Bf16(values.map(bf16::from_f32).collect()),
        WireType::F16 => Wire::F16(values.map(f16::from_f32).collect()),
    }
}

/// Checks the sum of the first call. The tolerance is one rounding error of the type for each rank, because a
/// sum may be rounded after each addition.
fn check(method: &AllReduceMethod, sum: &Wire, ranks: usize) -> Result<(), String> {
    let right = |rounding: f32| {
        move |(i, value): (usize, f32)| {
            let expected = term(i) * ranks as f32;
            (value - expected).abs() <= expected * rounding * ranks as f32
        }
    };
    let all = match sum {
        Wire::F32(values) => values.iter().copied().enumerate().all(right(f32::EPSILON)),
        Wire::Bf16(values) => values.iter().map(|x| x.to_f32()).enumerate().all(right(bf16::EPSILON.into())),
        Wire::F16(values) => values.iter().map(|x| x.to_f32()).enumerate().all(right(f16::EPSILON.into())),
        Wire::F64(_) | Wire::Bytes(_) => false,
    };
    let wrong = || format!("the {} all-reduce of {} values gave a wrong sum", method.name, sum.len());
    all.then_some(()).ok_or_else(wrong)
}

#[cfg(test)]
#[path = "allreduce_tests.rs"]
mod tests;
