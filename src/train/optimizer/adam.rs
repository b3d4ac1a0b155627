//! Adam and AdamW.

use super::{Moments, Rate, Step};
use burn_fused::simd::{Kernel, Lanes, Level};

/// Decay rate of the second moments.
const BETA2: f64 = 0.999;
/// Epsilon added to the denominator.
const EPS: f64 = 1e-8;

/// One update, as in `torch.optim.Adam` and, with `APART`, `AdamW`: bias
/// corrections in f64, everything else in f32. The correction of the second moments, by
/// which PyTorch divides their root, is in step size and epsilon: divisions take most of
/// this pass.
pub(super) struct Adam<const APART: bool> {
    /// L2 penalty: multiplied by the weight and added to the gradient.
    penalty: f32,
    /// AdamW's decoupled decay: the factor of the weight.
    keep: f32,
    take1: f32,
    /// Both bias corrections: `lr * sqrt(1 - beta2^t) / (1 - beta1^t)`.
    step_size: f32,
    /// Epsilon times the second moments' correction.
    eps: f32,
}

impl<const APART: bool> Step for Adam<APART> {
    const TAKES_MOMENTUM: bool = false;
    const DEFAULT_MOMENTUM: f64 = 0.9;

    fn moments(_momentum: bool) -> &'static [&'static str] {
        &["first", "second"]
    }

    fn new(rate: Rate, weight_decay: f64, update: u64) -> Self {
        let Rate { lr, momentum: beta1 } = rate;
        let correction = |beta: f64| 1.0 - beta.powi(update.min(i32::MAX as u64) as i32);
        Self {
            penalty: if APART { 0.0 } else { weight_decay as f32 },
            keep: if APART { (1.0 - lr * weight_decay) as f32 } else { 1.0 },
            take1: (1.0 - beta1) as f32,
            step_size: (lr / correction(beta1) * correction(BETA2).sqrt()) as f32,
            eps: (EPS * correction(BETA2).sqrt()) as f32,
        }
    }

    fn apply(&self, params: &mut [f32], grads: &[f32], mut moments: Moments<'_>) {
        let (first, second) = (moments.always(), moments.always());
        Level::current().run(Elements { step: self, params, grads, first, second });
    }
}

/// One pass over a parameter.
struct Elements<'a, const APART: bool> {
    step: &'a Adam<APART>,
    params: &'a mut [f32],
    grads: &'a [f32],
    first: &'a mut [f32],
    second: &'a mut [f32],
}

impl<const APART: bool> Kernel for Elements<'_, APART> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        let &Adam { penalty, keep, take1, step_size, eps } = self.step;
        let (keep2, take2) = (BETA2 as f32, (1.0 - BETA2) as f32);
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
            *param -= step_size * (*first / (second.sqrt() + eps));
        }
    }
}
