//! Checks that the options of a training fit each other and this build.

use std::borrow::Cow;
use std::fmt::Display;

use burn_mpi::{LocalError, ParamLayout, ParamSpec, PowerSgd};
use clap::ValueEnum;

use super::{RunConfig, as_typed};
use crate::device::DeviceKind;
use crate::model::{ModelKind, Network};
use crate::quant::{QuantizeKind, Quantizer, groups};
use crate::train::{
    BackendKind, Compress, CompressionOptions, GAMMA, MixedPrecision, OPTIONS, OUTER_LR, OUTER_MOMENTUM,
    OptimizerKind, OuterKind, ScheduleKind,
};
use crate::values;
use run_record::Part;

/// An invalid option.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    /// An option with a value that does not fit.
    #[error("--{option}{value}: {problem}")]
    Option {
        /// The long name, without dashes.
        option: Cow<'static, str>,
        /// The value with a leading space; empty for an option without a value.
        value: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A message that already names the option, such as clap's.
    #[error("{0}")]
    Message(String),
}

impl ConfigError {
    /// Returns the error of `option`.
    pub fn new(
        option: impl Into<Cow<'static, str>>,
        value: impl ToString,
        problem: impl Into<String>,
    ) -> Self {
        let value = values::shortened(&value.to_string());
        let value = if value.is_empty() { value } else { format!(" {value}") };
        Self::Option { option: option.into(), value, problem: problem.into() }
    }
}

impl RunConfig {
    /// Returns the options, completed by the defaults that depend on other options.
    ///
    /// # Errors
    /// Returns the error of the first option that does not fit the others.
    pub fn completed(mut self) -> Result<Self, ConfigError> {
        let recipe = &mut self.recipe;
        if recipe.schedule == ScheduleKind::Step {
            recipe.step_size.get_or_insert(self.epochs.share(3, 10));
            recipe.gamma.get_or_insert(GAMMA);
        }
        let local = &mut self.communication.local;
        if local.outer == OuterKind::Nesterov {
            local.outer_lr.get_or_insert(OUTER_LR);
            local.outer_momentum.get_or_insert(OUTER_MOMENTUM);
        }
        let config = self.with_one_name()?;
        config.check()?;
        Ok(config)
    }

    /// Replaces `--quantized` by `--quantize qat`.
    pub(super) fn with_one_name(mut self) -> Result<Self, ConfigError> {
        if std::mem::take(&mut self.quantization.quantized) {
            match self.quantization.quantize.replace(QuantizeKind::Qat) {
                None | Some(QuantizeKind::Qat) => {}
                Some(kind) => {
                    let problem = format!("means --quantize qat, which conflicts with --quantize {kind}");
                    return Err(ConfigError::new("quantized", "", problem));
                }
            }
        }
        Ok(self)
    }

    fn check(&self) -> Result<(), ConfigError> {
        if let (Some(hidden), true) = (self.network.hidden, self.model != ModelKind::Mlp) {
            let problem = format!("requires --model mlp, but the model is {}: leave it out", self.model);
            return Err(ConfigError::new("hidden", hidden, problem));
        }
        self.check_companions()?;
        self.check_recipe()?;
        self.check_precision()?;
        if self.communication.backend == BackendKind::Nccl && self.device.is_cpu() {
            let problem = format!(
                "requires a GPU, but {} is a CPU device: choose --backend mpi or gloo, or --device cuda or \
                 tch-cuda:N",
                self.device
            );
            return Err(ConfigError::new("backend", BackendKind::Nccl, problem));
        }
        self.check_shares()?;
        self.check_local_updates()?;
        self.check_compression()?;
        self.check_quantization()
    }

    /// Checks that the other options support shares of the optimizer's moments.
    fn check_shares(&self) -> Result<(), ConfigError> {
        if !self.communication.shard_optimizer {
            return Ok(());
        }
        let problem = if self.recipe.optimizer == OptimizerKind::Lamb {
            "is not supported with --optimizer lamb, which needs the norms of whole parameters: choose adamw"
        } else if self.communication.local.sync_every.is_some() {
            "is not supported with --sync-every, where each rank updates all of its parameters: leave out one of them"
        } else if self.communication.compression.compress != Compress::None {
            "is not supported with --compress, which averages whole gradients: leave out one of them"
        } else {
            return Ok(());
        };
        Err(ConfigError::new("shard-optimizer", "", problem))
    }

