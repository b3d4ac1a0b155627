//! Makes tables from operator profiles, which are files that `mpiburn profile --json` writes. The tables:
//! operators by kind, activation functions, and int8 compared with float.
//!
//! Profiles are recognised by their content, not by the name of a file or folder. A table about one setting
//! compares profiles that are equal in all other settings.

mod activations;
mod int8;
mod kinds;
#[cfg(test)]
pub(crate) mod testing;

use itertools::Itertools;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use run_record::profile::{Phase, Profile, ProfileRow, by_kind};

use indexmap::IndexMap;

use super::findings::Finding;
use super::inputs::shown;
use super::page::PagePart;
use super::published::Figures;
use super::sheet::Sheet;

/// Names, without extension, of the files in `results/reference/` that have figures published by others.
pub const REFERENCES: [&str; 3] = ["profile-kinds", "mlp-activations", "profile-int8"];

/// The profiles of one folder.
#[derive(Debug, Default)]
pub struct Profiles {
    /// The folder. For profiles that are given as files, the folder of the first file.
    pub folder: PathBuf,
    /// The profiles, sorted by file name if they are from a folder.
    pub profiles: Vec<Profile>,
    /// Files that are not profiles, or damaged, one line each.
    pub notes: Vec<String>,
}

impl Profiles {
    /// Reads those of `files` that are profiles. Each file must be named `*.json`.
    pub fn of_files(folder: &Path, files: &[PathBuf]) -> Self {
        let mut found = Self { folder: folder.to_owned(), ..Self::default() };
        for path in files {
            match Profile::read(path) {
                Ok(profile) => found.profiles.push(profile),
                Err(note) => found.notes.push(note),
            }
        }
        found
    }

    /// Makes the part of the report with the tables of these profiles. The names of its anchors and files
    /// begin with `name`. `None` if there is nothing to show.
    pub fn part(&self, name: &str) -> Option<PagePart> {
        if self.profiles.is_empty() && self.notes.is_empty() {
            return None;
        }
        let folders: BTreeSet<&Path> =
            self.profiles.iter().filter_map(|profile| profile.path.parent()).collect();
        let title = match folders.len() {
            0 | 1 => format!("Operator profiles in {}", shown(&self.folder)),
            n => format!("Operator profiles in {n} folders"),
        };
        let mut notes = self.notes.clone();
        let [of_kinds, of_activations, of_int8] =
            REFERENCES.map(|name| Figures::beside(&self.folder, name, &mut notes));
        let mut sheets: Vec<Sheet> = Vec::new();
        let mut findings: Vec<Finding> = Vec::new();
        for (sheet, line) in kinds::sheets(&self.profiles, of_kinds.as_ref())
            .into_iter()
            .chain(activations::sheets(&self.profiles, of_activations.as_ref()))
            .chain(int8::sheets(&self.profiles, of_int8.as_ref()))
        {
            findings.push(line.into());
            // Files in two folders may have the same name.
            let own = format!("{name}-{}", sheet.name);
            let taken = |name: &str| sheets.iter().any(|other| other.name == name);
            let numbered = (2..).map(|number| format!("{own}-{number}"));
            let mut names = std::iter::once(own.clone()).chain(numbered);
            sheets.push(Sheet {
                name: names.find(|name| !taken(name)).unwrap_or_default(),
                title: format!("{title}: {}", sheet.title),
                ..sheet
            });
        }
        if sheets.is_empty() {
            findings.push("no profile".into());
        }
        Some(PagePart { title, name: name.into(), findings, sheets, notes, ..PagePart::default() })
    }
}

/// A table, and its finding as one line.
type Found = (Sheet, String);

/// Returns the files of `folder` with the extension `ending`, sorted by name.
pub fn files_of(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|found| found == ending) && !path.is_dir());
    files.sort();
    files
}

/// Groups the profiles that are equal in all settings except those named in `except`. Groups are in the order
/// of their first profile.
fn groups<'a>(profiles: impl Iterator<Item = &'a Profile>, except: &[&str]) -> Vec<Vec<&'a Profile>> {
    let mut groups: IndexMap<String, Vec<&Profile>> = IndexMap::new();
    for profile in profiles {
        groups.entry(profile.settings_except(except)).or_default().push(profile);
    }
    groups.into_values().collect()
}

