//! Checks the commands that documents print.
//!
//! A command is a line of a block of shell code, or a line that starts with `$ ` in a block of another
//! language. The program's own command line parses each `mpiburn` command, so a document with a renamed
//! option or subcommand fails. Targets of `make` are looked up in the Makefile, and examples of cargo in the
//! folders of examples. Options and commands in prose are checked too.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use clap::CommandFactory;
use clap::error::ErrorKind;
use mpiburn::options::Cli;

use super::{documents, prose};

/// A command with the lines that the document prints below it.
#[derive(Debug, PartialEq)]
struct Shown {
    command: String,
    output: String,
}

/// The commands of a document. A backslash at the end of a line continues the command on the next line.
fn shown(text: &str) -> Vec<Shown> {
    let mut found: Vec<Shown> = Vec::new();
    let (mut block, mut continues) = (None, false);
    for line in text.lines() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            block = block.is_none().then(|| language.to_owned());
            continues = false;
            continue;
        }
        let Some(language) = &block else { continue };
        let is_shell = language == "sh";
        let start = if is_shell { Some(line) } else { line.strip_prefix("$ ") };
        let (command, ends) = line.strip_suffix('\\').map_or((line, true), |part| (part, false));
        match (found.last_mut(), start) {
            (Some(last), _) if continues => last.command += command.trim_start(),
            (_, Some(_)) => {
                let command = command.strip_prefix("$ ").unwrap_or(command).to_owned();
                found.push(Shown { command, output: String::new() });
            }
            (Some(last), None) => {
                last.output += line;
                last.output.push('\n');
                continue;
            }
            (None, None) => continue,
        }
        continues = !ends;
    }
    found
}

/// The simple commands of a line of shell code, each as its words. `variables` in the line are replaced by
/// their values. A loop sets its variable to the first of its values.
fn simple_commands(line: &str, variables: &mut BTreeMap<String, String>) -> Vec<Vec<String>> {
    let mut line = line.to_owned();
    for (name, value) in variables.iter() {
        line = line.replace(&format!("${name}"), value);
    }
    let words = shlex::split(&line).unwrap_or_else(|| panic!("quotation marks in {line}"));
    let mut commands = vec![Vec::new()];
    for word in words {
        let (word, ends) = match word.as_str() {
            "&&" | "|" | ";" | "do" | "then" => ("", true),
            word => word.strip_suffix(';').map_or((word, false), |word| (word, true)),
        };
        if !word.is_empty() {
            commands.last_mut().expect("a command").push(word.to_owned());
        }
        if ends {
            commands.push(Vec::new());
        }
    }
    for command in &mut commands {
        if let Some(end) = command.iter().position(|word| word.starts_with('>')) {
            command.truncate(end);
        }
        let assigned = match command.as_slice() {
            [export, word, ..] if export == "export" => word.split_once('='),
            [word] => word.split_once('='),
            [on, name, within, value, ..] if on == "for" && within == "in" => {
                Some((name.as_str(), value.as_str()))
            }
            _ => None,
        };
        if let Some((name, value)) = assigned {
            variables.insert(name.to_owned(), value.to_owned());
        }
    }
    commands
}

/// Targets and variables of the Makefile.
struct Makefile {
    targets: BTreeSet<String>,
    text: String,
}

impl Makefile {
    fn read() -> Self {
        let text = fs::read_to_string("Makefile").expect("the Makefile");
        let is_rule = |line: &&str| !line.starts_with(['\t', '#', '.', ' ']) && !line.contains(":=");
        let names = text.lines().filter(is_rule).filter_map(|line| line.split_once(':'));
        let targets = names.flat_map(|(names, _)| names.split_whitespace()).map(str::to_owned).collect();
        Self { targets, text }
    }

    /// The first of `words`, the arguments of a `make` command, that the Makefile does not have.
    fn unknown<'w>(&self, words: &'w [String]) -> Option<&'w str> {
        let is_known = |word: &&str| match word.split_once('=') {
            Some((variable, _)) => self.text.contains(&format!("$({variable})")),
            None => self.targets.contains(*word),
        };
        words.iter().map(String::as_str).find(|word| !is_known(word))
    }
}

/// Names of the examples that a build writes into `target/release/examples`.
fn examples() -> BTreeSet<String> {
    let mut folders = vec!["examples".into()];
    let crates = fs::read_dir("crates").expect("crates");
    folders.extend(crates.map(|entry| entry.expect("a crate").path().join("examples")));
    let entries = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
    let names = entries.map(|entry| entry.expect("an example").path());
    let mut names: BTreeSet<String> =
        names.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect();
    let manifest = fs::read_to_string("Cargo.toml").expect("Cargo.toml");
    let declared = manifest.split("[[example]]\nname = \"").skip(1);
    names.extend(declared.filter_map(|rest| rest.split('"').next()).map(str::to_owned));
    names
}

