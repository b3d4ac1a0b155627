//! Losses: everything in [`burn::nn::loss`], with a fused [`CrossEntropyLoss`].

use burn::tensor::{Device, Int, Tensor};

use super::convert::{config, module};
use crate::ops::loss::{IndexLoss, cross_entropy_of_indices};
use crate::runtime::fallback::unsupported;

pub use burn::nn::loss::*;

config! {
    /// Configuration of a [`CrossEntropyLoss`]; replaces [`burn::nn::loss::CrossEntropyLossConfig`].
    pub struct CrossEntropyLossConfig of burn::nn::loss::CrossEntropyLossConfig {
        /// Rows with one of these targets do not count. The loss is NaN if no row counts.
        pub pad_tokens: Option<Vec<usize>>,
        /// Class weights, all positive.
        pub weights: Option<Vec<f32>>,
        /// Label smoothing: the share of each target, from 0 to 1, that is distributed uniformly over all
        /// classes. If a class that is not the target has the score -∞, the loss is NaN with `Some(0.0)`, as
        /// in Burn, and finite with `None`.
        pub smoothing: Option<f32>,
        /// Whether inputs are logits rather than probabilities.
        #[config(default = true)]
        pub logits: bool,
    }

    /// Creates the loss.
    ///
    /// # Panics
    /// If `smoothing` is not between 0 and 1, or a weight is not positive.
    pub fn init(&self, device: &Device) -> CrossEntropyLoss;
}

module! {
    /// Mean cross entropy of class scores, as one operator. Replaces [`burn::nn::loss::CrossEntropyLoss`].
    ///
    /// For probabilities (`logits` is false), the loss is composed of Burn's operators.
    pub struct CrossEntropyLoss of burn::nn::loss::CrossEntropyLoss {
        /// Rows with one of these targets do not count.
        pub pad_tokens: Option<Vec<usize>>,
        /// Class weights, `[classes]`.
        pub weights: Option<Tensor<1>>,
        /// Label smoothing, as in [`CrossEntropyLossConfig`].
        pub smoothing: Option<f32>,
        /// Whether inputs are logits rather than probabilities.
        pub logits: bool,
    }
}

impl CrossEntropyLoss {
    /// Creates a loss in which rows with the target `pad_index` do not count.
    pub fn new(pad_index: Option<usize>, device: &Device) -> Self {
        burn::nn::loss::CrossEntropyLoss::new(pad_index, device).into()
    }

    /// Returns the loss `[1]` for `logits` `[batch, classes]` and `targets` `[batch]`, which are class
    /// indices.
    ///
    /// # Panics
    /// If the numbers of rows and targets differ, or a target is not below `classes`.
    #[track_caller]
    pub fn forward(&self, logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
        let composed = |logits| {
            let burns = burn::nn::loss::CrossEntropyLoss::from(self.clone());
            burns.forward(logits, targets.clone())
        };
        if !self.logits {
            unsupported("cross_entropy", "probabilities (logits = false)");
            return composed(logits);
        }
        let (pad_tokens, weights) = (self.pad_tokens.as_deref(), self.weights.as_ref());
        let options = IndexLoss { pad_tokens, weights, smoothing: self.smoothing };
        cross_entropy_of_indices(logits, &targets, options, composed)
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::loss as burns;
    use burn::tensor::{DType, TensorData};

    use super::*;
    use crate::kernels::simd::Level;
    use crate::ops::testing::{assert_close, autodiff_devices, random, results};

    fn targets(batch: usize, classes: usize, seed: usize, device: &Device) -> Tensor<1, Int> {
        let targets: Vec<i64> = (0..batch).map(|row| ((row + seed) * 7919 % classes) as i64).collect();
        Tensor::from_data(TensorData::new(targets, [batch]), device)
    }

    /// Asserts that the loss and its gradient are Burn's.
    #[track_caller]
    fn assert_as_burns(ours: &CrossEntropyLoss, logits: Tensor<2>, targets: &Tensor<1, Int>, context: &str) {
        let burns = burns::CrossEntropyLoss::from(ours.clone());
        let x = [logits];
        let expected = results(&burns, &x, |loss, x| loss.forward(x[0].clone(), targets.clone()));
        let found = results(ours, &x, |loss, x| loss.forward(x[0].clone(), targets.clone()));
        assert_close(&found, &expected, context);
        // No other tensor shares the product's memory, so the gradient overwrites it.
        let found = results(ours, &x, |loss, x| loss.forward(x[0].clone() * 1.0, targets.clone()));
        assert_close(&found, &expected, context);
    }

    fn configs(classes: usize) -> Vec<CrossEntropyLossConfig> {
        let weights: Vec<_> = (0..classes).map(|class| 0.25 + (class % 5) as f32).collect();
        let base = CrossEntropyLossConfig::new();
        [None, Some(0.0), Some(0.1), Some(1.0)]
            .into_iter()
            .flat_map(|smoothing| {
                let config = base.clone().with_smoothing(smoothing);
                let weighted = config.clone().with_weights(Some(weights.clone()));
                let padded =
                    |config: &CrossEntropyLossConfig| config.clone().with_pad_tokens(Some(vec![0, 3]));
                [padded(&config), padded(&weighted), config, weighted]
            })
            .collect()
    }

    #[test]
    fn the_loss_and_its_gradient_are_those_of_burn() {
        let device = Device::flex().autodiff();
        for level in Level::available() {
            let _held = level.hold();
            for (batch, classes) in [(1, 1), (1, 2), (9, 2), (33, 10), (7, 65), (4, 1000), (2, 70_001)] {
                for config in configs(classes) {
                    let logits = random([batch, classes], classes as u64, &device) * 20.0;
                    let targets = targets(batch, classes, batch, &device);
                    let context = format!("{level}, {batch} x {classes}, {:?}", config.smoothing);
                    assert_as_burns(&config.init(&device), logits, &targets, &context);
                }
            }
        }
    }

    #[test]
    fn scores_are_in_any_order_and_targets_of_any_type() {
        let types = [DType::I64, DType::I32, DType::I16, DType::U8, DType::U32];
        for (device, dtype) in autodiff_devices().iter().flat_map(|device| types.map(|dtype| (device, dtype)))
        {
            let loss = CrossEntropyLossConfig::new().with_smoothing(Some(0.2)).init(device);
            let targets = targets(12, 30, 1, device).cast(dtype);
            let logits = random([30, 12], 1, device);
            assert_as_burns(&loss, logits.clone().transpose(), &targets, &format!("{dtype:?}"));
            assert_as_burns(&loss, random([20, 40], 1, device).slice([3..15, 4..34]), &targets, "a view");
            let twice = results(&loss, std::slice::from_ref(&logits), |loss, x| {
                let scores = x[0].clone().transpose();
                loss.forward(scores.clone(), targets.clone()) + loss.forward(scores, targets.clone())
            });
            let burns = burns::CrossEntropyLoss::from(loss.clone());
            let expected = results(&burns, &[logits], |loss, x| {
                let scores = x[0].clone().transpose();
                loss.forward(scores.clone(), targets.clone()) + loss.forward(scores, targets.clone())
            });
            assert_close(&twice, &expected, "twice");
        }
    }

    #[test]
    fn what_is_not_finite_is_as_burns() {
        let device = Device::flex().autodiff();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for config in configs(10) {
                for bad_class in [0, 3, 5] {
                    let mask = Tensor::<1, Int>::arange(0..10, &device).equal_scalar(bad_class);
                    // Write the value into rows 2 and 3. One of them may be padding.
                    let rows = Tensor::<1, Int>::arange(0..6, &device).reshape([6, 1]);
                    let rows = rows.clone().equal_scalar(2).bool_or(rows.equal_scalar(3));
                    let mask = mask.reshape([1, 10]).repeat_dim(0, 6).bool_and(rows.repeat_dim(1, 10));
                    let logits = random([6, 10], 3, &device).mask_fill(mask, bad);
                    let targets = Tensor::from_data([1, 2, 0, 5, 3, 9], &device);
                    let context = format!("{bad} of class {bad_class}, {config}");
                    assert_as_burns(&config.init(&device), logits, &targets, &context);
                }
            }
        }
    }

