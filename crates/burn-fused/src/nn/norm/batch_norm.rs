//! The batch normalisation layer.

use burn::module::{Flag, Module, ModuleMapper, Param, RunningState};
use burn::tensor::{Device, Tensor, assert_shape};

use crate::kernels::epilogue::Epilogue;
use crate::nn::conv::Conv2d;
use crate::nn::convert::{config, module};
use crate::ops::conv::{ConvLayer, conv_norm};
use crate::ops::norm::{Normalised, batch_norm, batch_norm_inference, moving_average};
use crate::ops::precision::compose_mixed;
use crate::ops::shapes::of_conv;
use crate::runtime::fallback::unsupported;

config! {
    /// Configuration of a [`BatchNorm`] layer; replaces [`burn::nn::BatchNormConfig`].
    pub struct BatchNormConfig of burn::nn::BatchNormConfig {
        /// Number of channels.
        pub num_features: usize,
        /// Number that is added to the variance.
        #[config(default = 1e-5)]
        pub epsilon: f64,
        /// Weight of a new batch in the running statistics.
        #[config(default = 0.1)]
        pub momentum: f64,
    }

    /// Creates a layer with gamma 1 and beta 0.
    ///
    /// # Panics
    /// If there are no channels, `epsilon` is not positive and finite, or `momentum` is not between 0 and 1.
    pub fn init(&self, device: &Device) -> BatchNorm;
}

module! {
    /// Batch normalisation as one operator. Replaces [`burn::nn::BatchNorm`]. Inference on a device with
    /// autodiff, as in a frozen layer, is composed of Burn's operators.
    ///
    /// Forward updates the running statistics with its batch before it returns. In Burn's layer, a batch
    /// changes the running statistics only at the next batch or when `valid` is called, and batches of
    /// several threads are averaged into one.
    ///
    /// An empty batch, such as the batch of a process without samples in a step, leaves the running
    /// statistics unchanged. In Burn's layer, an empty batch turns the running statistics into NaN.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use burn_fused::nn::{BatchNorm, BatchNormConfig};
    ///
    /// let device = Device::flex().autodiff();
    /// // The running variance is that of PyTorch.
    /// let layer = BatchNorm { unbiased: true, ..BatchNormConfig::new(1).init(&device) };
    /// // Mean 3, and a sum of squared distances of 8: a variance of 8 / 2.
    /// layer.forward(Tensor::<2>::from_data([[1.0], [3.0], [5.0]], &device));
    /// let [mean, variance] = [&layer.running_mean, &layer.running_var].map(|state| state.value().into_scalar::<f32>());
    /// assert!((mean - 0.1 * 3.0).abs() < 1e-6);
    /// assert!((variance - (0.9 * 1.0 + 0.1 * 4.0)).abs() < 1e-6);
    /// ```
    pub struct BatchNorm of burn::nn::BatchNorm {
        /// Factor of each channel.
        pub gamma: Param<Tensor<1>>,
        /// Summand of each channel.
        pub beta: Param<Tensor<1>>,
        /// On a device with autodiff: whether the layer normalises a batch by the statistics of the batch,
        /// and updates the running statistics. On other devices, the layer always uses its running
        /// statistics.
        pub training: Param<Flag>,
        /// Running mean of each channel.
        pub running_mean: RunningState<Tensor<1>>,
        /// Running variance of each channel.
        pub running_var: RunningState<Tensor<1>>,
        /// Weight of a new batch in the running statistics.
        pub momentum: f64,
        /// Number that is added to the variance.
        pub epsilon: f64,
    } and {
        /// Whether the running variance is unbiased, as in PyTorch. If true, the variance of a batch is
        /// divided by `values - 1`, and a batch with one value in each channel does not change the running
        /// variance. If false, the variance is divided by `values`, as in Burn. `values` is the number of
        /// values in a channel.
        pub unbiased: bool,
    }
}

