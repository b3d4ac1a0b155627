//! Expands a sweep file to its runs, in the order of execution.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::bail;
use clap::ValueEnum;
use toml::{Table, Value};

use super::SweepFile;
use crate::launch::{LauncherKind, Topology};

/// Most repeats of a run, and most runs with their repeats: a list beyond these is a slip, and fills
/// memory.
const REPEATS: usize = 1000;
const RUNS: usize = 10_000;

/// A planned run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedRun {
    /// Name of its directory, such as `2x1-gloo-2`.
    pub name: String,
    /// Number of the repeat, from 1.
    pub repeat: usize,
    /// Machines x processes per machine.
    pub topology: Topology,
    /// How it is started.
    pub launcher: LauncherKind,
    /// Options of the training, by name.
    pub options: Vec<(String, Option<String>)>,
    /// Options in which it differs from other runs, by name.
    pub varied: BTreeMap<String, String>,
}

/// The runs of `file` at `scale`. Repeats are interleaved: the second repeat of every
/// run follows the first of all, so that a slowdown of the machine affects all runs
/// alike.
///
/// # Errors
/// When a value is invalid or the scale does not exist.
pub fn plan(file: &SweepFile, scale: &str) -> anyhow::Result<Vec<PlannedRun>> {
    let (base, repeats) = base_of(file, scale)?;
    let mut variants = combinations(file)?;
    variants.extend(file.runs.iter().cloned());
    if variants.is_empty() {
        variants.push(Table::new());
    }
    let runs: Vec<PlannedRun> =
        variants.iter().map(|variant| planned(file, &base, variant)).collect::<Result<_, _>>()?;
    if runs.len().saturating_mul(repeats) > RUNS {
        let (path, runs) = (file.path.display(), runs.len());
        bail!("{path}: {runs} runs, {repeats} times each, are more than {RUNS}; lower repeats");
    }
    let mut names = BTreeSet::new();
    if let Some(run) = runs.iter().find(|run| !names.insert(&run.name)) {
        bail!("{}: two runs are named {}; remove one", file.path.display(), run.name);
    }
    let round = |repeat: usize| {
        let name = move |run: &PlannedRun| format!("{}-{repeat}", run.name);
        runs.iter().map(move |run| PlannedRun { name: name(run), repeat, ..run.clone() })
    };
    Ok((1..=repeats).flat_map(round).collect())
}

/// Options of all runs that `scale` changes: their values, here and at full scale, as text.
pub fn scaled(file: &SweepFile, scale: &str) -> BTreeMap<String, (String, String)> {
    let text = |value: Option<&Value>| value.map_or_else(|| "–".to_owned(), text);
    let changes = file.scales.get(scale).and_then(Value::as_table);
    let changed = changes.into_iter().flatten().filter(|(key, value)| {
        // What varies has its own value in each run.
        *key != "repeats" && !file.vary.contains_key(*key) && file.base.get(*key) != Some(*value)
    });
    changed.map(|(key, value)| (key.clone(), (text(Some(value)), text(file.base.get(key))))).collect()
}

/// Options of all runs, and the number of repeats.
fn base_of(file: &SweepFile, scale: &str) -> anyhow::Result<(Table, usize)> {
    let mut base = file.base.clone();
    let mut repeats = file.repeats;
    if scale != "full" {
        let Some(Value::Table(changes)) = file.scales.get(scale) else {
            bail!("{}: it has no section [{scale}] for --scale {scale}", file.path.display());
        };
        for (key, value) in changes {
            match (key.as_str(), value) {
                ("repeats", Value::Integer(n)) => repeats = usize::try_from(*n).unwrap_or(0),
                _ => drop(base.insert(key.clone(), value.clone())),
            }
        }
    }
    match repeats {
        0 => Err(file.bad_value("the file", "repeats", "must be at least 1")),
        n if n > REPEATS => Err(file.bad_value(
            "the file",
            "repeats",
            format_args!("{n} is more than {REPEATS}, which nobody waits for"),
        )),
        _ => Ok((base, repeats)),
    }
}

/// Every combination of the lists in `[vary]`, the last list fastest.
fn combinations(file: &SweepFile) -> anyhow::Result<Vec<Table>> {
    let mut all = Vec::new();
    for (key, list) in &file.vary {
        let values = list.as_array().filter(|values| !values.is_empty());
        let values = values
            .ok_or_else(|| file.bad_value("[vary]", key, "expected a list of values, such as [1, 2]"))?;
        if all.is_empty() {
            all.push(Table::new());
        }
        if all.len().saturating_mul(values.len()) > RUNS {
            return Err(file.bad_value("[vary]", key, format!("more than {RUNS} combinations")));
        }
        let with = |table: &Table, value: &Value| {
            let mut table = table.clone();
            table.insert(key.clone(), value.clone());
            table
        };
        all = all.iter().flat_map(|table| values.iter().map(move |value| with(table, value))).collect();
    }
    Ok(all)
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)
}

