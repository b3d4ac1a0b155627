//! Options of `mpiburn launch` and `mpiburn sweep`.

use std::path::{Path, PathBuf};

use clap::Args;

use super::ConfigError;
use crate::values::range;
use launch::{LauncherKind, Topology};

#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "\
Examples:
  mpiburn launch 1x2 -- train --epochs 1
  mpiburn launch 2x2 --hostfile lab.hosts -- train --backend gloo
  mpiburn launch 2x2 --restart 3 -- train --epochs 100 --out results/long
  mpiburn launch 4x2 --restart 3 --shrink -- train --resume results/long
  mpiburn launch 2x1 --dry-run -- bench allreduce   # prints the command line

After SIGTERM, SIGUSR1, SIGUSR2, SIGQUIT, SIGINT (Ctrl-C) or SIGHUP (the terminal was closed), launch asks the ranks to \
stop. The ranks of train then write a checkpoint and exit with code 75. A second signal ends the job at once.

launch exits with the code of mpirun or srun: 0 after success, 2 after an invalid option or value, 75 after a stop with \
a checkpoint. With Open MPI, launch exits with 1 after SIGTERM or Ctrl-C, even if the checkpoint is complete.

--restart N starts a failed job again from its last checkpoint. launch gives up, and exits with the code of the last \
attempt, if
  - all N restarts are used up, or launch received a signal
  - the code is 2 (invalid option or value), 126 or 127 (cannot run the program)
  - two attempts in a row fail at the same step, without a new checkpoint
  - three attempts in a row do not reach their first step
  - DIR had an older run, and the command is train --out without --overwrite
  - another process writes to DIR, or launch cannot read DIR
  - all checkpoints in DIR are damaged
DIR must be visible on this machine. DIR/run.json lists the failed attempts."
)]
pub struct LaunchArgs {
    /// Machines x processes per machine: 1x1, 1x2, 2x1, 2x2, ...
    pub topology: Topology,
    #[command(flatten)]
    pub how: HowArgs,
    /// Host file with one machine per line, such as `alpha slots=2` [default: hostfiles/local/TOPOLOGY if it
    /// exists, otherwise hostfiles/TOPOLOGY].
    #[arg(long, value_name = "FILE")]
    pub hostfile: Option<PathBuf>,
    /// Launcher of the ranks.
    #[arg(long, value_enum, default_value = "mpirun")]
    pub launcher: LauncherKind,
    /// Start a failed `train --out DIR` or `train --resume DIR` again from its last checkpoint, up to N
    /// times.
    #[arg(long, value_name = "N", value_parser = range::<u32>(1, 1000))]
    pub restart: Option<u32>,
    /// With --restart and a host file: leave out the machines that do not answer any more, and go on with the
    /// ranks that are left.
    ///
    /// This applies to each attempt that resumes a run, also to a first one with train --resume. The samples of
    /// a step stay the same, see train --reshard. If the number of ranks that are left does not divide the
    /// batch of all ranks, fewer ranks take part. A machine that answers again takes part in the attempt after
    /// it. DIR must be visible on the machines that are left, because rank 0 writes it.
    #[arg(long)]
    pub shrink: bool,
    /// Print the command line and exit.
    #[arg(long)]
    pub dry_run: bool,
    /// A subcommand of mpiburn with its options; `--` may precede it. The -q or -v of launch also applies to
    /// the subcommand, unless the subcommand has its own.
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub program: Vec<String>,
}

/// Options that replace a launcher by a script.
#[derive(Debug, Clone, Args)]
pub struct HowArgs {
    /// Start the ranks with SCRIPT instead of mpirun, as `SCRIPT NxC PROGRAM ARGS...`.
    #[arg(long, value_name = "SCRIPT")]
    pub mpirun_by: Option<PathBuf>,
    /// Start the ranks with SCRIPT instead of srun, as `SCRIPT NxC PROGRAM ARGS...`.
    #[arg(long, value_name = "SCRIPT")]
    pub srun_by: Option<PathBuf>,
}

