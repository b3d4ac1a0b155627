//! `mpiburn quantize`: makes an int8 model of a trained network, without training it again.

use std::fs;
use std::path::Path;

use anyhow::Context;

use super::checkpoint::{self, Opened};
use super::eval::shown;
use crate::device::DeviceKind;
use crate::options::{ConfigError, QuantizeArgs, RunConfig};
use crate::quant::{CALIBRATION, Int8File, PostTraining, QuantizeKind, Quantized};
use crate::train::{Evaluation, Tally};
use crate::values::Positive;
use burn_mpi::World;
use data::Split;
use run_record::checkpoint::MODEL;
use run_record::files;
use run_record::{INT8_FILE, Method, count};

pub fn run(world: &World, args: &QuantizeArgs) -> anyhow::Result<()> {
    let post = post_training(args)?;
    let checked: &[Split] = match post {
        Some(_) => &Split::ALL,
        None => &[Split::Test],
    };
    let adapt = |config| Ok(RunConfig { device: DeviceKind::Flex, ..config });
    let opened = Opened::open(world, &args.run, args.data_root.as_ref(), checked, adapt)?;
    let Opened { config, source, network, weights } = opened;
    let mut quantized = checkpoint::share_int8(world, || {
        let quantized = match post {
            None => {
                let problem = "the run was trained without --quantize qat, so its checkpoint has no ranges: choose \
                               --kind ptq";
                let never = || ConfigError::new("kind", QuantizeKind::Qat, problem);
                let ranges = weights.position.ranges.as_ref().ok_or_else(never)?;
                Quantized::of_ranges(&network, Method::Qat, ranges, config.quantization.weight_scheme)?
            }
            Some(post) => {
                let quantizer = post.load(&source, config.data.train_samples.map(Positive::get))?;
                let samples = quantizer.samples();
                if let Some(typed) = args.calibration.filter(|&typed| samples < typed) {
                    log::warn!(
                        "--calibration {typed}: the run trained on only {}; using every sample",
                        count(samples, "sample")
                    );
                }
                log::info!("calibrating on {}", count(samples, "training sample"));
                quantizer.quantize(&network)?
            }
        };
        write(&quantized.file, &weights.folder, &args.run)?;
        Ok(quantized)
    })?;
    let evaluation = Evaluation::load(world, &source, &config)?;
    let float = Tally::total(&evaluation.run(world, &network)?.tallies);
    let int8 = Tally::total(&evaluation.run_int8(world, &mut quantized)?.tallies);
    if world.is_root() {
        print(&weights.folder, &float, &int8)?;
    }
    Ok(())
}

/// Returns how to quantize the float weights. `None` with `--kind qat`, which uses the ranges and the weight
/// scheme of a quantization-aware training.
fn post_training(args: &QuantizeArgs) -> Result<Option<PostTraining>, ConfigError> {
    let scheme = args.weight_scheme.unwrap_or_default();
    match (args.kind, args.calibration) {
        (QuantizeKind::Qat, _) if args.weight_scheme.is_some() => Err(ConfigError::new(
            "weight-scheme",
            scheme,
            "with --kind qat, the training has fixed the scheme: leave the option out",
        )),
        (QuantizeKind::Qat, Some(samples)) => {
            Err(ConfigError::new("calibration", samples, "requires --kind ptq"))
        }
        (QuantizeKind::Qat, None) => Ok(None),
        (QuantizeKind::Ptq, samples) => {
            Ok(Some(PostTraining { scheme, calibration: samples.unwrap_or(CALIBRATION) }))
        }
    }
}

/// Writes the file into a checkpoint's `folder`. The folder and its parent must not be symbolic links. If the
/// user named the folder itself (`run`), it may be a link.
fn write(file: &Int8File, folder: &Path, run: &Path) -> anyhow::Result<()> {
    let path = folder.join(INT8_FILE);
    let cannot_write = |place: &Path| format!("cannot write {}", place.display());
    let inside = [folder, folder.parent().unwrap_or(folder)].into_iter().filter(|_| folder != run);
    for place in inside {
        files::refuse_link(place).with_context(|| cannot_write(place))?;
    }
    let bytes = file.encode(&path)?;
    files::replace_file(&path, &bytes).with_context(|| cannot_write(&path))
}

fn print(folder: &Path, float: &Tally, int8: &Tally) -> anyhow::Result<()> {
    let bytes = |name: &str| -> anyhow::Result<u64> {
        let path = folder.join(name);
        Ok(fs::metadata(&path).with_context(|| format!("cannot read {}", path.display()))?.len())
    };
    let (of_float, of_int8) = (bytes(MODEL)?, bytes(INT8_FILE)?);
    for (name, tally, bytes) in [("float", float, of_float), ("int8", int8, of_int8)] {
        println!("{name:5}  {}  {bytes} bytes", shown(tally));
    }
    let ratio = of_float as f64 / of_int8.max(1) as f64;
    println!("{}: {ratio:.2} times smaller than the float weights", folder.join(INT8_FILE).display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::options::{Cli, Command, one_line};
    use crate::quant::WeightScheme;

    fn plan(options: &[&str]) -> Result<Option<PostTraining>, ConfigError> {
        let words = ["mpiburn", "quantize", "run"].iter().chain(options);
        let cli = Cli::try_parse_from(words).map_err(|error| ConfigError::Message(one_line(&error)))?;
        match cli.command {
            Command::Quantize(args) => post_training(&args),
            _ => unreachable!(),
        }
    }

    #[test]
    fn senseless_options_are_refused_by_name() {
        let scheme = WeightScheme::Channel;
        let expected = PostTraining { scheme, calibration: CALIBRATION };
        assert_eq!(plan(&[]), Ok(Some(expected)));
        for (options, expected) in [
            (&["--calibration", "0"][..], "--calibration 0: must be a whole number from 1"),
            (&["--kind", "dynamic"], "--kind dynamic: choose qat, ptq"),
            (&["--kind", "qat", "--calibration", "9"], "--calibration 9: requires --kind ptq"),
            (&["--kind", "qat", "--weight-scheme", "tensor"], "--weight-scheme tensor: "),
            (&["--weight-scheme", "row"], "--weight-scheme row: choose channel, tensor"),
        ] {
            let error = plan(options).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
