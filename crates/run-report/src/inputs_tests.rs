//! Checks which inputs are found among runs, sweeps, profiles and benchmark tables.

use std::fs;

use super::*;
use crate::profiles::testing::{json, operator};
use crate::testing::tells;
use run_record::SweepRun;

#[test]
fn profiles_are_found_below_the_results_and_among_typed_paths() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name);
    let profile = json("mlp", "relu", false, &[operator("linear", 100, 1.0, 0)]).to_string();
    for folder in ["profiles", "run/checkpoints", "other"] {
        fs::create_dir_all(path(folder)).unwrap();
    }
    fs::write(path("profiles/a.json"), &profile).unwrap();
    fs::write(path("run/profile.json"), &profile).unwrap();
    fs::write(path("other/x.json"), "{}").unwrap();
    let found = Inputs::find(&[], root.path(), Path::new("")).unwrap();
    let folders: Vec<&Path> = found.profiles.iter().map(|found| found.folder.as_path()).collect();
    assert_eq!(folders, [path("profiles")], "a run's folder and a foreign one are left out");
    let typed =
        Inputs::find(&[path("profiles"), path("run/profile.json")], root.path(), Path::new("")).unwrap();
    assert_eq!(typed.profiles.iter().map(|found| found.profiles.len()).collect::<Vec<_>>(), [1, 1]);
    assert!(typed.sections.is_empty(), "runs that were not typed are left out");
    let foreign = Inputs::find(&[path("other")], root.path(), Path::new("")).unwrap();
    assert!(foreign.profiles[0].notes[0].starts_with(&format!("{}: ", path("other/x.json").display())));
}

#[test]
fn other_paths_are_rejected_by_name_and_the_rest_is_found() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name);
    fs::write(path("t.csv"), "a,b\n1,2\n").unwrap();
    fs::write(path("t.txt"), "").unwrap();
    fs::create_dir_all(path("empty")).unwrap();
    fs::create_dir_all(path("run/checkpoints")).unwrap();
    let names = ["t.csv", "none.csv", "none", "none.json", "t.txt", "empty", "run"];
    let found = Inputs::find(&names.map(path), root.path(), Path::new("")).unwrap();
    assert_eq!((found.sections.len(), found.rejected.len()), (1, 6));
    for (line, (name, expected)) in found.rejected.iter().zip([
        ("t.csv", "t.csv: is not a table of mpiburn bench"),
        ("none.csv", "none.csv: there is no such file or folder"),
        ("none", "none: there is no such file or folder"),
        ("none.json", "none.json: there is no such file or folder"),
        ("t.txt", "t.txt: is not a run directory"),
        ("empty", "empty: contains no run, sweep"),
    ]) {
        assert!(line.contains(expected) && line.contains(name), "{line}");
    }
}

#[test]
fn a_folder_is_all_that_is_below_it_and_each_run_counts_once() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name);
    let profile = json("mlp", "relu", false, &[operator("linear", 100, 1.0, 0)]).to_string();
    for folder in ["all/run/checkpoints", "all/a/b/c/d/deep/checkpoints", "all/a/b/c/d/e/no/checkpoints"] {
        fs::create_dir_all(path(folder)).unwrap();
    }
    fs::create_dir_all(path("all/profiles")).unwrap();
    fs::write(path("all/profiles/p.json"), &profile).unwrap();
    let found =
        Inputs::find(&["all", "all/run", "all/../all"].map(path), root.path(), Path::new("")).unwrap();
    assert_eq!(found.rejected, [""; 0]);
    assert_eq!(found.sections[0].notes.len(), 2, "{:?}", found.sections[0].notes);
    assert_eq!(found.profiles.len(), 1);
    fs::create_dir_all(path("tables")).unwrap();
    let table = "operation,backend,topology,bytes,median_us,result\nsend,mpi,1x2,1024,1.5,correct\n";
    fs::write(path("tables/c.csv"), table).unwrap();
    let found = Inputs::find(&[path("tables")], root.path(), Path::new("")).unwrap();
    assert_eq!((found.tables, found.rejected.len()), (vec![path("tables/c.csv")], 0));
}

