//! Checks which values of options are rejected, alone and beside other options, on the command line and in an
//! edited `run.json`.

use burn::tensor::Device;

use super::super::tests::{tells, train};
use super::*;
use crate::quant::{CALIBRATION, PostTraining, Quantization, WeightScheme};
use crate::values::Positive;

/// Checks that each of the options is rejected with one line that has the facts beside it ([`tells`]).
fn refused(cases: &[(&str, &str)]) {
    for (options, expected) in cases {
        let message = train(options).unwrap_err().to_string();
        assert!(tells(&message, expected), "{options}: {message}");
        assert!(!message.contains('\n'), "{message}");
    }
}

#[test]
fn values_out_of_bounds_are_refused_by_name_and_value() {
    refused(&[
        ("--train-batch-size 0", "--train-batch-size 0: must be a whole number from 1"),
        ("--epochs 0", "--epochs 0: must be a whole number from 1"),
        ("--lr NaN", "--lr NaN: must be a finite number, 0 or more"),
        ("--lr -1", "--lr -1: must be a finite number, 0 or more"),
        ("--model resnet", "--model resnet: choose convnet, vgg, mlp"),
        (
            "--device tpu",
            "--device tpu: choose flex, ndarray, tch, \
             tch-cuda:N, cuda or cuda:N",
        ),
        ("--conv fft", "--conv fft: choose winograd, gemm"),
        ("--fused yes", "--fused yes: choose on, off"),
        ("--backend ucc", "--backend ucc: choose mpi, gloo, nccl"),
        ("--comm-timeout 0", "--comm-timeout 0: must be a finite number above 0"),
        ("--comm-timeout 1e308", "--comm-timeout 1e308: … 31536000"),
        ("--threads 100000", "--threads 100000: … 1024"),
        ("--dropout 1", "--dropout 1: must be a number from 0 to below 1"),
        ("--model mlp --hidden 1000000000000", "--hidden 1000000000000: … 1048576"),
        ("--optimizer lion", "--optimizer lion: choose adam, adamw, sgd"),
        ("--optimizer sgd --momentum 1", "--momentum 1: must be a number from 0 to below 1"),
        ("--target-accuracy 100.5", "--target-accuracy 100.5: must be a number above 0, up to 100"),
        ("--target-accuracy 0", "--target-accuracy 0: must be a number above 0, up to 100"),
        ("--warmup-epochs -1", "--warmup-epochs -1: must be a finite number, 0 or more"),
        ("--lr-scaling cube", "--lr-scaling cube: choose none, linear, sqrt"),
        ("--eval-every 0", "--eval-every 0: must be a whole number from 1"),
        ("--clip-norm 0", "--clip-norm 0: must be a finite number above 0"),
        ("--l2 inf", "--l2 inf: must be a finite number, 0 or more"),
        ("--early-stopping 0", "--early-stopping 0: must be a whole number from 1"),
        ("--augment crop,blur", "--augment crop,blur: unknown augmentation \"blur\": choose from"),
    ]);
}

#[test]
fn options_that_other_options_contradict_are_refused() {
    refused(&[
        ("--backend nccl", "--backend nccl: … flex … --backend mpi … --device cuda"),
        ("--model vgg --hidden 64", "--hidden 64: … --model mlp … vgg"),
        ("--momentum 0.9", "--momentum 0.9: … sgd … rmsprop … adam"),
        (
            "--optimizer sgd --momentum 0.9 --schedule onecycle --max-lr 1",
            "--momentum 0.9: … onecycle … 0.85 … 0.95",
        ),
        ("--optimizer lamb --momentum 0.9", "--momentum 0.9: … sgd … rmsprop … lamb"),
        ("--stop-at-target", "--stop-at-target: requires --target-accuracy"),
        ("--warmup-epochs 3.5", "--warmup-epochs 3.5: … (3)"),
        ("--sync-every 4 --outer nesterov --outer-lr 1e300", "--outer-lr 1e300: … too large"),
        ("--sync-every 4 --outer nesterov --outer-lr 1e-320", "--outer-lr 1e-320: … too small"),
        ("--sync-every 4 --outer nesterov --outer-momentum 0.9999999999", "--outer-momentum 0.9999999999: …"),
        ("--schedule onecycle", "--schedule onecycle: … --max-lr"),
        ("--max-lr 0.1", "--max-lr 0.1: requires --schedule onecycle"),
        ("--step-size 2", "--step-size 2: requires --schedule step: … leave --step-size out"),
        ("--schedule cosine --gamma 0.5", "--gamma 0.5: requires --schedule step"),
    ]);
}

