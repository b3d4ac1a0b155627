//! Adam, and AdamW.

use super::Rate;
use burn_fused::simd::{Kernel, Lanes, Level};

/// Decay rate of the second moments.
const BETA2: f64 = 0.999;
/// Added to the denominator.
const EPS: f64 = 1e-8;

/// One update, as `torch.optim.Adam` and `AdamW` compute it: the bias
/// corrections in f64, everything else in f32.
pub(super) struct Step {
    /// Times the weight, added to the gradient.
    penalty: f32,
    /// AdamW's decay: what is left of the weight.
    keep: Option<f32>,
    take1: f32,
    step_size: f32,
    denominator_scale: f32,
}

impl Step {
    /// Update number `update`, from 1. With `apart`, weights decay by
    /// themselves, as in AdamW.
    pub fn new(rate: Rate, weight_decay: f64, apart: bool, update: u64) -> Self {
        let Rate { lr, momentum: beta1 } = rate;
        let correction = |beta: f64| 1.0 - beta.powi(update.min(i32::MAX as u64) as i32);
        Self {
            penalty: if apart { 0.0 } else { weight_decay as f32 },
            keep: apart.then_some((1.0 - lr * weight_decay) as f32),
            take1: (1.0 - beta1) as f32,
            step_size: (lr / correction(beta1)) as f32,
            denominator_scale: correction(BETA2).sqrt() as f32,
        }
    }

    /// Updates one parameter.
    pub fn apply(&self, params: &mut [f32], grads: &[f32], first: &mut [f32], second: &mut [f32]) {
        match self.keep {
            None => Level::current().run(Elements::<false> {
                step: self,
                keep: 1.0,
                params,
                grads,
                first,
                second,
            }),
            Some(keep) => {
                Level::current().run(Elements::<true> { step: self, keep, params, grads, first, second })
            }
        }
    }
}

/// One pass over a parameter.
struct Elements<'a, const APART: bool> {
    step: &'a Step,
    keep: f32,
    params: &'a mut [f32],
    grads: &'a [f32],
    first: &'a mut [f32],
    second: &'a mut [f32],
}

impl<const APART: bool> Kernel for Elements<'_, APART> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        let &Step { penalty, take1, step_size, denominator_scale, .. } = self.step;
        let (keep, keep2, take2, eps) = (self.keep, BETA2 as f32, (1.0 - BETA2) as f32, EPS as f32);
        let moments = self.first.iter_mut().zip(self.second);
        for ((param, &grad), (first, second)) in self.params.iter_mut().zip(self.grads).zip(moments) {
            let grad = match APART {
                true => {
                    *param *= keep;
                    grad
                }
                false => grad + penalty * *param,
            };
            *first += (grad - *first) * take1;
            *second = *second * keep2 + grad * grad * take2;
            let denominator = second.sqrt() / denominator_scale + eps;
            *param -= step_size * (*first / denominator);
        }
    }
}
