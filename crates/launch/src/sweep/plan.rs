//! Expands a sweep file to its runs, in the order of execution.

use std::collections::BTreeMap;

use clap::ValueEnum;
use toml::{Table, Value};

use super::file::{FULL, in_short, repeats};
use super::{SweepError, SweepFile};
use crate::{LauncherKind, Topology};

/// Maximum number of runs of a sweep; each repeat counts. A larger number is a typing error, and would fill
/// memory.
const RUNS: usize = 10_000;

/// A run of a sweep that is to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedRun {
    /// Name of the run's directory, such as `2x1-gloo-2`.
    pub name: String,
    /// Number of the repeat, from 1.
    pub repeat: usize,
    /// Machines x processes per machine.
    pub topology: Topology,
    /// How the run is started.
    pub launcher: LauncherKind,
    /// Options of the training: name and value. A flag has no value.
    pub options: Vec<(String, Option<String>)>,
    /// Options in which the run differs from other runs: value by name.
    pub varied: BTreeMap<String, String>,
}

/// Returns the runs of `file` at `scale`, in the order of execution.
///
/// Repeats are interleaved: the second repeat of every run follows the first repeat of all runs. A slowdown
/// of the machine therefore affects all runs alike.
///
/// # Errors
/// If a value is invalid, the scale does not exist, two runs would have the same name, or there are too many
/// runs.
pub fn plan(file: &SweepFile, scale: &str) -> Result<Vec<PlannedRun>, SweepError> {
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
        return Err(SweepError(format!(
            "{path}: {runs} runs, {repeats} times each, are more than {RUNS}: lower repeats"
        )));
    }
    let mut names = BTreeMap::new();
    for run in &runs {
        let Some(other) = names.insert(&run.name, run) else { continue };
        let differs = run.varied.iter().find(|(key, value)| other.varied.get(*key) != Some(*value));
        let short = |value: &str| in_short(value, 60);
        let problem = match differs.and_then(|(key, value)| Some((key, value, other.varied.get(key)?))) {
            Some((key, value, other)) => format!(
                "the runs with {key} {} and {} would share the folder {}, because characters other than letters, digits \
                 and -._ become _: change one of the two values",
                short(other),
                short(value),
                short(&run.name)
            ),
            None => format!(
                "two runs are named {}: a value of [vary] or a section of [[runs]] is there twice, so remove one",
                short(&run.name)
            ),
        };
        return Err(SweepError(format!("{}: {problem}", file.path.display())));
    }
    let round = |repeat: usize| {
        let name = move |run: &PlannedRun| format!("{}-{repeat}", run.name);
        runs.iter().map(move |run| PlannedRun { name: name(run), repeat, ..run.clone() })
    };
    Ok((1..=repeats).flat_map(round).collect())
}

/// Returns the options that `scale` changes. Each option has its value at `scale` and its value at full
/// scale, as text; `–` if the option is not set.
pub fn scaled(file: &SweepFile, scale: &str) -> BTreeMap<String, (String, String)> {
    let text = |value: Option<&Value>| value.map_or_else(|| "–".to_owned(), text);
    let changed = file
        .scales
        .get(scale)
        .into_iter()
        .flatten()
        .filter(|(key, value)| *key != "repeats" && file.base.get(*key) != Some(*value));
    changed.map(|(key, value)| (key.clone(), (text(Some(value)), text(file.base.get(key))))).collect()
}

/// Returns the options of all runs at `scale`, and the number of repeats.
fn base_of(file: &SweepFile, scale: &str) -> Result<(Table, usize), SweepError> {
    let mut base = file.base.clone();
    if scale == FULL {
        return Ok((base, file.repeats));
    }
    let Some(changes) = file.scales.get(scale) else {
        let known: Vec<&str> = [FULL].into_iter().chain(file.scales.keys().map(String::as_str)).collect();
        let (path, known) = (file.path.display(), known.join(", "));
        return Err(SweepError(format!(
            "--scale {scale}: {path} has no section [{scale}]; its scales: {known}"
        )));
    };
    let mut changes = changes.clone();
    let times = changes.remove("repeats").map(|value| repeats(scale, &value)).transpose();
    let times = times.map_err(SweepError)?.unwrap_or(file.repeats);
    base.extend(changes);
    Ok((base, times))
}

