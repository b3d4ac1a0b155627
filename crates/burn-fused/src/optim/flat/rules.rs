//! The update rules of Adam, AdamW, SGD and RMSprop, with the formulas of `torch.optim`.

use super::{UpdateRule, compiled_here, pass};
use crate::kernels::simd::Level;

/// Weight decay of [`AdamOptions`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Decay {
    /// Adds this multiple of the weight to its gradient, as Adam does.
    L2(f64),
    /// Multiplies the weight by `1 - lr * decay` before the update, as AdamW does: Loshchilov and Hutter,
    /// "Decoupled weight decay regularization" (2019).
    Decoupled(f64),
    /// Does the same as [`Decoupled`](Self::Decoupled), but only to weights that have the sign of their first
    /// moment: "Cautious weight decay" (2025), arXiv 2510.12402.
    Cautious(f64),
}

/// Options of Adam and AdamW: Kingma and Ba, "Adam: a method for stochastic optimization" (2015).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamOptions {
    /// Learning rate.
    pub lr: f64,
    /// Decay rate of the first moment.
    pub beta_1: f64,
    /// Decay rate of the second moment.
    pub beta_2: f64,
    /// Number that is added to the root of the second moment, after the bias correction.
    pub epsilon: f64,
    /// Weight decay.
    pub decay: Decay,
}

impl Default for AdamOptions {
    /// PyTorch's defaults of Adam.
    fn default() -> Self {
        Self { lr: 1e-3, beta_1: 0.9, beta_2: 0.999, epsilon: 1e-8, decay: Decay::L2(0.0) }
    }
}

impl AdamOptions {
    /// Returns the rule of step `time`, counted from 1. The moments of a weight are the first and the second
    /// moment of its gradient. AMSGrad has a third one, the largest second moment so far: Reddi et al., "On
    /// the convergence of Adam and beyond" (2018).
    ///
    /// # Panics
    /// If `time` is 0.
    pub fn rule(self, time: u64) -> impl UpdateRule<2> + UpdateRule<3> {
        // In step 0, the bias corrections would be 0, and all weights would become NaN.
        assert!(time > 0, "steps of Adam count from 1, but got step 0");
        let Self { lr, beta_1, beta_2, epsilon, decay } = self;
        let correction = |beta: f64| 1.0 - beta.powi(time.min(i32::MAX as u64) as i32);
        let root = correction(beta_2).sqrt();
        let (penalty, decoupled) = match decay {
            Decay::L2(penalty) => (penalty, 0.0),
            Decay::Decoupled(decay) | Decay::Cautious(decay) => (0.0, decay),
        };
        AdamRule {
            penalty: penalty as f32,
            keep: (1.0 - lr * decoupled) as f32,
            cautious: matches!(decay, Decay::Cautious(_)),
            take_1: (1.0 - beta_1) as f32,
            keep_2: beta_2 as f32,
            take_2: (1.0 - beta_2) as f32,
            step_size: (lr / correction(beta_1) * root) as f32,
            epsilon: (epsilon * root) as f32,
        }
    }
}

/// The constants of a step. PyTorch divides the root of the second moment by the root of the bias correction.
/// Here, the root of the bias correction is a factor of `step_size` and `epsilon` instead (section 2 of
/// Kingma and Ba). This saves a division for each weight, and divisions take most of the time of a pass.
#[derive(Clone, Copy)]
struct AdamRule {
    /// L2 penalty: this multiple of the weight is added to the gradient.
    penalty: f32,
    /// Factor of the weight, for decoupled decay.
    keep: f32,
    cautious: bool,
    take_1: f32,
    keep_2: f32,
    take_2: f32,
    /// Learning rate with both bias corrections: `lr * sqrt(1 - beta_2^t) / (1 - beta_1^t)`.
    step_size: f32,
    /// Epsilon times the root of the second moment's bias correction.
    epsilon: f32,
}

impl AdamRule {
    /// Returns the weight and both moments after the step. The update is divided by the root of
    /// `largest(second moment)`. With AMSGrad, `largest` returns the largest second moment so far. Without
    /// AMSGrad, it returns its argument.
    #[inline(always)]
    fn step(
        self,
        weight: f32,
        gradient: f32,
        [first, second]: [f32; 2],
        largest: impl FnOnce(f32) -> f32,
    ) -> (f32, [f32; 2]) {
        let gradient = gradient + self.penalty * weight;
        let first = first + (gradient - first) * self.take_1;
        let second = second * self.keep_2 + gradient * gradient * self.take_2;
        let decays = !self.cautious || (weight >= 0.0) == (first >= 0.0);
        let weight = if decays { weight * self.keep } else { weight };
        let weight = weight - self.step_size * (first / (largest(second).sqrt() + self.epsilon));
        (weight, [first, second])
    }
}

impl UpdateRule<2> for AdamRule {
    #[inline(always)]
    fn update(self, weight: f32, gradient: f32, moments: [f32; 2]) -> (f32, [f32; 2]) {
        self.step(weight, gradient, moments, |second| second)
    }

    compiled_here!(2, adam_pass);
}

impl UpdateRule<3> for AdamRule {
    #[inline(always)]
    fn update(self, weight: f32, gradient: f32, [first, second, mut most]: [f32; 3]) -> (f32, [f32; 3]) {
        let (weight, [first, second]) = self.step(weight, gradient, [first, second], |second| {
            most = if most < second { second } else { most };
            most
        });
        (weight, [first, second, most])
    }

    compiled_here!(3, adam_pass);
}

/// The rule of Adam without cautious decay. It has a type of its own, so that the compiler leaves the
/// comparisons of signs out of the loop.
#[derive(Clone, Copy)]
struct Plain(AdamRule);

