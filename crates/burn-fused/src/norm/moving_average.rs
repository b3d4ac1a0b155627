//! Moving averages of a batch's statistics.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend, Backend, Dispatch, Flex, TensorMetadata};
use burn::tensor::{DType, Tensor};

use crate::extension::operator;
use crate::flex_tensor::{tensor, values};
use crate::shapes::expect;

/// `running · (1 - momentum) + batch · factor · momentum`, both `[channels]`: a running
/// statistic after one more batch. The result has no gradient.
///
/// It is one operator on flex for f32, where Burn's four, and their entries in the graph of
/// autodiff, take longer than the arithmetic.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use burn_fused::norm::moving_average;
///
/// let device = Device::flex();
/// let (running, batch) = (Tensor::from_data([1.0, 2.0], &device), Tensor::from_data([3.0, 2.0], &device));
/// let moved = moving_average(running, batch, 1.0, 0.5).into_data().to_vec::<f32>().unwrap();
/// assert_eq!(moved, [2.0, 2.0]);
/// ```
///
/// # Panics
/// If the shapes differ.
#[track_caller]
pub fn moving_average(running: Tensor<1>, batch: Tensor<1>, factor: f64, momentum: f64) -> Tensor<1> {
    let rule = "Both statistics must have the same channels.";
    expect("moving_average", rule, batch.dims(), running.dims());
    let [running, batch] = [running, batch].map(Tensor::into_dispatch);
    let moved = <Dispatch as MovingAverage>::moving_average(running, batch, factor, momentum);
    Tensor::from_dispatch(moved).detach()
}

operator! {
    trait MovingAverage(Backend) {
        fn moving_average(
            running: FloatTensor<Self>,
            batch: FloatTensor<Self>,
            factor: f64,
            momentum: f64,
        ) -> FloatTensor<Self> {
            composed::<Self>(running, batch, factor, momentum)
        }
    }
}

fn composed<B: Backend>(
    running: FloatTensor<B>,
    batch: FloatTensor<B>,
    factor: f64,
    momentum: f64,
) -> FloatTensor<B> {
    let batch = B::float_mul_scalar(B::float_mul_scalar(batch, factor.into()), momentum.into());
    B::float_add(B::float_mul_scalar(running, (1.0 - momentum).into()), batch)
}

impl MovingAverage for Flex {
    fn moving_average(running: FlexTensor, batch: FlexTensor, factor: f64, momentum: f64) -> FlexTensor {
        if [running.dtype(), batch.dtype()] != [DType::F32; 2] {
            return composed::<Self>(running, batch, factor, momentum);
        }
        let [running, batch] = [running, batch].map(|statistic| statistic.to_contiguous());
        let (keep, factor, momentum) = ((1.0 - momentum) as f32, factor as f32, momentum as f32);
        let pairs = values(&running).iter().zip(values(&batch));
        let moved: Vec<f32> =
            pairs.map(|(&running, &batch)| running * keep + batch * factor * momentum).collect();
        tensor(moved, &running.shape())
    }
}

impl<C: CheckpointStrategy> MovingAverage for Autodiff<Flex, C> {
    fn moving_average(
        running: FloatTensor<Self>,
        batch: FloatTensor<Self>,
        factor: f64,
        momentum: f64,
    ) -> FloatTensor<Self> {
        let [running, batch] = [running, batch].map(Self::inner);
        Self::from_inner(Flex::moving_average(running, batch, factor, momentum))
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;

    #[test]
    fn the_bits_are_those_of_burns_operators() {
        let statistic = |seed: usize, device: &Device| {
            let values: Vec<f32> = (0..37).map(|i| ((i * seed) % 101) as f32 / 7.0 - 3.0).collect();
            Tensor::<1>::from_data(TensorData::new(values, [37]), device)
        };
        for device in [Device::flex(), Device::flex().autodiff()] {
            let (running, batch) = (statistic(53, &device), statistic(71, &device));
            let expected =
                running.clone().mul_scalar(0.9) + batch.clone().mul_scalar(32.0 / 31.0).mul_scalar(0.1);
            let running = if device.is_autodiff() { running.require_grad() } else { running };
            let moved = moving_average(running, batch, 32.0 / 31.0, 0.1);
            assert!(!moved.is_require_grad());
            moved.into_data().assert_eq(&expected.into_data(), true);
        }
    }
}
