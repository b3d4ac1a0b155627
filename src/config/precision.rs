//! Validation of the precision against the other options.

use super::{ConfigError, RunConfig};
use crate::device::DeviceKind;
use crate::train::Precision;

/// Checks that the device computes in the precision of `config`.
///
/// # Errors
/// The reason why it does not, and the choices.
pub(super) fn check(config: &RunConfig) -> Result<(), ConfigError> {
    let precision = config.precision;
    let refuse = |problem: String| Err(ConfigError::new("precision", precision, problem));
    match precision {
        Precision::No => return Ok(()),
        Precision::Fp8 => {
            return refuse("no device of this program computes in 8 bits; choose no, bf16 or fp16".into());
        }
        Precision::Bf16 | Precision::Fp16 => {}
    }
    match (config.device, precision) {
        (DeviceKind::Flex, _) | (DeviceKind::Tch | DeviceKind::TchCuda(_), Precision::Bf16) => {}
        (device @ (DeviceKind::Tch | DeviceKind::TchCuda(_)), _) => {
            return refuse(format!(
                "{device} trains in f32 or bf16 here; choose --precision bf16, or --device flex"
            ));
        }
        (device @ (DeviceKind::NdArray | DeviceKind::Cuda(_)), _) => {
            return refuse(format!(
                "{device} has no 16-bit operators here; choose --device flex or --precision no"
            ));
        }
    }
    if let Some(kind) = config.quantization.quantize {
        return refuse(format!("--quantize {kind} trains in f32; leave out one of the two"));
    }
    match config.fused {
        true => Ok(()),
        false => refuse("16-bit activations need fused operators; leave out --fused off".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::train;
    use super::*;

    #[test]
    fn precisions_are_accepted_where_the_device_computes_in_them() {
        for (options, expected) in [
            ("", Precision::No),
            ("--precision no --fused off --quantized --fused on", Precision::No),
            ("--precision bf16 --model vgg --batch-norm --dropout 0.5", Precision::Bf16),
            ("--precision fp16 --model mlp --activation gelu", Precision::Fp16),
        ] {
            assert_eq!(train(options).unwrap().precision, expected, "{options}");
        }
    }

    /// With `--features tch`; other builds have no such device.
    #[cfg(feature = "tch")]
    #[test]
    fn libtorch_computes_in_bf16() {
        assert_eq!(train("--precision bf16 --device tch").unwrap().precision, Precision::Bf16);
    }

    #[test]
    fn others_are_rejected_with_the_reason_and_the_choices() {
        for (options, expected) in [
            ("--precision half", "--precision half: unknown precision half: choose no, bf16, fp16 or fp8"),
            (
                "--precision fp8",
                "--precision fp8: no device of this program computes in 8 bits; choose no, bf16 or fp16",
            ),
            (
                "--precision bf16 --device ndarray",
                "--precision bf16: ndarray has no 16-bit operators here; choose --device flex or --precision no",
            ),
            (
                "--precision fp16 --device tch",
                "--precision fp16: tch trains in f32 or bf16 here; choose --precision bf16, or --device flex",
            ),
            (
                "--precision fp16 --quantize qat",
                "--precision fp16: --quantize qat trains in f32; leave out one of the two",
            ),
            (
                "--precision bf16 --fused off",
                "--precision bf16: 16-bit activations need fused operators; leave out --fused off",
            ),
        ] {
            assert_eq!(train(options).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn run_json_holds_it_and_older_ones_go_without() {
        let config = train("--precision bf16").unwrap();
        let mut json = serde_json::to_value(&config).unwrap();
        assert_eq!(json["precision"], "bf16");
        assert_eq!(serde_json::from_value::<RunConfig>(json.clone()).unwrap(), config);
        json.as_object_mut().unwrap().remove("precision");
        assert_eq!(serde_json::from_value::<RunConfig>(json).unwrap().precision, Precision::No);
    }
}
