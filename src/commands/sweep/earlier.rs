//! What a sweep's folder has from before.

use std::path::Path;

use anyhow::bail;

use crate::commands::covered::differences;
use crate::options::{RunConfig, as_typed};
use launch::sweep::PlannedRun;
use run_record::checkpoint::list;
use run_record::{Change, RecordError, RunDir, Status};

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
            "{} has other options ({}): remove it, or choose another folder with --out",
            path.display(),
            other.join("; ")
        );
    }
    Ok(Earlier::Completed(record.git))
}

/// A table with times of two builds compares the builds as well.
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
