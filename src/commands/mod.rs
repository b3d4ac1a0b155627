//! The subcommands of `mpiburn`, one file each. They combine the other modules of the program, and add
//! context to the errors of those modules.

mod bench;
mod brightness;
mod checkpoint;
mod covered;
mod data;
mod eval;
mod export;
mod gpu;
mod launch;
pub mod logging;
mod memory;
mod outcome;
mod outputs;
mod predict;
mod profile;
mod progress;
mod quantize;
mod run;
mod standard_input;
pub mod start;
mod subject;
mod sweep;
#[cfg(test)]
mod sweep_tests;
mod trace;
mod train;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use crate::device::DeviceKind;
use crate::model::ModelKind;
use crate::options::{BenchArgs, BenchKind, Command, ConfigError, RunConfig, Words};
use crate::train::MixedPrecision;
use ::data::{Description, SampleSource, Split};
use burn_fused::precision::{Bf16Products, bf16_products, limit_bf16_products};
use burn_mpi::World;
use run::InUse;
pub use run::{CommandError, Ending, Refused, print_error, run, run_as_rank, usage};

/// Sets the deadline of collectives, the delay of stall warnings, and the option that errors name for the
/// deadline. Must be called before MPI starts, so that all three also apply to the start of MPI.
pub fn set_deadline(command: &Command) {
    let (config, stall) = match command {
        Command::Train(args) => (&args.config, &args.stall),
        Command::Profile(args) => (&args.config, &args.stall),
        Command::Bench(BenchArgs { kind: BenchKind::Step(args) }) => (&args.config, &args.stall),
        _ => return burn_mpi::name_deadline("fixed"),
    };
    burn_mpi::name_deadline("--comm-timeout");
    burn_mpi::set_deadline(config.communication.timeout());
    burn_mpi::set_stall_warning(Duration::from_secs_f64(stall.stall_warning));
}

/// Makes all ranks compute matrix products in bf16 with the slowest method that any rank uses. Methods round
/// differently, so all ranks need the same method.
///
/// Also warns on the device flex if 16-bit values save memory but no time. A processor with AVX-512 but
/// without AMX computes only linear layers in bf16: 2% of vgg's products. There is no warning for libtorch,
/// which chooses its methods itself.
fn agree_on_products(world: &World, config: &RunConfig) -> anyhow::Result<()> {
    let ranks: Vec<u8> = world.gather(&(bf16_products() as u8))?;
    let least =
        ranks.into_iter().min().map_or(Bf16Products::Widened, |least| Bf16Products::ALL[usize::from(least)]);
    limit_bf16_products(least);
    if !world.is_root() || config.device != DeviceKind::Flex {
        return Ok(());
    }
    match config.precision {
        MixedPrecision::Bf16 if least == Bf16Products::Widened => log::warn!(
            "--precision bf16: some rank's processor lacks bf16 instructions, so values are rounded to bf16 and \
             products run in f32"
        ),
        MixedPrecision::Bf16 if least == Bf16Products::Avx512 && config.model == ModelKind::Vgg => {
            log::warn!(
                "--precision bf16: some rank's processor lacks AMX, so convolutions round values to bf16 and compute in \
                 f32: this saves memory, but no time"
            )
        }
        MixedPrecision::Fp16 => log::warn!(
            "--precision fp16: processors do not compute in f16, so values are rounded to f16 and products run in f32; \
             timings are not representative of f16 hardware"
        ),
        _ => {}
    }
    Ok(())
}

/// Prepares this rank for `config`: deadline, GPU, algorithm of convolutions, threads.
fn set_up(world: &World, config: &RunConfig) -> anyhow::Result<()> {
    world.set_deadline(config.communication.timeout());
    gpu::choose(world, config.device)?;
    config.conv.use_algorithm();
    use_threads(config.threads.get())
}