fn planned(file: &SweepFile, base: &Table, variant: &Table) -> anyhow::Result<PlannedRun> {
    let varied = variant.iter().map(|(key, value)| (key.clone(), text(value))).collect();
    let mut run = PlannedRun {
        name: name_of(variant, &varied),
        repeat: 0,
        topology: Topology { nodes: 1, ranks_per_node: 1 },
        launcher: LauncherKind::Mpirun,
        options: Vec::new(),
        varied,
    };
    let section = format!("run {}", run.name);
    let mut all = base.clone();
    all.extend(variant.clone());
    for (key, value) in &all {
        let wrong = |problem: String| file.bad_value(&section, key, problem);
        if matches!(value, Value::Array(_) | Value::Table(_) | Value::Datetime(_)) {
            return Err(wrong("expected a string, a number, true or false".into()));
        }
        let text = text(value);
        match (key.as_str(), value) {
            ("topology", _) => run.topology = text.parse().map_err(wrong)?,
            ("launcher", _) => {
                let unknown = |_| wrong(format!("unknown launcher {text}; expected mpirun, srun or alone"));
                run.launcher = LauncherKind::from_str(&text, false).map_err(unknown)?;
            }
            (_, Value::Boolean(false)) => {}
            (_, Value::Boolean(true)) => run.options.push((key.clone(), None)),
            _ => run.options.push((key.clone(), Some(text))),
        }
    }
    Ok(run)
}

/// Name of a run: values that need no key alone, others with their keys.
fn name_of(variant: &Table, varied: &BTreeMap<String, String>) -> String {
    let part = |key: &String| match key.as_str() {
        "topology" | "launcher" | "backend" | "model" => varied[key].clone(),
        _ => format!("{key}-{}", varied[key]),
    };
    let parts: Vec<String> = variant.keys().map(part).collect();
    match parts.is_empty() {
        true => "run".into(),
        false => parts.join("-").replace(|c: char| !c.is_ascii_alphanumeric() && !"-._".contains(c), "_"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(text: &str, scale: &str) -> anyhow::Result<Vec<PlannedRun>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let options = ["epochs", "backend", "lr", "shuffle", "train-samples"].map(ToString::to_string);
        plan(&SweepFile::read(file.path(), &options)?, scale)
    }

    const FILE: &str = r#"
        title = "a test"
        repeats = 2
        [base]
        epochs = 3
        shuffle = true
        [vary]
        topology = ["1x1", "2x1"]
        backend = ["mpi", "gloo"]
        [[runs]]
        launcher = "alone"
        lr = 1e-3
        [quick]
        repeats = 1
        epochs = 1
    "#;

    #[test]
    fn repeats_of_combinations_are_interleaved() {
        let runs = runs(FILE, "full").unwrap();
        let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
        let round = ["1x1-mpi-1", "1x1-gloo-1", "2x1-mpi-1", "2x1-gloo-1", "alone-lr-0.001-1"];
        assert_eq!(names[..5], round);
        assert_eq!((names.len(), names[5]), (10, "1x1-mpi-2"));
        assert_eq!(runs[3].topology.to_string(), "2x1");
        let expected = [("epochs", Some("3")), ("shuffle", None), ("backend", Some("gloo"))]
            .map(|(k, v)| (k.to_owned(), v.map(str::to_owned)));
        assert_eq!(runs[3].options, expected);
        assert_eq!(runs[4].launcher, LauncherKind::Alone);
    }

    #[test]
    fn a_smaller_scale_changes_the_base() {
        let runs = runs(FILE, "quick").unwrap();
        assert_eq!(runs.len(), 5);
        assert_eq!(runs[0].options[0], ("epochs".to_owned(), Some("1".to_owned())));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), FILE).unwrap();
        let file =
            SweepFile::read(file.path(), &["epochs", "backend", "lr", "shuffle"].map(Into::into)).unwrap();
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(scaled(&file, "quick"), [("epochs".to_owned(), pair("1", "3"))].into());
        assert!(scaled(&file, "full").is_empty());
        let message = self::runs(FILE, "tiny").unwrap_err().to_string();
        assert!(message.contains("no section [tiny]"), "{message}");
    }

    #[test]
    fn errors_name_the_section_and_the_key() {
        for (text, words) in [
            ("title = 1", "line 1: invalid type"),
            ("title = \"a\"\n[base]\nepoch = 1", "unknown key epoch in [base]; did you mean epochs?"),
            ("title = \"a\"\n[vary]\nqqq = [1]", "unknown key qqq in [vary]; keys are options of"),
            ("title = \"a\"\nrepeat = 2", "unknown key repeat in the file; did you mean repeats?"),
            ("title = \"a\"\n[vary]\nlr = 1", "lr in [vary]: expected a list"),
            ("title = \"a\"\n[vary]\nlr = [[1]]", "lr in run lr-_1_: expected a string"),
            ("title = \"a\"\n[base]\ntopology = \"2\"", "topology in run run: 2 is not a topology"),
            (
                "title = \"a\"\n[vary]\ntopology = [\"1x1\", \"1x0\"]\nlr = [1]",
                "topology in run 1x0-lr-1: 1x0 is not a topology",
            ),
            ("title = \"a\"\n[base]\nlauncher = \"ssh\"", "unknown launcher ssh"),
            ("title = \"a\"\nrepeats = 0", "repeats in the file: must be at least 1"),
            ("title = \"a\"\n[vary]\nlr = [1, 1]", "two runs are named lr-1"),
            (
                "title = \"a\"\nrepeats = 1000\n[vary]\nlr = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]",
                "11 runs, 1000 times each, are more than 10000; lower repeats",
            ),
            ("title = \"a\"\n[base\n", "line 2: "),
        ] {
            let message = runs(text, "full").unwrap_err().to_string();
            assert!(message.contains(words), "{message} lacks {words}");
        }
    }
}