    /// Checks the options of local updates against each other and against options that require gradients
    /// averaged in each step.
    fn check_local_updates(&self) -> Result<(), ConfigError> {
        let local = &self.communication.local;
        let refused = |option, value: &dyn Display, problem: String| {
            Err(ConfigError::new(option, value.to_string(), problem))
        };
        if local.outer == OuterKind::None {
            let of_outer = [
                ("outer-lr", local.outer_lr.map(|rate| rate.to_string())),
                ("outer-momentum", local.outer_momentum.map(|momentum| momentum.to_string())),
            ];
            for (option, value) in of_outer {
                let Some(value) = value else { continue };
                return refused(option, &value, "requires --outer nesterov".into());
            }
        }
        let Some(options) = self.communication.local_options() else {
            let outer = (local.outer != OuterKind::None).then(|| local.outer.to_string());
            let after = local.local_after.map(|epochs| epochs.to_string());
            let of_local = [
                ("outer", outer),
                ("local-after", after),
                ("fragments", (local.fragments.get() > 1).then(|| local.fragments.to_string())),
                ("sync-delay", (local.sync_delay.get() > 0).then(|| local.sync_delay.to_string())),
                ("merge", (local.merge.get() > 0.0).then(|| local.merge.to_string())),
            ];
            for (option, value) in of_local {
                let Some(value) = value else { continue };
                let problem =
                    "requires local updates: add --sync-every H, the steps between synchronisations";
                return refused(option, &value, problem.into());
            }
            return Ok(());
        };
        let every = options.every;
        match options.check() {
            Err(LocalError::Fragments { .. }) => {
                let problem = format!("must divide --sync-every ({every})");
                return refused("fragments", &local.fragments, problem);
            }
            Err(LocalError::Delay { .. }) => {
                let problem = format!("must be below --sync-every ({every})");
                return refused("sync-delay", &local.sync_delay, problem);
            }
            Err(LocalError::MergeWithoutDelay(_)) => {
                let problem = "requires --sync-delay: without a delay, the average replaces the parameters";
                return refused("merge", &local.merge, problem.into());
            }
            // A value that is below 1 as f64 may be 1 as f32.
            Err(LocalError::Merge(_)) => return refused("merge", &local.merge, "is too near to 1".into()),
            // A number above 0 may be 0 or infinite as f32.
            Err(LocalError::Outer { learning_rate, .. })
                if learning_rate == 0.0 || learning_rate.is_infinite() =>
            {
                let rate = local.outer_lr.unwrap_or(OUTER_LR);
                // As a decimal number, such a rate has hundreds of digits.
                let rate = format!("{:e}", rate.get());
                return refused("outer-lr", &rate, "is too small or too large for f32".into());
            }
            Err(LocalError::Outer { .. }) => {
                let momentum = local.outer_momentum.unwrap_or(OUTER_MOMENTUM);
                return refused("outer-momentum", &momentum, "is too near to 1".into());
            }
            Err(error) => return refused("outer", &local.outer, error.to_string()),
            Ok(()) => {}
        }
        if let Some(epochs) = local.local_after.filter(|epochs| *epochs >= self.epochs) {
            let problem = format!("must be below the number of epochs ({})", self.epochs);
            return refused("local-after", &epochs, problem);
        }
        let reason = if self.precision.scales_loss() {
            "is not supported with --precision fp16, whose loss scale must be equal on all ranks: choose bf16"
        } else if self.quantization.quantize == Some(QuantizeKind::Qat) {
            "is not supported with --quantize qat, whose ranges are averaged in each step: choose --quantize ptq"
        } else {
            return Ok(());
        };
        refused("sync-every", &every, reason.into())
    }

