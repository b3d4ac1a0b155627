//! Optimizers over flat memory, one pass per parameter, with PyTorch's
//! arithmetic: values that depend only on the step in f64, everything else
//! element by element in f32. Elements are independent, so the bits are the same
//! at every SIMD level.

#[cfg(test)]
mod tests;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::TrainError;
use crate::values::display_names;
use burn_fused::simd::{Kernel, Lanes, Level};

/// Decay rate of Adam's second moments.
const BETA2: f64 = 0.999;
/// Decay rate of RMSprop's mean squares: PyTorch's alpha.
const ALPHA: f64 = 0.99;
/// Epsilon added to the denominator.
const EPS: f64 = 1e-8;

/// Optimizer kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Rule {
    /// Adam (Kingma and Ba, 2015); weight decay is an L2 penalty.
    #[default]
    Adam,
    /// Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
    Adamw,
    /// Stochastic gradient descent, optionally with momentum (Polyak, 1964).
    Sgd,
    /// RMSprop (Hinton, 2012), optionally with momentum.
    Rmsprop,
}

display_names!(Rule);

impl Rule {
    /// Whether the user sets a momentum; for Adam and AdamW it is the
    /// decay rate of their first moments.
    pub fn takes_momentum(self) -> bool {
        matches!(self, Self::Sgd | Self::Rmsprop)
    }

    /// PyTorch's default momentum, or decay rate of the first moments.
    pub fn default_momentum(self) -> f64 {
        if self.takes_momentum() { 0.0 } else { 0.9 }
    }

    /// Names of the moments of each weight, depending on whether momentum is above 0.
    pub fn moments(self, momentum: bool) -> &'static [&'static str] {
        match (self, momentum) {
            (Self::Adam | Self::Adamw, _) => &["first", "second"],
            (Self::Sgd, false) => &[],
            (Self::Sgd, true) => &["velocity"],
            (Self::Rmsprop, false) => &["square"],
            (Self::Rmsprop, true) => &["square", "velocity"],
        }
    }
}

/// Values that a schedule changes from step to step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Learning rate.
    pub lr: f64,
    /// Momentum of SGD and RMSprop; for Adam and AdamW the decay rate of the
    /// first moments, which PyTorch's schedules treat alike.
    pub momentum: f64,
}

/// An optimizer and its moments.
#[derive(Debug, Clone, PartialEq)]
pub struct Optimizer {
    rule: Rule,
    weight_decay: f64,
    /// By name, each as long as the parameters and in Burn's layouts.
    pub(super) moments: Vec<(String, Vec<f32>)>,
    updates: u64,
}

impl Optimizer {
    /// Zero moments for `length` parameters. `momentum` is whether SGD and
    /// RMSprop use momentum.
    pub fn new(rule: Rule, weight_decay: f64, momentum: bool, length: usize) -> Self {
        let zeros = |&name: &&str| (name.to_owned(), vec![0.0; length]);
        let moments = rule.moments(momentum).iter().map(zeros).collect();
        Self { rule, weight_decay, moments, updates: 0 }
    }

    /// Number of updates so far.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// Restores `moments` after `updates` updates.
    ///
    /// # Errors
    /// If they belong to a different optimizer.
    pub fn restore(&mut self, moments: Vec<(String, Vec<f32>)>, updates: u64) -> Result<(), TrainError> {
        let names = |moments: &[(String, Vec<f32>)]| {
            let names: Vec<_> = moments.iter().map(|(name, _)| name.as_str()).collect();
            if names.is_empty() { "none".into() } else { names.join(", ") }
        };
        let (found, expected) = (names(&moments), names(&self.moments));
        if found != expected {
            return Err(TrainError::Ends(format!(
                "the checkpoint's moments are {found}, and those of {}, the optimizer in run.json, are {expected}: put \
                 the run's own optimizer back, or a schedule that moves the momentum as the run's does",
                self.rule
            )));
        }
        (self.moments, self.updates) = (moments, updates);
        Ok(())
    }

    /// Begins an update, in which each parameter follows through [`apply`](Self::apply) once.
    pub fn begin(&mut self) {
        self.updates += 1;
    }

