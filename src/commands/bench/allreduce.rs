//! `mpiburn bench allreduce`: latency and bandwidth by size and backend, measured as in
//! the OSU micro-benchmarks.
//!
//! Backends alternate within each iteration, so that other load on the machine affects
//! all of them alike. A barrier before each call, which is not timed, starts the ranks
//! together; the latency of a call is the mean over ranks, as in OSU's.

use std::time::Instant;

use half::{bf16, f16};

use super::{job, sizes, warn_if_not_representative};
use crate::commands::{collective, outputs};
use crate::options::{AllreduceArgs, ConfigError};
use burn_mpi::{Backend, Collective, CommError, Reduction, SharedError, Transport, Wire, WireType, World};
use run_report::canvas::{self, PlotFormat};
use run_report::latency::human_size;
use run_report::latency_plot::latency_plot;
use run_report::{LatencyRow, table, write_csv};

/// Up to this size, calls are short, and many are needed to measure their spread.
const SMALL: usize = 64 << 10;

/// A method to time: a backend and its order of summation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Method {
    name: &'static str,
    backend: Backend,
    how: Reduction,
}

const METHODS: [Method; 6] = [
    Method { name: "mpi", backend: Backend::Mpi, how: Reduction::Native },
    Method { name: "ordered", backend: Backend::Mpi, how: Reduction::Ordered },
    Method { name: "gloo", backend: Backend::Gloo, how: Reduction::Native },
    Method { name: "gloo-ordered", backend: Backend::Gloo, how: Reduction::Ordered },
    Method { name: "nccl", backend: Backend::Nccl, how: Reduction::Native },
    Method { name: "nccl-ordered", backend: Backend::Nccl, how: Reduction::Ordered },
];

/// Type of the values that are summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dtype {
    F32,
    Bf16,
    F16,
}

/// Validated options.
struct Plan {
    sizes: Vec<usize>,
    methods: Vec<Method>,
    /// Whether the methods were named, so that none may be left out.
    named: bool,
    dtype: Dtype,
    iterations: Option<usize>,
}

pub fn run(world: &World, args: &AllreduceArgs) -> anyhow::Result<()> {
    let plan = Plan::try_from(args)?;
    if let Some(path) = args.plot.as_ref().filter(|path| PlotFormat::of(path).is_none()) {
        return Err(ConfigError::new("plot", path.display(), "its name must end in .svg or .png").into());
    }
    outputs::check_on_root(world, &[("csv", args.csv.as_ref()), ("plot", args.plot.as_ref())], &[])?;
    warn_if_not_representative(world);
    let rows = measure(world, plan)?;
    world.agree(if world.is_root() { publish(world, args, &rows) } else { Ok(()) })?;
    Ok(())
}

impl TryFrom<&AllreduceArgs> for Plan {
    type Error = ConfigError;

    fn try_from(args: &AllreduceArgs) -> Result<Self, ConfigError> {
        let dtype = match args.dtype {
            WireType::F32 => Dtype::F32,
            WireType::Bf16 => Dtype::Bf16,
            WireType::F16 => Dtype::F16,
        };
        let sizes = sizes::parse(&args.sizes, dtype.width())
            .map_err(|problem| ConfigError::new("sizes", &args.sizes, problem))?;
        let methods = methods(args.backends.as_deref()).map_err(|problem| {
            ConfigError::new("backends", args.backends.as_deref().unwrap_or(""), problem)
        })?;
        let named = args.backends.is_some();
        Ok(Self { sizes, methods, named, dtype, iterations: args.iterations })
    }
}

/// The methods in the list `names`; all of this build if there is none.
fn methods(names: Option<&str>) -> Result<Vec<Method>, String> {
    let Some(names) = names else {
        return Ok(METHODS.into_iter().filter(|m| m.backend.check_built().is_ok()).collect());
    };
    let mut chosen: Vec<Method> = Vec::new();
    for name in names.split(',').map(str::trim) {
        let method = METHODS.into_iter().find(|method| method.name == name).ok_or_else(|| {
            let known = METHODS.map(|method| method.name).join(", ");
            format!("unknown backend {name}: choose from {known}")
        })?;
        method.backend.check_built()?;
        if !chosen.contains(&method) {
            chosen.push(method);
        }
    }
    Ok(chosen)
}

