//! LAMB: You et al., "Large batch optimization for deep learning: training BERT in 76 minutes" (2020),
//! algorithm 2.
//!
//! LAMB is Adam with a learning rate for each parameter tensor: it scales the update of a tensor by the ratio
//! of the norm of its weights to the norm of the update. A layer with small weights then takes small steps,
//! so training is stable at the high learning rates of large batches.

use super::{SgdOptions, UpdateRule, compiled_here, pass, square_sum, update};
use crate::kernels::simd::Level;

/// Options of LAMB.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LambOptions {
    /// Learning rate.
    pub lr: f64,
    /// Decay rate of the first moment.
    pub beta_1: f64,
    /// Decay rate of the second moment.
    pub beta_2: f64,
    /// Number that is added to the root of the second moment, after the bias correction.
    pub epsilon: f64,
    /// Weight decay: this multiple of the weight is added to its update, before the update is scaled.
    pub weight_decay: f64,
}

impl Default for LambOptions {
    /// The paper's decay rates and epsilon, without weight decay.
    fn default() -> Self {
        Self { lr: 1e-3, beta_1: 0.9, beta_2: 0.999, epsilon: 1e-6, weight_decay: 0.0 }
    }
}

impl LambOptions {
    /// Updates the weights of one whole parameter tensor and their moments, the first and the second, in step
    /// `time`, counted from 1. `gradients` is overwritten with the update before it is scaled.
    ///
    /// If the norm of the weights or of the update is 0, the update is not scaled.
    ///
    /// ```
    /// use burn_fused::optim::flat::LambOptions;
    ///
    /// let (mut weights, mut gradients) = ([3.0, -4.0], [0.5, 0.5]);
    /// let [mut first, mut second] = [[0.0; 2]; 2];
    /// let lamb = LambOptions { lr: 0.1, ..LambOptions::default() };
    /// lamb.update(1, &mut weights, &mut gradients, [&mut first, &mut second]);
    /// // The update is [1, 1], its norm the root of 2. The norm of the weights is 5.
    /// assert!((weights[0] - (3.0 - 0.5 / 2f32.sqrt())).abs() < 1e-5);
    /// ```
    ///
    /// # Panics
    /// If `time` is 0, or the slices differ in length.
    pub fn update(self, time: u64, weights: &mut [f32], gradients: &mut [f32], moments: [&mut [f32]; 2]) {
        // In step 0, the bias corrections would be 0, and all weights would become NaN.
        assert!(time > 0, "steps of LAMB count from 1, but got step 0");
        let Self { lr, beta_1, beta_2, epsilon, weight_decay } = self;
        let correction = |beta: f64| 1.0 - beta.powi(time.min(i32::MAX as u64) as i32);
        let direction = Direction {
            take_1: (1.0 - beta_1) as f32,
            keep_2: beta_2 as f32,
            take_2: (1.0 - beta_2) as f32,
            scale_1: (1.0 / correction(beta_1)) as f32,
            scale_2: (1.0 / correction(beta_2)) as f32,
            epsilon: epsilon as f32,
            weight_decay: weight_decay as f32,
        };
        // This pass writes updates to the gradients, and only reads the weights.
        update(direction, gradients, weights, moments);
        let [weight_norm, update_norm] = [&*weights, gradients].map(|values| square_sum(values).sqrt());
        let ratio = if weight_norm > 0.0 && update_norm > 0.0 { weight_norm / update_norm } else { 1.0 };
        let scaled = SgdOptions { lr: lr * ratio, ..SgdOptions::default() };
        update(scaled.rule(), weights, gradients, []);
    }
}

/// The constants of a step.
#[derive(Clone, Copy)]
struct Direction {
    take_1: f32,
    keep_2: f32,
    take_2: f32,
    /// Bias correction of the first moment, as a factor.
    scale_1: f32,
    /// Bias correction of the second moment, as a factor.
    scale_2: f32,
    epsilon: f32,
    weight_decay: f32,
}

impl UpdateRule<2> for Direction {
    /// Returns the update of a weight, before it is scaled, and its moments.
    #[inline(always)]
    fn update(self, gradient: f32, weight: f32, [first, second]: [f32; 2]) -> (f32, [f32; 2]) {
        let first = first + (gradient - first) * self.take_1;
        let second = second * self.keep_2 + gradient * gradient * self.take_2;
        let adam = first * self.scale_1 / ((second * self.scale_2).sqrt() + self.epsilon);
        (adam + self.weight_decay * weight, [first, second])
    }

    compiled_here!(2, pass);
}
