//! The MNIST example of the Burn book, made data-parallel over MPI by two more lines:
//!
//! ```text
//! mpirun -n 2 --bind-to core learner_mnist FOLDER [EPOCHS] [SAMPLES]
//! ```
//!
//! FOLDER contains MNIST's four files, unpacked (`mpiburn data digits --out FOLDER` generates such files).
//! Logs and checkpoints are written into `FOLDER/guide`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use burn::data::dataloader::{DataLoaderBuilder, batcher::Batcher};
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig};
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig, Relu};
use burn::optim::AdamConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn::train::metric::{AccuracyMetric, LossMetric};
use burn::train::{ClassificationOutput, InferenceStep, Learner, SupervisedTraining, TrainOutput, TrainStep};
use burn_mpi::{LearnerOptions, OverMpi, World, run};

#[derive(Module, Debug)]
struct Model {
    conv1: Conv2d,
    conv2: Conv2d,
    pool: AdaptiveAvgPool2d,
    dropout: Dropout,
    linear1: Linear,
    linear2: Linear,
    activation: Relu,
}

impl Model {
    fn new(device: &Device) -> Self {
        Self {
            conv1: Conv2dConfig::new([1, 8], [3, 3]).init(device),
            conv2: Conv2dConfig::new([8, 16], [3, 3]).init(device),
            pool: AdaptiveAvgPool2dConfig::new([8, 8]).init(),
            dropout: DropoutConfig::new(0.5).init(),
            linear1: LinearConfig::new(16 * 8 * 8, 128).init(device),
            linear2: LinearConfig::new(128, 10).init(device),
            activation: Relu::new(),
        }
    }

    /// Maps images of shape [batch, 28, 28] to logits of shape [batch, 10].
    fn forward(&self, images: Tensor<3>) -> Tensor<2> {
        let [batch, height, width] = images.dims();
        let x = self.conv1.forward(images.reshape([batch, 1, height, width]));
        let x = self.conv2.forward(self.dropout.forward(x));
        let x = self.pool.forward(self.activation.forward(self.dropout.forward(x)));
        let x = self.linear1.forward(x.reshape([batch, 16 * 8 * 8]));
        self.linear2.forward(self.activation.forward(self.dropout.forward(x)))
    }

    fn forward_classification(&self, batch: MnistBatch) -> ClassificationOutput {
        let output = self.forward(batch.images);
        let loss = CrossEntropyLossConfig::new()
            .init(&output.device())
            .forward(output.clone(), batch.targets.clone());
        ClassificationOutput::new(loss, output, batch.targets)
    }
}

impl TrainStep for Model {
    type Input = MnistBatch;
    type Output = ClassificationOutput;

    fn step(&self, batch: MnistBatch) -> TrainOutput<ClassificationOutput> {
        let item = self.forward_classification(batch);
        // Replaces item.loss.backward(), so that ranks average gradients during backward.
        TrainOutput::new(self, burn_mpi::backward(&item.loss), item)
    }
}

impl InferenceStep for Model {
    type Input = MnistBatch;
    type Output = ClassificationOutput;

    fn step(&self, batch: MnistBatch) -> ClassificationOutput {
        self.forward_classification(batch)
    }
}

#[derive(Clone, Debug)]
struct MnistItem {
    image: Vec<u8>,
    label: u8,
}

#[derive(Clone, Debug)]
struct MnistBatch {
    images: Tensor<3>,
    targets: Tensor<1, Int>,
}

#[derive(Clone)]
struct MnistBatcher;

impl Batcher<MnistItem, MnistBatch> for MnistBatcher {
    fn batch(&self, items: Vec<MnistItem>, device: &Device) -> MnistBatch {
        let pixels: Vec<f32> = items
            .iter()
            .flat_map(|item| item.image.iter().map(|&pixel| (f32::from(pixel) / 255.0 - 0.1307) / 0.3081))
            .collect();
        let labels: Vec<i32> = items.iter().map(|item| i32::from(item.label)).collect();
        MnistBatch {
            images: Tensor::from_data(TensorData::new(pixels, [items.len(), 28, 28]), device),
            targets: Tensor::from_data(TensorData::new(labels, [items.len()]), device),
        }
    }
}

/// Reads up to `samples` samples of MNIST's `train` or `t10k`. A file of images begins with a header of 16
/// bytes, a file of labels with a header of 8 bytes. The values follow.
fn mnist(folder: &Path, part: &str, samples: usize) -> Result<InMemDataset<MnistItem>, Box<dyn Error>> {
    let read = |name: String| {
        let path = folder.join(name);
        std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let images = read(format!("{part}-images-idx3-ubyte"))?;
    let labels = read(format!("{part}-labels-idx1-ubyte"))?;
    let images = images.get(16..).unwrap_or_default().chunks_exact(28 * 28);
    let labels = labels.get(8..).unwrap_or_default();
    let items = images.zip(labels).take(samples);
    Ok(InMemDataset::new(items.map(|(image, &label)| MnistItem { image: image.to_vec(), label }).collect()))
}

fn main() -> ExitCode {
    run(train)
}

/// The first of the two lines gets `world`: here, [`run`] passes it. A program without `run` calls
/// `World::init()?`.
fn train(world: &World) -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().ok_or("usage: learner_mnist FOLDER [EPOCHS] [SAMPLES]")?);
    let epochs = arguments.next().map_or(Ok(2), |epochs| epochs.parse())?;
    let samples = arguments.next().map_or(Ok(usize::MAX), |samples| samples.parse())?;

    let device = Device::flex().autodiff();
    device.seed(42);
    let loader = || DataLoaderBuilder::new(MnistBatcher).batch_size(32);
    let training = SupervisedTraining::new(
        folder.join("guide"),
        loader().shuffle(42).build(mnist(&folder, "train", samples)?),
        loader().build(mnist(&folder, "t10k", samples)?),
    )
    .metrics((AccuracyMetric::new(), LossMetric::new()))
    .with_default_checkpointers()
    .num_epochs(epochs)
    .summary()
    // The second line. A step has 32 images on each rank.
    .over_mpi(world, LearnerOptions::default());
    let result = training.launch(Learner::new(Model::new(&device), AdamConfig::new().init(), 1e-3));
    if world.is_root() {
        result.model.save_file(folder.join("guide/model"))?;
    }
    Ok(())
}
