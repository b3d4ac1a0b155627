//! Processes that do not form one MPI job: the program prints one line that says why, and what to do.

use std::borrow::BorrowMut;
use std::process::{Command, Output};

use crate::harness::*;

type Variables = Vec<(String, String)>;

fn variables(text: &str) -> Variables {
    let pair = |word: &str| word.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    text.split_whitespace().filter_map(pair).collect()
}

/// A short training in one process, started without mpirun, with these environment variables.
fn train(lab: &Lab, variables: &Variables) -> Command {
    let mut command = Command::new(binary());
    command.args(["train", "--epochs", "1", "--train-samples", "64", "--data-root"]).arg(digits());
    command.arg("--out").arg(lab.path("out")).envs(variables.iter().cloned());
    command.env_remove("RUST_LOG");
    command
}

/// Runs a command that must fail before it creates anything. Returns the only line that it prints.
fn only_line(lab: &Lab, command: Command) -> String {
    let output = must_fail(command);
    let lines = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(lines.lines().count(), 1, "one line was expected: {}", text(&output));
    assert!(!lab.path("out").exists(), "nothing was created");
    lines
}

fn succeeds(mut command: impl BorrowMut<Command>) -> Output {
    // This variable may be set where the tests run. It is removed, because it would hide that the program
    // must set it.
    let output = run(command.borrow_mut().env_remove("OMPI_MCA_ess_singleton_isolated"));
    assert!(output.status.success(), "{}", text(&output));
    output
}

/// Each rank would train alone: its variables are from another launcher than MPI's own, so MPI's world has
/// one rank.
#[test]
fn a_launcher_that_mpi_does_not_follow_is_named_with_its_variable() {
    let lab = Lab::new();
    for (set, launcher) in [
        ("PMI_RANK=0 PMI_SIZE=2 MPI_LOCALNRANKS=2", "MPICH's mpirun"),
        ("PMI_RANK=1 PMI_SIZE=2 PMI_FD=987", "MPICH's mpirun"),
        ("PMI_ID=0 PMI_PORT=a:7 MPI_LOCALNRANKS=2", "MPICH's mpirun"),
        ("OMPI_COMM_WORLD_RANK=1", "Open MPI's mpirun"),
        ("MV2_COMM_WORLD_RANK=0 MV2_COMM_WORLD_SIZE=2", "MVAPICH2's mpirun_rsh"),
        ("FLUX_TASK_RANK=1 FLUX_JOB_SIZE=2 PMI_RANK=1 PMI_SIZE=2", "Flux"),
        ("FLUX_TASK_RANK=1 FLUX_JOB_SIZE=2 FLUX_JOB_ID=7", "Flux"),
        ("PALS_RANKID=1 PMI_RANK=1 PMI_SIZE=2", "PALS's mpiexec"),
        ("JSM_NAMESPACE_RANK=0 JSM_NAMESPACE_SIZE=2", "jsrun"),
        ("JSM_NAMESPACE_RANK=0 JSM_NAMESPACE_SIZE=2 JSM_JSRUN_PORT=7", "jsrun"),
        ("SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2", "Slurm's srun"),
        (
            "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_ID=0 SLURM_NODELIST=a SLURM_JOBID=1",
            "Slurm's srun",
        ),
        ("PMIX_RANK=0 PMIX_NAMESPACE=a", "a launcher with PMIx"),
    ] {
        let line = only_line(&lab, train(&lab, &variables(set)));
        assert!(line.starts_with(&format!("mpiburn: {launcher}")), "{set}: {line}");
        let first = set.split(' ').next().unwrap();
        assert!(line.contains(first) && line.contains("unset"), "{set}: {line}");
        assert!(!launcher.starts_with("Open MPI") || !line.contains("build"), "{set}: {line}");
    }
}

#[test]
fn a_shell_in_an_allocation_or_in_a_job_of_one_process_trains() {
    for set in [
        "SLURM_JOBID=1 SLURM_NODELIST=a SLURM_PROCID=0 SLURM_NTASKS=2",
        "SLURM_JOBID=1 SLURM_NODELIST=a SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1",
        "FLUX_JOB_ID=7 FLUX_TASK_RANK=0 FLUX_JOB_SIZE=1",
        "JSM_JSRUN_PORT=7 JSM_NAMESPACE_RANK=0 JSM_NAMESPACE_SIZE=1",
        "PMI_FD=987 PMI_RANK=0 PMI_SIZE=1",
    ] {
        let lab = Lab::new();
        succeeds(train(&lab, &variables(set)));
        lab.completed("out");
    }
}

/// The environment that a rank of a job of `ranks` ranks had. The job has ended.
fn inherited(lab: &Lab, ranks: usize) -> Variables {
    let mut job = mpirun(ranks, "sh");
    job.args(["-c", "env -0 >\"$0.$OMPI_COMM_WORLD_RANK\""]).arg(lab.path("environment"));
    let output = run(job);
    assert!(output.status.success(), "{}", text(&output));
    let bytes = std::fs::read(lab.path(&format!("environment.{}", ranks - 1))).expect("the rank's variables");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let pair = |variable: &[u8]| {
        let at = variable.iter().position(|&byte| byte == b'=')?;
        Some((text(&variable[..at]), text(&variable[at + 1..])))
    };
    bytes.split(|&byte| byte == 0).filter_map(pair).collect()
}

