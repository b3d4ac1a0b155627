//! Reads sweep files. A sweep is a series of runs of `mpiburn train`, and a sweep file describes it in TOML.
//! The file is checked before the first run.
//!
//! A file may also define scales: smaller variants of the sweep, for `--scale`. All keys and values are
//! checked, even in scales that are not used. If a wrong key were ignored, the runs would differ from the
//! runs that the author expects.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use run_record::Takes;
use run_record::files::read_text;

/// A sweep file.
///
/// ```toml
/// title = "Time by topology and backend"
/// reference = "topologies"     # compared with results/reference/topologies.csv
/// repeats = 3
///
/// [base]                       # options of `mpiburn train`
/// epochs = 3
///
/// [vary]                       # every combination is a run
/// topology = ["1x1", "1x2"]
/// backend = ["mpi", "gloo"]
///
/// [[runs]]                     # additional single runs
/// topology = "1x1"
/// launcher = "alone"
///
/// [quick]                      # what --scale quick changes
/// repeats = 1
/// train-samples = 6000
/// ```
#[derive(Debug, Clone)]
pub struct SweepFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Title of the sweep in reports.
    pub title: String,
    /// Name of the published figures that reports show beside the results; `None` if there are none.
    pub reference: Option<String>,
    /// Number of repeats of each run.
    pub repeats: usize,
    /// Options of all runs: `[base]`.
    pub base: Table,
    /// Lists of values by option: `[vary]`.
    pub vary: Table,
    /// Single runs: `[[runs]]`.
    pub runs: Vec<Table>,
    /// Smaller scales by name. Each table has the options that the scale changes, and `repeats` if the scale
    /// changes it.
    pub scales: BTreeMap<String, Table>,
}

/// An error of a sweep file: the file, the place and what to write instead.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SweepError(pub String);

/// The options of a training that a sweep may set, by name, and what each takes as its value.
pub type TrainOptions = BTreeMap<String, Takes>;

/// Keys of a run that are not options of `train`.
const OWN_KEYS: [&str; 2] = ["topology", "launcher"];

/// Options that make sense for a single run only, and not for the many runs of a sweep.
pub const OF_ONE_RUN: [&str; 7] =
    ["out", "log-path", "resume", "overwrite", "trace", "trace-steps", "note-steps"];

/// Keys that stand above all sections.
const HEAD: [&str; 3] = ["title", "reference", "repeats"];

/// Name of the scale without changes: the sweep as `[base]`, `[vary]` and `[[runs]]` describe it.
pub(super) const FULL: &str = "full";

/// Largest number of repeats of a run. A larger number is a typing error, and would fill memory.
const REPEATS: i64 = 1000;

impl SweepFile {
    /// Reads a sweep file, and checks all of its keys against `options`, the options of `mpiburn train`.
    ///
    /// # Errors
    /// If the file cannot be read, is not TOML, or has an unknown key or a value of the wrong kind.
    pub fn read(path: &Path, options: &TrainOptions) -> Result<Self, SweepError> {
        let shown = path.display();
        let text = read_text(path)
            .map_err(|error| SweepError(format!("cannot read the sweep file {shown}: {error}")))?;
        let table = text.parse::<Table>().map_err(|error| SweepError(syntax(path, &text, &error)))?;
        let reading = Reading { path, options };
        reading.file(table).map_err(|problem| SweepError(format!("{shown}: {}", in_short(&problem, 300))))
    }

    pub(super) fn bad_value(&self, section: &str, key: &str, problem: impl Display) -> SweepError {
        SweepError(format!("{}: {key} in {section}: {problem}", self.path.display()))
    }
}

/// Returns `text` in one line: at most `most` characters of it, and `…` if this is not all. Names in a file
/// may be long, and have line breaks.
pub(super) fn in_short(text: &str, most: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() > most { line.chars().take(most).chain(['…']).collect() } else { line }
}

/// Returns the first 40 characters of a name in lower case, to compare them with known names.
fn small(name: &str) -> String {
    name.chars().take(40).collect::<String>().to_lowercase()
}

/// Describes a syntax error of TOML, with its line.
fn syntax(path: &Path, text: &str, error: &toml::de::Error) -> String {
    let before = error.span().map_or(0, |span| text[..span.start.min(text.len())].matches('\n').count());
    let content = text.lines().nth(before).unwrap_or_default().trim();
    let message = without_rust(content, &error.message().replace('\n', "; "));
    let message = match content.chars().count() {
        0 | 80.. => message,
        _ => format!("{message}, in {content}"),
    };
    format!("{}, line {}: {message}", path.display(), before + 1)
}

