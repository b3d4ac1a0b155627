//! Output files that are FIFOs or devices: opening a FIFO would wait for a reader.

use std::process::Command;

use crate::harness::*;

#[test]
fn host_and_sweep_files_that_are_no_files_are_refused() {
    let lab = Lab::new();
    let fifo = lab.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for words in
        [&["launch", "1x1", "--dry-run", "--hostfile", "FIFO", "--", "train"][..], &["sweep", "FIFO"]]
    {
        let mut command = Command::new(binary());
        command.args(words.iter().map(|&word| if word == "FIFO" { fifo.as_os_str() } else { word.as_ref() }));
        let output = must_fail(command);
        let errors = errors(&output);
        assert!(errors.len() == 1 && errors[0].contains("fifo: not a regular file"), "{}", text(&output));
    }
}

#[test]
fn special_files_are_refused_before_work_begins() {
    let lab = Lab::new();
    let fifo = lab.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let fifo = fifo.to_str().unwrap();
    let of = |kind: &str, ranks, arguments: &[&str]| {
        let mut command = on_ranks(ranks, binary());
        command.arg(kind).args(arguments);
        command
    };
    let (profile, bench) = (
        |ranks, arguments: &[&str]| of("profile", ranks, arguments),
        |ranks, arguments: &[&str]| of("bench", ranks, arguments),
    );
    let commands = [
        profile(2, &["--csv", fifo]),
        profile(2, &["--json", fifo]),
        profile(1, &["--json", "/dev/null"]),
        bench(2, &["allreduce", "--csv", fifo]),
        bench(2, &["collectives", "--csv", fifo]),
        bench(2, &["link", "--csv", fifo]),
        bench(2, &["step", "--json", fifo]),
        bench(1, &["int8", "--csv", fifo]),
        bench(1, &["int8", "--json", fifo]),
        bench(1, &["fused", "--csv", fifo]),
    ];
    for command in commands {
        let shown = format!("{command:?}");
        let output = must_fail(command);
        let errors = errors(&output);
        let refused = errors.len() == 1
            && errors[0].contains("it is a FIFO, a socket or a device; name a regular file");
        assert!(refused, "{shown}: {}", text(&output));
        assert!(!text(&output).contains("median"), "{shown}");
    }
}
