//! `mpiburn bench int8`: an int8 model against the float network that it was made of.

use std::time::{Duration, Instant};

use anyhow::Context;
use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use burn_fused::memory::counting_allocator::allocated_bytes;
use burn_fused::simd::Level;
use serde::Serialize;

use super::median_ms;
use crate::commands::checkpoint::{self, Initial};
use crate::commands::outputs;
use crate::data::generate::Synthetic;
use crate::data::shard::Order;
use crate::data::{Normalizer, SampleSource, Shard, ShardPlan, Split};
use crate::device::DeviceKind;
use crate::layout;
use crate::model::{Model, ModelKind, Network};
use crate::options::ConfigError;
use crate::options::Int8Args;
use crate::quant::{PostTraining, Quantized, WeightScheme};
use burn_fused::loss::cross_entropy;
use burn_mpi::{ParamLayout, World};
use run_record::Method;
use run_record::checkpoint::weights_file;
use run_record::files::sha256_of_f32;
use run_report::{table, write_csv};

/// Images of one inference.
const BATCHES: [usize; 3] = [1, 32, 128];
/// Rounds that are timed at least, and how long a batch size may take beyond them.
const LEAST: usize = 5;
const MOST: Duration = Duration::from_secs(10);
/// Samples of an accuracy's batch.
const TEST_BATCH: usize = 128;
/// Samples of noise, without a checkpoint.
const NOISE: usize = 256;

/// One measurement, and one line of the CSV file.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Row {
    model: &'static str,
    batch: usize,
    median_ms: f64,
    bytes_allocated: u64,
    checkpoint_bytes: usize,
    /// In percent; none without a checkpoint.
    test_accuracy: Option<f64>,
}

/// The JSON file.
#[derive(Debug, Serialize)]
struct Figures<'a> {
    network: ModelKind,
    checkpoint: Option<String>,
    method: String,
    simd: String,
    threads: usize,
    rows: &'a [Row],
}

/// What is measured, and on which samples.
struct Subject {
    kind: ModelKind,
    network: Network,
    quantized: Quantized,
    float_bytes: usize,
    int8_bytes: usize,
    source: Box<dyn SampleSource>,
    /// Of the test set, those that the run tests; none without a checkpoint.
    test_samples: Option<usize>,
}

/// A model that takes its turn.
enum Candidate {
    Float(Box<Network>),
    Int8(Box<Quantized>),
}

pub fn run(world: &World, args: &Int8Args) -> anyhow::Result<()> {
    let iterations = args.iterations;
    if world.size() > 1 {
        let why = "inference is measured on one rank; start it without mpirun";
        return Err(ConfigError::new("world-size", world.size(), why).into());
    }
    let files = [("csv", args.csv.as_ref()), ("json", args.json.as_ref())];
    outputs::check(&files, &[args.checkpoint.as_ref()])?;
    crate::commands::use_threads(1)?;
    let subject = match &args.checkpoint {
        Some(_) => trained(world, args)?,
        None => initial(args)?,
    };
    let (kind, method) = (subject.kind, format!("{:?}", subject.quantized.method()).to_lowercase());
    let rows = measure(subject, iterations)?;
    print(kind, &rows);
    if let Some(path) = &args.csv {
        write_csv(path, &rows)?;
    }
    if let Some(path) = &args.json {
        let simd = Level::current().to_string();
        let figures = Figures {
            network: kind,
            checkpoint: args.checkpoint.as_ref().map(|path| path.display().to_string()),
            method,
            simd,
            threads: 1,
            rows: &rows,
        };
        run_report::write_file(path, &serde_json::to_vec_pretty(&figures)?)?;
    }
    Ok(())
}

/// A checkpoint's network, and the int8 model beside it.
fn trained(world: &World, args: &Int8Args) -> anyhow::Result<Subject> {
    let path = args.checkpoint.as_deref().context("a checkpoint")?;
    let config = checkpoint::config_of(path)?;
    let config = checkpoint::on_flex(config, args.data_root.as_ref());
    let Initial { source, network, layout, .. } = Initial::open(world, &config)?;
    let weights = checkpoint::load(path, &layout)?;
    let (stored, file) = checkpoint::load_int8(&weights, &config, &network)?;
    Ok(Subject {
        kind: config.model,
        network: layout.write(network, &weights.values).valid(),
        quantized: Quantized::from_file(&stored, &file)?,
        float_bytes: weights_file(&layout::stored(&layout), &weights.values)?.len(),
        int8_bytes: stored.encode(&file)?.len(),
        test_samples: Some(config.data.test_samples.unwrap_or(usize::MAX).min(source.len(Split::Test))),
        source,
    })
}

/// A network with initial weights, and noise.
fn initial(args: &Int8Args) -> anyhow::Result<Subject> {
    let kind = args.model;
    let source = Box::new(Synthetic::new(kind.input_shape(), kind.classes(), NOISE));
    let network = Network::init(kind, kind.classes(), 123, &DeviceKind::Flex.device()).valid();
    let layout = ParamLayout::of(&network);
    let post = PostTraining::Static { calibration: NOISE, scheme: WeightScheme::Channel };
    let quantized = post.load(source.as_ref(), None)?.quantize(&network)?;
    let stored = quantized.to_file(&kind.to_string(), &sha256_of_f32(&layout.read(&network)));
    Ok(Subject {
        kind,
        float_bytes: weights_file(&layout::stored(&layout), &layout.read(&network))?.len(),
        int8_bytes: stored.encode(std::path::Path::new("int8.safetensors"))?.len(),
        network,
        quantized,
        source,
        test_samples: None,
    })
}

