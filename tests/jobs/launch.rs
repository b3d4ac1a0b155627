//! `launch` on unusual machines: hosts that plain ssh does not reach, and machines with fewer cores than
//! hardware threads.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::harness::*;

/// `launch 1x2 MORE -- train` of `program`, into the run directory `run`.
fn launch(lab: &Lab, program: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("OMPI_MCA_mpi_yield_when_idle", "1").env_remove("RUST_LOG");
    command.args(["launch", "1x2"]).args(more);
    command.args(["train", "--epochs", "1", "--train-samples", "320", "--data-root"]).arg(digits());
    command.arg("--out").arg(lab.path("run"));
    command
}

/// mpirun's setting is a list of agents, with arguments; the first agent does not exist. `plm_rsh_args` adds
/// arguments. Only the agent knows the host, whose name has a dot and a user. The login shell prints text,
/// and the program's path has an apostrophe and a space.
#[test]
fn a_host_is_reached_as_mpirun_reaches_it() {
    let lab = Lab::new();
    let (agent, seen, hosts) = (lab.path("agent"), lab.path("seen"), lab.path("hosts"));
    let script = format!(
        "#!/bin/sh\necho \"$*\" >>{}\necho Welcome\n[ \"$1 $2 $3\" = '--flag -p 2222' ] || exit 255\nshift 4\n\
         exec sh -c \"$*\"\n",
        seen.display()
    );
    fs::write(&agent, script).unwrap();
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(&hosts, "alpha.lan slots=2 max_slots=4 username=me\n").unwrap();
    let program = lab.path("it's mine/mpiburn");
    fs::create_dir(program.parent().unwrap()).unwrap();
    fs::copy(binary(), &program).unwrap();
    let mut command = launch(&lab, &program, &["--hostfile", hosts.to_str().unwrap()]);
    command.env("OMPI_MCA_plm_rsh_agent", format!("mpiburn-none -x : {} --flag", agent.display()));
    command.env("OMPI_MCA_plm_rsh_args", "-p 2222");
    let output = run(command);
    assert!(output.status.success(), "{}", text(&output));
    lab.completed("run");
    let seen = fs::read_to_string(seen).unwrap();
    let hosts: Vec<_> =
        seen.lines().map(|line| line.split(' ').take(4).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(hosts, ["--flag -p 2222 me@alpha.lan"; 2], "the check, and mpirun");
}

/// A signal during the check of hosts ends the launch, and ends the agent and the agent's processes.
#[test]
fn a_signal_ends_the_wait_for_a_host_that_does_not_answer() {
    let lab = Lab::new();
    let (agent, asked, hosts) = (lab.path("agent"), lab.path("asked"), lab.path("hosts"));
    let script =
        format!("#!/bin/sh\nsleep 3600 &\necho $$ $! >{0}.new\nmv {0}.new {0}\nwait\n", asked.display());
    fs::write(&agent, script).unwrap();
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(&hosts, "alpha.invalid slots=2\n").unwrap();
    let mut command = launch(&lab, binary().as_ref(), &["--hostfile", hosts.to_str().unwrap()]);
    command.env("OMPI_MCA_plm_rsh_agent", &agent);
    let mut started = lab.start(command);
    wait_until(&mut started.job, "the agent", || asked.exists());
    signal(started.job.id(), "-TERM");
    let output = started.ended();
    assert_eq!(output.status.code(), Some(143), "{}", text(&output));
    assert_eq!(errors(&output), ["mpiburn: SIGTERM came before alpha.invalid answered: no job was started"]);
    for pid in fs::read_to_string(asked).unwrap().split_whitespace() {
        // A process that has ended, but that its parent has not waited for, has an empty command line.
        let words = format!("/proc/{pid}/cmdline");
        wait_for("the agent's end", || {
            fs::read(&words).is_ok_and(|words| words.is_empty()) || !Path::new(&words).exists()
        });
    }
}

/// A common virtual machine: one core with two hardware threads. Open MPI refuses to bind two ranks to one
/// core.
#[test]
fn two_ranks_on_one_core_have_a_hardware_thread_each() {
    // A machine with one CPU has no second hardware thread.
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
    let binding = if cpus < 2 { " --bind-to core:overload-allowed " } else { " --bind-to hwthread " };
    let lab = Lab::new();
    let mut command = launch(&lab, binary().as_ref(), &[]);
    command.env("HWLOC_SYNTHETIC", "core:1 pu:2").env("HWLOC_THISSYSTEM", "1");
    let output = run(command);
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains(binding), "{}", text(&output));
    let record = lab.completed("run");
    assert_eq!(
        (&record["oversubscribed"], &record["places"][0]["cores"]),
        (&true.into(), &1.into()),
        "{record}"
    );
}

/// The test copies scripts/hostfiles.sh, because the script writes into its own repository.
#[test]
fn host_files_of_machines_named_before_are_removed() {
    let lab = Lab::new();
    let script = lab.path("scripts/hostfiles.sh");
    fs::create_dir(script.parent().unwrap()).unwrap();
    fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/hostfiles.sh"), &script).unwrap();
    let write = |hosts: &[&str]| run(Command::new("bash").arg(&script).args(hosts));
    let exists = |topology| lab.path("hostfiles/local").join(topology).exists();
    assert!(write(&["me@alpha", "beta"]).status.success());
    let file = fs::read_to_string(lab.path("hostfiles/local/2x2")).unwrap();
    assert!(file.ends_with("\nme@alpha slots=2\nbeta slots=2\n"), "{file}");
    let output = write(&["gamma"]);
    assert!(text(&output).contains("removed hostfiles/local/2x2"), "{}", text(&output));
    assert_eq!(["1x1", "1x2", "2x1", "2x2"].map(exists), [true, true, false, false]);
    let output = write(&["alpha", "alpha"]);
    assert!(!output.status.success() && text(&output).contains("alpha is named twice"), "{}", text(&output));
}
