//! Collects and checks the options of a sweep's runs. The sweep file has options for each run. The options
//! that are typed after `--` apply to every run.

use std::collections::BTreeSet;

use anyhow::bail;
use clap::{Arg, ArgMatches, Args, FromArgMatches};

use crate::commands::Refused;
use crate::options::{RunConfig, SweepArgs, TrainArgs, Words, as_shown, one_line};
use crate::values::takes;
use launch::sweep::{OF_ONE_RUN, PlannedRun, SweepFile, TrainOptions};

/// Returns all options of `mpiburn train` that a sweep may set, including aliases.
pub fn options() -> TrainOptions {
    let command = TrainArgs::augment_args(clap::Command::new("train"));
    let names = |arg: &Arg| {
        let names = arg.get_long_and_visible_aliases().unwrap_or_default();
        names.into_iter().map(|name| (name.to_owned(), takes(arg))).collect::<Vec<_>>()
    };
    let all = command.get_arguments().flat_map(names);
    all.filter(|(name, _)| !OF_ONE_RUN.contains(&name.as_str())).collect()
}

/// Two options that set the same value: `--quantized` is `--quantize qat`.
const QUANTIZE: [&str; 2] = ["quantize", "quantized"];

pub fn words(run: &PlannedRun, args: &SweepArgs) -> Vec<String> {
    let option = |(name, value): &(String, Option<String>)| match value {
        Some(value) => format!("--{name}={value}"),
        None => format!("--{name}"),
    };
    run.options.iter().map(option).chain(args.options.iter().cloned()).collect()
}

/// Parses `words` as options of `mpiburn train`. The error is one line.
fn parsed(words: &[String]) -> Result<ArgMatches, String> {
    let command = clap::Command::new("train").no_binary_name(true).disable_help_flag(true);
    as_shown(TrainArgs::augment_args(command)).try_get_matches_from(words).map_err(|error| one_line(&error))
}

/// Rejects a file that uses two names of the same option: one value would take effect, and the runs could be
/// named after the other value.
fn check_names(file: &SweepFile, command: &clap::Command) -> Result<(), Refused> {
    let sections = [&file.base, &file.vary].into_iter().chain(&file.runs).chain(file.scales.values());
    let used: BTreeSet<&String> = sections.flat_map(|section| section.keys()).collect();
    let names = command.get_arguments().map(|arg| arg.get_long_and_visible_aliases().unwrap_or_default());
    for names in names.chain([QUANTIZE.to_vec()]) {
        let found: Vec<&str> = names.into_iter().filter(|name| used.contains(&(*name).to_owned())).collect();
        if let [first, second, ..] = found[..] {
            let file = file.path.display();
            return Err(Refused(format!(
                "{file}: {first} and {second} are the same option: write only one of them"
            )));
        }
    }
    Ok(())
}

/// Checks the options after `--`. Rejects options that only a single run can have. Also rejects options that
/// the file varies, because runs are named after the values in the file.
pub fn check_typed(file: &SweepFile, args: &SweepArgs) -> anyhow::Result<()> {
    let matches = parsed(&args.options).map_err(|problem| Refused(format!("after `--`: {problem}")))?;
    let command = TrainArgs::augment_args(clap::Command::new("train"));
    let typed = Words::typed(&command, &matches);
    check_names(file, &command)?;
    for option in
        command.get_arguments().filter(|option| option.get_long().is_some_and(|name| typed.has(name)))
    {
        let names = option.get_long_and_visible_aliases().unwrap_or_default();
        if let Some(name) = names.iter().find(|name| OF_ONE_RUN.contains(*name)) {
            let problem = "applies to a single run, but a sweep has many runs: leave it out";
            bail!(Refused(format!("--{name} after `--`: {problem}")));
        }
        let varies = |name: &&&str| {
            file.vary.contains_key(**name) || file.runs.iter().any(|run| run.contains_key(**name))
        };
        let file = args.file.display();
        if let Some(name) = names.iter().find(varies) {
            bail!(Refused(format!(
                "--{name} after `--`: {file} varies it, so the names of runs contain its values: choose runs with --only"
            )));
        }
        // `--quantized` stands for a value of `--quantize`. If it were typed for all runs, all runs would be
        // quantized, or the option would conflict with the file.
        if let (Some(name), Some(other)) =
            (names.iter().find(|name| QUANTIZE.contains(*name)), QUANTIZE.iter().find(varies))
        {
            bail!(Refused(format!(
                "--{name} after `--`: {file} varies {other}, which is the same option: leave it out"
            )));
        }
    }
    Ok(())
}

/// Returns the run's configuration. Makes the checks that `train` makes, except whether this build supports
/// the configuration.
pub fn configuration(run: &PlannedRun, args: &SweepArgs) -> anyhow::Result<RunConfig> {
    let refused = |problem: String| Refused(format!("{}, run {}: {problem}", args.file.display(), run.name));
    let matches = parsed(&words(run, args)).map_err(refused)?;
    let typed = TrainArgs::from_arg_matches(&matches)?;
    Ok(typed.config.completed().map_err(|error| refused(error.to_string()))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::tests::tells;

    #[test]
    fn what_the_file_varies_cannot_be_typed_for_all_runs() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let check = |vary: &str, typed: &[&str]| {
            std::fs::write(file.path(), format!("title = \"a\"\n[vary]\n{vary}")).unwrap();
            let command = SweepArgs::augment_args(clap::Command::new("sweep").no_binary_name(true));
            let path = file.path().to_str().unwrap();
            let matches = command.try_get_matches_from([path, "--"].iter().chain(typed)).unwrap();
            let args = SweepArgs::from_arg_matches(&matches).unwrap();
            let read = SweepFile::read(file.path(), &options()).unwrap();
            check_typed(&read, &args).map_err(|error| error.to_string())
        };
        for (vary, typed, words) in [
            ("lr = [1, 2]", ["--optimizer-lr", "3"].as_slice(), "--lr … --only"),
            ("quantize = [\"none\", \"qat\"]", &["--quantized"], "--quantized … quantize"),
            ("quantized = [false, true]", &["--quantize", "none"], "--quantize … quantized"),
        ] {
            let error = check(vary, typed).unwrap_err();
            assert!(tells(&error, words), "{error}");
        }
        assert_eq!(check("lr = [1, 2]", &["--quantized"]), Ok(()));
        for (text, words) in [
            ("lr = [1, 2]\noptimizer-lr = [3]", "… lr … optimizer-lr"),
            ("quantized = [true]\n[base]\nquantize = \"qat\"", "… quantize … quantized"),
            ("lr = [1]\n[quick]\noptimizer-lr = 2", "… lr … optimizer-lr"),
        ] {
            let error = check(text, &[]).unwrap_err();
            assert!(tells(&error, words), "{error}");
        }
    }
}