/// Makes the remark about the machine of `profile`. If `figures` are given, the remark also names the
/// hardware of the published figures. `wanted` selects their lines, by pairs of a column and its value.
fn machines(profile: &Profile, figures: Option<&Figures>, wanted: &[(&str, &str)]) -> String {
    figures.map_or_else(
        || format!("{}.", profile.machine()),
        |figures| figures.remark(wanted, &profile.machine()),
    )
}

/// Converts bytes to KB of 1024 bytes, as PyTorch's profiler shows them.
fn kb(bytes: u64) -> f64 {
    bytes as f64 / 1024.0
}

/// Makes the remark about profiles that are left out of a table because another file has the same settings.
fn left_out(again: &[&Profile]) -> Option<String> {
    let files = again.iter().map(|profile| profile.path.display()).join(", ");
    (!files.is_empty())
        .then(|| format!("Not in this table, because another row has the same settings: {files}."))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::testing::{json, operator};
    use super::*;

    fn folder(files: &[(&str, String)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    fn mlp(activation: &str, ms: f64) -> String {
        let operators = [
            operator("linear", 200, 3.0, 2048),
            operator("batch norm", 100, 6.0, 0),
            operator(activation, 100, ms, 1024),
        ];
        json("mlp", activation, false, &operators).to_string()
    }

    fn of_folder(folder: &Path) -> Profiles {
        Profiles::of_files(folder, &files_of(folder, "json"))
    }

    #[test]
    fn a_folder_of_profiles_has_all_three_tables_and_a_finding_for_each() {
        let conv = |int8, ms: f64, bytes| {
            let mut value = json("convnet", "relu", int8, &[operator("conv", 100, ms, bytes)]);
            value["batch_ms_without_profiling"] = (ms / 100.0).into();
            value.to_string()
        };
        let found = folder(&[
            ("a-relu.json", mlp("relu", 1.0)),
            ("b-gelu.json", mlp("gelu", 8.0)),
            ("conv.json", conv(false, 9.0, 1 << 20)),
            ("conv-int8.json", conv(true, 3.0, 0)),
            ("notes.txt", "not read".into()),
        ]);
        let part = of_folder(found.path()).part("profiles").unwrap();
        let names: Vec<&str> = part.sheets.iter().map(|sheet| sheet.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "profiles-a-relu-kinds",
                "profiles-conv-int8-kinds",
                "profiles-conv-kinds",
                "profiles-activations",
                "profiles-int8"
            ]
        );
        let findings = part.findings.iter().join("\n");
        for line in [
            "mlp: batch norm takes the most time of the network's operators, 60.0% (6.000 ms in 100 batches)",
            "mlp: slowest activation is gelu with 8.000 ms in 100 calls, 8.0 times relu's",
            "convnet: int8 is 3.00 times as fast as float with fused operators",
        ] {
            assert!(findings.contains(line), "{findings}");
        }
        assert!(part.notes.is_empty(), "{:?}", part.notes);
    }

    #[test]
    fn foreign_and_damaged_files_are_named_and_lose_no_table() {
        let found = folder(&[
            ("a.json", mlp("relu", 1.0)),
            ("cut.json", mlp("gelu", 1.0)[..200].to_owned()),
            ("other.json", "{\"a\": [1]}".into()),
            ("list.json", "[]".into()),
            ("none.json", mlp("tanh", 1.0).replace("\"batches\":100", "\"batches\":0")),
        ]);
        let found = of_folder(found.path());
        assert_eq!(found.profiles.len(), 1);
        for (note, expected) in found.notes.iter().zip([
            ["cut.json: is damaged (", "mpiburn profile --json FILE"],
            ["list.json: is not from ", "leave it out"],
            ["none.json: is damaged (batches is 0)", "mpiburn profile --json FILE"],
            ["other.json: is not from ", "leave it out"],
        ]) {
            assert!(expected.iter().all(|words| note.contains(words)) && !note.contains('\n'), "{note}");
        }
        assert_eq!(found.notes.len(), 4);
        assert_eq!(found.part("p").unwrap().sheets.len(), 1, "nothing to compare with");
    }

    #[test]
    fn an_empty_folder_has_no_part() {
        let found = folder(&[("notes.txt", String::new())]);
        assert!(of_folder(found.path()).part("p").is_none());
    }
}