    /// Updates the parameters `params`, at `offset` in the flat buffer, by their
    /// gradients.
    pub fn apply(&mut self, rate: Rate, offset: usize, params: &mut [f32], grads: &[f32]) {
        let range = offset..offset + params.len();
        let mut moments = self.moments.iter_mut().map(|(_, values)| &mut values[range.clone()]);
        let moments = [moments.next(), moments.next()];
        let (level, decay) = (Level::current(), self.weight_decay);
        let adam = |penalty, decay| Adam::new(rate, self.updates, penalty, decay);
        let sgd = Sgd { penalty: decay as f32, lr: rate.lr as f32, momentum: rate.momentum as f32 };
        match self.rule {
            Rule::Adam => level.run(Elements { rule: adam(decay, 0.0), params, grads, moments }),
            Rule::Adamw => level.run(Elements { rule: adam(0.0, decay), params, grads, moments }),
            Rule::Sgd => level.run(Elements { rule: sgd, params, grads, moments }),
            Rule::Rmsprop => level.run(Elements { rule: Rmsprop(sgd), params, grads, moments }),
        }
    }
}

trait Element: Copy {
    /// Updates one weight and its moments, in the order of their names. Those that the optimizer is
    /// without are zeros.
    fn update(&self, param: &mut f32, grad: f32, first: &mut f32, second: &mut f32);
}

/// One pass over a parameter.
struct Elements<'a, E> {
    rule: E,
    params: &'a mut [f32],
    grads: &'a [f32],
    moments: [Option<&'a mut [f32]>; 2],
}

impl<E: Element> Kernel for Elements<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        let Self { rule, params, grads, moments } = self;
        let pairs = params.iter_mut().zip(grads);
        match moments {
            [Some(first), Some(second)] => {
                for ((param, &grad), (first, second)) in pairs.zip(first.iter_mut().zip(second)) {
                    rule.update(param, grad, first, second);
                }
            }
            [Some(first), None] => {
                pairs
                    .zip(first)
                    .for_each(|((param, &grad), first)| rule.update(param, grad, first, &mut 0.0));
            }
            [None, _] => pairs.for_each(|(param, &grad)| rule.update(param, grad, &mut 0.0, &mut 0.0)),
        }
    }
}

/// One update, as in `torch.optim.Adam` and `AdamW`: bias
/// corrections in f64, everything else in f32. The correction of the second moments, by
/// which PyTorch divides their root, is in step size and epsilon: divisions take most of
/// this pass.
#[derive(Clone, Copy)]
struct Adam {
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

impl Adam {
    /// Update number `update`, from 1.
    fn new(Rate { lr, momentum: beta1 }: Rate, update: u64, penalty: f64, decay: f64) -> Self {
        let correction = |beta: f64| 1.0 - beta.powi(update.min(i32::MAX as u64) as i32);
        Self {
            penalty: penalty as f32,
            keep: (1.0 - lr * decay) as f32,
            take1: (1.0 - beta1) as f32,
            step_size: (lr / correction(beta1) * correction(BETA2).sqrt()) as f32,
            eps: (EPS * correction(BETA2).sqrt()) as f32,
        }
    }
}

impl Element for Adam {
    #[inline(always)]
    fn update(&self, param: &mut f32, grad: f32, first: &mut f32, second: &mut f32) {
        *param *= self.keep;
        let grad = grad + self.penalty * *param;
        *first += (grad - *first) * self.take1;
        *second = *second * BETA2 as f32 + grad * grad * (1.0 - BETA2) as f32;
        *param -= self.step_size * (*first / (second.sqrt() + self.eps));
    }
}

/// One update, as in `torch.optim.SGD` without dampening: the first velocity is
/// the gradient, which also follows from zeros and the rule of all later steps.
#[derive(Clone, Copy)]
struct Sgd {
    penalty: f32,
    lr: f32,
    momentum: f32,
}

impl Element for Sgd {
    #[inline(always)]
    fn update(&self, param: &mut f32, grad: f32, velocity: &mut f32, _: &mut f32) {
        *velocity = *velocity * self.momentum + (grad + self.penalty * *param);
        *param -= self.lr * *velocity;
    }
}

/// One update, as in `torch.optim.RMSprop`, not centered: SGD's with the gradient divided by the root
/// of its mean square.
#[derive(Clone, Copy)]
struct Rmsprop(Sgd);

impl Element for Rmsprop {
    #[inline(always)]
    fn update(&self, param: &mut f32, grad: f32, square: &mut f32, velocity: &mut f32) {
        let Self(Sgd { penalty, lr, momentum }) = *self;
        let grad = grad + penalty * *param;
        *square = *square * ALPHA as f32 + grad * grad * (1.0 - ALPHA) as f32;
        *velocity = *velocity * momentum + grad / (square.sqrt() + EPS as f32);
        *param -= lr * *velocity;
    }
}
