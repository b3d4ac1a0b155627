//! Stochastic gradient descent, with or without momentum.

use super::{Moments, Rate, Step};
use burn_fused::simd::{Kernel, Lanes, Level};

/// One update, as in `torch.optim.SGD` without dampening: the first velocity is
/// the gradient, which also follows from zeros and the rule of all later steps.
pub(super) struct Sgd {
    penalty: f32,
    lr: f32,
    momentum: f32,
}

impl Step for Sgd {
    const TAKES_MOMENTUM: bool = true;
    const DEFAULT_MOMENTUM: f64 = 0.0;

    fn moments(momentum: bool) -> &'static [&'static str] {
        if momentum { &["velocity"] } else { &[] }
    }

    fn new(rate: Rate, weight_decay: f64, _update: u64) -> Self {
        Self { penalty: weight_decay as f32, lr: rate.lr as f32, momentum: rate.momentum as f32 }
    }

    fn apply(&self, params: &mut [f32], grads: &[f32], mut moments: Moments<'_>) {
        match moments.next() {
            None => Level::current().run(Plain { step: self, params, grads }),
            Some(velocity) => Level::current().run(WithMomentum { step: self, params, grads, velocity }),
        }
    }
}

struct Plain<'a> {
    step: &'a Sgd,
    params: &'a mut [f32],
    grads: &'a [f32],
}

impl Kernel for Plain<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        let &Sgd { penalty, lr, .. } = self.step;
        for (param, &grad) in self.params.iter_mut().zip(self.grads) {
            *param -= lr * (grad + penalty * *param);
        }
    }
}

struct WithMomentum<'a> {
    step: &'a Sgd,
    params: &'a mut [f32],
    grads: &'a [f32],
    velocity: &'a mut [f32],
}

impl Kernel for WithMomentum<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        let &Sgd { penalty, lr, momentum } = self.step;
        for ((param, &grad), velocity) in self.params.iter_mut().zip(self.grads).zip(self.velocity) {
            *velocity = *velocity * momentum + (grad + penalty * *param);
            *param -= lr * *velocity;
        }
    }
}
