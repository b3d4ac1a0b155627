//! Rejects networks and batches that cannot fit into memory, before the memory is allocated. If memory ran
//! out during the job, the kernel would kill a rank without a message.
//!
//! All estimates are lower bounds: a job that might fit is not rejected.

use crate::machine;
use crate::model::{Dimensions, ModelKind, Network};
use crate::options::{ConfigError, RunConfig};
use crate::train::{MixedPrecision, OuterKind};
use burn_mpi::World;
use run_record::byte_size;

/// Checks that the training steps of all ranks of a host can fit into the host's memory.
///
/// The estimate is a lower bound. It counts weights, gradients, the optimizer's moments and, on a CPU, half
/// of the outputs of layers with weights for `batch` samples, or for a micro-batch if `batch` is larger. Only
/// half of the outputs count, because operators with pooling keep less than they compute. If the run `saves`
/// checkpoints, rank 0 also needs memory for the contents of a file.
///
/// # Errors
/// Returns the same error on all ranks: which option is too large, for which host.
pub fn check_step(
    world: &World,
    config: &RunConfig,
    network: &Network,
    batch: usize,
    saves: bool,
) -> anyhow::Result<()> {
    let layout = network.parameters();
    let largest = layout.specs().iter().map(|spec| spec.range.len()).max().unwrap_or(0);
    let least = Least::for_weights(config, world.size(), layout.trainable() as u64, largest as u64);
    check(world, config, &least, saves)?;
    let batch = batch.min(config.data.train_batch_size.get());
    let outputs = Least { working: least.working.max(outputs(network, config.precision, batch)), ..least };
    let refused = ("train-batch-size", batch.to_string());
    if config.device.is_cpu() { check_option(world, refused, &outputs, saves) } else { Ok(()) }
}

/// Checks that a training of the network can fit into memory, before the network's weights are initialized.
///
/// # Errors
/// Returns the errors of [`check_step`].
pub fn check_weights(world: &World, config: &RunConfig, dimensions: Dimensions) -> anyhow::Result<()> {
    let weights = config.model.unbounded_weights(&config.network, dimensions);
    check(world, config, &Least::for_weights(config, world.size(), weights, 0), true)
}

/// Lower bounds on the number of 32-bit values that a rank has in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Least {
    /// Values in memory at all times.
    held: u64,
    /// Additional values during a step.
    working: u64,
    /// Additional values on rank 0 while it writes a checkpoint.
    file: u64,
}

impl Least {
    /// Computes the bounds for a network of `weights` weights, on `world_size` ranks. The largest tensor has
    /// `largest` values: with several ranks, its gradient is in memory at the same time as the copy in a
    /// bucket, the buffer that the ranks sum.
    fn for_weights(config: &RunConfig, world_size: usize, weights: u64, largest: u64) -> Self {
        let moments = config.recipe.optimizer.moments(config.base_rate().momentum > 0.0).len() as u64;
        // With any device, host memory holds weights and gradients as flat buffers, and the moments. With a
        // CPU device, it also holds the network's copy of the weights.
        // With local updates, it also holds the weights after the last synchronisation and the velocity of
        // the outer optimizer.
        let local = &config.communication.local;
        let outer = u64::from(local.outer != OuterKind::None);
        let synchronised = local.sync_every.map_or(0, |_| 1 + outer);
        let copies = 2 + synchronised + u64::from(config.device.is_cpu());
        let shards = if config.communication.shard_optimizer { world_size as u64 } else { 1 };
        Self {
            held: weights.saturating_mul(copies).saturating_add(weights.saturating_mul(moments) / shards),
            working: if config.device.is_cpu() && world_size > 1 { largest } else { 0 },
            file: weights,
        }
    }

    /// Returns the bytes that `ranks` ranks need. If `saves` is true, one of these ranks is rank 0, which
    /// also writes checkpoints.
    fn bytes(&self, ranks: u64, saves: bool) -> u64 {
        let each = self.held.saturating_add(self.working);
        let writer = if saves { self.file.saturating_sub(self.working) } else { 0 };
        each.saturating_mul(ranks).saturating_add(writer).saturating_mul(size_of::<f32>() as u64)
    }
}

