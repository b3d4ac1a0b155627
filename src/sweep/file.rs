//! Sweep files: TOML, checked before the first run.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use serde::Deserialize;
use toml::{Table, Value};

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
#[derive(Debug, Clone, Deserialize)]
pub struct SweepFile {
    /// Path of the file.
    #[serde(skip)]
    pub path: PathBuf,
    /// Title of the table.
    pub title: String,
    /// Name of the published figures to show beside the results.
    pub reference: Option<String>,
    /// Number of repeats of each run.
    #[serde(default = "once")]
    pub repeats: usize,
    /// Options of all runs.
    #[serde(default)]
    pub base: Table,
    /// Lists of values by option.
    #[serde(default)]
    pub vary: Table,
    /// Single runs.
    #[serde(default)]
    pub runs: Vec<Table>,
    /// Smaller scales by name: options and `repeats` that they change.
    #[serde(flatten)]
    pub scales: Table,
}

fn once() -> usize {
    1
}

/// Keys of a run that are not options of `train`.
pub(super) const OWN_KEYS: [&str; 2] = ["topology", "launcher"];

impl SweepFile {
    /// Reads a sweep file and checks all keys against `options`, the names of
    /// `mpiburn train`'s options.
    ///
    /// # Errors
    /// When it cannot be read, is not valid TOML or has an unknown key.
    pub fn read(path: &Path, options: &[String]) -> anyhow::Result<Self> {
        let text =
            read_text(path).with_context(|| format!("cannot read the sweep file {}", path.display()))?;
        let mut file: Self = toml::from_str(&text).map_err(|error| {
            let before =
                error.span().map_or(0, |span| text[..span.start.min(text.len())].matches('\n').count());
            let content = text.lines().nth(before).unwrap_or_default().trim();
            let message = match content.chars().count() {
                0 | 80.. => error.message().to_owned(),
                _ => format!("{}, in {content}", error.message()),
            };
            anyhow!("{}, line {}: {message}", path.display(), before + 1)
        })?;
        file.path = path.to_owned();
        file.check_keys(options)?;
        Ok(file)
    }

    fn check_keys(&self, options: &[String]) -> anyhow::Result<()> {
        let check = |section: &str, table: &Table, own: &[&str]| {
            let known: Vec<&str> = own.iter().copied().chain(options.iter().map(String::as_str)).collect();
            table.keys().try_for_each(|key| match known.contains(&key.as_str()) {
                true => Ok(()),
                false => self.unknown(section, key, &known),
            })
        };
        check("[base]", &self.base, &OWN_KEYS)?;
        check("[vary]", &self.vary, &OWN_KEYS)?;
        self.runs.iter().try_for_each(|run| check("[[runs]]", run, &OWN_KEYS))?;
        for (name, scale) in &self.scales {
            match scale {
                Value::Table(table) => check(&format!("[{name}]"), table, &["repeats"])?,
                _ => {
                    let known = ["title", "reference", "repeats", "base", "vary", "runs"];
                    self.unknown("the file", name, &known)?;
                }
            }
        }
        Ok(())
    }

    fn unknown(&self, section: &str, key: &str, known: &[&str]) -> anyhow::Result<()> {
        let near = known.iter().map(|name| (strsim::jaro_winkler(key, name), name));
        let nearest = near.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(likeness, _)| *likeness > 0.7);
        let hint = nearest.map_or_else(
            || "; keys are options of `mpiburn train`, topology and launcher".to_owned(),
            |(_, name)| format!("; did you mean {name}?"),
        );
        bail!("{}: unknown key {key} in {section}{hint}", self.path.display())
    }

    pub(super) fn bad_value(&self, section: &str, key: &str, problem: impl Display) -> anyhow::Error {
        anyhow!("{}: {key} in {section}: {problem}", self.path.display())
    }
}