/// Returns every combination of the lists in `[vary]`. The last list changes fastest.
fn combinations(file: &SweepFile) -> Result<Vec<Table>, SweepError> {
    let mut all = Vec::new();
    for (key, list) in &file.vary {
        let values = list.as_array().map(Vec::as_slice).unwrap_or_default();
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

fn planned(file: &SweepFile, base: &Table, variant: &Table) -> Result<PlannedRun, SweepError> {
    let varied = variant.iter().map(|(key, value)| (key.clone(), text(value))).collect();
    let mut run = PlannedRun {
        name: name_of(variant, &varied),
        repeat: 0,
        topology: Topology { nodes: 1, ranks_per_node: 1 },
        launcher: LauncherKind::Mpirun,
        options: Vec::new(),
        varied,
    };
    let mut all = base.clone();
    all.extend(variant.clone());
    for (key, value) in &all {
        let section = if variant.contains_key(key) || !file.base.contains_key(key) {
            format!("run {}", run.name)
        } else {
            "[base]".into()
        };
        let wrong = |problem: String| file.bad_value(&section, key, problem);
        let text = text(value);
        match (key.as_str(), value) {
            ("topology", _) => {
                run.topology = text.parse().map_err(|problem| wrong(format!("{text:.60} {problem}")))?;
            }
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

/// Returns the name of a run: the values in which it differs from other runs, each after its key. Values from
/// which the key is clear, such as a topology, come without the key. If nothing differs, the name is `run`.
fn name_of(variant: &Table, varied: &BTreeMap<String, String>) -> String {
    let part = |key: &String| match key.as_str() {
        "topology" | "launcher" | "backend" | "model" => varied[key].clone(),
        _ => format!("{key}-{}", varied[key]),
    };
    let parts: Vec<String> = variant.keys().map(part).collect();
    if parts.is_empty() {
        "run".into()
    } else {
        parts.join("-").replace(|c: char| !c.is_ascii_alphanumeric() && !"-._".contains(c), "_")
    }
}

#[cfg(test)]
mod tests {
    use run_record::Takes;

    use super::*;

    fn read(text: &str) -> Result<SweepFile, SweepError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let options = ["epochs", "backend", "lr", "train-samples"].map(|name| (name, Takes::Value));
        let others = [("shuffle", Takes::Flag), ("fused", Takes::Switch)];
        let options = options.into_iter().chain(others).map(|(name, takes)| (name.to_owned(), takes));
        SweepFile::read(file.path(), &options.collect())
    }

    fn runs(text: &str, scale: &str) -> Result<Vec<PlannedRun>, SweepError> {
        plan(&read(text)?, scale)
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
        let file = read(FILE).unwrap();
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(scaled(&file, "quick"), [("epochs".to_owned(), pair("1", "3"))].into());
        assert!(scaled(&file, "full").is_empty());
        let message = self::runs(FILE, "tiny").unwrap_err().to_string();
        assert!(message.ends_with("has no section [tiny]; its scales: full, quick"), "{message}");
    }

    #[test]
    fn switches_are_written_as_booleans_or_as_they_are_typed() {
        for (text, expected) in [
            ("fused = false", Some(("fused", Some("off")))),
            ("fused = true", Some(("fused", Some("on")))),
            ("fused = \"off\"", Some(("fused", Some("off")))),
            ("shuffle = true", Some(("shuffle", None))),
            ("shuffle = false", None),
        ] {
            let runs = runs(&format!("title = \"a\"\n[base]\n{text}"), "full").unwrap();
            let options = runs[0].options.iter().map(|(name, value)| (name.as_str(), value.as_deref()));
            assert_eq!(options.collect::<Vec<_>>(), expected.into_iter().collect::<Vec<_>>(), "{text}");
        }
    }

    /// Checks that each sweep file is rejected with the words beside it.
    fn refused(cases: &[(&str, &str)]) {
        for (text, words) in cases {
            let message = runs(text, "full").unwrap_err().to_string();
            assert!(message.contains(words), "{message} lacks {words}");
        }
    }

    #[test]
    fn sections_and_keys_that_do_not_fit_are_named() {
        refused(&[
            ("[base]\nlr = 1", "title = \"...\" above [base]"),
            ("[base]\ntitle = \"a\"", "title in [base]: write it above [base]"),
            ("title = \"a\"\n[base]\nepoch = 1", "unknown key epoch in [base]; did you mean epochs?"),
            ("title = \"a\"\n[base]\nLR = 1", "unknown key LR in [base]; did you mean lr?"),
            ("title = \"a\"\n[base]\nresume = \"r\"", "resume in [base]: applies to a single run"),
            ("title = \"a\"\n[base]\nlr = [1, 2]", "lr in [base]: a list belongs under [vary]"),
            ("title = \"a\"\n[[base]]\nlr = 1", "base is a section: write [base]"),
            ("title = \"a\"\n[vary]\nqqq = [1]", "unknown key qqq in [vary]; keys are options of"),
            ("title = \"a\"\n[varry]\nlr = [1]", "unknown section [varry]; did you mean [vary]?"),
            ("title = \"a\"\n[vary2]\nlr = [1]", "unknown section [vary2]; did you mean [vary]?"),
            ("title = \"a\"\n[Base]\nlr = 1", "unknown section [Base]; did you mean [base]?"),
            ("title = \"a\"\n[variants]\nlr = 1", "unknown section [variants]; did you mean [vary]?"),
            ("title = \"a\"\n[run]\nlr = 1", "unknown section [run]; did you mean [[runs]]?"),
            ("title = \"a\"\n[[run]]\nlr = 1", "unknown section [[run]]: single runs are [[runs]]"),
            ("title = \"a\"\n[runs]\nlr = 1", "write [[runs]]"),
            ("title = \"a\"\n[[runs]]\nlr = [1]", "lr in [[runs]]: a list belongs under [vary]"),
            ("title = \"a\"\n[grid]\nlr = [1]", "[grid] is a scale, and a scale has no lists"),
            ("title = \"a\"\n[quick]\nepoch = 1", "unknown key epoch in [quick]; did you mean epochs?"),
            (
                "title = \"a\"\n[quick.base]\nlr = 1",
                "unknown key base in [quick]; keys are options of `mpiburn train` and repeats",
            ),
            ("title = \"a\"\n[base]\nversion = 1", "unknown key version in [base]; keys are options of"),
            ("title = \"a\"\n[full]\nlr = 1", "[full]: `full` is the name of the sweep without"),
            (
                "title = \"a\"\n[quick]\nlr = 1\n[vary]\nlr = [1, 2]",
                "the scale [quick] sets lr, which [vary] varies: ",
            ),
            (
                "title = \"a\"\n[quick]\ntopology = \"1x2\"",
                "topology in [quick]: a scale cannot change it; write it under [base]",
            ),
            ("title = \"a\"\nrepeat = 2", "unknown key repeat in the file; did you mean repeats?"),
            ("title = \"a\"\nepochs = 2", "epochs in the file: it belongs under [base]"),
            ("title = \"a\"\nlr = [1, 2]", "lr in the file: a list belongs under [vary]"),
        ]);
    }

    #[test]
    fn values_that_do_not_fit_are_named_with_section_and_key() {
        refused(&[
            ("title = 1", "title in the file: expected text in quotes"),
            ("title = \"a\"\n[base.lr]\nx = 1", "lr in [base]: expected a string, a number"),
            ("title = \"a\"\n[base]\nlr = true", "lr in [base]: expected a value, not true"),
            ("title = \"a\"\n[base]\nshuffle = \"on\"", "shuffle in [base]: write shuffle = true or false"),
            ("title = \"a\"\n[vary]\nlr = 1", "lr in [vary]: expected a list"),
            ("title = \"a\"\n[vary]\nlr = []", "lr in [vary]: expected a list"),
            ("title = \"a\"\n[vary]\nlr = [[1]]", "lr in [vary]: expected a string"),
            ("title = \"a\"\n[vary]\nshuffle = [\"on\"]", "shuffle in [vary]: write shuffle = true or false"),
            ("title = \"a\"\n[vary.lr]\nx = 1", "lr in [vary]: expected a list"),
            (
                "title = \"a\"\n[quick]\nrepeats = 0",
                "repeats in [quick]: must be a whole number from 1 to 1000",
            ),
            (
                "title = \"a\"\n[base]\nlr = none",
                "line 3: expected a number, true or false, or text in quotes",
            ),
            (
                "title = \"a\"\n[base]\nbackend = mpi",
                "line 3: expected a number, true or false, or text in quotes",
            ),
            ("title = \"a\"\n[base]\nshuffle = True", "line 3: expected a number, true or false"),
            ("title = \"a\"\n[base]\nlr =", "line 3: a value is missing"),
            (
                "title = \"a\"\n[base]\nlr = 9223372036854775808",
                "line 3: numbers of 2^63 and above need quotes",
            ),
            (
                "title = \"a\"\n[base]\nlr = 100000000000000000000",
                "line 3: numbers of 2^63 and above need quotes",
            ),
            ("title = \"a\"\n[base]\ntopology = \"2\"", "topology in [base]: 2 is not a topology"),
            (
                "title = \"a\"\n[vary]\ntopology = [\"1x1\", \"1x0\"]\nlr = [1]",
                "topology in run 1x0-lr-1: 1x0 is not a topology",
            ),
            ("title = \"a\"\n[base]\nlauncher = \"ssh\"", "unknown launcher ssh"),
            ("title = \"a\"\nrepeats = 0", "repeats in the file: must be a whole number from 1 to 1000"),
            ("title = \"a\"\nrepeats = \"3\"", "repeats in the file: must be a whole number from 1 to 1000"),
            ("title = \"a\"\n[vary]\nlr = [1, 1]", "two runs are named lr-1"),
            (
                "title = \"a\"\n[vary]\nbackend = [\"a/b\", \"a_b\"]",
                "the runs with backend a/b and a_b would share the folder a_b, ",
            ),
            (
                "title = \"a\"\nrepeats = 1000\n[vary]\nlr = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]",
                "11 runs, 1000 times each, are more than 10000: lower repeats",
            ),
            ("title = \"a\"\n[base\n", "line 2: "),
        ]);
        let long = format!("title = \"a\"\n[base]\n\"{}\\n\" = 1", "k".repeat(9000));
        let message = runs(&long, "full").unwrap_err().to_string();
        assert!(message.chars().count() < 400 && message.lines().count() == 1, "{message}");
    }
}