impl Dtype {
    /// Bytes of a value.
    fn width(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    /// A buffer of `length` values.
    fn wire(self, length: usize, value: impl Fn(usize) -> f32) -> Wire {
        let values = (0..length).map(value);
        match self {
            Self::F32 => Wire::F32(values.collect()),
            Self::Bf16 => Wire::Bf16(values.map(bf16::from_f32).collect()),
            Self::F16 => Wire::F16(values.map(f16::from_f32).collect()),
        }
    }
}

/// Times every size with every method: one row each, in that order.
fn measure(world: &World, mut plan: Plan) -> anyhow::Result<Vec<LatencyRow>> {
    let mut backends: Vec<(Backend, Box<dyn Collective>)> = Vec::new();
    for backend in Backend::ALL {
        if plan.methods.iter().all(|method| method.backend != backend) {
            continue;
        }
        match collective::connect(world, backend, &Transport::default()) {
            Ok(collective) => backends.push((backend, collective)),
            Err(error) if !plan.named && has_no_gpu(&error) => {
                if world.is_root() {
                    log::info!("{backend} is left out: {error}");
                }
                plan.methods.retain(|method| method.backend != backend);
            }
            Err(error) => return Err(error),
        }
    }
    let plan = &plan;
    let mut rows = Vec::new();
    for &bytes in &plan.sizes {
        let iterations = plan.iterations.unwrap_or(if bytes <= SMALL { 1000 } else { 100 });
        if world.is_root() {
            log::debug!("{}: {iterations} iterations", human_size(bytes));
        }
        let mut latencies = time_size(world, plan, &mut backends, bytes, iterations)?;
        world.sum_f64(&mut latencies)?;
        latencies.iter_mut().for_each(|sum| *sum /= world.size() as f64);
        for (method, latencies) in plan.methods.iter().zip(latencies.chunks_exact(iterations)) {
            rows.push(LatencyRow::of_all_reduce(method.name, bytes, world.size(), latencies.to_vec()));
        }
    }
    Ok(rows)
}

fn has_no_gpu(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(CommError::Shared(SharedError::NoNccl { .. })))
}

/// This rank's times in µs for one size: `iterations` of the first method, then of the
/// next.
fn time_size(
    world: &World,
    plan: &Plan,
    backends: &mut [(Backend, Box<dyn Collective>)],
    bytes: usize,
    iterations: usize,
) -> anyhow::Result<Vec<f64>> {
    let mut call = |method: &Method, buffer: &mut Wire| -> Result<f64, CommError> {
        let Some((_, backend)) = backends.iter_mut().find(|(backend, _)| *backend == method.backend) else {
            unreachable!("each method's backend is connected");
        };
        world.barrier()?;
        let started = Instant::now();
        backend.all_reduce(buffer, method.how)?;
        Ok(started.elapsed().as_secs_f64() * 1e6)
    };
    let mut buffers: Vec<Wire> = Vec::new();
    for method in &plan.methods {
        let mut buffer = plan.dtype.wire(bytes / plan.dtype.width(), term);
        call(method, &mut buffer)?;
        world.agree(check(plan.dtype, method, &buffer, world.size()))?;
        // Zeros: repeated sums of other values would overflow the type.
        buffer.bytes_mut().fill(0);
        buffers.push(buffer);
    }
    let mut times = vec![0.0; plan.methods.len() * iterations];
    for turn in 0..warm_up(iterations) + iterations {
        for (i, (method, buffer)) in plan.methods.iter().zip(&mut buffers).enumerate() {
            let time = call(method, buffer)?;
            if let Some(turn) = turn.checked_sub(warm_up(iterations)) {
                times[i * iterations + turn] = time;
            }
        }
    }
    Ok(times)
}

/// Untimed calls at the start, which set up connections and pages.
fn warm_up(iterations: usize) -> usize {
    (iterations / 10).max(5)
}

/// Every rank's value at index `i` of the first sum.
fn term(i: usize) -> f32 {
    (i % 7 + 1) as f32
}

/// Checks the first sum with the tolerance of the type: 16-bit types may be rounded
/// after each addition.
fn check(dtype: Dtype, method: &Method, sum: &Wire, ranks: usize) -> Result<(), String> {
    let unit = match dtype {
        Dtype::F32 => f32::EPSILON,
        Dtype::Bf16 => bf16::EPSILON.to_f32(),
        Dtype::F16 => f16::EPSILON.to_f32(),
    };
    let right = |(i, value): (usize, f32)| {
        let expected = term(i) * ranks as f32;
        (value - expected).abs() <= expected * unit * ranks as f32
    };
    let all = match sum {
        Wire::F32(values) => values.iter().copied().enumerate().all(right),
        Wire::Bf16(values) => values.iter().map(|x| x.to_f32()).enumerate().all(right),
        Wire::F16(values) => values.iter().map(|x| x.to_f32()).enumerate().all(right),
        Wire::F64(_) | Wire::Bytes(_) => false,
    };
    match all {
        true => Ok(()),
        false => Err(format!("the {} all-reduce of {} values gave a wrong sum", method.name, sum.len())),
    }
}

/// Prints the table and writes the files.
fn publish(world: &World, args: &AllreduceArgs, rows: &[LatencyRow]) -> anyhow::Result<()> {
    let title = format!("all-reduce of {}, {}", args.dtype, job(world));
    println!("{title}; mean over ranks of each call's latency");
    println!("{}", table::of_latencies(rows));
    if let Some(path) = &args.csv {
        write_csv(path, rows)?;
    }
    if let Some(path) = &args.plot {
        canvas::save(path, &latency_plot(&title, rows))?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "allreduce_tests.rs"]
mod tests;
