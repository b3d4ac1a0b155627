//! What a generator of data sets leaves behind when it is stopped.

use std::fs;
use std::process::{Command, Stdio};

use crate::harness::*;

/// A signal while a data set is written leaves nothing under a temporary name.
#[test]
fn a_stopped_generator_removes_what_is_unfinished() {
    let lab = Lab::new();
    let out = lab.path("features");
    let mut command = Command::new(binary());
    command.args(["-q", "data", "features", "--train", "2000000", "--out"]).arg(&out);
    let mut job = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let parts = || {
        let folders = fs::read_dir(&out).into_iter().flatten().flatten().map(|entry| entry.path());
        let files = folders.flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
        files.filter(|file| file.path().extension().is_some_and(|end| end == "part")).count()
    };
    wait_until(&mut job, "a file is begun", || parts() > 0);
    signal(job.id(), "-TERM");
    let ended = job.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(15), "{ended}");
    assert_eq!(parts(), 0);
}