impl BatchNorm {
    /// Normalises `input` `[batch, channels, ...]`.
    ///
    /// # Panics
    /// If `input` has fewer than two dimensions, or another number of channels than the layer.
    #[track_caller]
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        self.forward_with(input, Epilogue::Identity)
    }

    /// Returns `epilogue` of the normalised input, in the same operator.
    ///
    /// # Panics
    /// In the same cases as [`forward`](Self::forward), or with [`Epilogue::ReluPool`] if `input` does not
    /// have four dimensions.
    #[track_caller]
    pub fn forward_with<const D: usize>(&self, input: Tensor<D>, epilogue: Epilogue) -> Tensor<D> {
        let (device, [num_features]) = (input.device(), self.gamma.shape().dims());
        assert_shape!(input, [_, num_features, ..]);
        assert!(D == 4 || epilogue != Epilogue::ReluPool, "pooling needs 4 dimensions, but got {D}");
        if !(device.is_autodiff() && self.training.is_enabled()) {
            let [mean, variance] =
                [&self.running_mean, &self.running_var].map(|running| running.value().to_device(&device));
            let parameters = [mean, variance, self.gamma.val(), self.beta.val()];
            if let Some(output) = batch_norm_inference(&input, parameters, self.epsilon, epilogue) {
                return output;
            }
            unsupported(
                "batch_norm",
                "inference on an autodiff device, empty outputs, and types other than f32, bf16 and f16 on flex",
            );
            let burns = burn::nn::BatchNorm::from(self.clone());
            let dtype = self.gamma.val().dtype();
            return epilogue.composed(compose_mixed(input, dtype, |input| burns.forward(input)));
        }
        let values = input.shape().num_elements() / num_features;
        self.keep(batch_norm(input, self.gamma.val(), self.beta.val(), self.epsilon, epilogue), values)
    }

    /// Returns `epilogue` of the normalised outputs of `conv`. In training, this is one operator if
    /// [`conv_norm`] supports the tensors and the layer; in all other cases, two operators run.
    ///
    /// # Panics
    /// In the same cases as [`Conv2d::forward`], or if [`forward`](Self::forward) would panic with the output
    /// of `conv`.
    #[track_caller]
    pub(crate) fn forward_conv(&self, conv: &Conv2d, input: Tensor<4>, epilogue: Epilogue) -> Tensor<4> {
        let [batch, _, height, width] = of_conv(input.dims(), &conv.as_burns());
        let is_trained = input.device().is_autodiff() && self.training.is_enabled();
        let fits = is_trained && conv.weight.dims()[0] == self.gamma.dims()[0];
        let parameters = || [self.gamma.val(), self.beta.val()];
        let found = fits.then(|| conv_norm(&input, conv, parameters(), self.epsilon, epilogue)).flatten();
        match found {
            Some(found) => self.keep(found, batch * height * width),
            None => self.forward_with(conv.forward(input), epilogue),
        }
    }

    /// Returns `[factor, shift]`, each `[channels]`: in inference, the layer computes `x * factor + shift`. A
    /// program can fold factor and shift into the weights of the layer before. Gamma and beta get gradients
    /// through factor and shift.
    pub fn running_affine(&self) -> [Tensor<1>; 2] {
        let [mean, variance] = [&self.running_mean, &self.running_var].map(RunningState::value);
        let factor = self.gamma.val() / (variance + self.epsilon).sqrt();
        let shift = self.beta.val() - mean * factor.clone();
        [factor, shift]
    }

    /// Moves the running statistics towards the statistics of a batch with `values` values in each channel.
    /// Ignores an empty batch, as PyTorch does, because the mean and the variance of an empty batch are NaN.
    fn keep<const D: usize>(&self, batch: Normalised<D>, values: usize) -> Tensor<D> {
        if values == 0 {
            return batch.output;
        }
        let momentum = self.momentum;
        let follow = |running: &RunningState<_>, batch, factor| {
            running.clone().map(&mut Follow { batch: Some(batch), factor, momentum });
        };
        follow(&self.running_mean, batch.mean, 1.0);
        if !self.unbiased {
            follow(&self.running_var, batch.variance, 1.0);
        } else if values > 1 {
            follow(&self.running_var, batch.variance, values as f64 / (values - 1) as f64);
        }
        batch.output
    }
}

