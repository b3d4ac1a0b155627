//! Runs go on with another number of ranks: `--resume --reshard`, and `launch --restart N --shrink` after the
//! loss of a machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::harness::*;

/// 17 steps in an epoch with 24 samples in a step. The last step has 7 samples.
const OPTIONS: [&str; 6] = [
    "--train-samples=391",
    "--shuffle",
    "--checkpoint-every=5",
    "--keep=999",
    "--lr-scaling=linear",
    "--lr=1e-4",
];

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Checks that two runs have the same results, except for rounding.
fn assert_near(run: &Value, other: &Value) {
    for (name, slack) in [("steps", 0.1), ("train_loss", 1e-4), ("test_loss", 1e-3)] {
        let [one, other] = [run, other].map(|run| number(&run[name]));
        assert!((one - other).abs() < slack, "{name}: {one} {other}");
    }
}

/// Each change is inside an epoch: the checkpoints after it are removed.
#[test]
fn other_numbers_of_ranks_go_on_over_each_transport() {
    let lab = Lab::new();
    for backend in ["mpi", "gloo"] {
        let [whole, cut] = ["whole", "cut"].map(|name| format!("{name}-{backend}"));
        let options = [&OPTIONS[..], &["--train-batch-size=6", "--backend", backend]].concat();
        let expected = lab.train(4, &whole, &[&options[..], &["--epochs=4"]].concat());
        lab.train(4, &cut, &[&options[..], &["--epochs=1"]].concat());
        for (ranks, from, epochs) in [(2, 10, "2"), (3, 25, "3"), (1, 40, "4"), (4, 60, "4")] {
            for checkpoint in lab.checkpoints(&cut) {
                let name = checkpoint.file_name().expect("a name").to_str().expect("UTF-8").to_owned();
                if name["step-".len()..].parse::<usize>().expect("a number") > from {
                    fs::remove_dir_all(checkpoint).expect("it can be removed");
                }
            }
            let mut command = on_ranks(ranks, binary());
            command.args(["train", "--reshard", "--epochs", epochs, "--resume"]).arg(lab.path(&cut));
            let output = run(&mut command);
            assert!(output.status.success(), "{}", text(&output));
            let place = format!("resuming after step {from}, ");
            assert!(text(&output).contains(&place), "{place}: {}", text(&output));
            let samples: f64 = lab.completed(&cut)["per_rank"]
                .as_array()
                .expect("a list")
                .iter()
                .map(|rank| number(&rank["train_samples"]))
                .sum();
            assert_eq!(samples, 391.0);
        }
        let record = lab.completed(&cut);
        assert_near(&record, &expected);
        assert_eq!((&record["world_size"], &record["config"]["train_batch_size"]), (&4.into(), &6.into()));
        let shown = shown(&lab, &[&cut]);
        assert!(shown.contains("ranks 1 → 4 from step 61 (epoch 4)"), "{shown}");
    }
}

/// Three machines, which are this machine under three names. Each has its own folder for temporary files.
/// A machine does not answer while the file `down-NAME` exists.
fn machines(lab: &Lab) -> Command {
    let (agent, hosts, here) = (lab.path("agent"), lab.path("hosts"), lab.path(""));
    let script = format!(
        "#!/bin/sh\nhost=$1; shift\ncd {here}\nif [ -e down-$host ]; then echo no route to $host >&2; exit 255; fi\n\
         mkdir -p $host\nTMPDIR={here}$host\nexport TMPDIR\nexec sh -c \"$*\"\n",
        here = here.display()
    );
    fs::write(&agent, script).unwrap();
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(&hosts, "a.lan slots=1\nb.lan slots=1\nc.lan slots=1\n").unwrap();
    let mut command = Command::new(binary());
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("OMPI_MCA_mpi_yield_when_idle", "1").env_remove("RUST_LOG");
    command.env("OMPI_MCA_plm_rsh_agent", agent).env_remove("OMPI_MCA_plm_rsh_args");
    // All ranks would be bound to the same core of this machine.
    command.env("OMPI_MCA_hwloc_base_binding_policy", "none");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.args(["launch", "3x1", "--restart", "3", "--hostfile"]).arg(hosts);
    command
}

