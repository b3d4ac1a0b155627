//! A small regression with a validation set, written as a user of burn-train would write it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{BatchDataLoader, BatchStrategy, DataLoader, DataLoaderBuilder};
use burn::data::dataset::{Dataset, DatasetError};
use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData, activation::tanh};
use burn::train::{InferenceStep, RegressionOutput, TrainOutput, TrainStep};

/// True if steps average gradients during backward.
pub static OVERLAP: AtomicBool = AtomicBool::new(false);

/// The inputs and targets of each step that this rank has taken.
pub static STEPS: Mutex<Vec<(Vec<f32>, Vec<f32>)>> = Mutex::new(Vec::new());

#[derive(Module, Debug)]
pub struct Net {
    hidden: Linear,
    norm: Option<BatchNorm>,
    out: Linear,
}

impl Net {
    pub fn new(width: usize, norm: bool, device: &Device) -> Self {
        Self {
            hidden: LinearConfig::new(2, width).init(device),
            norm: norm.then(|| BatchNormConfig::new(width).init(device)),
            out: LinearConfig::new(width, 1).init(device),
        }
    }

    /// The mean squared error on these samples.
    pub fn output(&self, batch: Batch) -> RegressionOutput {
        let hidden = self.hidden.forward(batch.x);
        let hidden = match &self.norm {
            Some(norm) => norm.forward(hidden),
            None => hidden,
        };
        let output = self.out.forward(tanh(hidden));
        let loss = (output.clone() - batch.y.clone()).powi_scalar(2).mean();
        RegressionOutput::new(loss, output, batch.y)
    }
}

impl TrainStep for Net {
    type Input = Batch;
    type Output = RegressionOutput;

    fn step(&self, batch: Batch) -> TrainOutput<RegressionOutput> {
        let [x, y] = [&batch.x, &batch.y].map(|values| values.to_data().iter().collect());
        STEPS.lock().expect("steps").push((x, y));
        let item = self.output(batch);
        let gradients = if OVERLAP.load(Ordering::Relaxed) {
            burn_mpi::backward(&item.loss)
        } else {
            item.loss.backward()
        };
        TrainOutput::new(self, gradients, item)
    }
}

impl InferenceStep for Net {
    type Input = Batch;
    type Output = RegressionOutput;

    fn step(&self, batch: Batch) -> RegressionOutput {
        self.output(batch)
    }
}

#[derive(Clone, Debug)]
pub struct Batch {
    pub x: Tensor<2>,
    pub y: Tensor<2>,
}

impl Batch {
    pub fn new(x: Vec<f32>, y: Vec<f32>, device: &Device) -> Self {
        let samples = y.len();
        Self {
            x: Tensor::from_data(TensorData::new(x, [samples, 2]), device),
            y: Tensor::from_data(TensorData::new(y, [samples, 1]), device),
        }
    }
}

/// Makes batches of sample numbers: `y = x1 * x2`.
#[derive(Clone)]
pub struct Samples;

impl Batcher<usize, Batch> for Samples {
    fn batch(&self, samples: Vec<usize>, device: &Device) -> Batch {
        let value = |sample: usize, at: usize| ((sample * 29 + at * 13) % 41) as f32 / 20.0 - 1.0;
        let (mut x, mut y) = (Vec::new(), Vec::new());
        for &sample in &samples {
            x.extend([value(sample, 0), value(sample, 1)]);
            y.push(value(sample, 0) * value(sample, 1));
        }
        Batch::new(x, y, device)
    }
}

/// The numbers `first..first + count` as samples. Reading the sample `broken` fails.
pub struct Numbers {
    pub first: usize,
    pub count: usize,
    pub broken: Option<usize>,
}

impl Dataset<usize> for Numbers {
    fn get(&self, index: usize) -> Result<usize, DatasetError> {
        if self.broken == Some(index) {
            Err(DatasetError::new(std::io::Error::other(format!("sample {index} cannot be read"))))
        } else {
            Ok(self.first + index)
        }
    }

    fn len(&self) -> usize {
        self.count
    }
}

/// A loader of `numbers`, with `workers` threads.
pub fn loader(numbers: Numbers, batch: usize, shuffle: bool, workers: usize) -> Arc<dyn DataLoader<Batch>> {
    let builder = DataLoaderBuilder::new(Samples).batch_size(batch).num_workers(workers);
    if shuffle { builder.shuffle(7).build(numbers) } else { builder.build(numbers) }
}

/// Makes batches of two samples, but claims three. The loader's progress is then ahead of its batches.
struct Ahead(Vec<usize>);

impl BatchStrategy<usize> for Ahead {
    fn add(&mut self, sample: usize) {
        self.0.push(sample);
    }

    fn batch(&mut self, force: bool) -> Option<Vec<usize>> {
        let length = self.0.len().min(2);
        (length == 2 || force && length > 0).then(|| self.0.drain(..length).collect())
    }

    fn clone_dyn(&self) -> Box<dyn BatchStrategy<usize>> {
        Box::new(Self(Vec::new()))
    }

    fn batch_size(&self) -> Option<usize> {
        Some(3)
    }
}

/// A loader whose progress is not the number of samples in its batches.
pub fn loader_ahead(numbers: Numbers) -> Arc<dyn DataLoader<Batch>> {
    let strategy = Box::new(Ahead(Vec::new()));
    Arc::new(BatchDataLoader::new(strategy, Arc::new(numbers), Arc::new(Samples), Device::flex(), None))
}
