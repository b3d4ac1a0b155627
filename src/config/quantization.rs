//! Validation of quantization options against the other options.

use super::{ConfigError, RunConfig, parse, positive};
use crate::cli::QuantizationArgs;
use crate::device::DeviceKind;
use crate::model::{ModelKind, Network, NetworkOptions};
use crate::quant::{Quantization, QuantizeKind, Quantizer, groups};

/// The validated options.
///
/// # Errors
/// If one is invalid, alone or together with the others.
pub(super) fn quantization(args: &QuantizationArgs) -> Result<Quantization, ConfigError> {
    let typed = args.quantize.as_deref().map(|name| parse("quantize", name)).transpose()?;
    let quantize = match (typed, args.quantized) {
        (Some(kind), true) if kind != QuantizeKind::Qat => {
            return Err(ConfigError::new(
                "quantized",
                "",
                format!("is --quantize qat, beside --quantize {kind}"),
            ));
        }
        (None, true) => Some(QuantizeKind::Qat),
        (kind, _) => kind,
    };
    let scheme = args.weight_scheme.as_deref();
    if let (None, Some(scheme)) = (quantize, scheme) {
        return Err(ConfigError::new("weight-scheme", scheme, "requires --quantize"));
    }
    let of = |kind: QuantizeKind, option: &'static str, value: Option<usize>| match value {
        Some(value) if quantize != Some(kind) => {
            Err(ConfigError::new(option, value, format!("requires --quantize {kind}")))
        }
        value => value.map(|value| positive(option, value)).transpose(),
    };
    Ok(Quantization {
        quantize,
        weight_scheme: scheme.map(|name| parse("weight-scheme", name)).transpose()?.unwrap_or_default(),
        freeze_after: of(QuantizeKind::Qat, "freeze-after", args.freeze_after)?,
        fold_after: of(QuantizeKind::Qat, "fold-after", args.fold_after)?,
        calibration: of(QuantizeKind::Ptq, "calibration", args.calibration)?,
    })
}

/// Checks that a network of this kind can be quantized on this device.
///
/// # Errors
/// The reason why it cannot.
pub(super) fn check(config: &RunConfig) -> Result<(), ConfigError> {
    let RunConfig { quantization, model, network: NetworkOptions { batch_norm, .. }, .. } = config;
    let Some(kind) = quantization.quantize else { return Ok(()) };
    let refuse = |problem: String| Err(ConfigError::new("quantize", kind, problem));
    if config.device != DeviceKind::Flex {
        return refuse(format!("integers need --device flex, and the device is {}", config.device));
    }
    if !config.fused {
        return refuse("integers need fused operators: leave out --fused off".into());
    }
    for (option, epoch) in
        [("freeze-after", quantization.freeze_after), ("fold-after", quantization.fold_after)]
    {
        if let Some(epoch) = epoch.filter(|&epoch| epoch >= config.epochs) {
            let problem = format!("the run has {} epochs; name one before the last", config.epochs);
            return Err(ConfigError::new(option, epoch, problem));
        }
    }
    match quantization.fold_after {
        Some(epoch) if !batch_norm && *model != ModelKind::Mlp => {
            let problem =
                format!("{model} has no batch norm to fold; leave the option out, or add --batch-norm");
            Err(ConfigError::new("fold-after", epoch, problem))
        }
        _ => Ok(()),
    }
}

