//! The training that a launch starts again, and the command lines of its attempts.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::commands::Refused;
use crate::options::{Cli, Command, Part, TrainArgs, part};

/// A training whose run directory is known before it starts.
pub struct Training {
    /// The run directory.
    pub dir: PathBuf,
    /// As typed.
    words: Vec<String>,
    /// `-v` and `-q`.
    verbosity: Vec<String>,
    /// As read.
    pub args: Box<TrainArgs>,
}

/// Tells the ranks to note their steps.
const NOTE_STEPS: &str = "--note-steps";

impl Training {
    /// The training that `program` is; none if its options are invalid, which the ranks report.
    ///
    /// # Errors
    /// If it is no training, or one without a run directory.
    pub fn of(program: &[String]) -> Result<Option<Self>, Refused> {
        let words = std::iter::once("mpiburn").chain(program.iter().map(String::as_str));
        let Ok(cli) = Cli::read(words.map(OsString::from)) else { return Ok(None) };
        let name = cli.name.clone();
        let Command::Train(args) = cli.command else {
            return Err(Refused(format!(
                "--restart starts trainings again, and {name} is none: leave it out, or launch train --out DIR"
            )));
        };
        let Some(dir) = args.resume.clone().or_else(|| args.out.clone()) else {
            return Err(Refused(
                "--restart starts again from the checkpoints of a run directory: name it with train --out DIR".into(),
            ));
        };
        let verbosity = match cli.quiet {
            true => vec!["-q".into()],
            false => vec!["-v".into(); usize::from(cli.verbose)],
        };
        Ok(Some(Self { dir, words: program.to_vec(), verbosity, args }))
    }

    /// Its arguments, as typed.
    pub fn as_typed(&self) -> Vec<String> {
        self.words.iter().cloned().chain([NOTE_STEPS.into()]).collect()
    }

    /// Its arguments to start from the beginning, in place of an attempt without checkpoint.
    pub fn begin_again(&self) -> Vec<String> {
        let overwrite = (!self.args.overwrite).then(|| "--overwrite".into());
        self.as_typed().into_iter().chain(overwrite).collect()
    }

    /// Its arguments to go on from a checkpoint of `step`: what a resumed run was given, and no time line whose
    /// first step is done.
    pub fn resume_after(&self, step: usize) -> Vec<String> {
        let mut words = self.args.typed.clone();
        words.0.retain(|option, _| {
            (self.args.resume.is_some() && part(option) != Part::Job)
                || ["stall-warning", "trace", "trace-steps"].contains(&option.as_str())
        });
        if self.args.trace.trace_steps.is_none_or(|range| range.first <= step) {
            words.0.retain(|option, _| !option.starts_with("trace"));
        }
        // One word each: a name may begin with a dash.
        words.0.insert("resume".into(), Some(self.dir.clone().into()));
        let typed = words.to_args().map(|word| word.to_string_lossy().into_owned());
        let begin = std::iter::once("train".to_owned()).chain(self.verbosity.iter().cloned());
        begin.chain(typed).chain([NOTE_STEPS.into()]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<Option<Training>, Refused> {
        Training::of(&line.split(' ').map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn a_restart_keeps_what_a_resume_accepts() {
        let line = "train -vv --out runs/a --epochs 3 --stall-warning=5 --trace t.json --trace-steps 40..50";
        let training = of(line).unwrap().unwrap();
        assert_eq!(training.as_typed().join(" "), format!("{line} --note-steps"));
        assert_eq!(training.begin_again().join(" "), format!("{line} --note-steps --overwrite"));
        assert_eq!(
            training.resume_after(39).join(" "),
            "train -v -v --resume=runs/a --stall-warning=5 --trace=t.json --trace-steps=40..50 --note-steps"
        );
        assert!(!training.resume_after(40).iter().any(|word| word.contains("trace")));
        let resumed = of("-q train --resume runs/a --lr 1e-4 --epochs 9").unwrap().unwrap();
        assert_eq!(
            resumed.resume_after(0).join(" "),
            "train -q --epochs=9 --lr=1e-4 --resume=runs/a --note-steps"
        );
        assert!(of("train --out runs/a --overwrite").unwrap().unwrap().args.overwrite);
    }

    #[test]
    fn only_a_training_with_a_run_directory_is_started_again() {
        assert!(of("bench allreduce").err().unwrap().to_string().contains("bench allreduce is none"));
        assert!(of("train --epochs 1").err().unwrap().to_string().contains("train --out DIR"));
        assert!(of("train --epochs many").unwrap().is_none());
    }
}
