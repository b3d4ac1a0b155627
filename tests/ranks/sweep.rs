//! What sweeps and launches reject before they start anything, and files of a run that commands must not
//! overwrite.

use std::path::Path;

use crate::harness::*;

/// Runs a command that must fail with one line; returns the line.
fn refused(job: &Job, code: i32) -> String {
    let output = must_fail(job);
    let errors = errors(&output);
    assert_eq!((output.status.code(), errors.len()), (Some(code), 1), "{}", text(&output));
    errors[0].clone()
}

fn sweep(lab: &Lab, file: &Path, more: &[&str]) -> Job {
    job(1).arg("sweep").arg(file).arg("--out").arg(lab.path("runs")).args(more).clone()
}

#[test]
fn invalid_sweep_files_are_rejected_with_the_key() {
    let lab = Lab::new();
    for (body, words) in [
        ("[vary]\nbakend = [\"mpi\"]\n", "unknown key bakend in [vary]; did you mean backend?"),
        ("[vary]\nbackend = [\"smoke\"]\n", "run smoke-1: --backend smoke: "),
        ("[vary]\nepochs = [\"many\"]\n", "run epochs-many-1: --epochs many: must be a whole number from 1"),
        ("[vary]\nlr = [\"a\\nb\"]\n", "--lr a b: must be a finite number, 0 or more"),
        ("[vary]\nshuffle = [\"x\"]\n", "shuffle in [vary]: write shuffle = true or false"),
        ("[varry]\nlr = [0.1]\n", "unknown section [varry]; did you mean [vary]?"),
        ("resume = \"x\"\n", "resume in [base]: applies to a single run"),
        ("lr = [0.1, 1]\n", "lr in [base]: a list belongs under [vary]"),
        ("[vary\n", "line 7: "),
    ] {
        let line = refused(&sweep(&lab, &lab.sweep_file(body), &[]), 2);
        assert!(line.contains(words) && line.contains("small.toml"), "{line}");
    }
    let file = lab.path("small.toml");
    std::fs::write(&file, "title = \"T\"\nrepeats = -1\n").unwrap();
    let line = refused(&sweep(&lab, &file, &[]), 2);
    assert!(line.contains("repeats ") && line.contains("from 1 to 1000"), "{line}");
    assert!(!lab.path("runs").exists(), "nothing was created");
}

#[test]
fn options_of_one_run_and_varied_ones_are_refused_after_the_dashes() {
    let lab = Lab::new();
    let file = lab.sweep_file("[vary]\nbackend = [\"mpi\", \"gloo\"]\n");
    for (options, words) in [
        (&["--", "--resume", "x"][..], "--resume after `--`: "),
        (&["--", "--out=x"], "--out after `--`: "),
        (&["--", "--backend", "gloo"], "--backend after `--`: "),
        (&["--", "--lr", "-1"], "after `--`: --lr -1: must be a finite number, 0 or more"),
        (&["--", "--help"], "after `--`: unexpected argument '--help' found"),
        (&["--", "--lr"], "after `--`: --lr: a value is missing"),
        (&["--only", "nope"], "--only nope: "),
    ] {
        let line = refused(&sweep(&lab, &file, options), 2);
        assert!(line.contains(words), "{words}: {line}");
    }
    let listed = run(sweep(&lab, &file, &["--dry-run", "--", "--lr", "1e-3"]));
    assert!(listed.status.success() && text(&listed).contains("--lr 1e-3"), "{}", text(&listed));
    assert!(!lab.path("runs").exists(), "nothing was created");
}

#[test]
fn a_dry_run_lists_the_others_beside_a_run_that_cannot_start() {
    let lab = Lab::new();
    let vary = "[vary]\nlauncher = [\"alone\", \"mpirun\"]\ntopology = [\"1x1\", \"1x2\"]\n";
    let listed = run(sweep(&lab, &lab.sweep_file(vary), &["--dry-run"]));
    assert!(listed.status.success(), "{}", text(&listed));
    for words in ["skipped: alone-1x2-1: 1x2 needs a launcher", "/alone-1x1-1 ", "/mpirun-1x2-1 "] {
        assert!(text(&listed).contains(words), "{words}: {}", text(&listed));
    }
}

