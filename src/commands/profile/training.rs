//! Profile of training steps.

use burn_mpi::{CommError, World, connect};

use super::subject::Subject;
use super::{Measured, alternate};
use crate::profile::Profile;
use crate::spans::{self, Recorder};
use crate::train::{CrossEntropy, Learner, NetworkForward};

/// Profiles `batches` steps of this rank. All ranks take part in them.
pub fn profile(world: &World, subject: Subject, batches: usize) -> anyhow::Result<Measured> {
    let device = subject.config.device.device().autodiff();
    let network = subject.network_on(&device);
    let Subject { config, batches: mut source, .. } = subject;
    let collective = connect(world, config.communication.backend, &config.transport())?;
    let loss = CrossEntropy { smoothing: config.recipe.label_smoothing };
    let forward = NetworkForward::new(None, config.precision);
    let mut learner = Learner::new(world, &config, network, forward, loss, collective)?;
    let total = config.data.train_batch_size * world.size();
    world.barrier()?;
    let [profiled, plain] = alternate(batches, || -> Result<(), CommError> {
        learner.sync.watch(spans::watcher())?;
        learner.step(&source.next(), total, false).map(|_| ())
    })?;
    spans::log_buckets(&learner.sync);
    let recorder = Recorder::stop().unwrap_or_default();
    let buckets = learner.sync.report().buckets;
    Ok(Measured {
        profile: Profile::new(&recorder, &buckets, world.size(), batches),
        recorder,
        profiled,
        plain,
    })
}
