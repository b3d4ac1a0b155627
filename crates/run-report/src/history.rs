//! The epochs of a run: its history of losses, and overfitting.

use std::path::Path;

use super::csv_table::{Table, TableRow, damaged};
use super::runs::Run;
use run_record::Results;
use run_record::files::open_regular;
use run_record::{EpochRow, overfits_after};

impl TableRow for EpochRow {
    const REPAIR: &'static str = "the run is left out: put the file back, or run it again";

    fn problem(&self, before: &[Self]) -> Option<(&'static str, String)> {
        let next = before.len() + 1;
        (self.epoch != next).then(|| ("epoch", format!("{} where {next} is next", self.epoch)))
    }
}

/// Checks the results in `run.json` of the run in `folder`, and its `epochs.csv`, against each other:
/// somebody may have edited them. A file that was removed is none.
///
/// # Errors
/// One line: the file, the value and what to do.
pub fn check(folder: &Path, results: &Results, epochs_done: usize) -> Result<(), String> {
    let json = folder.join("run.json");
    let wrong = |problem: String| damaged::<EpochRow>(&json, &problem);
    let file = folder.join("epochs.csv");
    let rows = match Table::<EpochRow>::read(&file) {
        Table::Rows(rows) => rows,
        Table::Damaged(line) => return Err(line),
        Table::Another if file.symlink_metadata().is_err() => return Ok(()),
        Table::Another => {
            let unread = open_regular(&file).err().map(|error| error.to_string());
            return Err(damaged::<EpochRow>(&file, unread.as_deref().unwrap_or("it has other columns")));
        }
    };
    let Some(last) = rows.last().filter(|last| last.epoch == epochs_done) else {
        let problem = format!("it ends after epoch {} of {epochs_done}", rows.len());
        return Err(damaged::<EpochRow>(&file, &problem));
    };
    if let Some(epochs) = results.epochs_run.filter(|&epochs| epochs != rows.len()) {
        return Err(wrong(format!("epochs_run is {epochs}, and epochs.csv has {} lines", rows.len())));
    }
    for (name, result, of_epoch) in [
        ("train_loss", Some(results.train_loss), Some(last.train_loss)),
        ("train_accuracy", Some(results.train_accuracy), Some(last.train_accuracy)),
        ("test_loss", Some(results.test_loss), Some(last.test_loss)),
        ("test_accuracy", Some(results.test_accuracy), Some(last.test_accuracy)),
        ("int8_test_loss", results.int8_test_loss, last.int8_test_loss),
        ("int8_test_accuracy", results.int8_test_accuracy, last.int8_test_accuracy),
    ] {
        // Only a run with an integer model has all of them.
        let (Some(result), Some(of_epoch)) = (result, of_epoch) else { continue };
        if (result - of_epoch).abs() > 1e-6 * of_epoch.abs().max(1.0) {
            return Err(wrong(format!("{name} is {result}, and {of_epoch} in the last line of epochs.csv")));
        }
    }
    Ok(())
}

/// The lines of the run's `epochs.csv`; none if it is missing or damaged.
pub fn epochs(run: &Run) -> Vec<EpochRow> {
    Table::read(&run.path.join("epochs.csv")).rows().unwrap_or_default()
}

/// The epoch after which the run overfits ([`overfits_after`]).
pub fn overfitting_epoch(run: &Run) -> Option<usize> {
    overfits_after(&epochs(run))
}

/// The epochs after which repeats overfit: one number if they agree, else one for
/// each repeat, with `–` for those that do not overfit. None if none does.
pub fn overfitting_epochs(runs: &[&Run]) -> Option<String> {
    let epochs: Vec<Option<usize>> = runs.iter().map(|run| overfitting_epoch(run)).collect();
    epochs.iter().any(Option::is_some).then(|| {
        let equal = epochs.iter().all(|epoch| *epoch == epochs[0]);
        let shown = if equal { &epochs[..1] } else { &epochs[..] };
        let word = |epoch: &Option<usize>| epoch.map_or_else(|| "–".into(), |epoch| epoch.to_string());
        shown.iter().map(word).collect::<Vec<_>>().join(", ")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{run, with_test_losses};

    #[test]
    fn repeats_that_agree_are_one_number() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name: &str, losses: &[f64]| {
            with_test_losses(run((1, 1), &[], 4.0), &folder.path().join(name), losses)
        };
        let up = of("up", &[2.0, 1.5, 1.6, 1.7]);
        let down = of("down", &[2.0, 1.5, 1.4, 1.3]);
        assert_eq!(
            (overfitting_epoch(&up), overfitting_epoch(&down), epochs(&down).len()),
            (Some(2), None, 4)
        );
        assert_eq!(overfitting_epochs(&[&up, &up]).as_deref(), Some("2"));
        assert_eq!(overfitting_epochs(&[&up, &down]).as_deref(), Some("2, –"));
        assert_eq!(overfitting_epochs(&[&down, &down]), None);
        assert!(epochs(&run((1, 1), &[], 4.0)).is_empty(), "the file does not exist");
    }

    #[test]
    fn edited_results_are_named_with_the_file_and_the_value() {
        let folder = tempfile::tempdir().unwrap();
        let mut run = with_test_losses(run((1, 1), &[], 4.0), folder.path(), &[2.0, 1.5, 1.25]);
        let results = &mut run.results;
        (results.train_loss, results.train_accuracy) = (1.0 / 3.0, 50.0);
        (results.test_loss, results.test_accuracy) = (1.25, 50.0);
        let file = folder.path().join("epochs.csv");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replace(",,\n", ",60,1.5\n")).unwrap();
        let found = |edit: fn(&mut Results), epochs| {
            let mut results = run.results.clone();
            edit(&mut results);
            check(folder.path(), &results, epochs).err().unwrap_or_default()
        };
        assert_eq!(found(|_| {}, 3), "");
        for (edit, expected) in [
            (
                (|r| r.test_accuracy = 99.0) as fn(&mut Results),
                "run.json: damaged (test_accuracy is 99, and 50 in",
            ),
            (|r| r.int8_test_accuracy = Some(99.0), "(int8_test_accuracy is 99, and 60 in"),
            (|r| r.int8_test_loss = Some(9.0), "(int8_test_loss is 9, and 1.5 in"),
            (|r| r.epochs_run = Some(7), "run.json: damaged (epochs_run is 7, and epochs.csv has 3 lines)"),
        ] {
            let line = found(edit, 3);
            assert!(line.contains(expected) && line.ends_with("run it again"), "{line}");
        }
        assert!(found(|_| {}, 4).contains("epochs.csv: damaged (it ends after epoch 3 of 4)"));
        std::fs::write(folder.path().join("epochs.csv"), "\0\0\0").unwrap();
        assert!(found(|_| {}, 3).contains("epochs.csv: damaged (it has other columns)"));
        std::fs::remove_file(folder.path().join("epochs.csv")).unwrap();
        assert_eq!(found(|_| {}, 3), "", "a removed file is none");
    }
}