/// Makes operators of this rank run on `threads` threads.
fn use_threads(threads: usize) -> anyhow::Result<()> {
    // In tests, a rank is a thread that may run several commands, so it may have its threads already.
    if rayon::current_thread_index().is_none() {
        burn_fused::use_threads(threads)?;
    }
    Ok(())
}

/// Opens the data set in `root` on every rank, and checks that all ranks have the same description of it.
/// Checks of options against the data set then have the same result on all ranks.
fn open_data(world: &World, root: &Path) -> anyhow::Result<SampleSource> {
    let source = world.agree(::data::open(root))?;
    let data = source.description();
    let [train, test] = Split::ALL.map(|split| source.len(split));
    let Description { shape: [channels, height, width], classes, .. } = data;
    // A digest stands for the class names and the normalisation, which may be long.
    let others = data.digest("");
    world.check_equal(
        "the data set",
        &format!(
            "{channels}x{height}x{width} in {classes} classes, {train} training and {test} test samples, names and \
             normalisation {}",
            &others[..12]
        ),
    )?;
    Ok(source)
}

/// Does `work` on rank 0 only, because run directories are on rank 0's disk. Returns the result of `work` on
/// rank 0, and `None` on the other ranks.
///
/// # Errors
/// Every rank returns rank 0's error, as [`Refused`] if the user caused it.
fn on_root<T>(world: &World, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<Option<T>> {
    if world.size() == 1 {
        return work().map(Some);
    }
    let mine = world.is_root().then(work).transpose();
    let is_refusal = |error: &&anyhow::Error| run::is_refusal(error);
    let refusal = mine.as_ref().err().filter(is_refusal).map(|error| format!("{error:#}"));
    match world.broadcast(&refusal)? {
        Some(reason) => Err(Refused(reason).into()),
        None => {
            let is_in_use = mine.as_ref().is_err_and(run::is_in_use);
            let agreed = world.agree(mine.map_err(|error| format!("{error:#}")));
            agreed.map_err(|error| if is_in_use { InUse(error).into() } else { error.into() })
        }
    }
}

/// Returns the name of this program for commands that the user can copy: the path as typed, or `mpiburn` if
/// the shell found the program on the `PATH`.
fn program() -> String {
    as_started(std::env::args_os().next())
}

fn as_started(first: Option<OsString>) -> String {
    let path = first.filter(|word| word.as_bytes().contains(&b'/'));
    path.map_or_else(|| "mpiburn".to_owned(), |path| path.to_string_lossy().into_owned())
}

/// Warns of `typed` options that have no effect. `does` describes the command in the warning.
fn warn_of_ignored(world: &World, does: &str, typed: &Words, is_ignored: impl Fn(&str) -> bool) {
    let ignored = typed.0.keys().filter(|option| is_ignored(option));
    let options: Vec<String> = ignored.map(|option| format!("--{option}")).collect();
    if world.is_root() && !options.is_empty() {
        let have = if options.len() == 1 { "this option has" } else { "these options have" };
        log::warn!("{does}; {have} no effect: {}", options.join(", "));
    }
}

/// Rejects batch sizes above 65,536. Commands with random samples keep several batches in memory, and larger
/// batches might not fit.
fn check_random_batch(config: &RunConfig) -> Result<(), ConfigError> {
    const LARGEST: usize = 65_536;
    let size = config.data.train_batch_size.get();
    if size > LARGEST {
        let problem = format!("must be at most {LARGEST}, because random batches are kept in memory");
        return Err(ConfigError::new("train-batch-size", size, problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_started_by_a_path_is_named_by_it() {
        for (started, expected) in [
            (Some("target/release/mpiburn"), "target/release/mpiburn"),
            (Some("./mpiburn"), "./mpiburn"),
            (Some("/opt/my tools/mpiburn"), "/opt/my tools/mpiburn"),
            (Some("mpiburn"), "mpiburn"),
            (None, "mpiburn"),
        ] {
            assert_eq!(as_started(started.map(OsString::from)), expected, "{started:?}");
        }
    }
}
