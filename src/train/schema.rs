//! The table of a training's options.
//!
//! The table says for each option to which group it belongs, which results it affects, and whether `--resume`
//! may change it. `run.json` stores the table as `schema`, so that reports need no list of options.

use std::borrow::Cow;

use run_record::{Affects, Part};

use crate::model::HIDDEN;
use crate::quant::CALIBRATION;

/// The part of the program that an option affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The network, and therefore the meaning of a checkpoint's weights.
    Network,
    /// Each process of every command that runs a network.
    Process,
    /// Training steps: those of `train`, `profile` and `bench step`.
    Step,
    /// `train` only: `profile` and `bench step` ignore the option, except that a profile of a run uses
    /// `--data-root`.
    Training,
}

/// Properties of one option.
#[derive(Debug, Clone, Copy)]
pub struct OptionSpec {
    /// Name of the field in `config`. The option has dashes in place of underscores.
    pub field: &'static str,
    /// The group of options to which the option belongs.
    pub part: Part,
    /// The part of the program that the option affects.
    pub scope: Scope,
    /// The kind of results that the option affects.
    pub affects: Affects,
    /// `Ok` if a resumed run may change the option, otherwise the reason why it may not.
    pub change: Result<(), &'static str>,
    /// Another field and a value: the option has an effect only if that field has that value.
    pub only_with: Option<(&'static str, &'static str)>,
    /// The value in effect if `config` has null.
    pub unset: Option<usize>,
    /// Whether the option is a technique, which is off by default. A published figure that does not name the
    /// technique counts as measured without it.
    pub technique: bool,
    /// Whether `-h` shows the option. `--help` shows all options.
    pub common: bool,
}

impl OptionSpec {
    const fn new(field: &'static str, part: Part, scope: Scope, affects: Affects) -> Self {
        let (change, only_with, unset) = (Ok(()), None, None);
        Self { field, part, scope, affects, change, only_with, unset, technique: false, common: false }
    }

    const fn fixed(self, reason: &'static str) -> Self {
        Self { change: Err(reason), ..self }
    }

    const fn only_with(self, field: &'static str, value: &'static str) -> Self {
        Self { only_with: Some((field, value)), ..self }
    }

    const fn unset(self, value: usize) -> Self {
        Self { unset: Some(value), ..self }
    }

    const fn technique(self) -> Self {
        Self { technique: true, ..self }
    }

    const fn common(self) -> Self {
        Self { common: true, ..self }
    }
}

const NETWORK: &str = "the weights in the checkpoint fit only the run's own network";
const CLASSES: &str = "the weights in the checkpoint fit only the run's own classes";
const SAMPLES: &str = "the checkpoint's position among the samples depends on it";
const PRECISION: &str = "the checkpoint was trained in the run's precision";
const TARGET: &str = "the run's own target was compared with its tests so far";
const LOCAL: &str = "the parameters of each rank in the checkpoint depend on the run's setting";
const MEMORY: &str = "the error memory in the checkpoint depends on the run's compression";
const QUANTIZATION: &str = "the checkpoint was trained with the run's setting";

