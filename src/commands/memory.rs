//! Rejects what does not fit into memory before it is asked for: the kernel would end a rank without
//! a word.

use crate::machine;
use crate::model::{Dimensions, ModelKind, Network};
use crate::options::{ConfigError, RunConfig};
use crate::train::MixedPrecision;
use burn_mpi::World;

/// Checks that a training step can fit beside those of the other ranks of each host. The estimate is a lower bound:
/// weights, gradients and moments, and half of the layers' outputs of `batch` samples, since operators with pooling keep
/// less than what they compute. Rank 0 of a run that `saves` checkpoints has the bytes of a file as well.
///
/// # Errors
/// The same on all ranks: which option is too large, for which host.
pub fn check_step(
    world: &World,
    config: &RunConfig,
    network: &Network,
    batch: usize,
    saves: bool,
) -> anyhow::Result<()> {
    let layout = network.parameters();
    let largest = layout.specs().iter().map(|spec| spec.range.len()).max().unwrap_or(0);
    let least = Least::for_weights(config, layout.trainable() as u64, largest as u64);
    check(world, config, &least, saves)?;
    let batch = batch.min(config.data.train_batch_size.get());
    let outputs = Least { working: least.working.max(outputs(network, config.precision, batch)), ..least };
    let refused = ("train-batch-size", batch.to_string());
    if config.device.is_cpu() { check_option(world, refused, &outputs, saves) } else { Ok(()) }
}

/// Checks that a training of the network can fit, before its weights are drawn.
///
/// # Errors
/// As of [`check_step`].
pub fn check_weights(world: &World, config: &RunConfig, dimensions: Dimensions) -> anyhow::Result<()> {
    let weights = config.model.unbounded_weights(&config.network, dimensions);
    check(world, config, &Least::for_weights(config, weights, 0), true)
}

/// Numbers that a rank has in memory at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Least {
    /// At all times.
    held: u64,
    /// During a step in addition.
    working: u64,
    /// On rank 0, while it writes a checkpoint, in addition.
    file: u64,
}

impl Least {
    /// For a network of so many `weights`. The gradient of the `largest` tensor and the copy of it in a bucket are in
    /// memory at the same time.
    fn for_weights(config: &RunConfig, weights: u64, largest: u64) -> Self {
        let moments = config.recipe.optimizer.moments(config.base_rate().momentum > 0.0).len() as u64;
        // Weights and gradients as flat buffers, for all ranks. The network has a copy of the weights on its device.
        let copies = 2 + moments + u64::from(config.device.is_cpu());
        Self {
            held: weights.saturating_mul(copies),
            working: if config.device.is_cpu() { largest } else { 0 },
            file: weights.saturating_mul(moments.max(1)),
        }
    }

    /// Bytes of `ranks` ranks; one of them is a rank 0 that writes checkpoints if it `saves`.
    fn bytes(&self, ranks: u64, saves: bool) -> u64 {
        let each = self.held.saturating_add(self.working);
        let writer = if saves { self.file.saturating_sub(self.working) } else { 0 };
        each.saturating_mul(ranks).saturating_add(writer).saturating_mul(size_of::<f32>() as u64)
    }
}

/// Checks the network's size.
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
        let gb = |bytes| bytes as f64 / f64::from(1 << 30);
        format!(
            "{} on {host} {} at least {:.1} GB, and {} {:.1} GB: choose a smaller value, or fewer ranks on a host",
            run_record::count(ranks, "rank"),
            if ranks == 1 { "needs" } else { "need" },
            gb(needed),
            if is_limited { "the job's limit there is" } else { "it has" },
            gb(usable)
        )
    });
    match world.gather(&problem)?.into_iter().flatten().next() {
        Some(problem) => Err(ConfigError::new(option, value, problem).into()),
        None => Ok(()),
    }
}

/// Half of the layers' outputs of a batch, in numbers of 32 bits: those of 16 bits are half as large.
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
        // The measured peak of live tensors at batch 32 is 36 MB and more.
        let outputs_of = |batch| outputs(&network, MixedPrecision::No, batch);
        let (one, many) = (outputs_of(32), outputs_of(32_000));
        assert!((1_250_000..9_000_000).contains(&one), "{one}");
        assert_eq!(many, 1000 * one);
        // Batch 4096 has a measured peak of 2005 MB in bf16, and 3290 MB in f32.
        assert_eq!(outputs(&network, MixedPrecision::Bf16, 32), one / 2);
    }

    /// Estimates are below what `train --model mlp --hidden 65536 -v` prints as its peak: 11.3 times the weights with adam,
    /// 7.3 times with sgd.
    #[test]
    fn moments_are_counted_and_the_file_of_a_checkpoint_on_rank_0_alone() {
        for (optimizer, each, writer) in [
            (&["--optimizer=adam"][..], 5, 2),
            (&["--optimizer=sgd"], 3, 1),
            (&["--optimizer=sgd", "--momentum=0.9"], 4, 1),
            (&["--optimizer=sgd", "--schedule=onecycle", "--max-lr=1"], 4, 1),
            (&["--optimizer=rmsprop", "--momentum=0.9"], 5, 2),
        ] {
            let words = optimizer.iter().chain(&["--data-root=d"]);
            let config = RunConfig::read(words).unwrap();
            let least = Least::for_weights(&config, 100, 40);
            let bytes = [(1, false), (1, true), (3, true)].map(|(ranks, saves)| least.bytes(ranks, saves));
            let expected =
                [100 * each + 40, 100 * (each + writer), 3 * (100 * each + 40) + 100 * writer - 40];
            assert_eq!(bytes, expected.map(|floats| 4 * floats), "{optimizer:?}");
        }
        let config = RunConfig::read(["--data-root=d"]).unwrap();
        assert_eq!(Least::for_weights(&config, u64::MAX, 1).bytes(2, true), u64::MAX);
    }
}
