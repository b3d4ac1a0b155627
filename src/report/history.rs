//! What a run wrote down of its epochs.

use super::runs::Run;
use crate::train::{EpochRow, overfits_after};

/// The lines of the run's `epochs.csv`; none where it is missing or damaged.
pub fn epochs(run: &Run) -> Vec<EpochRow> {
    let file = csv::Reader::from_path(run.path.join("epochs.csv"));
    let rows = file.ok().and_then(|mut reader| reader.deserialize().collect::<Result<Vec<_>, _>>().ok());
    rows.unwrap_or_default()
}

/// The epoch after which the run overfits ([`overfits_after`]).
pub fn turn(run: &Run) -> Option<usize> {
    overfits_after(&epochs(run))
}

/// The epochs after which repeats overfit, in words: one where they agree, `–`
/// for those that do not. None where none does.
pub fn turns(runs: &[&Run]) -> Option<String> {
    let turns: Vec<Option<usize>> = runs.iter().map(|run| turn(run)).collect();
    turns.iter().any(Option::is_some).then(|| {
        let alike = turns.iter().all(|turn| *turn == turns[0]);
        let shown = if alike { &turns[..1] } else { &turns[..] };
        let word = |turn: &Option<usize>| turn.map_or_else(|| "–".into(), |epoch| epoch.to_string());
        shown.iter().map(word).collect::<Vec<_>>().join(", ")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::{run, with_test_losses};

    #[test]
    fn repeats_that_agree_are_one_word() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name: &str, losses: &[f64]| {
            with_test_losses(run((1, 1), &[], 4.0), &folder.path().join(name), losses)
        };
        let up = of("up", &[2.0, 1.5, 1.6, 1.7]);
        let down = of("down", &[2.0, 1.5, 1.4, 1.3]);
        assert_eq!((turn(&up), turn(&down), epochs(&down).len()), (Some(2), None, 4));
        assert_eq!(turns(&[&up, &up]).as_deref(), Some("2"));
        assert_eq!(turns(&[&up, &down]).as_deref(), Some("2, –"));
        assert_eq!(turns(&[&down, &down]), None);
        assert!(epochs(&run((1, 1), &[], 4.0)).is_empty(), "it was never written");
    }
}
