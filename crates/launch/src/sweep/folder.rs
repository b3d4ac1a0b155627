//! The folder of a sweep: checks what an earlier sweep left in it, and composes lines about failed runs.

use std::path::Path;

use anyhow::{Context, bail};
use run_record::files::naming_file_above;
use run_record::{RunState, SweepRecord, SweepRun, count};

/// Checks that the sweep `now` may write to `folder`. A report of a folder shows only the runs of the last
/// sweep, so finished runs that `now` does not contain would disappear from reports. Prints a warning if only
/// some of the finished runs would disappear, or if they belong to an earlier version of the same sweep.
///
/// # Errors
/// If `folder` cannot be read, is a file or a run directory, or if all finished runs in it would disappear
/// from reports and belong to another sweep.
pub fn check_folder(folder: &Path, now: &SweepRecord) -> anyhow::Result<()> {
    let shown = folder.display();
    if folder.exists() && !folder.is_dir() {
        bail!("--out {shown}: is not a folder: choose another");
    }
    let is_run = folder.join("run.json").try_exists().map_err(|error| naming_file_above(folder, error));
    if is_run.with_context(|| format!("cannot read {shown}"))? {
        bail!("{shown} is a run directory: choose another folder with --out");
    }
    let before = match SweepRecord::read(folder) {
        Ok(before) => before,
        // The sweep `now` replaces a damaged record.
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
            "{shown} contains {} of the sweep {}, which reports would no longer show: choose another folder with --out",
            count(left.len(), "finished run"),
            before.name
        );
    }
    log::warn!(
        "reports no longer show {} in {shown}, because the sweep does not contain them: {}",
        count(left.len(), "finished run"),
        left.join(", ")
    );
    Ok(())
}

/// Returns one line about runs that all failed for the same reason, such as a missing data set.
pub fn failure_line(runs: &[&SweepRun]) -> String {
    let name = |index: usize| runs[index].name.as_str();
    let others = match runs.len() - 1 {
        0 => String::new(),
        1 => format!(" and {}", name(1)),
        more => format!(" and {more} others ({} to {})", name(1), name(more)),
    };
    format!("{}{others} failed: {}", name(0), runs[0].error.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_in_place_of_the_folder_is_named() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        std::fs::write(&file, "").unwrap();
        let now = SweepRecord::default();
        let expected = format!("{}: is not a folder", file.display());
        let error = format!("{:#}", check_folder(&file, &now).unwrap_err());
        assert!(error.starts_with("--out ") && error.contains(&expected), "{error}");
        let error = format!("{:#}", check_folder(&file.join("below"), &now).unwrap_err());
        assert!(error.contains(&format!("{} is not a folder", file.display())), "{error}");
        assert!(check_folder(&root.path().join("new"), &now).is_ok());
    }
}