impl HowArgs {
    /// Rejects a script for a launcher that the job does not use. Accepts it beside a script for the job's
    /// launcher, because make passes both scripts.
    ///
    /// # Errors
    /// Names the option that has no effect.
    pub fn check(&self, launcher: LauncherKind) -> Result<(), ConfigError> {
        let other = match launcher {
            _ if self.script(launcher).is_some() => None,
            LauncherKind::Mpirun => self.srun_by.as_ref().map(|by| ("srun-by", by, "srun")),
            LauncherKind::Srun => self.mpirun_by.as_ref().map(|by| ("mpirun-by", by, "mpirun")),
            LauncherKind::Alone => None,
        };
        other.map_or(Ok(()), |(option, by, launcher)| {
            Err(ConfigError::new(option, by.display(), format!("requires --launcher {launcher}")))
        })
    }

    /// Returns the script that replaces `launcher`; `None` if there is none.
    pub fn script(&self, launcher: LauncherKind) -> Option<PathBuf> {
        match launcher {
            LauncherKind::Mpirun => self.mpirun_by.clone(),
            LauncherKind::Srun => self.srun_by.clone(),
            LauncherKind::Alone => None,
        }
    }
}

/// Returns the path `text`. If `text` has no folder and is not an existing file, but `jobs/sweeps/TEXT.toml`
/// exists, returns the path of that sweep.
fn sweep_file(text: &str) -> Result<PathBuf, String> {
    let file = PathBuf::from(text);
    let named = Path::new("jobs/sweeps").join(text).with_extension("toml");
    Ok(if !text.contains('/') && !file.is_file() && named.exists() { named } else { file })
}

#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "\
Examples:
  mpiburn sweep jobs/sweeps/topologies.toml
  mpiburn sweep topologies --scale quick --only 1x2
  mpiburn sweep jobs/sweeps/topologies.toml -- --data-root /data/mnist

Completed runs are skipped, so the same command continues after Ctrl-C or a failure."
)]
pub struct SweepArgs {
    /// Sweep file: a title, the options of all runs, and the options that vary. A name without a folder may
    /// also be the name of a file in jobs/sweeps.
    #[arg(value_name = "FILE.toml", value_parser = sweep_file)]
    pub file: PathBuf,
    /// Size of the runs: `full`, or a smaller scale that has a section in the file, such as `quick`.
    #[arg(long, value_name = "NAME", default_value = "full")]
    pub scale: String,
    /// Folder of the runs [default: results/NAME for the file NAME.toml, or results/NAME-SCALE for a scale
    /// other than full].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Start only the runs whose name contains TEXT.
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Folder of the host files, one for each topology. Files in its folder `local` take precedence.
    #[arg(long, value_name = "DIR", default_value = "hostfiles")]
    pub hostfiles: PathBuf,
    #[command(flatten)]
    pub how: HowArgs,
    /// Print the command lines and exit.
    #[arg(long)]
    pub dry_run: bool,
    /// Options for every run, after `--`. They override the options under base in the file. Options that the
    /// file varies are rejected.
    #[arg(last = true, value_name = "OPTIONS")]
    pub options: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_of_another_launcher_is_rejected_unless_the_own_one_has_one_too() {
        let how = |mpirun: Option<&str>, srun: Option<&str>| HowArgs {
            mpirun_by: mpirun.map(Into::into),
            srun_by: srun.map(Into::into),
        };
        let problem = |how: HowArgs, launcher| how.check(launcher).err().map(|error| error.to_string());
        assert_eq!(
            problem(how(None, Some("s.sh")), LauncherKind::Mpirun).unwrap(),
            "--srun-by s.sh: requires --launcher srun"
        );
        assert_eq!(
            problem(how(Some("m.sh"), None), LauncherKind::Srun).unwrap(),
            "--mpirun-by m.sh: requires --launcher mpirun"
        );
        for launcher in [LauncherKind::Mpirun, LauncherKind::Srun] {
            assert_eq!(problem(how(Some("m.sh"), Some("s.sh")), launcher), None);
        }
    }
}