#[test]
fn precisions_and_quantizations_that_do_not_fit_are_refused() {
    refused(&[
        ("--precision fp8", "--precision fp8: … bf16 … fp16"),
        ("--precision bf16 --device ndarray", "--precision bf16: … ndarray … --device flex … --precision no"),
        ("--precision fp16 --device tch", "--precision fp16: … tch … --precision bf16 … --device flex"),
        ("--precision fp16 --quantize qat", "--precision fp16: … --quantize qat … f32"),
        ("--precision bf16 --fused off", "--precision bf16: … --fused off"),
        ("--quantize ptq --quantized", "--quantized: … --quantize qat … --quantize ptq"),
        ("--weight-scheme tensor", "--weight-scheme tensor: requires --quantize"),
        ("--freeze-after 1", "--freeze-after 1: requires --quantize qat"),
        ("--quantized --fold-after 1", "--fold-after 1: … convnet … --batch-norm"),
        ("--quantized --epochs 1 --freeze-after 1", "--freeze-after 1: … below the number of epochs (1)"),
        ("--quantized --freeze-after 3", "--freeze-after 3: … (3)"),
        ("--model mlp --quantized --fold-after 9", "--fold-after 9: … (3)"),
        ("--quantized --calibration 5", "--calibration 5: requires --quantize ptq"),
        ("--quantized --fused off", "--quantize qat: … --fused off"),
    ]);
}

#[test]
fn a_stepwise_schedule_falls_every_third_of_the_way_unless_told() {
    for (options, expected) in [
        ("--epochs 10", Some(3)),
        ("--epochs 2", Some(1)),
        ("--epochs 10 --step-size 7", Some(7)),
        ("--epochs 10000000000000000000", Some(3_000_000_000_000_000_000)),
    ] {
        let recipe = train(&format!("--schedule step {options}")).unwrap().recipe;
        assert_eq!((recipe.step_size, recipe.gamma), (expected.map(Positive), Some(GAMMA)), "{options}");
    }
}

#[test]
fn rates_grow_with_the_number_of_ranks_as_asked_after_a_warmup() {
    for (options, expected) in [
        ("--lr 0.1", [0.1, 0.1]),
        ("--lr 0.1 --lr-scaling linear", [0.1, 0.4]),
        ("--lr 0.1 --lr-scaling sqrt", [0.1, 0.2]),
        ("--lr 0.1 --lr-scaling linear --schedule step", [0.1, 0.4]),
        ("--schedule onecycle --max-lr 0.1 --lr-scaling linear", [0.1, 0.4]),
    ] {
        let config = train(options).unwrap();
        let warmed = train(&format!("{options} --warmup-epochs 0.5")).unwrap();
        for (ranks, expected) in [1, 4].into_iter().zip(expected) {
            let [rates, warmed] = [&config, &warmed].map(|config| config.rates(10, ranks));
            let highest = (0..20).map(|step| rates.rate(step / 10, step % 10).lr).fold(0.0, f64::max);
            assert!((highest - expected).abs() < 0.03 * expected, "{options}, {ranks} ranks: {highest}");
            for (step, factor) in [0.2, 0.4, 0.6, 0.8, 1.0, 1.0].into_iter().enumerate() {
                let [found, plain] = [warmed, rates].map(|rates| rates.rate(0, step).lr);
                assert!((found - factor * plain).abs() < 1e-12, "{options}, step {step}: {found}");
            }
        }
    }
}

#[test]
fn momentum_is_pytorchs_default_unless_given_or_cycled() {
    for (options, expected) in [
        ("", 0.9),
        ("--optimizer adamw", 0.9),
        ("--optimizer sgd", 0.0),
        ("--optimizer rmsprop --momentum 0.5", 0.5),
        ("--optimizer sgd --schedule onecycle --max-lr 0.1", 0.95),
    ] {
        assert_eq!(train(options).unwrap().rates(10, 4).rate(0, 0).momentum, expected, "{options}");
    }
}