fn measure(subject: Subject, iterations: usize) -> anyhow::Result<Vec<Row>> {
    let Subject { network, quantized, float_bytes, int8_bytes, source, test_samples, .. } = subject;
    let split = if test_samples.is_some() { Split::Test } else { Split::Train };
    let shape = source.description().shape;
    let samples = test_samples.unwrap_or(NOISE);
    let plan = ShardPlan { samples, world_size: 1, batch_size: TEST_BATCH };
    let shard = Shard::load(source.as_ref(), split, &plan, 0, Order::Sequential)?;
    let normalizer = Normalizer::new(source.description());
    let mut candidates = [
        ("float-fused", float_bytes, Candidate::Float(Box::new(network.clone().fused(true)))),
        ("float-burn", float_bytes, Candidate::Float(Box::new(network.fused(false)))),
        ("int8", int8_bytes, Candidate::Int8(Box::new(quantized))),
    ];
    let mut accuracies = vec![None; candidates.len()];
    let mut rows = Vec::new();
    for batch in BATCHES {
        for ((_, _, candidate), known) in candidates.iter_mut().zip(&mut accuracies) {
            let is_new = known.is_none() || candidate.depends_on_batch();
            if test_samples.is_some() && is_new {
                *known = Some(accuracy(candidate, &shard, &normalizer, batch)?);
            }
        }
        // Samples again from the first, where a test set is smaller than a batch.
        let whole = normalizer.values(shard.samples(0, batch).0);
        let size: usize = shape.iter().product();
        let values: Vec<f32> = whole.iter().copied().cycle().take(batch * size).collect();
        let measured = time(&mut candidates, &values, batch, shape, iterations)?;
        for ((model, checkpoint_bytes, _), ((times, bytes_allocated), &test_accuracy)) in
            candidates.iter().zip(measured.into_iter().zip(&accuracies))
        {
            let (median_ms, checkpoint_bytes) = (median_ms(&times), *checkpoint_bytes);
            rows.push(Row { model, batch, median_ms, bytes_allocated, checkpoint_bytes, test_accuracy });
        }
    }
    Ok(rows)
}

/// Times of each candidate, which take turns, and the bytes that one inference after
/// the first allocates.
fn time<N>(
    candidates: &mut [(N, usize, Candidate)],
    values: &[f32],
    batch: usize,
    shape: [usize; 3],
    iterations: usize,
) -> anyhow::Result<Vec<(Vec<Duration>, u64)>> {
    let [channels, height, width] = shape;
    let data = TensorData::new(values.to_vec(), [batch, channels, height, width]);
    let tensor = Tensor::<4>::from_data(data, &Device::flex());
    let mut measured = vec![(Vec::with_capacity(iterations), 0); candidates.len()];
    let mut scores = Vec::new();
    for (_, _, candidate) in candidates.iter_mut() {
        candidate.infer(values, &tensor, &mut scores)?;
    }
    let started = Instant::now();
    for round in 0..iterations {
        if round >= LEAST && started.elapsed() > MOST {
            break;
        }
        for ((_, _, candidate), (times, bytes)) in candidates.iter_mut().zip(&mut measured) {
            let (began, allocated) = (Instant::now(), allocated_bytes());
            candidate.infer(values, &tensor, &mut scores)?;
            times.push(began.elapsed());
            *bytes = allocated_bytes() - allocated;
        }
    }
    Ok(measured)
}

impl Candidate {
    /// Whether a sample's scores depend on the others of its batch.
    fn depends_on_batch(&self) -> bool {
        matches!(self, Self::Int8(quantized) if quantized.method() == Method::Dynamic)
    }

    /// One inference, from floats to class scores. A float network's are left where it
    /// puts them; those of int8 are in `scores`.
    fn infer(&mut self, values: &[f32], tensor: &Tensor<4>, scores: &mut Vec<f32>) -> anyhow::Result<()> {
        match self {
            Self::Float(network) => drop(network.forward(tensor.clone()).into_data()),
            Self::Int8(quantized) => quantized.infer(values, scores)?,
        }
        Ok(())
    }
}

/// Correct samples in percent, in batches of `batch`.
fn accuracy(
    candidate: &mut Candidate,
    shard: &Shard,
    normalizer: &Normalizer,
    batch: usize,
) -> anyhow::Result<f64> {
    let batch = if candidate.depends_on_batch() { batch } else { TEST_BATCH };
    let (mut correct, device) = (0, Device::flex());
    for from in (0..shard.len()).step_by(batch) {
        let (bytes, labels) = shard.samples(from, batch);
        let scores = match candidate {
            Candidate::Float(network) => network.forward(normalizer.images(bytes, &device)),
            Candidate::Int8(quantized) => {
                let mut scores = Vec::new();
                quantized.infer(&normalizer.values(bytes), &mut scores)?;
                let shape = [labels.len(), scores.len() / labels.len()];
                Tensor::from_data(TensorData::new(scores, shape), &device)
            }
        };
        correct += cross_entropy(scores, labels).correct;
    }
    Ok(100.0 * correct as f64 / shard.len().max(1) as f64)
}

fn print(kind: ModelKind, rows: &[Row]) {
    println!("Inference of {kind} on one thread, {} code; medians, in turn", Level::current());
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
    println!("{}", table::table(&header, 1, lines));
}
