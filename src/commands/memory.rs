//! Refuses what does not fit into memory before it is asked for: the kernel would end a rank without
//! a word.

use crate::machine;
use crate::model::{Dimensions, Network};
use crate::options::{ConfigError, RunConfig};
use burn_mpi::World;

/// Checks that a training step on `batch` samples can fit beside those of the other ranks of each
/// host. The estimate counts what every step has at least: weights, gradients, samples, and half of
/// the layers' outputs, since operators with pooling keep less than what they compute.
///
/// # Errors
/// The same on all ranks: which option is too large, for which host.
pub fn check_step(world: &World, network: &Network, parameters: usize, batch: usize) -> anyhow::Result<()> {
    check(world, least_bytes(network, parameters, batch), "train-batch-size", batch)
}

/// Checks that weights and gradients of the network can fit, before the weights are drawn.
///
/// # Errors
/// As of [`check_step`].
pub fn check_weights(world: &World, config: &RunConfig, dimensions: Dimensions) -> anyhow::Result<()> {
    let weights = config.model.unbounded_weights(&config.network, dimensions);
    check(world, weights.saturating_mul(2 * size_of::<f32>() as u64), "model", config.model)
}

fn check(world: &World, least: u64, option: &'static str, value: impl ToString) -> anyhow::Result<()> {
    let host = world.host();
    let ranks = world.places().iter().filter(|place| place.host == host).count() as u64;
    let (memory, is_limited) = machine::usable_memory(host);
    let problem = (memory > 0 && least.saturating_mul(ranks) > memory).then(|| {
        format!(
            "a step needs at least {:.1} GB on each of {ranks} ranks on {host}, which {} {:.1} GB",
            least as f64 / f64::from(1 << 30),
            if is_limited { "limits them to" } else { "has" },
            memory as f64 / f64::from(1 << 30)
        )
    });
    match world.gather(&problem)?.into_iter().flatten().next() {
        Some(problem) => Err(ConfigError::new(option, value, problem).into()),
        None => Ok(()),
    }
}

fn least_bytes(network: &Network, parameters: usize, batch: usize) -> u64 {
    let outputs = (network.flop().floats() / 2).saturating_mul(batch as u64);
    outputs.saturating_add(2 * parameters as u64).saturating_mul(size_of::<f32>() as u64)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::model::{ModelKind, NetworkOptions};

    #[test]
    fn a_step_needs_at_least_half_of_its_activations() {
        let kind = ModelKind::Vgg;
        let network =
            Network::with_options(kind, &NetworkOptions::default(), kind.dimensions(), 1, &Device::flex());
        // The measured peak of live tensors at batch 32 is 36 MB and more.
        let (one, many) = (least_bytes(&network, 0, 32), least_bytes(&network, 0, 32_000));
        assert!((5_000_000..36_000_000).contains(&one), "{one}");
        assert_eq!(many, 1000 * one);
    }
}