/// All options, in the order of the fields of `config`. Two options are not in `config`: `quantized` is
/// another name for a value of `quantize`, and `num_workers` has no effect.
pub const OPTIONS: &[OptionSpec] = {
    use Affects::{Nothing, Results, Test, Times};
    use Part::{Communication, Data, Network, Process, Quantization, Recipe, Run};
    use Scope::{Step, Training};
    const fn new(field: &'static str, part: Part, scope: Scope, affects: Affects) -> OptionSpec {
        OptionSpec::new(field, part, scope, affects)
    }
    &[
        new("model", Network, Scope::Network, Results).common().fixed(NETWORK),
        new("activation", Network, Scope::Network, Results).fixed(NETWORK),
        new("batch_norm", Network, Scope::Network, Results).fixed(NETWORK),
        new("dropout", Network, Scope::Network, Results),
        new("hidden", Network, Scope::Network, Results)
            .fixed(NETWORK)
            .only_with("model", "mlp")
            .unset(HIDDEN),
        new("init", Recipe, Training, Results).fixed("a resumed run has the weights of its checkpoint"),
        new("seed", Run, Scope::Process, Results)
            .fixed("the run's seed determined the order of the samples, augmentation and dropout so far"),
        new("fused", Network, Scope::Process, Results),
        new("conv", Network, Scope::Process, Results),
        new("data_root", Data, Training, Results).common(),
        new("train_batch_size", Recipe, Scope::Process, Results).common().fixed(SAMPLES),
        new("test_batch_size", Process, Training, Test),
        new("shuffle", Recipe, Training, Results).fixed(SAMPLES),
        new("samples_in", Process, Training, Times),
        new("train_samples", Data, Training, Results).fixed(SAMPLES),
        new("test_samples", Data, Training, Test),
        new("num_classes", Data, Training, Nothing).fixed(CLASSES),
        new("num_workers", Data, Training, Nothing),
        new("epochs", Run, Training, Results).common(),
        new("eval_every", Run, Training, Results),
        new("accumulate", Recipe, Training, Results).fixed(SAMPLES).technique(),
        new("precision", Recipe, Step, Results).fixed(PRECISION).technique(),
        new("lr", Recipe, Step, Results).common(),
        new("lr_scaling", Recipe, Training, Results),
        new("warmup_epochs", Recipe, Training, Results),
        new("weight_decay", Recipe, Step, Results),
        new("optimizer", Recipe, Step, Results)
            .common()
            .fixed("the checkpoint has the moments of the run's optimizer"),
        new("momentum", Recipe, Step, Results).unset(0),
        new("schedule", Recipe, Training, Results),
        new("max_lr", Recipe, Training, Results).only_with("schedule", "onecycle"),
        new("step_size", Recipe, Training, Results).only_with("schedule", "step"),
        new("gamma", Recipe, Training, Results).only_with("schedule", "step"),
        new("clip_norm", Recipe, Step, Results),
        new("l1", Recipe, Step, Results),
        new("l2", Recipe, Step, Results),
        new("label_smoothing", Recipe, Step, Results),
        new("class_weights", Recipe, Step, Results),
        new("early_stopping", Recipe, Training, Results).common(),
        new("target_accuracy", Recipe, Training, Results).fixed(TARGET),
        new("stop_at_target", Recipe, Training, Results).fixed(TARGET),
        new("augment", Recipe, Training, Results),
        new("quantize", Quantization, Scope::Process, Results).fixed(QUANTIZATION).technique(),
        new("quantized", Quantization, Scope::Process, Results).fixed(QUANTIZATION),
        new("weight_scheme", Quantization, Scope::Process, Results).fixed(QUANTIZATION),
        new("freeze_after", Quantization, Training, Results).only_with("quantize", "qat"),
        new("fold_after", Quantization, Training, Results).only_with("quantize", "qat"),
        new("calibration", Quantization, Training, Results).only_with("quantize", "ptq").unset(CALIBRATION),
        new("device", Process, Scope::Process, Results)
            .fixed("a checkpoint can be resumed only on the device that wrote it"),
        new("backend", Communication, Step, Results).common(),
        new("interface", Communication, Step, Times).only_with("backend", "gloo"),
        new("gloo_algorithm", Communication, Step, Results).only_with("backend", "gloo"),
        new("reduce", Communication, Step, Results),
        new("grad_dtype", Communication, Step, Results),
        new("overlap", Communication, Step, Times),
        new("bucket_mb", Communication, Step, Results),
        new("compress", Communication, Step, Results).fixed(MEMORY).technique(),
        new("compress_rank", Communication, Step, Results).fixed(MEMORY).only_with("compress", "powersgd"),
        new("shard_optimizer", Communication, Step, Results),
        new("sync_every", Communication, Training, Results).fixed(LOCAL).technique(),
        new("outer", Communication, Training, Results).fixed(LOCAL),
        new("outer_lr", Communication, Training, Results).fixed(LOCAL),
        new("outer_momentum", Communication, Training, Results).fixed(LOCAL),
        new("local_after", Communication, Training, Results).fixed(LOCAL),
        new("fragments", Communication, Training, Results).fixed(LOCAL),
        new("sync_delay", Communication, Training, Results).fixed(LOCAL),
        new("merge", Communication, Training, Results).fixed(LOCAL),
        new("comm_timeout", Communication, Scope::Process, Nothing),
        new("threads", Process, Scope::Process, Results),
        new("log_every", Process, Training, Nothing),
        new("checkpoint_every", Process, Training, Nothing),
        new("keep", Process, Training, Nothing),
    ]
};

/// Returns the properties of the option with this name, with dashes or underscores; `None` if a training has
/// no such option.
pub fn spec(name: &str) -> Option<&'static OptionSpec> {
    let field: Cow<'_, str> = if name.contains('-') { name.replace('-', "_").into() } else { name.into() };
    OPTIONS.iter().find(|spec| spec.field == field)
}