impl RunConfig {
    /// The observers of a quantization-aware training of `network`; `None` for other
    /// trainings. With any kind of quantization, the network is checked.
    ///
    /// # Errors
    /// If a layer of the network cannot be quantized.
    pub fn quantizer(&self, network: &Network) -> Result<Option<Quantizer>, ConfigError> {
        let Some(kind) = self.quantization.quantize else { return Ok(None) };
        let refused = |problem: String| ConfigError::new("quantize", kind, problem);
        match kind {
            QuantizeKind::Qat => Quantizer::new(network, self.quantization.qat())
                .map(Some)
                .map_err(|error| refused(error.to_string())),
            QuantizeKind::Ptq | QuantizeKind::Dynamic => {
                groups(network).map(|_| None).map_err(|error| refused(error.to_string()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::super::tests::train;
    use super::*;
    use crate::quant::{CALIBRATION, PostTraining, WeightScheme};

    #[test]
    fn quantized_is_another_name_of_qat() {
        assert_eq!(train("").unwrap().quantization, Quantization::default());
        for options in ["--quantized", "--quantize qat", "--quantize qat --quantized"] {
            let found = train(options).unwrap().quantization;
            assert_eq!(found, Quantization { quantize: Some(QuantizeKind::Qat), ..Quantization::default() });
        }
        let words = "--model mlp --quantized --weight-scheme tensor --freeze-after 2 --fold-after 1";
        let expected = Quantization {
            quantize: Some(QuantizeKind::Qat),
            weight_scheme: WeightScheme::Tensor,
            freeze_after: Some(2),
            fold_after: Some(1),
            calibration: None,
        };
        assert_eq!(train(words).unwrap().quantization, expected);
        let json = serde_json::to_string(&train(words).unwrap()).unwrap();
        assert_eq!(serde_json::from_str::<RunConfig>(&json).unwrap().quantization, expected);
    }

    #[test]
    fn senseless_options_are_rejected_by_option_and_value() {
        for (options, expected) in [
            ("--quantize int4", "--quantize int4: unknown quantization int4: choose qat, ptq or dynamic"),
            ("--quantize ptq --quantized", "--quantized: is --quantize qat, beside --quantize ptq"),
            ("--weight-scheme tensor", "--weight-scheme tensor: requires --quantize"),
            ("--quantized --weight-scheme row", "--weight-scheme row: unknown weight scheme row"),
            ("--freeze-after 1", "--freeze-after 1: requires --quantize qat"),
            ("--quantized --freeze-after 0", "--freeze-after 0: must be at least 1"),
            ("--quantized --fold-after 1", "--fold-after 1: convnet has no batch norm to fold"),
            ("--quantized --freeze-after 3", "--freeze-after 3: the run has 3 epochs"),
            ("--model mlp --quantized --fold-after 9", "--fold-after 9: the run has 3 epochs"),
            ("--quantized --calibration 5", "--calibration 5: requires --quantize ptq"),
            ("--quantize ptq --calibration 0", "--calibration 0: must be at least 1"),
            ("--quantized --fused off", "--quantize qat: integers need fused operators"),
        ] {
            let message = train(options).unwrap_err().to_string();
            assert!(message.starts_with(expected), "{message}");
        }
    }

    #[test]
    fn a_layer_that_cannot_be_quantized_is_rejected_by_name() {
        let refusal = |words: &str| {
            let config = train(words).unwrap();
            let network = Network::with_options(config.model, &config.network, 10, 1, &Device::flex());
            config.quantizer(&network).unwrap_err().to_string()
        };
        for kind in ["qat", "ptq", "dynamic"] {
            let message = refusal(&format!("--quantize {kind} --activation tanh"));
            let expected = format!("--quantize {kind}: layer activation1 cannot be quantized: tanh");
            assert!(message.starts_with(&expected), "{message}");
        }
    }

    #[test]
    fn models_of_float_weights_are_an_option_of_the_training() {
        let post = |words: &str| train(words).unwrap().train_options().post_training;
        assert_eq!((post(""), post("--quantized")), (None, None));
        let scheme = WeightScheme::Channel;
        let expected = PostTraining::Static { calibration: CALIBRATION, scheme };
        assert_eq!(post("--quantize ptq"), Some(expected));
        let (words, scheme) = ("--quantize ptq --calibration 9 --weight-scheme tensor", WeightScheme::Tensor);
        assert_eq!(post(words), Some(PostTraining::Static { calibration: 9, scheme }));
        let words = "--quantize dynamic --weight-scheme tensor";
        assert_eq!(post(words), Some(PostTraining::Dynamic { scheme }));
    }
}
