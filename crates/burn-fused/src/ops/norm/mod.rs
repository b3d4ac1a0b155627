//! Layer and batch normalisation, and the moving averages that batch normalisation uses in inference.

mod batch_norm;
mod layer_norm;

use burn::backend::{Flex, TensorMetadata};
use burn::tensor::Tensor;

use crate::ops::flex_tensor::{f32_on_flex, tensor, values};
use crate::ops::shapes::expect;
use crate::runtime::fallback::unsupported;

pub use batch_norm::{Normalised, batch_norm};
pub(crate) use batch_norm::{batch_norm_inference, statistics};
pub(crate) use layer_norm::normalise_rows;

/// Returns a running statistic after one more batch: `running · (1 - momentum) + batch · factor · momentum`.
/// Both statistics are `[channels]`. `factor` corrects the statistic of the batch, for example to an unbiased
/// variance. The result has no gradient.
///
/// For f32 on flex, this is one operator. Burn's four operators and their nodes in autodiff's graph would
/// take longer than the arithmetic.
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
    let rule = "Both statistics must have the same number of channels.";
    expect("moving_average", rule, batch.dims(), running.dims());
    let checkpointing = running.gradient_checkpointing_strategy();
    let [running, batch] = [running, batch].map(Tensor::without_autodiff);
    let moved = match (f32_on_flex(&running), f32_on_flex(&batch)) {
        (Some(running), Some(batch)) => {
            let (keep, factor, momentum) = ((1.0 - momentum) as f32, factor as f32, momentum as f32);
            let pairs = values(&running).iter().zip(values(&batch));
            let moved = pairs.map(|(&running, &batch)| running * keep + batch * factor * momentum);
            Tensor::from_primitive::<Flex>(tensor(moved.collect(), &running.shape()))
        }
        _ => {
            unsupported("moving_average", "statistics other than f32 on flex");
            running.mul_scalar(1.0 - momentum) + batch.mul_scalar(factor).mul_scalar(momentum)
        }
    };
    match checkpointing {
        Some(strategy) => Tensor::from_inner(moved).with_gradient_checkpointing_strategy(strategy),
        None => moved,
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
