//! The dropout layer.

use burn::module::{Flag, Param};
use burn::tensor::{Device, Tensor};

use super::convert::{config, module};
use crate::ops::dropout::{add_dropped, dropout, dropout_at};

pub use crate::kernels::dropout::BatchPlace;

config! {
    /// Configuration of a [`Dropout`] layer; replaces [`burn::nn::DropoutConfig`].
    pub struct DropoutConfig of burn::nn::DropoutConfig {
        /// Probability that a value is set to zero.
        pub prob: f64,
    }

    /// Creates an active layer.
    ///
    /// # Panics
    /// If the probability is not in the range [0, 1).
    pub fn init(&self) -> Dropout;
}

module! {
    /// Dropout: Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting"
    /// (2014). Replaces [`burn::nn::Dropout`]. Unlike Burn's layer, it needs no tensor of random numbers.
    ///
    /// Each call of `forward` draws one number from the generator of the device, and computes the mask from
    /// this number. After [`Device::seed`] with the same seed, the same masks therefore come again. The masks
    /// differ from the masks of Burn's layer.
    pub struct Dropout of burn::nn::Dropout {
        /// Probability that a value is set to zero. Other values are scaled by `1 / (1 - prob)`.
        pub prob: f64,
        /// Whether the layer is active on a device with autodiff; `freeze` clears it.
        pub training: Param<Flag>,
    }
}

impl Dropout {
    /// Sets values of `input` to zero at random. Returns `input` unchanged on a device without autodiff, or
    /// if the layer is frozen.
    ///
    /// # Panics
    /// If the probability is not in the range [0, 1).
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let prob = self.active_prob(&input.device());
        dropout(input, prob)
    }

    /// Does the same as [`forward`](Self::forward) for `input` `[batch, ...]`, but with one mask for each
    /// sample. `place` gives a seed, a step, and the index of each sample in the batch of this step. A mask
    /// depends only on these three. The generator of the device is not used. The masks are the same for all
    /// types and on all backends.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use burn_fused::nn::{BatchPlace, DropoutConfig};
    ///
    /// let device = Device::flex().autodiff();
    /// let layer = DropoutConfig::new(0.5).init();
    /// let x = Tensor::<2>::ones([4, 100], &device);
    /// // One process has all samples of step 7. Of two processes, the second has those of indices 1 and 3.
    /// let one = BatchPlace { seed: 3, step: 7, first: 0, stride: 1 };
    /// let second = BatchPlace { first: 1, stride: 2, ..one };
    /// let all = layer.forward_at(x.clone(), &one);
    /// let half = layer.forward_at(x.slice([0..2, 0..100]), &second);
    /// let expected = Tensor::cat(vec![all.clone().slice([1..2, 0..100]), all.slice([3..4, 0..100])], 0);
    /// assert_eq!(half.into_data(), expected.into_data());
    /// ```
    ///
    /// # Panics
    /// If the probability is not in the range [0, 1).
    pub fn forward_at<const D: usize>(&self, input: Tensor<D>, place: &BatchPlace) -> Tensor<D> {
        let prob = self.active_prob(&input.device());
        if prob == 0.0 { input } else { dropout_at(input, prob, place) }
    }

    /// Returns `residual + dropout(input)`.
    pub(crate) fn forward_added<const D: usize>(&self, residual: Tensor<D>, input: Tensor<D>) -> Tensor<D> {
        let prob = self.active_prob(&input.device());
        add_dropped(residual, input, prob)
    }

    /// Returns the probability with which values on `device` are dropped; 0 if the layer is inactive on
    /// `device`.
    pub(crate) fn active_prob(&self, device: &Device) -> f64 {
        if device.is_autodiff() && self.training.is_enabled() { self.prob } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use burn::module::Module;
    use burn::tensor::{DType, Distribution};

    use super::*;

    fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.into_data().try_into_vec_as().expect("floats")
    }

    #[test]
    fn masks_repeat_from_a_seed_and_differ_between_calls() {
        let device = Device::flex().autodiff();
        let layer = DropoutConfig::new(0.5).init();
        let ones = Tensor::<2>::ones([64, 64], &device);
        let draw = || {
            device.seed(3);
            [(); 2].map(|()| values(layer.forward(ones.clone())))
        };
        let [first, second] = draw();
        assert_ne!(first, second);
        assert_eq!(draw(), [first, second]);
    }

    #[test]
    fn it_is_active_where_burns_is() {
        let device = Device::flex().autodiff();
        for (device, frozen, prob) in [
            (&device, true, 0.5),
            (&device, false, 0.0),
            (&Device::flex(), false, 0.5),
            (&device, false, 0.5),
        ] {
            let burns = burn::nn::DropoutConfig::new(prob).init();
            let burns = if frozen { burns.freeze() } else { burns };
            let layer = Dropout::from(burns.clone());
            assert_eq!(layer.to_string(), burns.to_string());
            let ones = Tensor::<1>::ones([1000], device);
            let changed =
                [layer.forward(ones.clone()), burns.forward(ones)].map(|y| values(y).contains(&0.0));
            assert_eq!(changed, [device.is_autodiff() && !frozen && prob > 0.0; 2]);
        }
    }

    #[test]
    fn other_types_are_dropped_as_burn_does() {
        let device = Device::flex().autodiff();
        let (burns, x) = (
            burn::nn::DropoutConfig::new(0.4).init(),
            Tensor::<2>::random([20, 30], Distribution::Default, &device).cast(DType::BF16),
        );
        device.seed(1);
        let expected = values(burns.forward(x.clone()));
        device.seed(1);
        assert_eq!(values(Dropout::from(burns).forward(x)), expected);
    }

    #[test]
    fn non_finite_values_that_are_dropped_are_nan_as_in_burn() {
        let device = Device::flex().autodiff();
        let x = Tensor::<1>::full([1000], f32::INFINITY, &device);
        let output = values(DropoutConfig::new(0.5).init().forward(x));
        assert!(output.iter().any(|y| y.is_nan()) && output.contains(&f32::INFINITY));
    }

    #[test]
    #[should_panic(expected = "Dropout probability must be finite and in the range [0, 1)")]
    fn probability_1_is_rejected() {
        DropoutConfig::new(1.0).init();
    }
}