/// Moves a running statistic towards `factor` times the statistic of a batch. This is a mapper because a
/// change by [`RunningState::update`] becomes visible only at the next update.
struct Follow {
    /// The statistic of the batch; `None` after the mapping.
    batch: Option<Tensor<1>>,
    factor: f64,
    momentum: f64,
}

impl ModuleMapper for Follow {
    fn map_float<const D: usize>(&mut self, running: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, running, mapper) = running.consume();
        let batch = self.batch.take().expect("a running state is one tensor");
        let device = batch.device();
        // `to_device` to the same device would add a node to the graph.
        let running = if running.device() == device { running } else { running.to_device(&device) };
        // `D` is 1 here, but the types do not say so.
        let running = Tensor::<1>::from_dispatch(running.into_dispatch());
        let moved = moving_average(running, batch, self.factor, self.momentum);
        Param::from_mapped_value(id, Tensor::from_dispatch(moved.into_dispatch()), mapper)
    }
}

#[cfg(test)]
mod tests {
    use burn::module::Module;
    use burn::nn;
    use burn::nn::pool::MaxPool2dConfig;
    use burn::tensor::activation::relu;
    use burn::tensor::{DType, TensorData};

    use super::*;
    use crate::ops::testing::{assert_close, autodiff_devices, random, results};

    #[test]
    fn activations_of_16_bits_are_normalised_in_training_and_in_inference() {
        let device = Device::flex().autodiff();
        let layer = BatchNormConfig::new(2).init(&device);
        let x = random([3, 2, 4, 4], 1, &device).cast(DType::BF16);
        assert_eq!(layer.forward(x.clone()).dtype(), DType::BF16);
        assert_eq!(layer.valid().forward(x.inner()).dtype(), DType::BF16);
    }

    fn layers(channels: usize, device: &Device) -> (BatchNorm, nn::BatchNorm) {
        let mut burns = nn::BatchNormConfig::new(channels).with_momentum(0.3).init(device);
        burns.gamma = Param::from_tensor(random([channels], 7, device));
        burns.beta = Param::from_tensor(random([channels], 8, device));
        // A conversion shares the running statistics between both layers, so load a record instead.
        let record = burns.clone().into_record();
        (
            BatchNorm::from(nn::BatchNormConfig::new(channels).with_momentum(0.3).init(device))
                .load_record(record),
            burns,
        )
    }

    fn compare<const D: usize>(shape: [usize; D], device: &Device) {
        let (ours, burns) = layers(shape[1], device);
        for step in 0..3 {
            let x = [random(shape, step, device) * 3.0 + 1.0];
            let found = results(&ours, &x, |layer, x| layer.forward(x[0].clone()));
            let expected = results(&burns, &x, |layer, x| layer.forward(x[0].clone()));
            assert_close(&found, &expected, &format!("{shape:?}, step {step}"));
        }
        let part = |values: TensorData| [("values".to_string(), values.try_into_vec().expect("f32"))];
        let ours_running = [&ours.running_mean, &ours.running_var];
        for (running, expected) in ours_running.into_iter().zip([&burns.running_mean, &burns.running_var]) {
            let [found, expected] = [running, expected].map(|running| running.value_sync().into_data());
            assert_close(&part(found), &part(expected), &format!("statistics of {shape:?}"));
        }
        let x = random(shape, 9, device).inner();
        let [found, expected] = [ours.valid().forward(x.clone()), burns.valid().forward(x)];
        let context = format!("inference of {shape:?}");
        assert_close(&part(found.into_data()), &part(expected.into_data()), &context);
    }

