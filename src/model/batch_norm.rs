//! Batch normalisation with PyTorch's names and running statistics.
//!
//! Burn's layer keeps the biased variance of a batch; PyTorch divides by n - 1.
//! After a few epochs of small batches the two evaluate differently.

use burn::module::{Module, ModuleMapper, Param, RunningState};
use burn::tensor::activation::relu;
use burn::tensor::module::{batch_norm, max_pool2d};
use burn::tensor::ops::MaxPoolOptions;
use burn::tensor::{Device, Tensor};

use burn_fused::Epilogue;
use burn_fused::norm;

/// Weight of a new batch in the running statistics.
const MOMENTUM: f64 = 0.1;
/// Epsilon added to the variance before its square root: PyTorch's default.
pub const EPSILON: f64 = 1e-5;

/// Normalises each channel of `[batch, channels, ...]` by its mean and variance,
/// the batch's own in training and the running ones in evaluation, then scales
/// and shifts it: Ioffe and Szegedy, "Batch normalization" (2015).
#[derive(Module, Debug)]
pub struct BatchNorm {
    weight: Param<Tensor<1>>,
    bias: Param<Tensor<1>>,
    running_mean: RunningState<Tensor<1>>,
    running_var: RunningState<Tensor<1>>,
}

impl BatchNorm {
    /// Scale 1 and shift 0 for `channels` channels.
    pub fn init(channels: usize, device: &Device) -> Self {
        let (zeros, ones) = (|| Tensor::zeros([channels], device), || Tensor::ones([channels], device));
        Self {
            weight: Param::from_tensor(ones()),
            bias: Param::from_tensor(zeros()),
            running_mean: RunningState::new(zeros()),
            running_var: RunningState::new(ones()),
        }
    }

    /// `x` normalised. On a device with autodiff this is training: the batch
    /// updates the running statistics. A batch with one value per channel has no
    /// variance, and leaves the running one unchanged.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        if x.device().is_autodiff() { self.train(x, Epilogue::Identity) } else { self.test(x) }
    }

    /// ReLU of [`forward`](Self::forward), fused in training.
    pub fn relu<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        if x.device().is_autodiff() { self.train(x, Epilogue::Relu) } else { relu(self.test(x)) }
    }

    /// 2x2 max pooling of [`relu`](Self::relu) on `[batch, channels, height,
    /// width]`, fused in training.
    pub fn relu_pool(&self, x: Tensor<4>) -> Tensor<4> {
        match x.device().is_autodiff() {
            true => self.train(x, Epilogue::ReluPool),
            false => max_pool2d(relu(self.test(x)), MaxPoolOptions::new([2, 2])),
        }
    }

    /// The norm in evaluation as `x * factor + shift`, one pair per channel, through
    /// which the norm's weight and bias get gradients.
    pub fn running_affine(&self) -> [Tensor<1>; 2] {
        let [mean, var] = [&self.running_mean, &self.running_var].map(RunningState::value_sync);
        let factor = self.weight.val() / (var + EPSILON).sqrt();
        let shift = self.bias.val() - mean * factor.clone();
        [factor, shift]
    }

    /// Normalises by the running statistics.
    fn test<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let [mean, var] = [&self.running_mean, &self.running_var].map(RunningState::value_sync);
        batch_norm(x, self.weight.val(), self.bias.val(), mean, var, EPSILON)
    }

    /// Normalises by the batch's statistics, and updates the running ones.
    fn train<const D: usize>(&self, x: Tensor<D>, epilogue: Epilogue) -> Tensor<D> {
        let dims = x.dims();
        let values = (dims.iter().product::<usize>() / dims[1]) as f64;
        let batch = norm::batch_norm(x, self.weight.val(), self.bias.val(), EPSILON, epilogue);
        follow(&self.running_mean, batch.mean, 1.0);
        if values > 1.0 {
            follow(&self.running_var, batch.variance, values / (values - 1.0));
        }
        batch.output
    }
}

/// Updates a running statistic with the batch's, times `factor`.
fn follow(running: &RunningState<Tensor<1>>, batch: Tensor<1>, factor: f64) {
    // Burn's own update waits for the next one, and then divides by the number of threads;
    // parameters that are read in between would have the previous batch's statistics.
    running.clone().map(&mut Follow { batch, factor });
}