impl<const M: usize> UpdateRule<M> for Plain
where
    AdamRule: UpdateRule<M>,
{
    #[inline(always)]
    fn update(self, weight: f32, gradient: f32, moments: [f32; M]) -> (f32, [f32; M]) {
        AdamRule { cautious: false, ..self.0 }.update(weight, gradient, moments)
    }
}

#[inline(always)]
fn adam_pass<const M: usize>(
    adam: AdamRule,
    level: Level,
    weights: &mut [f32],
    gradients: &[f32],
    moments: [&mut [f32]; M],
) where
    AdamRule: UpdateRule<M>,
{
    if adam.cautious {
        pass(adam, level, weights, gradients, moments);
    } else {
        pass(Plain(adam), level, weights, gradients, moments);
    }
}

/// Options of stochastic gradient descent, with or without momentum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SgdOptions {
    /// Learning rate.
    pub lr: f64,
    /// Factor of the old velocity in a step (Polyak, 1964). It has no effect on weights without a velocity.
    pub momentum: f64,
    /// Dampening: the gradient enters the velocity with the factor `1 - dampening`. PyTorch and Burn do not
    /// dampen the first gradient. To do the same, set 0 in the first step.
    pub dampening: f64,
    /// Whether the momentum is Nesterov's: a step uses `gradient + momentum * velocity` instead of the
    /// velocity (Sutskever et al., 2013).
    pub nesterov: bool,
    /// L2 penalty: this multiple of the weight is added to its gradient.
    pub weight_decay: f64,
}

impl Default for SgdOptions {
    /// PyTorch's defaults.
    fn default() -> Self {
        Self { lr: 1e-3, momentum: 0.0, dampening: 0.0, nesterov: false, weight_decay: 0.0 }
    }
}

impl SgdOptions {
    /// Returns the rule of a step. Without momentum, a weight has no moments. With momentum, it has one: the
    /// velocity.
    pub fn rule(self) -> impl UpdateRule<0> + UpdateRule<1> {
        SgdRule {
            penalty: self.weight_decay as f32,
            lr: self.lr as f32,
            momentum: self.momentum as f32,
            take: (1.0 - self.dampening) as f32,
            nesterov: self.nesterov,
        }
    }
}

#[derive(Clone, Copy)]
struct SgdRule {
    penalty: f32,
    lr: f32,
    momentum: f32,
    take: f32,
    nesterov: bool,
}

impl UpdateRule<0> for SgdRule {
    #[inline(always)]
    fn update(self, weight: f32, gradient: f32, []: [f32; 0]) -> (f32, [f32; 0]) {
        (weight - self.lr * (gradient + self.penalty * weight), [])
    }

    compiled_here!(0, pass);
}

impl UpdateRule<1> for SgdRule {
    #[inline(always)]
    fn update(self, weight: f32, gradient: f32, [velocity]: [f32; 1]) -> (f32, [f32; 1]) {
        let gradient = gradient + self.penalty * weight;
        let velocity = velocity * self.momentum + gradient * self.take;
        let step = if self.nesterov { velocity * self.momentum + gradient } else { velocity };
        (weight - self.lr * step, [velocity])
    }

    compiled_here!(1, pass);
}

/// Options of RMSprop, not centered (Hinton, 2012), with or without momentum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RmspropOptions {
    /// Learning rate.
    pub lr: f64,
    /// Decay rate of the mean square of gradients.
    pub alpha: f64,
    /// Number that is added to the root of the mean square.
    pub epsilon: f64,
    /// Factor of the old velocity in a step. It has no effect on weights without a velocity.
    pub momentum: f64,
    /// L2 penalty: this multiple of the weight is added to its gradient.
    pub weight_decay: f64,
}

impl Default for RmspropOptions {
    /// PyTorch's defaults.
    fn default() -> Self {
        Self { lr: 1e-2, alpha: 0.99, epsilon: 1e-8, momentum: 0.0, weight_decay: 0.0 }
    }
}

impl RmspropOptions {
    /// Returns the rule of a step. The first moment of a weight is the mean square of its gradients; with
    /// momentum, the second is the velocity.
    pub fn rule(self) -> impl UpdateRule<1> + UpdateRule<2> {
        RmspropRule {
            penalty: self.weight_decay as f32,
            lr: self.lr as f32,
            momentum: self.momentum as f32,
            keep: self.alpha as f32,
            take: (1.0 - self.alpha) as f32,
            epsilon: self.epsilon as f32,
        }
    }
}

#[derive(Clone, Copy)]
struct RmspropRule {
    penalty: f32,
    lr: f32,
    momentum: f32,
    keep: f32,
    take: f32,
    epsilon: f32,
}

impl UpdateRule<1> for RmspropRule {
    #[inline(always)]
    fn update(self, weight: f32, gradient: f32, [square]: [f32; 1]) -> (f32, [f32; 1]) {
        let (weight, [square, _]) = self.update(weight, gradient, [square, 0.0]);
        (weight, [square])
    }

    compiled_here!(1, pass);
}

impl UpdateRule<2> for RmspropRule {
    #[inline(always)]
    fn update(self, weight: f32, gradient: f32, [square, velocity]: [f32; 2]) -> (f32, [f32; 2]) {
        let gradient = gradient + self.penalty * weight;
        let square = square * self.keep + gradient * gradient * self.take;
        let velocity = velocity * self.momentum + gradient / (square.sqrt() + self.epsilon);
        (weight - self.lr * velocity, [square, velocity])
    }

    compiled_here!(2, pass);
}