#[test]
fn precisions_are_accepted_where_the_device_computes_in_them() {
    for (options, expected) in [
        ("--precision no --fused off --quantized --fused on", MixedPrecision::No),
        ("--precision bf16 --model vgg --batch-norm --dropout 0.5", MixedPrecision::Bf16),
        ("--precision fp16 --model mlp --activation gelu", MixedPrecision::Fp16),
        #[cfg(feature = "tch")]
        ("--precision bf16 --device tch", MixedPrecision::Bf16),
    ] {
        assert_eq!(train(options).unwrap().precision, expected, "{options}");
    }
}

#[test]
fn quantized_is_another_name_of_qat() {
    assert_eq!(train("").unwrap().quantization, Quantization::default());
    for options in ["--quantized", "--quantize qat", "--quantize qat --quantized"] {
        let found = train(options).unwrap().quantization;
        assert_eq!(found, Quantization { quantize: Some(QuantizeKind::Qat), ..Quantization::default() });
    }
}

#[test]
fn a_layer_that_cannot_be_quantized_is_rejected_by_name() {
    for kind in ["qat", "ptq"] {
        let config = train(&format!("--quantize {kind} --activation tanh")).unwrap();
        let network = Network::with_options(
            config.model,
            &config.network,
            config.model.dimensions(),
            1,
            &Device::flex(),
        );
        let message = config.quantizer(&network).unwrap_err().to_string();
        let expected = format!("--quantize {kind}: layer activation1 … tanh … relu");
        assert!(tells(&message, &expected), "{message}");
    }
}

#[test]
fn models_of_float_weights_are_an_option_of_the_training() {
    let post = |words: &str| train(words).unwrap().quantization.post_training();
    assert_eq!((post(""), post("--quantized")), (None, None));
    let scheme = WeightScheme::Channel;
    let expected = PostTraining { scheme, calibration: CALIBRATION };
    assert_eq!(post("--quantize ptq"), Some(expected));
    let (words, scheme) = ("--quantize ptq --calibration 9 --weight-scheme tensor", WeightScheme::Tensor);
    assert_eq!(post(words), Some(PostTraining { scheme, calibration: 9 }));
}

#[test]
fn a_path_that_is_no_text_is_refused() {
    use std::os::unix::ffi::OsStrExt;
    for option in ["--data-root", "--init"] {
        let words = [option.as_bytes(), b"data\xff"].map(std::ffi::OsStr::from_bytes);
        let error = RunConfig::read(words).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{option} data")) && error.contains("is not UTF-8"), "{error}");
    }
}

#[test]
fn every_accepted_configuration_passes_when_it_is_stored() {
    for options in [
        "",
        "--schedule onecycle --max-lr 0.1 --optimizer adamw --label-smoothing 0.1",
        "--schedule step --optimizer sgd --momentum 0.9 --clip-norm 1",
        "--precision fp16 --model mlp --hidden 8 --dropout 0.5",
        "--quantize qat --epochs 4 --freeze-after 2",
        "--gloo-algorithm bcube --train-samples 7",
    ] {
        let config = train(options).unwrap();
        let stored = serde_json::to_value(&config).unwrap();
        assert_eq!(serde_json::from_value::<RunConfig>(stored).unwrap(), config, "{options}");
    }
}

#[test]
fn an_edited_value_is_named_with_its_option() {
    let qat = "--quantize qat --epochs 4";
    for (options, field, value, expected) in [
        ("", "train_batch_size", "0", "--train-batch-size 0: must be a whole number from 1"),
        ("", "checkpoint_every", "0", "--checkpoint-every 0: must be a whole number from 1"),
        ("", "lr", "-0.1", "--lr -0.1: must be a finite number, 0 or more"),
        ("", "hidden", "4", "--hidden 4: … --model mlp … convnet"),
        ("--optimizer sgd", "momentum", "2", "--momentum 2: must be a number from 0 to"),
        ("", "schedule", "\"onecycle\"", "--schedule onecycle: … --max-lr "),
        ("", "precision", "\"fp8\"", "--precision fp8: … bf16"),
        (qat, "precision", "\"bf16\"", "--precision bf16: … --quantize qat"),
        (qat, "fused", "false", "--quantize qat: … --fused off"),
        (qat, "freeze_after", "9", "--freeze-after 9: … (4)"),
    ] {
        let mut json = serde_json::to_value(train(options).unwrap()).unwrap();
        json[field] = serde_json::from_str(value).unwrap();
        let found = serde_json::from_value::<RunConfig>(json).unwrap_err().to_string();
        assert!(tells(&found, expected), "{field} {value}: {found}");
    }
}
