//! Options of a run that a resume changed: its settings are those of its last part.

use serde_json::Value;

use super::rows::Row;
use super::runs::Run;
use run_record::Change;

/// The mark of rows with such runs, with a number if there are several changes.
pub const MARK: &str = "ᵈ";
const DIGITS: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];

/// Fields that have no effect on results.
const WITHOUT_EFFECT: [&str; 4] = ["checkpoint_every", "comm_timeout", "keep", "log_every"];

/// A line for each change, in order: the option, from which step and epoch, and its values.
pub fn changes(run: &Run) -> Vec<String> {
    changed(run).iter().map(|(step, change)| line(run, *step, change)).collect()
}

/// The changes that affect results, as a setting that distinguishes runs; `None` without any.
pub fn setting(run: &Run) -> Option<String> {
    let changes = changed(run);
    let with_effect = changes.iter().filter(|(_, change)| !WITHOUT_EFFECT.contains(&change.field.as_str()));
    let lines: Vec<String> = with_effect.map(|(step, change)| line(run, *step, change)).collect();
    (!lines.is_empty()).then(|| lines.join(", "))
}

/// The changes of all runs of a row, each once.
pub fn of_row(row: &Row<'_>) -> Vec<String> {
    let mut lines: Vec<String> = row.runs.iter().flat_map(|run| changes(run)).collect();
    lines.dedup();
    lines
}

/// One change of an option in the runs of a table, from which step it may be in each.
struct Note {
    change: String,
    /// Its rows by where the change was.
    rows: Vec<(String, Vec<usize>)>,
}

/// The changes in the runs of a table, in the order of its rows.
pub struct Notes(Vec<Note>);