#[test]
fn unsuitable_hosts_are_named_before_the_start() {
    let lab = Lab::new();
    let hosts = lab.path("hosts");
    for (content, topology, words) in [
        ("localhost slots=1\nno-such-host.invalid slots=1\n", "2x1", "no-such-host.invalid of "),
        ("localhost slots=1\n", "1x2", "localhost has 1 of 2 slots"),
        ("localhost slots=2\n", "2x1", "lists 1 of 2 machines"),
        ("localhost many\n", "1x1", "line 1: localhost many"),
        ("-x slots=2\n", "1x1", "line 1: -x slots=2: expected a host name"),
        // An address that is reserved for documentation (RFC 5737).
        ("localhost slots=1\n192.0.2.1 slots=1\n", "2x1", "cannot ssh to 192.0.2.1"),
    ] {
        std::fs::write(&hosts, content).unwrap();
        let mut launch = job(1);
        launch.args(["launch", topology, "--hostfile"]).arg(&hosts).args(["--", "train"]);
        let line = refused(&launch, 1);
        assert!(line.contains(words), "{line} lacks {words}");
    }
    // A topology without a host file.
    let line = refused(job(1).args(["launch", "3x2", "--", "train"]), 1);
    assert!(line.contains("make hosts HOSTS="), "{line}");
}

#[test]
fn a_dry_run_mentions_cores_if_a_host_needs_several() {
    let lab = Lab::new();
    let hosts = lab.path("hosts");
    std::fs::write(&hosts, "alpha slots=2\nbeta slots=2\n").unwrap();
    for (topology, mentions) in [("2x1", false), ("2x2", true)] {
        let mut launch = job(1);
        launch.args(["launch", topology, "--dry-run", "--hostfile"]).arg(&hosts).args(["--", "train"]);
        let listed = run(launch);
        assert!(listed.status.success(), "{}", text(&listed));
        assert_eq!(text(&listed).contains("fewer than 2 cores"), mentions, "{}", text(&listed));
        assert!(!text(&listed).contains("1 cores"), "{}", text(&listed));
    }
}

#[test]
fn a_limit_above_the_data_set_is_told_and_is_no_other_configuration() {
    let lab = Lab::new();
    let limits = ["--epochs", "1", "--train-samples", "999999", "--test-samples", "99999"];
    let output = run(lab.command(1, "beyond", &limits));
    let printed = text(&output);
    assert!(output.status.success(), "{printed}");
    let all = lab.train(1, "all", &["--epochs", "1"]);
    for (option, typed) in [("train", "999999"), ("test", "99999")] {
        let available = &all["data"][format!("{option}_available")];
        let facts = [format!("--{option}-samples {typed}: "), format!(" {available} "), "run.json".into()];
        assert!(printed.lines().any(|line| facts.iter().all(|fact| line.contains(fact))), "{printed}");
    }
    let config = &lab.run_json("beyond")["config"];
    assert_eq!(config["train_samples"], all["data"]["train_available"]);
    assert_eq!(config["test_samples"], all["data"]["test_available"]);
    let report =
        run(job(1).args(["report", "--format", "csv"]).args(["beyond", "all"].map(|run| lab.path(run))));
    let csv = String::from_utf8_lossy(&report.stdout).into_owned();
    let mut rows = csv::Reader::from_reader(csv.as_bytes());
    let at = rows.headers().unwrap().iter().position(|name| name == "runs").expect("the column exists");
    let runs: Vec<String> = rows.records().map(|row| row.unwrap()[at].to_owned()).collect();
    assert_eq!(runs, ["2"], "{}", text(&report));
    assert!(!csv.contains("999999"), "{csv}");
}

