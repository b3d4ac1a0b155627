//! Validation of a configuration that was read from `run.json`, which somebody may have edited.

use super::{
    ConfigError, RunConfig, gloo_algorithm, more_than_0, network, not_negative, positive, precision,
    quantization, recipe, threads, timeout,
};

impl RunConfig {
    /// Checks what the command line would not have let through.
    ///
    /// # Errors
    /// The first invalid option.
    pub fn check_stored(&self) -> Result<(), ConfigError> {
        for (option, value) in [
            ("train-batch-size", Some(self.train_batch_size)),
            ("test-batch-size", Some(self.test_batch_size)),
            ("train-samples", self.train_samples),
            ("test-samples", self.test_samples),
            ("epochs", Some(self.epochs)),
            ("accumulate", Some(self.accumulate)),
            ("log-every", Some(self.log_every)),
            ("checkpoint-every", self.checkpoint_every),
            ("keep", self.keep),
        ] {
            value.map(|value| positive(option, value)).transpose()?;
        }
        self.check_samples_of_a_step()?;
        not_negative("lr", self.lr)?;
        not_negative("weight-decay", self.weight_decay)?;
        more_than_0("bucket-mb", self.bucket_mb)?;
        timeout(self.comm_timeout)?;
        threads(self.threads)?;
        gloo_algorithm(&self.gloo_algorithm)?;
        network::check(&self.network, self.model)?;
        recipe::check(&self.recipe)?;
        precision::check(self)?;
        quantization::check(self)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::train;
    use super::*;

    #[test]
    fn every_accepted_configuration_passes() {
        for options in [
            "",
            "--schedule onecycle --max-lr 0.1 --optimizer adamw --label-smoothing 0.1",
            "--schedule step --optimizer sgd --momentum 0.9 --clip-norm 1",
            "--precision fp16 --model mlp --hidden 8 --dropout 0.5",
            "--quantize qat --epochs 4 --freeze-after 2",
            "--backend gloo --gloo-algorithm bcube --train-samples 7",
        ] {
            let options = if options.contains("gloo") && !cfg!(feature = "gloo") { "" } else { options };
            assert_eq!(train(options).unwrap().check_stored(), Ok(()), "{options}");
        }
    }

    #[test]
    fn an_edited_value_is_named_with_its_option() {
        let qat = "--quantize qat --epochs 4";
        for (options, field, value, expected) in [
            ("", "train_batch_size", "0", "--train-batch-size 0: must be at least 1"),
            (
                "",
                "accumulate",
                "18446744073709551615",
                "--accumulate 18446744073709551615: times --train-batch",
            ),
            ("", "checkpoint_every", "0", "--checkpoint-every 0: must be at least 1"),
            ("", "lr", "-0.1", "--lr -0.1: must be a finite number, 0 or more"),
            ("", "comm_timeout", "0", "--comm-timeout 0: must be a finite number above 0"),
            ("", "comm_timeout", "1e308", "--comm-timeout 1e308: must be at most 31536000"),
            ("", "threads", "100000", "--threads 100000: must be at most 1024: each takes memory and a core"),
            ("", "gloo_algorithm", "\"star\"", "--gloo-algorithm star: unknown algorithm star"),
            ("", "dropout", "1.5", "--dropout 1.5: must be 0 or more and less than 1"),
            ("", "hidden", "4", "--hidden 4: convnet has no hidden layer to set"),
            ("--optimizer sgd", "momentum", "2", "--momentum 2: must be from 0 to below 1"),
            ("", "clip_norm", "0", "--clip-norm 0: must be a finite number above 0"),
            ("", "schedule", "\"onecycle\"", "--schedule onecycle: needs its highest learning rate"),
            ("", "schedule", "\"step\"", "--schedule step: needs --step-size and --gamma"),
            ("", "precision", "\"fp8\"", "--precision fp8: no device"),
            (qat, "precision", "\"bf16\"", "--precision bf16: --quantize qat trains in f32"),
            (qat, "fused", "false", "--quantize qat: integers need fused operators"),
            (qat, "freeze_after", "9", "--freeze-after 9: the run has 4 epochs"),
        ] {
            let mut json = serde_json::to_value(train(options).unwrap()).unwrap();
            json[field] = serde_json::from_str(value).unwrap();
            let config: RunConfig = serde_json::from_value(json).unwrap();
            let found = config.check_stored().unwrap_err().to_string();
            assert!(found.starts_with(expected), "{field} {value}: {found}");
        }
    }
}