    /// Checks the options of the compression of gradients against each other and the other options.
    fn check_compression(&self) -> Result<(), ConfigError> {
        let CompressionOptions { compress, compress_rank } = self.communication.compression;
        let problem = match (compress, compress_rank) {
            (Compress::None, None) => return Ok(()),
            (Compress::None, Some(rank)) => {
                let problem = "requires --compress powersgd: add it, or leave --compress-rank out";
                return Err(ConfigError::new("compress-rank", rank, problem));
            }
            (Compress::PowerSgd, None) => {
                "requires the number of columns to send of each matrix: add --compress-rank R".to_owned()
            }
            _ if self.precision.scales_loss() => {
                "is not supported with --precision fp16, whose loss scale changes and whose skipped steps would lose \
                 a part of the error memory: choose bf16"
                    .to_owned()
            }
            _ => match self.communication.local.sync_every {
                Some(every) => format!(
                    "is not supported with --sync-every {every}, which sends no gradients: leave out one of them"
                ),
                None => return Ok(()),
            },
        };
        Err(ConfigError::new("compress", compress, problem))
    }

    /// Rejects an option that has an effect only with a certain value of another option, if the other option
    /// has another value. Options of gloo are accepted with any backend.
    fn check_companions(&self) -> Result<(), ConfigError> {
        let fields = self.fields();
        for spec in OPTIONS.iter().filter(|spec| spec.part != Part::Communication) {
            let (Some((other, needed)), Some(value)) = (spec.only_with, fields.get(spec.field)) else {
                continue;
            };
            if !value.is_null() && fields[other] != needed {
                let (option, other) = (spec.field.replace('_', "-"), other.replace('_', "-"));
                let problem = format!("requires --{other} {needed}: add it, or leave --{option} out");
                return Err(ConfigError::new(option, as_typed(value), problem));
            }
        }
        Ok(())
    }

    fn check_recipe(&self) -> Result<(), ConfigError> {
        let recipe = &self.recipe;
        let cycles = recipe.schedule == ScheduleKind::OneCycle;
        if let Some(momentum) = recipe.momentum {
            let refuse = |problem| Err(ConfigError::new("momentum", momentum, problem));
            if !recipe.optimizer.takes_momentum() {
                let takers = OptimizerKind::value_variants().iter().filter(|kind| kind.takes_momentum());
                let takers: Vec<String> = takers.map(values::name).collect();
                let (takers, optimizer) = (takers.join(" or "), recipe.optimizer);
                return refuse(format!("requires --optimizer {takers}, not {optimizer}: leave it out"));
            }
            if cycles {
                return refuse(
                    "--schedule onecycle varies momentum between 0.85 and 0.95: leave the option out"
                        .to_owned(),
                );
            }
        }
        if recipe.stop_at_target && recipe.target_accuracy.is_none() {
            return Err(ConfigError::new("stop-at-target", "", "requires --target-accuracy P"));
        }
        let warmup = recipe.warmup_epochs;
        if warmup.get() > self.epochs.get() as f64 {
            let problem = format!("must be at most the number of epochs ({})", self.epochs);
            return Err(ConfigError::new("warmup-epochs", warmup, problem));
        }
        if cycles && recipe.max_lr.is_none() {
            let problem = "requires a highest learning rate: add --max-lr X";
            return Err(ConfigError::new("schedule", values::name(&recipe.schedule), problem));
        }
        Ok(())
    }

    /// Checks that the device supports the precision.
    fn check_precision(&self) -> Result<(), ConfigError> {
        let (precision, device) = (self.precision, self.device);
        if precision == MixedPrecision::No {
            return Ok(());
        }
        let has_16_bits = !matches!(device, DeviceKind::NdArray | DeviceKind::Cuda(_));
        let is_libtorch = matches!(device, DeviceKind::Tch | DeviceKind::TchCuda(_));
        let problem = match self.quantization.quantize {
            _ if precision == MixedPrecision::Fp8 => {
                "no device supports 8-bit floats: choose no, bf16 or fp16".to_owned()
            }
            _ if !has_16_bits => {
                format!("is not supported on {device}: choose --device flex, or --precision no")
            }
            _ if is_libtorch && precision == MixedPrecision::Fp16 => {
                format!("is not supported on {device}: choose --precision bf16, or --device flex")
            }
            Some(kind) => {
                format!("is not supported with --quantize {kind}, which trains in f32: leave out one of them")
            }
            None if !self.fused => "requires fused operators: leave out --fused off".to_owned(),
            None => return Ok(()),
        };
        Err(ConfigError::new("precision", precision, problem))
    }