#[test]
fn no_output_replaces_a_data_set_or_an_input() {
    let lab = Lab::new();
    let data = lab.data("features", 64, 32);
    lab.train(2, "run", &["--model=mlp", "--epochs=1", "--data-root", &data]);
    let test = Path::new(&data).join("test_data/test_x.npy");
    let before = std::fs::read(&test).unwrap();
    let eval = |ranks: usize, file: &Path| {
        job(ranks).args(["eval", "--checkpoint"]).arg(lab.path("run")).arg("--logits").arg(file).clone()
    };
    for ranks in [1, 2] {
        let line = refused(&eval(ranks, &test), 2);
        assert!(line.contains("test_x.npy: ") && line.contains("a file of a data set"), "{line}");
        succeeds(eval(ranks, &Path::new(&data).join("scores.npy")));
    }
    assert_eq!(std::fs::read(&test).unwrap(), before);

    for inside in ["run", "run/data", "run/checkpoints"] {
        let line = refused(job(1).args(["data", "digits", "--out"]).arg(lab.path(inside)), 2);
        assert!(line.contains("--out ") && line.contains("run directory"), "{line}");
    }
    std::fs::rename(&data, lab.path("run/data")).unwrap();
    let inside = lab.path("run/data").to_str().unwrap().to_owned();
    let options = ["--model=mlp", "--epochs=1", "--overwrite", "--data-root", &inside];
    let weights = lab.newest("run").join("model.safetensors");
    for ranks in [1, 2] {
        let line = refused(lab.command(ranks, "run", &options).arg("--init").arg(&weights), 2);
        assert!(line.contains("--init") && line.contains("--overwrite"), "{line}");
        assert!(weights.exists());
    }
    // `--overwrite` keeps files that no run writes.
    std::fs::write(lab.path("run/notes.txt"), "mine").unwrap();
    std::fs::create_dir(lab.path("run/rank7")).unwrap();
    let printed = output_of(lab.command(1, "run", &options));
    assert!(printed.contains("run: keeping ") && printed.contains("notes.txt"), "{printed}");
    assert_eq!(std::fs::read(lab.path("run/data/test_data/test_x.npy")).unwrap(), before);
    assert!(lab.path("run/notes.txt").exists() && !lab.path("run/rank7").exists());
    assert!(!lab.path("run/.replaced").exists());

    // The table that the report writes would replace the file of published figures that it reads, runs.csv.
    let reference = lab.path("results/reference");
    std::fs::create_dir_all(&reference).unwrap();
    std::fs::rename(lab.path("run"), lab.path("results/run")).unwrap();
    let figures = "model,topology,test_accuracy,hardware\nmlp,1x1,85,a CPU\n";
    std::fs::write(reference.join("runs.csv"), figures).unwrap();
    let output = report(&lab, &["--reference", "runs", "--out", "results/reference"]);
    let line = &errors(&output)[0];
    assert!(line.contains("--out results/reference: ") && line.contains("(runs.csv)"), "{line}");
    std::fs::write(reference.join("report.html"), "Generated by mpiburn 0.1.0").unwrap();
    let output = report(&lab, &["--reference", "runs", "--out", "results/reference"]);
    let line = &errors(&output)[0];
    assert!(line.contains("runs.csv: ") && line.contains("a file that this command reads"), "{line}");
    assert_eq!(std::fs::read_to_string(reference.join("runs.csv")).unwrap(), figures);
}

#[test]
fn no_output_replaces_a_file_of_a_run() {
    let lab = Lab::new();
    lab.train(1, "run", &["--epochs", "1", "--train-samples", "64"]);
    let run = lab.path("run");
    let state = lab.checkpoints("run").pop().unwrap().join("state.json");
    let kept = [run.join("run.json"), run.join("epochs.csv"), state];
    let before = kept.clone().map(|file| std::fs::read(file).unwrap());
    let profile = |option: &str| {
        job(1).args(["profile", "--batches", "2", "--checkpoint"]).arg(&run).arg(option).clone()
    };
    let mut allreduce = job(1);
    allreduce.args(["bench", "allreduce", "--sizes", "4", "--iterations", "5", "--csv"]);
    let mut fused = job(1);
    fused.args(["bench", "fused", "--train-samples", "64", "--csv"]);
    let jobs = [profile("--json"), profile("--csv"), allreduce, fused];
    for (mut job, file) in jobs.into_iter().zip(kept.iter().cycle()) {
        let line = refused(job.arg(file), 2);
        assert!(
            line.contains(file.to_str().unwrap()) && line.contains("a file of a run or a sweep"),
            "{line}"
        );
    }
    assert_eq!(kept.map(|file| std::fs::read(file).unwrap()), before);
    // A new file beside the run's files is allowed.
    let beside = crate::harness::run(profile("--json").arg(run.join("profile.json")));
    assert!(beside.status.success() && run.join("profile.json").exists(), "{}", text(&beside));
}