/// Calls `before`, and kills the last rank of the job in `name`, once the job has `ranks` ranks and a
/// checkpoint after `step` steps or more. Returns the number of steps of the newest checkpoint.
fn kill_last(
    job: &mut Child,
    lab: &Lab,
    name: &str,
    ranks: usize,
    step: usize,
    before: impl FnOnce(),
) -> usize {
    let newest = || {
        let last = lab.checkpoints(name).pop()?;
        last.file_name()?.to_str()?[5..].parse::<usize>().ok()
    };
    let pid = || {
        let run: Value = serde_json::from_slice(&fs::read(lab.path(name).join("run.json")).ok()?).ok()?;
        let places = run["places"].as_array()?;
        places.last()?["pid"].as_u64().filter(|_| places.len() == ranks)
    };
    wait_until(job, "a checkpoint", || pid().is_some() && newest() >= Some(step));
    before();
    signal(pid().unwrap(), "-KILL");
    newest().unwrap()
}

/// The lines of the launcher about machines.
fn about_machines(output: &Output) -> Vec<String> {
    let is_about = |line: &String| line.starts_with("mpiburn: launch: ") && line.contains("continuing on");
    errors(output).into_iter().filter(is_about).collect()
}

/// First c.lan is lost, then b.lan too. Then both answer again.
#[test]
fn machines_that_do_not_answer_are_left_out_until_they_answer_again() {
    let lab = Lab::new();
    let options = [&OPTIONS[..], &["--train-batch-size=8", "--test-samples=100", "--epochs=30"]].concat();
    let expected = lab.train(3, "whole", &options);
    let mut command = machines(&lab);
    command.args(["--shrink", "--", "train", "--data-root"]);
    let mut job = command.arg(digits()).arg("--out").arg(lab.path("cut")).args(&options).spawn().unwrap();
    let down = |name: &str| lab.path(&format!("down-{name}.lan"));
    wait_until(&mut job, "the job", || lab.path("cut").join("run.json").exists());
    let lose = |name: &str| fs::write(down(name), "").unwrap();
    let find = |name: &str| fs::remove_file(down(name)).unwrap();
    let mut from = kill_last(&mut job, &lab, "cut", 3, 20, || lose("c"));
    from = kill_last(&mut job, &lab, "cut", 2, from + 20, || lose("b"));
    kill_last(&mut job, &lab, "cut", 1, from + 20, || ["b", "c"].into_iter().for_each(find));
    let output = ended(job);
    assert!(output.status.success(), "{}", text(&output));
    let lines = about_machines(&output);
    assert_eq!(lines.len(), 3, "{}", text(&output));
    assert!(
        lines[0].contains("c.lan does not answer (") && lines[0].contains("no route to c.lan"),
        "{lines:?}"
    );
    assert!(lines[0].ends_with("continuing on 2x1 (2 ranks)"), "{lines:?}");
    assert!(lines[1].contains("b.lan does not answer (") && lines[1].contains("c.lan does not"), "{lines:?}");
    assert!(lines[2].ends_with("all machines answer again; continuing on 3x1"), "{lines:?}");
    let record = lab.completed("cut");
    assert_near(&record, &expected);
    let changed: Vec<String> = record["history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|attempt| {
            let ranks =
                attempt["changed"].as_array().and_then(|all| all.iter().find(|c| c["field"] == "world_size"));
            ranks.map_or_else(String::new, |change| format!("{}-{}", change["from"], change["to"]))
        })
        .collect();
    assert_eq!(changed, ["", "3-2", "2-1", "1-3"]);
    assert_eq!(record["failed_attempts"].as_array().map(Vec::len), Some(3));
    assert!(!lab.path("cut").join(".hosts").exists());
}

