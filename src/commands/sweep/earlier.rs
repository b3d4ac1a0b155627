//! Finds out what an earlier start of a sweep left in the sweep's folder, so that complete runs are kept and
//! interrupted runs are resumed.

use std::path::Path;

use anyhow::bail;

use crate::commands::covered::differences;
use crate::options::{RunConfig, as_typed};
use launch::sweep::PlannedRun;
use run_record::checkpoint::list;
use run_record::{Change, RecordError, RunDir, Status};

/// The state in which an earlier start left a run.
pub enum Earlier {
    /// There is no run, or a run without a checkpoint. The run starts from the first step.
    Nothing,
    /// The run is complete. Contains the build that made it.
    Completed(String),
    /// The run was interrupted after a checkpoint, and can be resumed.
    Interrupted,
    /// The run cannot be read. It is not replaced, because it may be complete.
    Unreadable(RecordError),
}

/// Returns what an earlier start left of `run` in the folder `path`.
///
/// # Errors
/// If a complete or interrupted run has other options or another topology, or if an interrupted run is from
/// another build.
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
    let changes = differences(&old.fields(), &new.fields());
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
            "{} was started with other options ({}): remove it, or choose another --out",
            path.display(),
            other.join("; ")
        );
    }
    Ok(Earlier::Completed(record.git))
}

/// Warns if completed runs are from other builds: a table of their times would compare builds as well.
pub fn warn_of_other_builds(found: &[Earlier], folder: &Path) {
    let this = env!("MPIBURN_GIT");
    let of_another = |found: &Earlier| match found {
        Earlier::Completed(build) if build != this => Some(build.clone()),
        _ => None,
    };
    let mut others: Vec<String> = found.iter().filter_map(of_another).collect();
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
