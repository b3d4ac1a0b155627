//! What a sweep's folder has from before.

use std::path::Path;

use anyhow::{Context, bail};

use crate::commands::covered::differences;
use crate::options::{RunConfig, as_typed};
use launch::sweep::PlannedRun;
use run_record::checkpoint::list;
use run_record::{Change, RecordError, RunDir, RunState, Status, SweepRecord, count};

/// Checks that `folder` is no run's, and that no finished run in it is lost for the report, which shows
/// the runs of one sweep.
///
/// # Errors
/// If it is a run directory, or has runs of another sweep alone.
pub fn check_folder(folder: &Path, now: &SweepRecord) -> anyhow::Result<()> {
    let shown = folder.display();
    let file = folder.join("run.json");
    if file.try_exists().with_context(|| format!("cannot read {}", file.display()))? {
        bail!("{shown} is the directory of a run: choose another folder with --out");
    }
    let before = match SweepRecord::read(folder) {
        Ok(before) => before,
        // A damaged record is written anew.
        Err(error) if error.is_damage() => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let planned = |name: &str| now.runs.iter().any(|run| run.name == name);
    let finished: Vec<&str> = before
        .runs
        .iter()
        .filter(|run| run.state == RunState::Completed && folder.join(&run.name).is_dir())
        .map(|run| run.name.as_str())
        .collect();
    let left: Vec<&str> = finished.iter().copied().filter(|name| !planned(name)).collect();
    if left.is_empty() {
        return Ok(());
    }
    if left.len() == finished.len() && before.name != now.name {
        bail!(
            "{shown} has {} of the sweep {}, which its report would no longer show: choose another folder with --out",
            count(left.len(), "finished run"),
            before.name
        );
    }
    log::warn!(
        "{} in {shown} are no longer in the sweep, and not in its report: {}",
        count(left.len(), "finished run"),
        left.join(", ")
    );
    Ok(())
}

/// What there is of a planned run.
pub enum Earlier {
    /// Nothing, or a run without a checkpoint: it begins anew.
    Nothing,
    /// It is complete. The build.
    Completed(String),
    /// It was interrupted after a checkpoint, and goes on.
    Interrupted,
    /// It cannot be read, and is not replaced: it may be complete.
    Unreadable(RecordError),
}

/// What there is of `run` in the folder `path`.
///
/// # Errors
/// If a run with checkpoints has other options or, if it is not complete, another build.
pub fn earlier(path: &Path, run: &PlannedRun, config: &RunConfig) -> anyhow::Result<Earlier> {
    let record = match RunDir::open::<RunConfig>(path) {
        Ok((_, record)) => record,
        Err(error) if error.is_missing() && !path.join("run.json").is_symlink() => {
            return Ok(Earlier::Nothing);
        }
        Err(error) => {
            let is_damage = error.is_damage();
            let error = if is_damage { RecordError::NotReplaced(path.join("run.json")) } else { error };
            return Ok(Earlier::Unreadable(error));
        }
    };
    let (mut old, mut new) = (record.config.clone(), config.clone());
    for config in [&mut old, &mut new] {
        config.data.clip([record.data.train_available, record.data.test_available]);
    }
    let changes = differences(&serde_json::to_value(old)?, &serde_json::to_value(new)?);
    let shown = |Change { field, from, to }: &Change| {
        format!("{} {}, now {}", field.replace('_', "-"), as_typed(from), as_typed(to))
    };
    let mut other: Vec<String> = changes.iter().map(shown).collect();
    if record.topology != run.topology.to_string() {
        other.push(format!("topology {}, now {}", record.topology, run.topology));
    }
    if record.status != Status::Completed {
        match list(&path.join("checkpoints")) {
            Err(error) => return Ok(Earlier::Unreadable(error)),
            Ok(found) if found.is_empty() => return Ok(Earlier::Nothing),
            Ok(_) => {}
        }
        if record.git != env!("MPIBURN_GIT") {
            other.push(format!("build {}, now {}", record.git, env!("MPIBURN_GIT")));
        }
        if other.is_empty() {
            return Ok(Earlier::Interrupted);
        }
    }
    if !other.is_empty() {
        bail!(
            "{} has other options ({}): remove it, or choose another folder with --out",
            path.display(),
            other.join("; ")
        );
    }
    Ok(Earlier::Completed(record.git))
}

/// A table with times of two builds compares the builds as well.
pub fn warn_of_other_builds(builds: &[String], folder: &Path) {
    let this = env!("MPIBURN_GIT");
    let mut others: Vec<&str> = builds.iter().map(String::as_str).filter(|build| *build != this).collect();
    let count = others.len();
    others.sort_unstable();
    others.dedup();
    if count > 0 {
        log::warn!(
            "{count} of the kept runs are from another build ({}; this is {this}): remove {} to repeat all runs",
            others.join(", "),
            folder.display()
        );
    }
}
