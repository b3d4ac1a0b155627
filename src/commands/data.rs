//! `mpiburn data`: makes data sets.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};

use super::logging::bars;
use crate::cli::{DataArgs, DataKind};
use crate::data::digits;

pub fn run(args: DataArgs) -> anyhow::Result<()> {
    match args.kind {
        DataKind::Digits { out, train, test, seed, overwrite } => {
            make_digits(&out, train, test, seed, overwrite)
        }
    }
}

fn make_digits(out: &Path, train: usize, test: usize, seed: u64, overwrite: bool) -> anyhow::Result<()> {
    ensure!(train > 0 && test > 0, "--train {train} --test {test}: both must be at least 1");
    if out.join("train-images-idx3-ubyte").exists() && !overwrite {
        bail!("{} holds a data set already: choose another --out, or --overwrite", out.display());
    }
    std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let total = (train + test) as u64;
    let bar = bars().add(ProgressBar::new(total));
    bar.set_style(ProgressStyle::with_template("{bar:24} {pos}/{len} digits  {eta} left")?);
    digits::write(out, train, test, seed, &|done| bar.set_position(done as u64))
        .with_context(|| format!("cannot write the data set to {}", out.display()))?;
    bar.finish_and_clear();
    log::info!("{}: {train} training and {test} test digits, seed {seed}", out.display());
    Ok(())
}
