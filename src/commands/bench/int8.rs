//! `mpiburn bench int8`: compares an int8 model with the float network from which it was made: times, memory
//! and accuracy.

use std::time::{Duration, Instant};

use burn::tensor::Device;
use burn_fused::memory::counting_allocator::allocated_bytes;
use burn_fused::simd::Level;
use serde::Serialize;

use super::{check_alone, median_ms, publish};
use crate::commands::checkpoint::Opened;
use crate::commands::outputs;
use crate::commands::subject::{Subject, int8_bytes};
use crate::device::DeviceKind;
use crate::model::{ModelKind, Network, inputs};
use crate::options::{Int8Args, RunConfig};
use crate::train::{DataOptions, Evaluation, Tally, Threads};
use crate::values::Positive;
use burn_mpi::World;
use data::{Normalizer, Shard, Split};
use run_record::Method;
use terminal::table::table;

/// The batch sizes to time: numbers of images in one inference.
const BATCHES: [usize; 3] = [1, 32, 128];
/// Minimum number of rounds of each batch size, whatever the time. A round is one timed inference of each
/// model.
const LEAST: usize = 5;
/// After this time and [`LEAST`] rounds, no further round of a batch size starts.
const MOST: Duration = Duration::from_secs(10);
/// Batch size of the accuracy test.
const TEST_BATCH: usize = 128;
/// Number of samples of noise that replace a data set if no checkpoint is given.
const NOISE: usize = 256;

/// One measurement, and one line of the CSV file.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Int8Row {
    model: &'static str,
    batch: usize,
    median_ms: f64,
    bytes_allocated: u64,
    checkpoint_bytes: usize,
    /// Share of correct test samples in percent; `None` without a checkpoint.
    test_accuracy: Option<f64>,
}

/// Contents of the JSON file.
#[derive(Debug, Serialize)]
struct Int8Report<'a> {
    network: ModelKind,
    checkpoint: Option<String>,
    method: String,
    simd: String,
    threads: usize,
    rows: &'a [Int8Row],
}

pub fn run(world: &World, args: &Int8Args) -> anyhow::Result<()> {
    check_alone(world, "inference")?;
    let files = [("csv", args.csv.as_ref()), ("json", args.json.as_ref())];
    outputs::check(&files, &[args.run.path()])?;
    let subject = match args.run.path() {
        Some(path) => {
            let adapt = |config| Ok(RunConfig { threads: Threads(1), device: DeviceKind::Flex, ..config });
            let opened = Opened::open(world, path, args.data_root.as_ref(), &[], adapt)?;
            Subject::of_run(world, opened, true)?
        }
        None => {
            let config = RunConfig::read([format!("--model={}", args.model)])?;
            Subject::initial(world, config, NOISE, true)?
        }
    };
    let network = subject.config.model;
    let (method, rows) = measure(world, subject, args)?;
    let simd = Level::current().to_string();
    let heading =
        format!("Inference of {network} on one thread, {simd} code; medians of interleaved measurements");
    let header = ["model", "batch", "median ms", "bytes allocated", "checkpoint bytes", "test accuracy"];
    let lines = rows.iter().map(|row| {
        vec![
            row.model.to_owned(),
            row.batch.to_string(),
            format!("{:.4}", row.median_ms),
            row.bytes_allocated.to_string(),
            row.checkpoint_bytes.to_string(),
            row.test_accuracy.map_or_else(String::new, |accuracy| format!("{accuracy:.2}%")),
        ]
    });
    publish(&heading, &table(&header, 1, lines), args.csv.as_deref(), &rows)?;
    if let Some(path) = &args.json {
        let checkpoint = args.run.path().map(|path| path.display().to_string());
        let method = format!("{method:?}").to_lowercase();
        let report = Int8Report { network, checkpoint, method, simd, threads: 1, rows: &rows };
        outputs::write_json(Some(path), &report)?;
    }
    Ok(())
}

/// Returns the quantization method of the int8 model. For each batch size, also returns three rows: the
/// network with fused operators, the network with Burn's operators, and the int8 model.
fn measure(world: &World, subject: Subject, args: &Int8Args) -> anyhow::Result<(Method, Vec<Int8Row>)> {
    let Some(int8) = &subject.int8 else { unreachable!("it was asked for") };
    let (float_bytes, int8_bytes) = (subject.float_bytes()?, int8_bytes(int8)?);
    let Subject { config, network, source, int8: Some(mut int8) } = subject else { unreachable!() };
    let source = &source;
    let method = int8.file.method;
    let [fused, burn] = [true, false].map(|fused| network.clone().fused(fused));
    let tests = args.run.path().is_some();
    let split = if tests { Split::Test } else { Split::Train };
    let most = source.len(split).min(BATCHES[2]);
    let shard = Shard::first(source, split, most)?;
    let normalizer = Normalizer::new(source.description());
    let mut accuracies = [None; 3];
    if tests {
        let data = DataOptions { test_batch_size: Positive(TEST_BATCH), ..config.data.clone() };
        let evaluation = Evaluation::load(world, source, &RunConfig { data, ..config })?;
        let accuracy = |tested: Vec<Tally>| Some(Tally::total(&tested).accuracy());
        accuracies = [
            accuracy(evaluation.run(world, &fused)?.tallies),
            accuracy(evaluation.run(world, &burn)?.tallies),
            accuracy(evaluation.run_int8(world, &mut int8)?.tallies),
        ];
    }
    let mut rows = Vec::new();
    for batch in BATCHES {
        // If the test set is smaller than a batch, its samples are repeated.
        let whole = normalizer.values(&shard.read(0, batch)?.0);
        let shape = source.description().shape;
        let size: usize = shape.iter().product();
        let values: Vec<f32> = whole.iter().copied().cycle().take(batch * size).collect();
        let images = inputs(values.clone(), shape, &Device::flex());
        let infer = |network: &Network| drop(network.forward(images.clone()).into_data());
        let mut scores = Vec::new();
        let mut candidates: [&mut dyn FnMut(); 3] =
            [&mut || infer(&fused), &mut || infer(&burn), &mut || int8.infer(&values, &mut scores)];
        let measured = time(&mut candidates, args.iterations);
        let models = [("float-fused", float_bytes), ("float-burn", float_bytes), ("int8", int8_bytes)];
        for (((model, checkpoint_bytes), (times, bytes_allocated)), test_accuracy) in
            models.into_iter().zip(measured).zip(accuracies)
        {
            let median_ms = median_ms(&times);
            rows.push(Int8Row { model, batch, median_ms, bytes_allocated, checkpoint_bytes, test_accuracy });
        }
    }
    Ok((method, rows))
}

/// Times one inference of each candidate in every round, after one untimed inference of each. Returns each
/// candidate's times, and the bytes that its last inference allocated.
fn time(candidates: &mut [&mut dyn FnMut()], iterations: usize) -> Vec<(Vec<Duration>, u64)> {
    let mut measured = vec![(Vec::with_capacity(iterations), 0); candidates.len()];
    candidates.iter_mut().for_each(|infer| infer());
    let started = Instant::now();
    for round in 0..iterations {
        if round >= LEAST && started.elapsed() > MOST {
            break;
        }
        for (infer, (times, bytes)) in candidates.iter_mut().zip(&mut measured) {
            let (began, allocated) = (Instant::now(), allocated_bytes());
            infer();
            times.push(began.elapsed());
            *bytes = allocated_bytes() - allocated;
        }
    }
    measured
}