    /// Checks the options of quantization against each other, the device, the network and the number of
    /// epochs.
    fn check_quantization(&self) -> Result<(), ConfigError> {
        let quantization = &self.quantization;
        let kind = quantization.quantize;
        for (option, epoch) in
            [("freeze-after", quantization.freeze_after), ("fold-after", quantization.fold_after)]
        {
            if let Some(epoch) = epoch.filter(|epoch| *epoch >= self.epochs) {
                let problem = format!("must be below the number of epochs ({})", self.epochs);
                return Err(ConfigError::new(option, epoch, problem));
            }
        }
        let scheme = quantization.weight_scheme;
        let Some(kind) = kind else {
            return if scheme == Default::default() {
                Ok(())
            } else {
                Err(ConfigError::new("weight-scheme", scheme, "requires --quantize"))
            };
        };
        let refuse = |problem: String| Err(ConfigError::new("quantize", kind, problem));
        if self.device != DeviceKind::Flex {
            return refuse(format!("requires --device flex, not {}", self.device));
        }
        if !self.fused {
            return refuse("requires fused operators: leave out --fused off".into());
        }
        match quantization.fold_after {
            Some(epoch) if !self.network.batch_norm && self.model != ModelKind::Mlp => {
                let problem = format!(
                    "{} has no batch norm to fold: leave the option out, or add --batch-norm",
                    self.model
                );
                Err(ConfigError::new("fold-after", epoch, problem))
            }
            _ => Ok(()),
        }
    }

    /// Checks that a network with `layout` has a parameter for each fragment of local updates.
    ///
    /// # Errors
    /// If there are more fragments than trainable parameters.
    pub fn check_fragments(&self, layout: &ParamLayout) -> Result<(), ConfigError> {
        let fragments = self.communication.local.fragments;
        let has_values = |spec: &&ParamSpec| spec.trainable && !spec.range.is_empty();
        match layout.specs().iter().filter(has_values).count() {
            most if fragments.get() > most.max(1) => {
                let problem =
                    format!("must be at most the number of the network's parameter tensors ({most})");
                Err(ConfigError::new("fragments", fragments, problem))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the compression of gradients compresses a parameter of a network with `layout`.
    ///
    /// # Errors
    /// If the rank is too high for all parameters.
    pub fn check_compression_of(&self, layout: &ParamLayout) -> Result<(), ConfigError> {
        let Some(rank) = self.communication.compression.compress_rank else { return Ok(()) };
        let problem = match layout.specs().iter().max_by_key(|spec| PowerSgd::highest_rank(spec)) {
            Some(spec) if PowerSgd::highest_rank(spec) >= rank.get() => return Ok(()),
            Some(spec) if PowerSgd::highest_rank(spec) > 0 => format!(
                "saves half of the values of no parameter: choose at most {}, the highest rank for {} {:?}",
                PowerSgd::highest_rank(spec),
                spec.name,
                spec.shape
            ),
            _ => "all parameters are too small, even for rank 1: leave out --compress".to_owned(),
        };
        Err(ConfigError::new("compress-rank", rank, problem))
    }

    /// Checks that this build includes the device and the backend.
    ///
    /// # Errors
    /// If the build lacks the device or the backend. The error says how to build with it.
    pub fn check_built(&self) -> Result<(), ConfigError> {
        let refused = |option, value: String| move |problem| ConfigError::new(option, value, problem);
        self.device.check_built().map_err(refused("device", self.device.to_string()))?;
        let backend = self.communication.backend;
        backend.check_built().map_err(refused("backend", backend.to_string()))
    }

    /// Returns the [`Quantizer`] of a quantization-aware training of `network`, or `None` for another
    /// training. If the run has post-training quantization, also checks that the network can be quantized.
    ///
    /// # Errors
    /// If a layer of the network cannot be quantized.
    pub fn quantizer(&self, network: &Network) -> Result<Option<Quantizer>, ConfigError> {
        let made = match self.quantization.quantize {
            Some(QuantizeKind::Qat) => Quantizer::new(network, self.quantization).map(Some),
            Some(_) => groups(network).map(|_| None),
            None => return Ok(None),
        };
        made.map_err(|error| {
            let kind = self.quantization.quantize.map_or_else(String::new, |kind| kind.to_string());
            ConfigError::new("quantize", kind, error.to_string())
        })
    }
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