/// Replaces a message of the TOML parser that names Rust types, or that guesses what an unquoted word means:
/// `none` is not a misspelt `nan`. Returns other messages unchanged. `content` is the wrong line.
fn without_rust(content: &str, message: &str) -> String {
    let is_word = ["string values must be quoted", "invalid boolean", "invalid float, expected `"];
    if is_word.iter().any(|start| message.starts_with(start)) {
        return if content.ends_with('=') {
            "a value is missing".into()
        } else {
            "expected a number, true or false, or text in quotes, such as \"mpi\"".into()
        };
    }
    let is_large = ["value was too ", " as i128", " as u128", " as u64"];
    if is_large.iter().any(|words| message.contains(words)) {
        "numbers of 2^63 and above need quotes, such as \"9223372036854775808\"".into()
    } else {
        message.to_owned()
    }
}

/// Reads the sections of a file. The errors of its functions do not name the file; [`SweepFile::read`] adds
/// the name.
struct Reading<'a> {
    path: &'a Path,
    options: &'a TrainOptions,
}

impl Reading<'_> {
    fn file(&self, table: Table) -> Result<SweepFile, String> {
        let mut file = SweepFile {
            path: self.path.to_owned(),
            title: String::new(),
            reference: None,
            repeats: 1,
            base: Table::new(),
            vary: Table::new(),
            runs: Vec::new(),
            scales: BTreeMap::new(),
        };
        let has_title = table.contains_key("title");
        for (name, value) in table {
            match (name.as_str(), value) {
                ("title", value) => file.title = text(&name, value)?,
                ("reference", value) => file.reference = Some(text(&name, value)?),
                ("repeats", value) => file.repeats = repeats("the file", &value)?,
                ("base", Value::Table(base)) => file.base = self.single("[base]", base, &OWN_KEYS)?,
                ("vary", Value::Table(vary)) => file.vary = self.lists(vary)?,
                ("runs", Value::Array(runs)) => file.runs = self.runs(runs)?,
                ("base" | "vary", _) => {
                    return Err(format!("{name} is a section: write [{name}] above its keys"));
                }
                ("runs", _) => return Err("each single run has its own section: write [[runs]]".into()),
                (_, Value::Table(scale)) => {
                    let scale = self.scale(&name, scale)?;
                    file.scales.insert(name.clone(), scale);
                }
                (_, value) => return Err(self.misplaced(&name, &value)),
            }
        }
        let varied = |(name, scale): (&String, &Table)| {
            let key = scale.keys().find(|key| file.vary.contains_key(*key))?;
            Some(format!(
                "the scale [{name}] sets {key}, which [vary] varies: remove {key} from [{name}] or from [vary]"
            ))
        };
        if let Some(problem) = file.scales.iter().find_map(varied) {
            return Err(problem);
        }
        if has_title {
            Ok(file)
        } else {
            Err("the title is missing: add title = \"...\" above [base]".into())
        }
    }

    /// Returns the error for a key above the sections that does not belong there, or for a list of sections
    /// with an unknown name, such as `[[run]]`.
    fn misplaced(&self, name: &str, value: &Value) -> String {
        match value {
            Value::Array(values) if values.iter().any(Value::is_table) => {
                format!("unknown section [[{name}]]: single runs are [[runs]]")
            }
            Value::Array(_) if self.is_option(name) => {
                format!("{name} in the file: a list belongs under [vary]")
            }
            _ if self.is_option(name) => format!("{name} in the file: it belongs under [base]"),
            _ => unknown("the file", name, &HEAD),
        }
    }

    fn is_option(&self, name: &str) -> bool {
        OWN_KEYS.contains(&name) || self.options.contains_key(name)
    }

    /// Reads the section of a smaller scale.
    fn scale(&self, name: &str, scale: Table) -> Result<Table, String> {
        if let Some(section) = meant(name) {
            return Err(format!("unknown section [{name}]; did you mean {section}?"));
        }
        if name == FULL {
            return Err(format!(
                "[{name}]: `{name}` is the name of the sweep without a scale: move these keys to [base]"
            ));
        }
        if scale.values().any(Value::is_array) {
            return Err(format!("[{name}] is a scale, and a scale has no lists: write lists under [vary]"));
        }
        let section = format!("[{name}]");
        if let Some(key) = OWN_KEYS.into_iter().find(|key| scale.contains_key(*key)) {
            return Err(format!("{key} in {section}: a scale cannot change it; write it under [base]"));
        }
        if let Some(value) = scale.get("repeats") {
            repeats(&section, value)?;
        }
        self.single(&section, scale, &["repeats"])
    }

    fn runs(&self, runs: Vec<Value>) -> Result<Vec<Table>, String> {
        let run = |run| match run {
            Value::Table(run) => self.single("[[runs]]", run, &OWN_KEYS),
            _ => Err("each single run has its own section: write [[runs]]".into()),
        };
        runs.into_iter().map(run).collect()
    }

    /// Reads the lists of `[vary]`.
    fn lists(&self, vary: Table) -> Result<Table, String> {
        let list = |(key, value): (String, Value)| {
            self.check_key("[vary]", &key, &OWN_KEYS)?;
            match value {
                Value::Array(values) if !values.is_empty() => {
                    let values = values.into_iter().map(|value| self.value("[vary]", &key, value));
                    Ok((key.clone(), Value::Array(values.collect::<Result<_, _>>()?)))
                }
                _ => Err(format!(
                    "{key} in [vary]: expected a list of values, such as [1, 2]; a value for all runs belongs under [base]"
                )),
            }
        };
        vary.into_iter().map(list).collect()
    }

    /// Reads a section of single values. `own` are the keys that the section may have beside the options.
    fn single(&self, section: &str, table: Table, own: &[&str]) -> Result<Table, String> {
        let one = |(key, value): (String, Value)| {
            self.check_key(section, &key, own)?;
            if value.is_array() {
                return Err(format!("{key} in {section}: a list belongs under [vary]"));
            }
            let value = match key.as_str() {
                "repeats" => value,
                _ => self.value(section, &key, value)?,
            };
            Ok((key, value))
        };
        table.into_iter().map(one).collect()
    }

    fn check_key(&self, section: &str, key: &str, own: &[&str]) -> Result<(), String> {
        if own.contains(&key) || self.options.contains_key(key) {
            return Ok(());
        }
        if OF_ONE_RUN.contains(&key) {
            return Err(format!(
                "{key} in {section}: applies to a single run, but a sweep has many runs: leave it out"
            ));
        }
        if HEAD.contains(&key) {
            return Err(format!("{key} in {section}: write it above [base]"));
        }
        let known: Vec<&str> = own.iter().copied().chain(self.options.keys().map(String::as_str)).collect();
        Err(unknown(section, key, &known))
    }

    /// Converts a value to the form that its option takes. For an option that takes `on` or `off`, `true`
    /// becomes `on` and `false` becomes `off`.
    fn value(&self, section: &str, key: &str, value: Value) -> Result<Value, String> {
        let wrong = |problem: String| Err(format!("{key} in {section}: {problem}"));
        let option = self.options.get(key).copied().unwrap_or(Takes::Value);
        match (option, value) {
            (_, Value::Array(_) | Value::Table(_) | Value::Datetime(_)) => {
                wrong("expected a string, a number, true or false".into())
            }
            (Takes::Flag, value @ Value::Boolean(_)) => Ok(value),
            (Takes::Flag, _) => wrong(format!("write {key} = true or false")),
            (Takes::Switch, Value::Boolean(on)) => Ok(if on { "on" } else { "off" }.into()),
            (Takes::Value, Value::Boolean(true)) => wrong("expected a value, not true".into()),
            // `false` leaves the option out. In this way, a run of [[runs]] can drop an option of [base].
            (_, value) => Ok(value),
        }
    }
}

