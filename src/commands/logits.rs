//! Class scores of a test set as a `.npy` file.

use std::path::{Path, PathBuf};

use anyhow::Context;

use super::outputs;
use crate::data::write_npy;
use crate::options::ConfigError;
use burn_mpi::World;

/// Checks the file's name, and on rank 0 that it can be written.
pub fn check(world: &World, file: Option<&PathBuf>) -> anyhow::Result<()> {
    let Some(file) = file else { return Ok(()) };
    if file.extension().is_none_or(|extension| extension != "npy") {
        return Err(ConfigError::new("logits", file.display(), "its name must end in .npy").into());
    }
    outputs::check_on_root(world, &[("logits", Some(file))], &[])
}

/// Writes the scores of all ranks' shares in the order of the test set: rank r has
/// samples r, r + ranks, ….
pub fn write(world: &World, file: &Path, mine: &[f32], classes: usize) -> anyhow::Result<()> {
    let shares = world.gather(&mine.to_vec())?;
    super::on_root(world, || {
        let shares: Vec<Vec<&[f32]>> =
            shares.iter().map(|share| share.chunks_exact(classes).collect()).collect();
        let most = shares.iter().map(Vec::len).max().unwrap_or(0);
        let rows = (0..most).flat_map(|i| shares.iter().filter_map(move |share| share.get(i)));
        let values: Vec<f32> = rows.flat_map(|row| row.iter().copied()).collect();
        write_npy(file, classes, &values).with_context(|| format!("cannot write {}", file.display()))
    })?;
    Ok(())
}