/// Checks the network's size. The error names the option that sets this size.
fn check(world: &World, config: &RunConfig, least: &Least, saves: bool) -> anyhow::Result<()> {
    let option = match config.network.hidden {
        Some(hidden) if config.model == ModelKind::Mlp => ("hidden", hidden.to_string()),
        _ => ("model", config.model.to_string()),
    };
    check_option(world, option, least, saves)
}

fn check_option(
    world: &World,
    (option, value): (&'static str, String),
    least: &Least,
    saves: bool,
) -> anyhow::Result<()> {
    let (host, places) = (world.host(), world.places());
    let ranks = places.iter().filter(|place| place.host == host).count();
    let needed = least.bytes(ranks as u64, saves && places[0].host == host);
    let (memory, is_limited) = machine::usable_memory(host);
    let usable = memory.saturating_add(machine::swap());
    let problem = (memory > 0 && needed > usable).then(|| {
        format!(
            "{} on {host} {} at least {}, but {} {}: choose a smaller value, or fewer ranks per host",
            run_record::count(ranks, "rank"),
            if ranks == 1 { "needs" } else { "need" },
            byte_size(needed.into()),
            if is_limited { "the job's limit there is" } else { "the host has" },
            byte_size(usable.into())
        )
    });
    match world.gather(&problem)?.into_iter().flatten().next() {
        Some(problem) => Err(ConfigError::new(option, value, problem).into()),
        None => Ok(()),
    }
}

/// Returns half of the number of values in the samples of a batch and in the outputs of layers with weights.
/// A value of 16 bits counts as half a value.
fn outputs(network: &Network, precision: MixedPrecision, batch: usize) -> u64 {
    let outputs = (network.flop().floats() / 2).saturating_mul(batch as u64);
    if precision == MixedPrecision::No { outputs } else { outputs / 2 }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::model::NetworkOptions;

    #[test]
    fn a_step_needs_at_least_half_of_its_activations() {
        let kind = ModelKind::Vgg;
        let network =
            Network::with_options(kind, &NetworkOptions::default(), kind.dimensions(), 1, &Device::flex());
        // At batch 32, the measured peak of live tensors is at least 36 MB, which are 9 million values.
        let outputs_of = |batch| outputs(&network, MixedPrecision::No, batch);
        let (one, many) = (outputs_of(32), outputs_of(32_000));
        assert!((1_250_000..9_000_000).contains(&one), "{one}");
        assert_eq!(many, 1000 * one);
        // At batch 4096, the measured peak is 2005 MB in bf16 and 3290 MB in f32, so bf16 needs more than
        // half.
        assert_eq!(outputs(&network, MixedPrecision::Bf16, 32), one / 2);
    }

    /// The estimates are below the peak that `train --model mlp --hidden 65536 -v` prints: 8.2 times the
    /// weights with adam, 6.2 times with sgd.
    #[test]
    fn moments_are_counted_and_the_file_of_a_checkpoint_on_rank_0_alone() {
        for (optimizer, each) in [
            (&["--optimizer=adam"][..], 5),
            (&["--optimizer=sgd"], 3),
            (&["--optimizer=sgd", "--momentum=0.9"], 4),
            (&["--optimizer=sgd", "--schedule=onecycle", "--max-lr=1"], 4),
            (&["--optimizer=rmsprop", "--momentum=0.9"], 5),
            (&["--optimizer=sgd", "--sync-every=2"], 4),
            (&["--optimizer=sgd", "--sync-every=2", "--outer=nesterov"], 5),
            (&["--shard-optimizer"], 4),
        ] {
            let words = optimizer.iter().chain(&["--data-root=d"]);
            let config = RunConfig::read(words).unwrap();
            let least = Least::for_weights(&config, 2, 100, 40);
            let bytes = [(1, false), (1, true), (3, true)].map(|(ranks, saves)| least.bytes(ranks, saves));
            let expected = [100 * each + 40, 100 * (each + 1), 3 * (100 * each + 40) + 100 - 40];
            assert_eq!(bytes, expected.map(|floats| 4 * floats), "{optimizer:?}");
        }
        let config = RunConfig::read(["--data-root=d"]).unwrap();
        assert_eq!(Least::for_weights(&config, 2, u64::MAX, 1).bytes(2, true), u64::MAX);
    }
}
