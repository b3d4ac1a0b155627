//! The epochs of a run: its history of losses, and overfitting.

use super::runs::Run;
use crate::files::open_regular;
use crate::train::{EpochRow, overfits_after};

/// The lines of the run's `epochs.csv`; none if it is missing or damaged.
pub fn epochs(run: &Run) -> Vec<EpochRow> {
    let file = open_regular(&run.path.join("epochs.csv"));
    let rows = file.map(csv::Reader::from_reader).ok();
    let rows = rows.and_then(|mut reader| reader.deserialize().collect::<Result<Vec<_>, _>>().ok());
    rows.unwrap_or_default()
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
    use crate::report::testing::{run, with_test_losses};

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
}
