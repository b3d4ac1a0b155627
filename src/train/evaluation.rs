//! Measuring a network on the whole test set, each sample once.

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};

use super::{CrossEntropy, LabelledBytes, Loss, Samples, Tally, TrainError, TrainOptions};
use crate::data::shard::Order;
use crate::data::{Normalizer, SampleSource, Shard, Split};
use crate::model::{Model as _, Network};
use burn_fused::int8::Model;
use burn_mpi::World;

/// The test set of one rank, and the way to measure a network on all of it.
pub struct Evaluation {
    shard: Shard,
    normalizer: Normalizer,
    batch_size: usize,
    device: Device,
}

impl Evaluation {
    /// Reads this rank's share of the test set.
    ///
    /// # Errors
    /// When it cannot be read on some rank.
    pub fn load(
        world: &World,
        source: &dyn SampleSource,
        options: &TrainOptions,
    ) -> Result<Self, TrainError> {
        let plan = options.plan(source, Split::Test, world.size());
        let shard = Shard::load(source, Split::Test, &plan, world.rank(), Order::File);
        Ok(Self {
            shard: world.agree(shard)?,
            normalizer: Normalizer::new(source.description()),
            batch_size: plan.batch_size,
            device: options.device.device(),
        })
    }

    /// Measures `network` on every sample of the test set once; each rank's
    /// tally, on every rank.
    ///
    /// # Errors
    /// When the transport fails.
    pub fn run(&self, world: &World, network: &Network) -> Result<Vec<Tally>, TrainError> {
        let network = network.valid();
        self.tally(world, |images| network.forward(images))
    }

    /// Measures an integer model, as [`run`](Self::run) does a network.
    ///
    /// # Errors
    /// When the transport fails.
    pub fn run_int8(&self, world: &World, model: &Model) -> Result<Vec<Tally>, TrainError> {
        let mut workspace = model.workspace();
        self.tally(world, |images| {
            let batch = images.dims()[0];
            let images = images.into_data().convert::<f32>();
            let mut scores = vec![0.0; batch * model.outputs()];
            model.infer(&mut workspace, images.as_slice().unwrap_or_default(), &mut scores);
            Tensor::from_data(TensorData::new(scores, [batch, model.outputs()]), &self.device)
        })
    }

    fn tally(
        &self,
        world: &World,
        mut scores: impl FnMut(Tensor<4>) -> Tensor<2>,
    ) -> Result<Vec<Tally>, TrainError> {
        let mut tally = Tally::default();
        for from in (0..self.shard.len()).step_by(self.batch_size) {
            let (bytes, labels) = self.shard.samples(from, self.batch_size);
            let samples = LabelledBytes { bytes, labels, normalizer: &self.normalizer };
            let (images, labels) = samples.batch(0..labels.len(), &self.device);
            tally.add(&CrossEntropy::default().score(scores(images), labels).tally);
        }
        Ok(world.gather(&tally)?)
    }
}