/// The run chose its batch size for all machines. Its first epoch, after which it would write a checkpoint,
/// is long.
#[test]
fn without_a_checkpoint_a_run_does_not_begin_again_on_fewer_machines() {
    let lab = Lab::new();
    let mut command = machines(&lab);
    command.args(["--shrink", "--", "train", "--data-root"]).arg(digits());
    command.args(["--model=vgg", "--train-batch-size=1", "--epochs=1", "--out"]).arg(lab.path("new"));
    let mut job = command.spawn().unwrap();
    let record = || lab.path("new").join("run.json");
    let pid = || {
        let run: Value = serde_json::from_slice(&fs::read(record()).ok()?).ok()?;
        run["places"].as_array()?.last()?["pid"].as_u64()
    };
    wait_until(&mut job, "the run", || pid().is_some());
    fs::write(lab.path("down-c.lan"), "").unwrap();
    signal(pid().unwrap(), "-KILL");
    let output = ended(job);
    let errors = errors(&output);
    let is_end = |line: &String| {
        line.contains("not started again: c.lan does not answer (") && line.contains("without a checkpoint")
    };
    assert!(!output.status.success() && errors.iter().any(is_end), "{}", text(&output));
}

/// A user who lost a machine may begin with a resume, and later repeat it with all machines.
#[test]
fn a_resume_leaves_out_a_machine_that_does_not_answer() {
    let lab = Lab::new();
    let options = [&OPTIONS[..], &["--train-batch-size=8", "--test-samples=100", "--epochs=1"]].concat();
    lab.train(3, "cut", &options);
    let down = lab.path("down-b.lan");
    for (epochs, ranks) in [("2", 2), ("3", 3)] {
        if ranks == 2 {
            fs::write(&down, "").unwrap();
        }
        let mut command = machines(&lab);
        command.args(["--shrink", "--", "train", "--epochs", epochs, "--resume"]).arg(lab.path("cut"));
        let output = ended(command.spawn().unwrap());
        let lines = about_machines(&output);
        assert_eq!(lines.len(), usize::from(ranks == 2), "{}", text(&output));
        assert!(lines.iter().all(|line| line.contains("b.lan does not answer (")), "{lines:?}");
        let record = lab.completed("cut");
        assert_eq!(
            (&record["world_size"], &record["config"]["epochs"]),
            (&ranks.into(), &epochs.parse::<u64>().unwrap().into())
        );
        let _ = fs::remove_file(&down);
    }
}

#[test]
fn a_launch_without_machines_to_leave_out_rejects_shrink() {
    let lab = Lab::new();
    let train = |more: &[&str]| {
        let mut command = Command::new(binary());
        command.args(["launch", "1x2"]).args(more).args(["train", "--data-root"]).arg(digits());
        // In this folder, there is no default host file.
        command.arg("--out").arg(lab.path("none")).current_dir(lab.path(""));
        must_fail(command)
    };
    let output = train(&["--restart", "1", "--shrink"]);
    assert_eq!((output.status.code(), errors(&output).len()), (Some(2), 1), "{}", text(&output));
    assert!(errors(&output)[0].starts_with("mpiburn: --shrink: requires a host file"), "{}", text(&output));
    for (options, reason) in [
        (&["--shrink"][..], "requires --restart N"),
        (&["--restart=1", "--shrink", "--mpirun-by=./by.sh"], "cannot be combined with --mpirun-by"),
    ] {
        let output = train(options);
        assert_eq!((output.status.code(), errors(&output).len()), (Some(2), 1), "{}", text(&output));
        assert!(errors(&output)[0].starts_with(&format!("mpiburn: --shrink: {reason}")), "{}", text(&output));
    }
    assert!(!Path::new(&lab.path("none")).exists());
}
