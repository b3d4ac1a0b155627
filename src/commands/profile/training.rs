//! Profile of training steps: a `Learner` with observers of forward, backward, loss and
//! collectives.

use burn_mpi::{CommError, World, connect};

use super::subject::Subject;
use super::{Measured, alternate};
use crate::profile::{Profile, Recorder, WatchedForward, WatchedLoss, WatchedSamples, log_buckets, on_sync};
use crate::train::{CrossEntropy, Learner, Mixed};

/// Profiles `batches` steps of this rank. All ranks take part in them.
pub fn profile(world: &World, subject: Subject, batches: usize) -> anyhow::Result<Measured> {
    let device = subject.config.device.device().autodiff();
    let network = subject.network_on(&device);
    let Subject { config, batches: mut source, .. } = subject;
    let collective = connect(world, config.communication.backend, &config.transport())?;
    let row = WatchedSamples::row();
    let loss = WatchedLoss::new(CrossEntropy { smoothing: config.recipe.label_smoothing });
    let learner = Learner::new(world, &config, network, loss, collective)?;
    let mut learner = learner.with_forward(Mixed::new(WatchedForward::default(), config.precision))?;
    let total = config.data.train_batch_size * world.size();
    world.barrier()?;
    let [profiled, plain] = alternate(batches, |on| -> Result<(), CommError> {
        learner.sync.watch(on.then_some(on_sync))?;
        learner.step(&WatchedSamples { samples: source.next(), row }, total, false).map(|_| ())
    })?;
    log_buckets(&learner.sync);
    let recorder = Recorder::stop().unwrap_or_default();
    let buckets = learner.sync.report().buckets;
    Ok(Measured {
        profile: Profile::new(&recorder, &buckets, world.size(), batches),
        recorder,
        profiled,
        plain,
    })
}