    #[test]
    fn values_do_not_depend_on_the_number_of_threads() {
        let device = Device::flex().autodiff();
        let loss = CrossEntropyLossConfig::new().with_smoothing(Some(0.1)).init(&device);
        let (logits, targets) = ([random([999, 300], 1, &device)], targets(999, 300, 1, &device));
        let [one, three] = [1, 3].map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
            pool.install(|| {
                let forward = |x: &Tensor<2>| loss.forward(x.clone(), targets.clone());
                let shared = results(&loss, &logits, |_, x| forward(&x[0]));
                [shared, results(&loss, &logits, |_, x| forward(&(x[0].clone() * 2.0)))]
            })
        });
        assert_eq!(one, three);
    }

    #[test]
    fn only_padding_is_nan_without_a_gradient() {
        let device = Device::flex().autodiff();
        let targets = Tensor::from_data([1, 1, 1], &device);
        for config in configs(4) {
            let loss = config.with_pad_tokens(Some(vec![1])).init(&device);
            assert_as_burns(&loss, random([3, 4], 1, &device), &targets, "padding");
        }
    }

    #[test]
    fn other_inputs_run_burns_operators() {
        let device = Device::flex().autodiff();
        let config = CrossEntropyLossConfig::new();
        let loss = config.init(&device);
        let some = targets(3, 5, 1, &device);
        let probabilities = burn::tensor::activation::softmax(random([3, 5], 1, &device), 1);
        let of_probabilities = config.clone().with_logits(false).init(&device);
        assert_as_burns(&of_probabilities, probabilities, &some, "probabilities");
        assert_as_burns(&loss, random([0, 5], 1, &device), &targets(0, 5, 1, &device), "empty");
        let halves = loss.forward(random([3, 5], 1, &device).cast(DType::BF16), some.clone());
        assert_eq!(halves.dtype(), DType::BF16);
        let without = loss.forward(random([3, 5], 1, &device).inner(), some.clone().inner());
        let with = loss.forward(random([3, 5], 1, &device), some);
        assert_eq!(without.into_scalar::<f32>(), with.into_scalar::<f32>());
    }

    #[test]
    #[should_panic(expected = "assert_shape!(targets, [batch_size]): axis 0 expected 3, got 4")]
    fn there_is_one_target_for_each_row() {
        let device = Device::flex();
        CrossEntropyLoss::new(None, &device).forward(random([3, 5], 1, &device), targets(4, 5, 1, &device));
    }

    #[test]
    #[should_panic(expected = "out of bounds")]
    fn targets_are_classes() {
        let device = Device::flex();
        let targets = Tensor::from_data([1, 2, 5], &device);
        CrossEntropyLoss::new(None, &device).forward(random([3, 5], 1, &device), targets);
    }

    #[test]
    fn it_is_shown_and_configured_as_burns() {
        let device = Device::flex();
        for config in configs(4) {
            let burns = burns::CrossEntropyLossConfig::from(config.clone());
            assert_eq!(config.to_string(), burns.to_string());
            assert_eq!(config.init(&device).to_string(), burns.init(&device).to_string());
        }
    }
}