fn sweep(folder: &Path, name: &str) {
    let run = SweepRun {
        name: "2x2".into(),
        repeat: 1,
        varied: Default::default(),
        state: RunState::Failed,
        error: Some("no\n  ssh".into()),
    };
    let (title, scale) = ("T".into(), "quick".into());
    let scaled = BTreeMap::new();
    let command = Some("mpiburn sweep t.toml --scale quick".into());
    let (name, reference, runs) = (name.into(), None, vec![run]);
    let sweep = SweepRecord { name, title, reference, scale, scaled, command, runs };
    sweep.write(folder).unwrap();
}

#[test]
fn sweeps_of_the_same_name_have_different_file_names() {
    let root = tempfile::tempdir().unwrap();
    for folder in ["a", "deep/b"] {
        sweep(&root.path().join(folder), "../t");
    }
    let sections = Inputs::find(&[], root.path(), Path::new("")).unwrap().sections;
    let names: Vec<&str> = sections.iter().map(|section| section.name.as_str()).collect();
    assert_eq!(names, ["---t", "---t-2"]);
    let titles: Vec<&str> = sections.iter().map(|section| section.title.as_str()).collect();
    let expected = ["a", "deep/b"].map(|name| format!("T (quick) in {}", root.path().join(name).display()));
    assert_eq!(titles, expected, "equal titles have their folders");
    let one = Inputs::find(&[root.path().join("a")], root.path(), Path::new("")).unwrap().sections;
    assert_eq!(one[0].title, "T (quick)");
    let note = &sections[0].notes[0];
    assert!(
        note.ends_with("a/2x2: failed: no ssh; start the sweep again: mpiburn sweep t.toml --scale quick"),
        "no log, as it was not started: {note}"
    );
    std::fs::write(root.path().join("a/2x2.log"), "").unwrap();
    let sections = Inputs::find(&[], root.path(), Path::new("")).unwrap().sections;
    let note = &sections[0].notes[0];
    assert!(
        note.contains("no ssh; see ") && note.contains("a/2x2.log, then start the sweep again: "),
        "{note}"
    );
}

/// Makes the record of a sweep whose `runs` are all in `state`, without reasons.
fn record(runs: &[&str], state: RunState) -> SweepRecord {
    let run = |name: &&str| SweepRun {
        name: (*name).into(),
        repeat: 1,
        varied: Default::default(),
        state,
        error: None,
    };
    SweepRecord {
        name: "s".into(),
        title: "S".into(),
        reference: None,
        scale: "full".into(),
        scaled: BTreeMap::new(),
        command: Some("mpiburn sweep s.toml".into()),
        runs: runs.iter().map(run).collect(),
    }
}

#[test]
fn a_sweeps_run_without_its_folder_is_started_again() {
    let root = tempfile::tempdir().unwrap();
    let notes = |state: RunState| {
        record(&["gone"], state).write(root.path()).unwrap();
        let sections = Inputs::find(&[root.path().to_owned()], root.path(), Path::new("")).unwrap().sections;
        sections[0].notes.clone()
    };
    let [note] = &notes(RunState::Completed)[..] else { panic!("one note") };
    assert!(tells(note, &["gone: ", "missing", "mpiburn sweep s.toml"]), "{note}");
    assert!(!note.contains("run.json"), "{note}");
    let [note] = &notes(RunState::Failed)[..] else { panic!("one note") };
    assert!(tells(note, &["gone: failed, ", "reason; ", "mpiburn sweep s.toml"]), "{note}");
}

#[test]
fn a_copied_sweep_is_named_once() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name);
    for folder in ["a", "a/z"] {
        for (name, digest) in [("x", 1), ("y", 2)] {
            let mut run = crate::testing::run((1, 1), &[], f64::from(digest));
            run.record.results = Some(run.results);
            fs::create_dir_all(path(folder).join(name)).unwrap();
            let text = serde_json::to_string(&run.record).unwrap();
            fs::write(path(folder).join(name).join("run.json"), text).unwrap();
        }
    }
    let found = Inputs::find(&[path("a")], root.path(), Path::new("")).unwrap();
    assert_eq!(found.sections[0].runs.len(), 2, "{:?}", found.sections[0].notes);
    let [line] = &found.again[..] else { panic!("{:?}", found.again) };
    let [copy, first] = ["a/z", "a"].map(|name| path(name).display().to_string());
    assert!(tells(line, &[&format!("{copy}: 2 "), &format!(" {first},")]), "{line}");
}

