//! The training that `mpiburn launch --restart` starts. If the training fails, `launch` starts it again, in
//! another attempt. This module makes the arguments with which a later attempt resumes the training.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use launch::Training;
use run_record::NamedRun;

use crate::commands::Refused;
use crate::options::{Cli, Command, TrainArgs};
use crate::train::spec;

/// Option of the ranks' command: rank 0 records the number of the last step in a file, and all ranks tag
/// their messages. `launch` reads both the file and the tags.
const NOTE_STEPS: &str = "--note-steps";

/// Returns the training that the arguments `program` start. If `shrinks` is true, attempts that resume the
/// run may have fewer ranks, so they get `--reshard`. Returns `None` if its options are invalid; the ranks
/// will report them.
///
/// # Errors
/// If `program` does not start a training, or names no run directory.
pub fn from_program(program: &[String], shrinks: bool) -> Result<Option<Training>, Refused> {
    let words = std::iter::once("mpiburn").chain(program.iter().map(String::as_str));
    let Ok(cli) = Cli::read(words.map(OsString::from)) else { return Ok(None) };
    let (name, verbosity) = (cli.name.clone(), cli.verbosity());
    let Command::Train(args) = cli.command else {
        return Err(Refused(format!(
            "--restart: requires a training, but {name} is not one; leave the option out, or launch train --out DIR"
        )));
    };
    let own = ["sync-every", "compress"].into_iter().find(|option| args.typed.has(option));
    if let (true, Some(option)) = (shrinks, own) {
        return Err(Refused(format!(
            "--shrink: cannot continue a run with --{option} on fewer ranks, because each rank has tensors of its own; \
             leave out one of them"
        )));
    }
    // If the path cannot be read, the ranks will report it.
    let folder = |path: &PathBuf| NamedRun::at(path).map_or_else(|_| path.clone(), |run| run.folder);
    let resumed = args.resume.as_ref().map(folder);
    let Some(dir) = resumed.or_else(|| args.out.clone()) else {
        return Err(Refused(
            "--restart: requires a run directory for checkpoints; name one with train --out DIR".into(),
        ));
    };
    let reshard = (shrinks && args.resume.is_some() && !args.reshard).then(|| "--reshard".to_owned());
    Ok(Some(Training {
        dir: dir.clone(),
        resumes: args.resume.is_some(),
        overwrites: args.overwrite,
        shrinks,
        trace: args.trace.trace.clone(),
        words: program.iter().cloned().chain(reshard).chain([NOTE_STEPS.into()]).collect(),
        resume_after: Box::new(move |step| resume_after(&args, &verbosity, &dir, step, shrinks)),
    }))
}

/// Returns the arguments that resume the training in `dir` from its checkpoint after `step` steps. If the
/// first attempt was itself a `--resume`, its training options are kept. `--trace` is left out if
/// `--trace-steps` begins at a step up to `step`, because this step is done already.
fn resume_after(
    args: &TrainArgs,
    verbosity: &[String],
    dir: &Path,
    step: usize,
    shrinks: bool,
) -> Vec<String> {
    let mut words = args.typed.clone();
    words.0.retain(|option, _| {
        (args.resume.is_some() && spec(option).is_some())
            || ["stall-warning", "trace", "trace-steps", "reshard"].contains(&option.as_str())
    });
    if args.trace.trace_steps.as_ref().is_some_and(|range| *range.start() <= step) {
        words.0.retain(|option, _| !option.starts_with("trace"));
    }
    // Each option and its value are one word, because a path may begin with a dash.
    words.0.insert("resume".into(), Some(dir.into()));
    if shrinks {
        words.0.insert("reshard".into(), None);
    }
    let typed = words.to_args().map(|word| word.to_string_lossy().into_owned());
    let begin = std::iter::once("train".to_owned()).chain(verbosity.iter().cloned());
    begin.chain(typed).chain([NOTE_STEPS.into()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Option<Training>, Refused> {
        read_with(line, false)
    }

    fn read_with(line: &str, shrinks: bool) -> Result<Option<Training>, Refused> {
        from_program(&line.split(' ').map(ToString::to_string).collect::<Vec<_>>(), shrinks)
    }

    #[test]
    fn a_restart_keeps_what_a_resume_accepts() {
        let line = "train -vv --out runs/a --epochs 3 --stall-warning=5 --trace t.json --trace-steps 40..50";
        let training = read(line).unwrap().unwrap();
        assert_eq!(training.words.join(" "), format!("{line} --note-steps"));
        assert_eq!(
            (training.resume_after)(39).join(" "),
            "train -v -v --resume=runs/a --stall-warning=5 --trace=t.json --trace-steps=40..50 --note-steps"
        );
        assert!(!(training.resume_after)(40).iter().any(|word| word.contains("trace")));
        let default = read("train --out runs/a --trace t.json").unwrap().unwrap();
        assert_eq!((default.resume_after)(5).join(" "), "train --resume=runs/a --trace=t.json --note-steps");
        let resumed = read("-q train --resume runs/a --lr 1e-4 --epochs 9").unwrap().unwrap();
        assert_eq!(
            (resumed.resume_after)(0).join(" "),
            "train -q --epochs=9 --lr=1e-4 --resume=runs/a --note-steps"
        );
        let resharded = read("train --resume runs/a --reshard").unwrap().unwrap();
        assert_eq!((resharded.resume_after)(0).join(" "), "train --reshard --resume=runs/a --note-steps");
        let shrunk = read_with("train --out runs/a --epochs 3", true).unwrap().unwrap();
        assert_eq!((shrunk.resume_after)(0).join(" "), "train --reshard --resume=runs/a --note-steps");
        assert_eq!(read("train --resume runs/a/run.json").unwrap().unwrap().dir, Path::new("runs/a"));
        assert!(read("train --out runs/a --overwrite").unwrap().unwrap().overwrites);
    }

    #[test]
    fn a_training_whose_ranks_have_tensors_of_their_own_is_not_shrunk() {
        for options in ["--sync-every 4", "--compress powersgd --compress-rank 2"] {
            let line = format!("train --out runs/a {options}");
            assert!(read(&line).unwrap().is_some());
            let Err(Refused(reason)) = read_with(&line, true) else { panic!("{line}") };
            let option = options.split(' ').next().unwrap();
            assert!(reason.contains("--shrink: ") && reason.contains(option), "{reason}");
        }
    }

    #[test]
    fn only_a_training_with_a_run_directory_is_started_again() {
        assert!(read("bench allreduce").err().unwrap().to_string().contains("bench allreduce"));
        assert!(read("train --epochs 1").err().unwrap().to_string().contains("train --out DIR"));
        assert!(read("train --epochs many").unwrap().is_none());
    }
}
