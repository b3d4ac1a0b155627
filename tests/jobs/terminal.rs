//! What the program shows on a terminal of 80 columns, when started directly and by mpirun.

use std::process::Command;

use crate::harness::*;

/// The output of a command on a terminal, with these environment variables.
fn on_terminal(command: &Command, variables: &[(&str, &str)]) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let quoted: Vec<String> = words.map(|word| format!("'{}'", word.to_str().expect("UTF-8"))).collect();
    let mut script = Command::new("script");
    script.args(["-qc", &format!("stty cols 80 rows 24; {}", quoted.join(" ")), "/dev/null"]);
    script.env_remove("NO_COLOR").env_remove("RUST_LOG").env("TERM", "xterm");
    script.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    String::from_utf8_lossy(&run(script.envs(variables.iter().copied())).stdout).into_owned()
}

/// The text without the terminal's control sequences, and the number of control sequences that set a colour.
fn without_commands(text: &str) -> (String, usize) {
    let mut parts = text.split("\x1b[");
    let (mut shown, mut colours) = (parts.next().unwrap_or_default().to_owned(), 0);
    for part in parts {
        let end = part.find(|c: char| c.is_ascii_alphabetic()).expect("a command ends");
        colours += usize::from(part[end..].starts_with('m'));
        shown.push_str(&part[end + 1..]);
    }
    (shown, colours)
}

#[test]
fn bar_and_lines_fit_80_columns_with_colour_unless_it_is_unwanted() {
    let lab = Lab::new();
    for ranks in [1, 2] {
        for (name, variables) in
            [("plain", &[("NO_COLOR", "1")][..]), ("dumb", &[("TERM", "dumb")]), ("colour", &[])]
        {
            let name = format!("{name}{ranks}");
            let options = ["--epochs=2", "--train-samples=640", "--test-samples=20", "--train-batch-size=1"];
            let text = on_terminal(&lab.command(ranks, &name, &options), variables);
            lab.completed(&name);
            let (shown, colours) = without_commands(&text);
            assert_eq!(colours > 0, variables.is_empty(), "{name}: {text:?}");
            // mpirun may forward the end of the bar, on stderr, after the first line of the table on stdout.
            let lines: Vec<&str> = shown.split(['\r', '\n', '┌']).map(str::trim_end).collect();
            let bar = lines.iter().find(|line| line.contains("░ ") && line.ends_with(" left"));
            assert_eq!(bar.is_some(), !name.starts_with("dumb"), "{name}: {shown:?}");
            for line in lines.iter().filter(|line| line.contains("epoch ")) {
                assert!(line.chars().count() <= 80, "{name}: {line}");
            }
            assert!(lines.iter().any(|line| line.starts_with("epoch 2: loss ")), "{name}: {shown:?}");
        }
    }
}

#[test]
fn errors_are_red_unless_it_is_unwanted() {
    let mut eval = Command::new(binary());
    eval.args(["eval", "/nowhere"]);
    let mut option = Command::new(binary());
    option.args(["eval", "/nowhere", "--test-samples", "0"]);
    for command in [&eval, &option] {
        let text = on_terminal(command, &[]);
        assert!(text.starts_with("\x1b[1;31mmpiburn:\x1b[0m "), "{text:?}");
        let text = on_terminal(command, &[("NO_COLOR", "1")]);
        assert!(text.starts_with("mpiburn: ") && !text.contains('\x1b'), "{text:?}");
    }
}