/// Returns the section that `name` probably means; `None` if no section is similar. A section is similar if
/// its name differs from `name` by one letter, by two swapped letters or by capitals. Names that begin with
/// `vari` or `vary` mean `[vary]`.
fn meant(name: &str) -> Option<&'static str> {
    let small = small(name);
    let sections = [("base", "[base]"), ("vary", "[vary]"), ("runs", "[[runs]]")];
    let near = sections.into_iter().find(|(section, _)| strsim::damerau_levenshtein(&small, section) <= 1);
    match near {
        Some((_, section)) => Some(section),
        None if small.starts_with("vari") || small.starts_with("vary") => Some("[vary]"),
        None => None,
    }
}

/// Returns the error for an unknown key of a section, with the nearest known name.
fn unknown(section: &str, key: &str, known: &[&str]) -> String {
    let small = small(key);
    let near = known.iter().map(|name| (strsim::jaro_winkler(&small, name), name));
    let nearest = near.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(likeness, _)| *likeness > 0.8);
    let hint = match nearest {
        Some((_, name)) => format!("; did you mean {name}?"),
        None if section == "the file" => "; keys above the sections are title, reference and repeats".into(),
        None if known.contains(&"repeats") => "; keys are options of `mpiburn train` and repeats".into(),
        None => "; keys are options of `mpiburn train`, topology and launcher".into(),
    };
    format!("unknown key {key} in {section}{hint}")
}

fn text(key: &str, value: Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text),
        _ => Err(format!("{key} in the file: expected text in quotes, such as {key} = \"...\"")),
    }
}

/// Reads the number of repeats in a section.
pub(super) fn repeats(section: &str, value: &Value) -> Result<usize, String> {
    let number = value.as_integer().filter(|number| (1..=REPEATS).contains(number));
    let problem = || format!("repeats in {section}: must be a whole number from 1 to {REPEATS}");
    number.and_then(|number| usize::try_from(number).ok()).ok_or_else(problem)
}
