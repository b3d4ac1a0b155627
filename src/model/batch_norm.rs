//! Batch normalisation with PyTorch's names and running statistics.
//!
//! Burn's own layer keeps the biased variance of a batch; PyTorch divides by one
//! value less. After a few epochs of small batches the two test differently.

use burn::module::{Module, Param, RunningState};
use burn::tensor::module::{batch_norm, batch_norm_train};
use burn::tensor::{Device, Tensor};

/// Share of a new batch in the running statistics.
const MOMENTUM: f64 = 0.1;
const EPSILON: f64 = 1e-5;

/// Normalises each channel of `[batch, channels, ...]` by its mean and variance,
/// the batch's own in training and the running ones in a test, then scales and
/// shifts it: Ioffe and Szegedy, "Batch normalization" (2015).
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

    /// `x` normalised. On a device with gradients that is training: the batch
    /// moves the running statistics. A batch with one value a channel has no
    /// variance, and leaves the running one as it is.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        if !x.device().is_autodiff() {
            let [mean, var] = [&self.running_mean, &self.running_var].map(RunningState::value_sync);
            return batch_norm(x, self.weight.val(), self.bias.val(), mean, var, EPSILON);
        }
        let dims = x.dims();
        let values = (dims.iter().product::<usize>() / dims[1]) as f64;
        let batch = batch_norm_train(x, self.weight.val(), self.bias.val(), EPSILON);
        follow(&self.running_mean, batch.mean);
        if values > 1.0 {
            follow(&self.running_var, batch.variance.mul_scalar(values / (values - 1.0)));
        }
        batch.output
    }
}

/// Moves a running statistic towards the batch's.
fn follow(running: &RunningState<Tensor<1>>, batch: Tensor<1>) {
    let moved = running.value_sync().mul_scalar(1.0 - MOMENTUM) + batch.detach().mul_scalar(MOMENTUM);
    running.update(moved.detach());
    // Burn keeps an update back until the next; whoever reads the parameters in
    // between would see the statistics of a batch ago.
    running.value_sync();
}