    #[test]
    fn outputs_gradients_and_statistics_are_burns() {
        for device in autodiff_devices() {
            compare([9, 4], &device);
            compare([3, 5, 11], &device);
            compare([4, 3, 6, 7], &device);
            compare([2, 3, 4, 2, 3], &device);
        }
    }

    #[test]
    fn epilogues_are_burns_layers() {
        for device in autodiff_devices() {
            let (ours, burns) = layers(3, &device);
            let x = [random([4, 3, 6, 7], 3, &device)];
            let expected = results(&burns, &x, |layer, x| relu(layer.forward(x[0].clone())));
            let found = results(&ours, &x, |layer, x| layer.forward_with(x[0].clone(), Epilogue::Relu));
            assert_close(&found, &expected, "ReLU");
            let expected = results(&burns, &x, |layer, x| {
                MaxPool2dConfig::new([2, 2]).init().forward(relu(layer.forward(x[0].clone())))
            });
            let found = results(&ours, &x, |layer, x| layer.forward_with(x[0].clone(), Epilogue::ReluPool));
            assert_close(&found, &expected, "ReLU and pooling");
            let x = x[0].clone().inner();
            for (epilogue, expected) in [
                (Epilogue::Relu, relu(burns.valid().forward(x.clone()))),
                (
                    Epilogue::ReluPool,
                    MaxPool2dConfig::new([2, 2]).init().forward(relu(burns.valid().forward(x.clone()))),
                ),
            ] {
                let found = ours.valid().forward_with(x.clone(), epilogue);
                assert_eq!(found.dims(), expected.dims());
                let part =
                    |values: Tensor<4>| [("values".into(), values.into_data().try_into_vec().expect("f32"))];
                assert_close(&part(found), &part(expected), &format!("{epilogue:?} in inference"));
            }
            // In a frozen layer, inference is part of a graph.
            let (ours, burns) = (ours.freeze(), burns.freeze());
            let x = [random([4, 3, 6, 7], 5, &device)];
            let expected = results(&burns, &x, |layer, x| relu(layer.forward(x[0].clone())));
            let found = results(&ours, &x, |layer, x| layer.forward_with(x[0].clone(), Epilogue::Relu));
            assert_close(&found, &expected, "frozen");
        }
    }

    /// Returns running mean and variance of a layer with one channel.
    fn statistics(layer: &BatchNorm) -> [f32; 2] {
        [&layer.running_mean, &layer.running_var].map(|running| running.value().into_scalar())
    }

    #[track_caller]
    fn assert_near<const N: usize>(found: [f32; N], expected: [f32; N]) {
        let near = found.iter().zip(&expected).all(|(x, y)| (x - y).abs() < 1e-6);
        assert!(near, "{found:?}, and not {expected:?}");
    }

    #[test]
    fn running_statistics_are_seen_at_once_and_the_variance_is_the_one_asked_for() {
        let device = Device::flex().autodiff();
        // The mean is 3, and the sum of squared distances from it is 8.
        let batch = Tensor::<2>::from_data([[1.0], [3.0], [5.0]], &device);
        for (unbiased, variance) in [(true, 4.0), (false, 8.0 / 3.0)] {
            let layer = BatchNorm { unbiased, ..BatchNormConfig::new(1).init(&device) };
            layer.forward(batch.clone());
            let after = [0.3, 0.9 + 0.1 * variance];
            assert_near(statistics(&layer), after);
            // Inference uses the running statistics and does not change them.
            let inference = layer.valid();
            let found = inference.forward(Tensor::<2>::from_data([[0.3], [2.3]], &Device::flex()));
            let found: Vec<f32> = found.into_data().try_into_vec().expect("f32");
            assert_near([found[0], found[1]], [0.0, 2.0 / (after[1] + 1e-5).sqrt()]);
            assert_near(statistics(&inference), after);
            let output = layer.forward(batch.clone());
            assert_near(statistics(&layer), [0.57, 0.9 * after[1] + 0.1 * variance]);
            // The batch itself is normalised by its biased variance.
            let last: Vec<f32> = output.into_data().try_into_vec().expect("f32");
            assert_near([last[2]], [2.0 / (8.0f32 / 3.0 + 1e-5).sqrt()]);
        }
    }