/// Moves a running statistic towards the batch's.
struct Follow {
    batch: Tensor<1>,
    factor: f64,
}

impl ModuleMapper for Follow {
    fn map_float<const D: usize>(&mut self, running: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, running, mapper) = running.consume();
        // `D` is 1, which the types do not say.
        let running = Tensor::<1>::from_dispatch(running.into_dispatch());
        let moved = norm::moving_average(running, self.batch.clone(), self.factor, MOMENTUM);
        Param::from_mapped_value(id, Tensor::from_dispatch(moved.into_dispatch()), mapper)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;

    use super::*;

    /// Running mean and variance of a batch norm of one channel.
    fn statistics(norm: &BatchNorm) -> (f32, f32) {
        (norm.running_mean.value().into_scalar(), norm.running_var.value().into_scalar())
    }

    fn close(found: (f32, f32), expected: (f32, f32)) {
        let off = (found.0 - expected.0).abs().max((found.1 - expected.1).abs());
        assert!(off < 1e-6, "{found:?}, and not {expected:?}");
    }

    #[test]
    fn running_statistics_follow_at_once_and_without_bias() {
        let device = Device::flex().autodiff();
        let norm = BatchNorm::init(1, &device);
        // Mean 3, and a sum of squared distances of 8: a variance of 4.
        let batch = Tensor::<2>::from_floats([[1.0], [3.0], [5.0]], &device);
        let output = norm.forward(batch.clone());
        close(statistics(&norm), (0.3, 0.9 + 0.4));
        norm.forward(batch);
        close(statistics(&norm), (0.57, 0.9 * 1.3 + 0.4));
        // The batch itself is normalised by its biased variance.
        let last = output.into_data().try_to_vec::<f32>().expect("f32")[2];
        assert!((last - 2.0 / (8.0f32 / 3.0).sqrt()).abs() < 1e-4, "{last}");
    }

    #[test]
    fn a_test_uses_them_and_leaves_them() {
        let norm = BatchNorm::init(1, &Device::flex().autodiff());
        norm.forward(Tensor::<2>::from_floats([[1.0], [3.0], [5.0]], &Device::flex().autodiff()));
        let tested = norm.valid();
        let output = tested.forward(Tensor::<2>::from_floats([[0.3], [2.3]], &Device::flex()));
        close(statistics(&tested), (0.3, 1.3));
        let values = output.into_data().try_to_vec::<f32>().expect("f32");
        assert!(values[0].abs() < 1e-6 && (values[1] - 2.0 / 1.3f32.sqrt()).abs() < 1e-4, "{values:?}");
    }

    #[test]
    fn one_value_a_channel_has_no_variance() {
        let device = Device::flex().autodiff();
        let norm = BatchNorm::init(1, &device);
        let output = norm.forward(Tensor::<2>::from_floats([[5.0]], &device));
        close(statistics(&norm), (0.5, 1.0));
        assert_eq!(output.into_scalar::<f32>(), 0.0);
    }

    #[test]
    fn with_what_follows_it_is_the_same() {
        for training in [true, false] {
            let device = Device::flex();
            let device = if training { device.autodiff() } else { device };
            let values: Vec<f32> = (0..3 * 2 * 5 * 4).map(|i| ((i * 7919) % 997) as f32 / 400.0).collect();
            let x = Tensor::<4>::from_data(TensorData::new(values, [3, 2, 5, 4]), &device);
            let [plain, one, pooled] = [(); 3].map(|()| BatchNorm::init(2, &device));
            let expected = relu(plain.forward(x.clone()));
            one.relu(x.clone()).into_data().assert_eq(&expected.to_data(), true);
            let expected = max_pool2d(expected, MaxPoolOptions::new([2, 2]));
            pooled.relu_pool(x).into_data().assert_eq(&expected.into_data(), true);
            let moved = plain.running_var.value().into_data();
            for other in [one, pooled] {
                other.running_var.value().into_data().assert_eq(&moved, true);
            }
            let unmoved = Tensor::<1>::ones([2], &Device::flex()).into_data();
            assert_eq!(moved == unmoved, !training);
        }
    }
}
