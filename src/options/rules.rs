//! What each option of a training is about, and why a resumed run cannot change some.

/// What an option is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The network.
    Network,
    /// A step of the training.
    Recipe,
    /// The samples and epochs of a run, and its files.
    Run,
    /// The average of gradients.
    Transport,
    /// How a process works.
    Process,
    /// The job: no run has it.
    Job,
}

/// What `option` is about.
pub fn part(option: &str) -> Part {
    rule(option).0
}

/// Whether `option` can change in a resumed run.
///
/// # Errors
/// The reason why it cannot.
pub fn can_change(option: &str) -> Result<(), &'static str> {
    rule(option).1
}

const SAMPLES: Result<(), &str> = Err("the checkpoint counts steps of these samples");
const RANGES: Result<(), &str> = Err("the checkpoint's ranges are of this quantization");

fn rule(option: &str) -> (Part, Result<(), &'static str>) {
    use Part::{Job, Network, Process, Recipe, Run, Transport};
    match option {
        "model" | "activation" | "batch-norm" | "hidden" => {
            (Network, Err("the checkpoint's weights are of this network"))
        }
        "dropout" => (Network, Ok(())),
        "optimizer" => (Recipe, Err("the checkpoint has this optimizer's moments")),
        "precision" => (Recipe, Err("the checkpoint's loss scale and weights are of this precision")),
        "lr" | "weight-decay" | "momentum" | "clip-norm" | "l1" | "l2" | "label-smoothing"
        | "class-weights" => (Recipe, Ok(())),
        "init" => (Run, Err("the weights are the checkpoint's")),
        "num-classes" => (Run, Err("the checkpoint's weights are of these classes")),
        "accumulate" | "train-samples" | "shuffle" => (Run, SAMPLES),
        "schedule" | "max-lr" | "step-size" | "gamma" | "epochs" | "early-stopping" | "augment" => {
            (Run, Ok(()))
        }
        "data-root" | "samples-in" | "test-batch-size" | "test-samples" | "num-workers" => (Run, Ok(())),
        "freeze-after" | "fold-after" | "calibration" => (Run, Ok(())),
        "log-every" | "checkpoint-every" | "keep" => (Run, Ok(())),
        "backend" | "interface" | "gloo-algorithm" | "reduce" | "grad-dtype" | "overlap" | "bucket-mb" => {
            (Transport, Ok(()))
        }
        "quantize" | "quantized" | "weight-scheme" => (Process, RANGES),
        "train-batch-size" => (Process, SAMPLES),
        "seed" => {
            (Process, Err("the order of the samples, augmentation and dropout so far are of this seed"))
        }
        "device" => (Process, Err("a checkpoint resumes only on the device it was written on")),
        "fused" | "conv" | "threads" | "comm-timeout" => (Process, Ok(())),
        _ => (Job, Err("it is no option of a stored run")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Args;

    use super::*;
    use crate::train::RunConfig;

    #[test]
    fn every_option_of_a_run_has_a_rule() {
        let command = RunConfig::augment_args(clap::Command::new("train"));
        let options: Vec<&str> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
        assert!(options.len() > 45, "{options:?}");
        for option in options {
            assert_ne!(part(option), Part::Job, "{option}");
        }
        assert_eq!(part("out"), Part::Job);
    }
}