    #[test]
    fn one_value_in_a_channel_has_no_unbiased_variance() {
        let device = Device::flex().autodiff();
        for (unbiased, variance) in [(true, 1.0), (false, 0.9)] {
            let layer = BatchNorm { unbiased, ..BatchNormConfig::new(1).init(&device) };
            let output = layer.forward(Tensor::<2>::from_data([[5.0]], &device));
            assert_near(statistics(&layer), [0.5, variance]);
            assert_eq!(output.into_scalar::<f32>(), 0.0);
        }
    }

    #[test]
    fn an_empty_batch_leaves_running_statistics() {
        let device = Device::flex().autodiff();
        for unbiased in [true, false] {
            let layer = BatchNorm { unbiased, ..BatchNormConfig::new(1).init(&device) };
            layer.forward(Tensor::<2>::from_data([[1.0], [3.0]], &device));
            let before = statistics(&layer);
            layer.forward(Tensor::<2>::zeros([0, 1], &device));
            layer.forward(Tensor::<4>::zeros([2, 1, 0, 3], &device));
            assert_eq!(statistics(&layer), before);
        }
    }

    #[test]
    fn values_are_those_before_the_epilogue_and_behind_a_convolution_too() {
        let device = Device::flex().autodiff();
        let padding = nn::PaddingConfig2d::Explicit(1, 1, 1, 1);
        let conv = crate::nn::conv::Conv2dConfig::new([2, 3], [3, 3]).with_padding(padding).init(&device);
        for batch in [2, 16] {
            let x = random([batch, 2, 5, 4], 1, &device);
            let new = || BatchNorm { unbiased: true, ..BatchNormConfig::new(3).init(&device) };
            let [plain, pooled, fused] = [(); 3].map(|()| new());
            plain.forward(conv.forward(x.clone()));
            pooled.forward_with(conv.forward(x.clone()), Epilogue::ReluPool);
            conv.forward_norm(x, &fused, Epilogue::ReluPool);
            let variances = |layer: &BatchNorm| -> [f32; 3] {
                let values = layer.running_var.value().into_data().try_into_vec().expect("f32");
                values.try_into().expect("3 channels")
            };
            assert_near(variances(&pooled), variances(&plain));
            assert_near(variances(&fused), variances(&plain));
        }
    }

    #[test]
    fn the_affine_form_is_that_of_inference() {
        let device = Device::flex();
        let (layer, _) = layers(3, &device.clone().autodiff());
        layer.forward(random([4, 3, 6], 5, &device.clone().autodiff()) * 2.0 + 1.0);
        let (layer, x) = (layer.valid(), random([2, 3, 4], 6, &device));
        let [factor, shift] = layer.running_affine().map(|values| values.reshape([1, 3, 1]));
        let found = (x.clone() * factor + shift).into_data().try_into_vec().expect("f32");
        let expected = layer.forward(x).into_data().try_into_vec().expect("f32");
        assert_close(&[("values".into(), found)], &[("values".into(), expected)], "affine");
    }

    #[test]
    fn it_is_shown_and_configured_as_burns() {
        let (device, config) = (Device::flex(), BatchNormConfig::new(5).with_epsilon(1e-3));
        assert_eq!(config.to_string(), nn::BatchNormConfig::from(config.clone()).to_string());
        let ours = config.init(&device);
        assert_eq!(ours.to_string(), nn::BatchNorm::from(ours.clone()).to_string());
    }

    #[test]
    #[should_panic(expected = "momentum must be finite and within [0, 1].")]
    fn a_momentum_above_1_is_a_panic() {
        BatchNormConfig::new(5).with_momentum(1.5).init(&Device::flex());
    }
}