#[test]
fn runs_of_a_damaged_sweep_are_found() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("s/run/checkpoints")).unwrap();
    std::fs::write(root.path().join("s/sweep.json"), "{").unwrap();
    let paths = [root.path().join("s"), root.path().to_owned()];
    let sections = Inputs::find(&paths, root.path(), Path::new("")).unwrap().sections;
    assert_eq!(sections[0].notes.len(), 2);
    assert!(
        sections[0].notes[0].contains("s/sweep.json: ")
            && sections[0].notes[1].contains("s/run: has no run.json")
    );
}

#[test]
fn a_file_is_found_once_and_other_paths_to_it_are_named() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name);
    fs::create_dir_all(path("a/out")).unwrap();
    let table = "operation,backend,topology,bytes,median_us,result\nsend,mpi,1x2,1024,1.5,correct\n";
    fs::write(path("a/f.csv"), table).unwrap();
    fs::write(path("a/out/written.csv"), table).unwrap();
    std::os::unix::fs::symlink(path("a/f.csv"), path("a/b.csv")).unwrap();
    let found = Inputs::find(&[], root.path(), &path("a/out")).unwrap();
    assert_eq!((found.tables, found.again.len()), (vec![path("a/f.csv")], 1), "only the link");
    let names = ["a/f.csv", "a/f.csv", "a/../a/f.csv", "a/b.csv", "none"];
    let found = Inputs::find(&names.map(path), root.path(), Path::new("")).unwrap();
    assert_eq!((found.tables, found.again.len(), found.rejected.len()), (vec![path("a/f.csv")], 2, 1));
    let line = &found.again[1];
    assert!(line.contains("a/b.csv: is the same as ") && line.contains("a/f.csv,"), "{line}");
}

#[test]
fn sweeps_of_topologies_and_backends_come_first() {
    let runs_of = |topologies: &[&str], backends: &[&str]| {
        let pairs =
            topologies.iter().flat_map(|topology| backends.iter().map(move |backend| (topology, backend)));
        let pairs = pairs.map(|(topology, backend)| {
            let processes = topology[2..].parse().unwrap();
            crate::testing::run((1, processes), &["--backend", backend], 4.0)
        });
        Section { runs: pairs.collect(), ..Section::default() }
    };
    let mut sections = [
        runs_of(&["1x1"], &["mpi", "gloo"]),
        runs_of(&["1x1", "1x2"], &["mpi"]),
        runs_of(&["1x1"], &["mpi"]),
        runs_of(&["1x1", "1x2"], &["mpi", "gloo"]),
    ];
    for (number, section) in sections.iter_mut().enumerate() {
        section.name = number.to_string();
    }
    sections.sort_by_key(place);
    let names: Vec<&str> = sections.iter().map(|section| section.name.as_str()).collect();
    assert_eq!(names, ["3", "1", "0", "2"]);
}

#[test]
fn a_run_alone_and_sweeps_of_one_title_are_told_apart() {
    let of = |name: &str, title: &str, folder: &str, runs: usize| Section {
        name: name.into(),
        title: title.into(),
        folder: folder.into(),
        runs: vec![crate::testing::run((1, 1), &[], 4.0); runs],
        ..Section::default()
    };
    let titles = |mut sections: Vec<Section>| -> Vec<String> {
        tell_apart(&mut sections);
        sections.into_iter().map(|section| section.title).collect()
    };
    let sections = vec![
        of("s", "S", "./a/s", 1),
        of("s", "S", "b/s", 3),
        of("t", "T", "t", 1),
        of("runs", "Runs", "", 2),
    ];
    assert_eq!(titles(sections), ["S in a/s", "S in b/s", "T", "Runs"]);
    assert_eq!(titles(vec![of("runs", "Runs", "", 1)]), ["Run results/1x1-mpi"]);
    for here in ["", ".", "./"] {
        let mut section = of("runs", "Runs", here, 1);
        section.runs[0].path = here.into();
        assert_eq!(titles(vec![section]), ["Run ."], "{here:?}");
    }
}
