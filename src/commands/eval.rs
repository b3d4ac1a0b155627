//! `mpiburn eval`: computes the loss and accuracy of a checkpoint on the test set.

use std::path::Path;

use anyhow::Context;

use super::checkpoint::Opened;
use super::{on_root, outputs};
use crate::device::DeviceKind;
use crate::options::{ConfigError, EvalArgs, RunConfig};
use crate::train::{DataOptions, Evaluation, Tally};
use burn_mpi::World;
use data::{Split, write_npy};
use run_record::count;

pub fn run(world: &World, args: &EvalArgs) -> anyhow::Result<()> {
    let device = args.device;
    if args.int8 && device != DeviceKind::Flex {
        return Err(ConfigError::new("device", device, "int8 models require --device flex").into());
    }
    device.check_built().map_err(|problem| ConfigError::new("device", device, problem))?;
    if let Some(file) = &args.logits {
        if file.extension().is_none_or(|extension| extension != "npy") {
            return Err(ConfigError::new("logits", file.display(), "must end in .npy").into());
        }
        outputs::check_on_root(world, &[("logits", Some(file))], &[])?;
    }
    let run = args.run.path().context("no run is named")?;
    let adapt = |config: RunConfig| {
        let test_samples = args.test_samples.or(config.data.test_samples);
        let data = DataOptions { test_batch_size: args.test_batch_size, test_samples, ..config.data };
        Ok(RunConfig { data, device, ..config })
    };
    let opened = Opened::open(world, run, args.data_root.as_ref(), &[Split::Test], adapt)?;
    let mut evaluation = Evaluation::load(world, &opened.source, &opened.config)?;
    evaluation.keeps_scores = args.logits.is_some();
    let tested = if args.int8 {
        evaluation.run_int8(world, &mut opened.int8(world)?)?
    } else {
        evaluation.run(world, &opened.network)?
    };
    if let Some(file) = &args.logits {
        write_logits(world, file, &tested.scores, opened.source.description().classes)?;
    }
    if world.is_root() {
        println!("{}", shown(&Tally::total(&tested.tallies)));
    }
    Ok(())
}

/// Formats the loss and accuracy of a test.
pub fn shown(test: &Tally) -> String {
    format!(
        "test loss {:.6}  test accuracy {:.2}%  ({} of {})",
        test.mean_loss(),
        test.accuracy(),
        test.correct,
        count(test.samples as usize, "sample")
    )
}

/// Writes the scores of all ranks to an .npy file, in the order of the test set. Rank r has the scores of
/// samples r, r + number of ranks, ….
fn write_logits(world: &World, file: &Path, mine: &[f32], classes: usize) -> anyhow::Result<()> {
    let shares = world.gather(&mine.to_vec())?;
    on_root(world, || {
        let shares: Vec<Vec<&[f32]>> =
            shares.iter().map(|share| share.chunks_exact(classes).collect()).collect();
        let most = shares.iter().map(Vec::len).max().unwrap_or(0);
        let rows = (0..most).flat_map(|i| shares.iter().filter_map(move |share| share.get(i)));
        let values: Vec<f32> = rows.flat_map(|row| row.iter().copied()).collect();
        write_npy(file, classes, &values).with_context(|| format!("cannot write {}", file.display()))
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_of_one_sample_has_no_plural() {
        assert!(shown(&Tally::from_batch(0.5, 1, 1)).ends_with("(1 of 1 sample)"));
    }
}