/// A process has the variables of a job that has ended. Without the program's check, MPI_Init would end it
/// with twenty lines.
#[test]
fn variables_of_a_job_that_has_ended_are_named_and_do_not_matter_without_mpi() {
    let lab = Lab::new();
    let (of_two, of_one) = (inherited(&lab, 2), inherited(&lab, 1));
    let line = only_line(&lab, train(&lab, &of_two));
    for word in ["OMPI_COMM_WORLD_RANK=1", "OMPI_MCA_orte_local_daemon_uri", "unset ${!OMPI_@} ${!PMIX_@}"] {
        assert!(line.contains(word), "{line} lacks {word}");
    }
    for set in [&of_one, &of_two] {
        let mut launch = Command::new(binary());
        launch.envs(set.iter().cloned()).args(["launch", "1x2", "--", "train"]);
        let line = only_line(&lab, launch);
        assert!(line.contains("OMPI_UNIVERSE_SIZE is set") && line.contains("unset ${!OMPI_@}"), "{line}");
        for words in [&["--help"][..], &["train", "--help"], &["data", "info", digits().to_str().unwrap()]] {
            let mut command = Command::new(binary());
            command.envs(set.iter().cloned()).args(words);
            assert!(!succeeds(command).stdout.is_empty());
        }
    }
    succeeds(train(&lab, &of_one));
    lab.completed("out");
}

/// Without a launcher, Open MPI starts a daemon, and looks for ssh to do so.
#[test]
fn a_process_alone_needs_no_ssh() {
    let lab = Lab::new();
    let path = variables("PATH=/nowhere");
    succeeds(train(&lab, &path));
    lab.completed("out");
    let mut library = Command::new(example("own_model"));
    library.envs(path);
    succeeds(library);
}

#[test]
fn ranks_that_form_no_job_are_rejected_with_the_mpirun_command() {
    let lab = Lab::new();
    for (variables, options, words) in [
        (&[][..], &["--world-size", "2"][..], ["--world-size 2", "mpirun -n 2"]),
        (&[("RANK", "0"), ("WORLD_SIZE", "2")], &[], ["RANK=0", "mpirun -n 2"]),
        (&[("RANK", "1"), ("WORLD_SIZE", "2")], &[], ["RANK=1", "mpirun -n 2"]),
    ] {
        let mut command = Command::new(binary());
        command.arg("train").arg("--data-root").arg(digits()).arg("--out").arg(lab.path("out"));
        command.args(options).envs(variables.iter().copied());
        let output = must_fail(command);
        let errors = errors(&output);
        assert_eq!(errors.len(), 1, "one line was expected: {}", text(&output));
        words.iter().for_each(|word| assert!(errors[0].contains(word), "{} lacks {word}", errors[0]));
    }
    assert!(!lab.path("out").exists(), "nothing was created");
    // A job under mpirun ignores RANK and WORLD_SIZE, which other programs set.
    let mut job = lab.command(2, "out", &["--epochs", "1", "--train-samples", "64"]);
    let ended = run(job.env("RANK", "0").env("WORLD_SIZE", "2"));
    assert!(ended.status.success(), "{}", text(&ended));
}

#[test]
fn help_and_version_are_printed_once_and_leave_mpi_to_what_the_ranks_run_next() {
    let lab = Lab::new();
    let mut version = mpirun(2, binary());
    let output = succeeds(version.arg("--version"));
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 1, "{}", text(&output));
    let command = train(&lab, &Vec::new());
    let mut job = mpirun(2, "sh");
    job.args(["-c", "\"$0\" --version && \"$0\" train --help && \"$0\" \"$@\""]);
    succeeds(job.arg(command.get_program()).args(command.get_args()));
    assert_eq!(lab.completed("out")["world_size"], 2);
}

/// Each rank is alone in its MPI world, because its variables are from another launcher. Its parent process
/// is mpirun.
#[test]
fn commands_without_ranks_are_refused_once_under_a_launcher_that_mpi_does_not_follow() {
    let lab = Lab::new();
    let foreign = "unset ${!OMPI_@} ${!PMIX_@}; PMI_SIZE=2 PMI_RANK=$0 exec \"$@\"";
    for words in
        [&["launch", "1x2", "--", "train"][..], &["sweep", "none.toml"], &["data", "digits", "--out"]]
    {
        let mut job = mpirun(1, "bash");
        for rank in ["0", "1"] {
            if rank == "1" {
                job.args([":", "-n", "1", "bash"]);
            }
            job.args(["-c", foreign, rank, binary()]).args(words);
            if words[0] == "data" {
                job.arg(lab.path("data"));
            }
        }
        let output = must_fail(job);
        let name = if words[0] == "data" { "data digits" } else { words[0] };
        let errors = errors(&output);
        assert_eq!((errors.len(), output.status.code()), (1, Some(2)), "{}", text(&output));
        let facts = [&*format!("mpiburn: {name} "), "without mpirun or srun"];
        assert!(facts.iter().all(|fact| errors[0].contains(fact)), "{}", errors[0]);
    }
    assert!(!lab.path("data").exists(), "nothing was created");
}

#[test]
fn ranks_without_their_launchers_variables_are_refused_and_one_process_trains() {
    let lab = Lab::new();
    let command = train(&lab, &Vec::new());
    let started = |ranks: usize, program: &str, words: &[&str]| {
        let mut job = mpirun(ranks, program);
        job.args(words).arg(command.get_program()).args(command.get_args());
        job
    };
    let output = must_fail(started(2, "env", &["-i"]));
    let lines = errors(&output);
    let is_told = |line: &String| line.contains("launcher variables") && line.contains("env -i");
    assert!((1..=2).contains(&lines.len()) && lines.iter().all(is_told), "{}", text(&output));
    assert!(!lab.path("out").exists(), "nothing was created");
    // A single process trains: its parent is mpirun (`env`), or a shell that mpirun has started (`sh`).
    let shell = ["-c", "env -i \"$0\" \"$@\" --overwrite; exit"];
    for (program, words) in [("env", &[][..]), ("sh", &shell)] {
        succeeds(started(1, program, words));
        assert_eq!(lab.completed("out")["world_size"], 1);
    }
}