/// Why a simple command would fail if a reader typed it; `None` if it would not. `output` is what the
/// document prints below the command.
fn problem(
    words: &[String],
    output: &str,
    makefile: &Makefile,
    examples: &BTreeSet<String>,
) -> Option<String> {
    let names_program = |word: &String| Path::new(word).file_name().is_some_and(|name| name == "mpiburn");
    if words.first().is_some_and(|word| word == "make") {
        return makefile.unknown(&words[1..]).map(|word| format!("the Makefile has no {word}"));
    }
    let named = words.windows(2).filter(|pair| pair[0] == "--example").map(|pair| pair[1].as_str());
    let built = words.iter().filter_map(|word| word.strip_prefix("target/release/examples/"));
    if let Some(name) = named.chain(built).find(|name| !examples.contains(*name)) {
        return Some(format!("there is no example {name}"));
    }
    let starts = |first: &String| first.contains("mpirun") || names_program(first);
    let program = words.iter().position(names_program).filter(|_| words.first().is_some_and(starts))?;
    let typed = std::iter::once("mpiburn".into()).chain(words[program + 1..].iter().map(OsString::from));
    let error = Cli::read(typed).err()?;
    let is_text = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    // An error is allowed if the document shows its message: the document then explains a mistake.
    (!is_text && !output.contains("error")).then(|| error.to_string())
}

#[test]
fn commands_of_documents_are_accepted() {
    let (makefile, examples) = (Makefile::read(), examples());
    let (mut checked, mut wrong) = (0, Vec::new());
    for document in documents() {
        let text = fs::read_to_string(&document).expect("a document");
        let mut variables = BTreeMap::new();
        for Shown { command, output } in shown(&text) {
            for words in simple_commands(&command, &mut variables) {
                checked += 1;
                let problem = problem(&words, &output, &makefile, &examples);
                wrong
                    .extend(problem.map(|why| format!("{}: {}: {why}", document.display(), words.join(" "))));
            }
        }
    }
    assert!(checked > 100, "commands are found: {checked}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The texts between backticks in prose.
fn inline(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Options of a command and of its subcommands, without dashes.
fn options_of(command: &clap::Command) -> BTreeSet<String> {
    let own = command.get_arguments().filter_map(clap::Arg::get_long_and_visible_aliases).flatten();
    let below = command.get_subcommands().flat_map(options_of);
    own.map(str::to_owned).chain(below).collect()
}

/// Options of other programs that documents name in prose: of Open MPI, cargo, container engines and
/// examples.
const OTHER_OPTIONS: [&str; 14] = [
    "allow-run-as-root",
    "bind-to",
    "cpus",
    "cpuset-cpus",
    "example",
    "help",
    "mca",
    "modules",
    "mpi",
    "oversubscribe",
    "release",
    "shm-size",
    "test-threads",
    "workspace",
];

/// Why `code` in prose names an option, a subcommand or a make target that does not exist; `None` if all
/// exist.
fn inline_problem(code: &str, cli: &clap::Command, makefile: &Makefile) -> Option<String> {
    let first = code.split_whitespace().next()?;
    if first != "make" && first != "mpiburn" && !first.starts_with("--") {
        return None;
    }
    let words: Vec<String> = code.split_whitespace().map(str::to_owned).collect();
    if first == "make" {
        let words = simple_commands(code, &mut BTreeMap::new()).swap_remove(0);
        return makefile.unknown(&words[1..]).map(|word| format!("the Makefile has no {word}"));
    }
    let mut command = cli;
    let names = words.iter().skip(1).take_while(|word| word.starts_with(|c: char| c.is_ascii_lowercase()));
    for name in names.filter(|_| first == "mpiburn") {
        if !command.has_subcommands() {
            break;
        }
        match command.find_subcommand(name) {
            Some(found) => command = found,
            None => return Some(format!("no subcommand {name}")),
        }
    }
    let known = options_of(cli);
    let options = words.iter().filter_map(|word| word.strip_prefix("--"));
    let mut names = options.filter_map(|option| option.split(['=', '|', ',']).next());
    let is_known = |name: &&str| name.is_empty() || known.contains(*name) || OTHER_OPTIONS.contains(name);
    names.find(|name| !is_known(name)).map(|name| format!("no option --{name}"))
}

#[test]
fn options_that_documents_name_exist() {
    let (cli, makefile) = (Cli::command(), Makefile::read());
    let (mut checked, mut wrong) = (0, Vec::new());
    // A changelog may name an option that no longer exists.
    for document in documents().into_iter().filter(|path| !path.ends_with("CHANGELOG.md")) {
        let text = prose(&fs::read_to_string(&document).expect("a document"));
        for code in inline(&text) {
            checked += 1;
            let problem = inline_problem(code, &cli, &makefile);
            wrong.extend(problem.map(|why| format!("{}: `{code}`: {why}", document.display())));
        }
    }
    assert!(checked > 500, "code in prose is found: {checked}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn wrong_commands_are_found() {
    let (cli, makefile, examples) = (Cli::command(), Makefile::read(), examples());
    let text = "```sh\nmake nothing && make test N=1\nmpirun -n 2 target/release/mpiburn train \\\n  --epoch 1\n\
                mpiburn launch 2x2 # train\n```\n```\n$ mpiburn train --epoch 1\nerror: no such option\n```";
    let found: Vec<String> = shown(text)
        .iter()
        .flat_map(|shown| {
            simple_commands(&shown.command, &mut BTreeMap::new()).into_iter().zip([&shown.output; 9])
        })
        .filter_map(|(words, output)| problem(&words, output, &makefile, &examples))
        .collect();
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found[0].contains("nothing") && found[1].contains("--epoch"), "{found:?}");
    for wrong in ["make nothing", "mpiburn trian --lr 1", "mpiburn train --leaning-rate 1", "--leaning-rate"]
    {
        assert!(inline_problem(wrong, &cli, &makefile).is_some(), "{wrong}");
    }
    for right in ["make test", "mpiburn data import DIR --size 64", "--lr 0.1", "mpirun -n 2", ""] {
        assert_eq!(inline_problem(right, &cli, &makefile), None, "{right}");
    }
}