impl Notes {
    /// Those of `rows`.
    pub fn of(rows: &[Row<'_>]) -> Self {
        let mut notes: Vec<Note> = Vec::new();
        for (number, row) in rows.iter().enumerate() {
            let all =
                row.runs.iter().flat_map(|run| changed(run).into_iter().map(move |change| (run, change)));
            for (run, (step, change)) in all {
                let (option, place) = (option(&change), place(run, step));
                let at = notes.iter().position(|note| note.change == option).unwrap_or_else(|| {
                    notes.push(Note { change: option, rows: Vec::new() });
                    notes.len() - 1
                });
                let places = &mut notes[at].rows;
                match places.iter_mut().find(|(known, _)| *known == place) {
                    Some((_, numbers)) if numbers.contains(&number) => {}
                    Some((_, numbers)) => numbers.push(number),
                    None => places.push((place, vec![number])),
                }
            }
        }
        Self(notes)
    }

    /// The marks of a row, by its number.
    pub fn marks(&self, row: usize) -> String {
        let has = |note: &(usize, &Note)| note.1.rows.iter().any(|(_, numbers)| numbers.contains(&row));
        self.0.iter().enumerate().filter(has).map(|(index, _)| self.mark(index)).collect()
    }

    /// The footnotes below a table, one for each change, with the names of its rows.
    pub fn footnotes(&self, names: &[String]) -> Vec<String> {
        let line = |(index, note): (usize, &Note)| {
            let of_place = |(place, numbers): &(String, Vec<usize>)| {
                let names: Vec<&str> = numbers.iter().map(|&number| names[number].as_str()).collect();
                format!("{place} in {}", names.join(", "))
            };
            let places: Vec<String> = note.rows.iter().map(of_place).collect();
            format!(
                "{} Resumed with {}, {}; the columns have the last value.",
                self.mark(index),
                note.change,
                places.join(", ")
            )
        };
        self.0.iter().enumerate().map(line).collect()
    }

    fn mark(&self, index: usize) -> String {
        match self.0.len() {
            1 => MARK.to_owned(),
            _ => {
                let number = (index + 1).to_string();
                MARK.chars().chain(number.bytes().map(|byte| DIGITS[usize::from(byte - b'0')])).collect()
            }
        }
    }
}

/// The changes, each with the number of steps before it. Several of an option at one step are one: no
/// step was made between them, as after an attempt that failed at once.
fn changed(run: &Run) -> Vec<(usize, Change)> {
    let mut changes: Vec<(usize, Change)> = Vec::new();
    for attempt in &run.record.history {
        for change in &attempt.changed {
            let at_once =
                |known: &&mut (usize, Change)| known.0 == attempt.step && known.1.field == change.field;
            match changes.iter_mut().find(at_once) {
                Some((_, known)) => known.to = change.to.clone(),
                None => changes.push((attempt.step, change.clone())),
            }
        }
    }
    changes.retain(|(_, change)| change.from != change.to);
    changes
}

fn line(run: &Run, step: usize, change: &Change) -> String {
    format!("{} {}", option(change), place(run, step))
}

fn option(change: &Change) -> String {
    let line =
        format!("--{} {} → {}", change.field.replace('_', "-"), shown(&change.from), shown(&change.to));
    line.replace(char::is_control, " ")
}

/// Where the steps after `step` begin.
fn place(run: &Run, step: usize) -> String {
    let epochs = run.results.epochs_run.unwrap_or_else(|| run.epochs_done());
    let steps = run.results.steps.checked_div(epochs).filter(|steps| *steps > 0);
    let epoch = steps.map_or_else(String::new, |steps| format!(" (epoch {})", step / steps + 1));
    format!("from step {}{epoch}", step + 1)
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "none".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::group;
    use crate::runs::Section;
    use crate::summary::summary;
    use crate::testing::run;
    use run_record::Attempt;

    fn resumed(mut run: Run, step: usize, field: &str, [from, to]: [Value; 2]) -> Run {
        let changed = vec![Change { field: field.into(), from, to }];
        run.record.history.push(Attempt { started_at: String::new(), step, changed });
        run
    }

    #[test]
    fn a_resumed_run_with_another_rate_is_no_repeat_and_has_a_footnote() {
        let rates = || [0.001.into(), 0.0001.into()];
        let plain = || run((1, 2), &["--lr", "1e-4"], 8.0);
        let runs = [plain(), resumed(plain(), 1876, "lr", rates()), run((1, 1), &["--lr", "1e-4"], 9.0)];
        let rows = group(&runs);
        assert_eq!(rows.len(), 3);
        let sheet = summary(&Section { runs: Vec::new(), ..Section::default() }, &rows, "1x1");
        let note = sheet.remarks.iter().find(|remark| remark.starts_with(MARK)).unwrap();
        let expected = "ᵈ Resumed with --lr 0.001 → 0.0001, from step 1877 (epoch 3) in 1x2 mpi; the columns have \
             the last value.";
        assert_eq!(note, expected);
        let marked = sheet.rows.iter().filter(|row| row.iter().any(|cell| cell.marks.contains(MARK))).count();
        assert_eq!(marked, 1);
        assert!(sheet.csv().unwrap().contains("--lr 0.001 → 0.0001 from step 1877"), "programs read it too");
        let without = summary(&Section::default(), &group(&runs[..1]), "1x1");
        assert!(without.columns.iter().all(|column| column.key != "changed"));
    }

    #[test]
    fn each_change_has_one_footnote_that_names_its_rows() {
        let rates = || [0.001.into(), 0.0001.into()];
        let on = |topology, step| resumed(run(topology, &["--lr", "1e-4"], 8.0), step, "lr", rates());
        let gloo = run((1, 2), &["--lr", "1e-4", "--backend", "gloo"], 8.0);
        let decay = [0.0005.into(), 0.into()];
        let runs = [
            on((1, 1), 3750),
            on((1, 2), 1876),
            resumed(resumed(gloo, 1876, "lr", rates()), 2000, "weight_decay", decay),
            run((2, 2), &["--lr", "1e-4"], 4.0),
        ];
        let rows = group(&runs);
        let sheet = summary(&Section::default(), &rows, "1x1");
        let notes: Vec<&String> = sheet.remarks.iter().filter(|remark| remark.starts_with(MARK)).collect();
        assert_eq!(
            notes,
            [
                "ᵈ¹ Resumed with --lr 0.001 → 0.0001, from step 3751 (epoch 3) in 1x1 mpi, from step 1877 \
                 (epoch 3) in 1x2 gloo, 1x2 mpi; the columns have the last value.",
                "ᵈ² Resumed with --weight-decay 0.0005 → 0, from step 2001 (epoch 3) in 1x2 gloo; the \
                 columns have the last value.",
            ]
        );
        let marks: Vec<&str> = sheet
            .rows
            .iter()
            .map(|row| {
                row.iter().map(|cell| cell.marks.as_str()).find(|marks| !marks.is_empty()).unwrap_or("")
            })
            .collect();
        assert_eq!(marks, ["ᵈ¹", "ᵈ¹ᵈ²", "ᵈ¹", ""]);
    }

    #[test]
    fn a_value_without_a_step_is_no_change() {
        let to = |run: Run, values: [f64; 2]| resumed(run, 96, "lr", values.map(Value::from));
        let tried = to(to(run((1, 1), &[], 8.0), [0.001, 1e30]), [1e30, 0.0005]);
        assert_eq!(changes(&tried), ["--lr 0.001 → 0.0005 from step 97 (epoch 1)"]);
        let back = to(to(run((1, 1), &[], 8.0), [0.001, 1e30]), [1e30, 0.001]);
        assert_eq!((changes(&back), setting(&back)), (vec![], None));
    }

    #[test]
    fn options_without_effect_leave_repeats_repeats() {
        let runs =
            [run((1, 1), &[], 8.0), resumed(run((1, 1), &[], 8.0), 5625, "keep", [Value::Null, 3.into()])];
        let rows = group(&runs);
        assert_eq!(rows.len(), 1);
        let notes = Notes::of(&rows).footnotes(&["1x1 mpi".to_owned()]);
        assert!(notes[0].contains("--keep none → 3, from step 5626"), "{notes:?}");
    }
}
