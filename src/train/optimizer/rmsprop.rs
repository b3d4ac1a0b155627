//! RMSprop, with or without momentum.

use super::{Moments, Rate, Step};
use burn_fused::simd::{Kernel, Lanes, Level};

/// Decay rate of the mean squares: PyTorch's alpha.
const ALPHA: f64 = 0.99;
/// Epsilon added to the denominator.
const EPS: f64 = 1e-8;

/// One update, as in `torch.optim.RMSprop`, not centered.
#[derive(Clone, Copy)]
pub(super) struct Rmsprop {
    penalty: f32,
    lr: f32,
    momentum: f32,
}

impl Step for Rmsprop {
    const TAKES_MOMENTUM: bool = true;
    const DEFAULT_MOMENTUM: f64 = 0.0;

    fn moments(momentum: bool) -> &'static [&'static str] {
        if momentum { &["square", "velocity"] } else { &["square"] }
    }

    fn new(rate: Rate, weight_decay: f64, _update: u64) -> Self {
        Self { penalty: weight_decay as f32, lr: rate.lr as f32, momentum: rate.momentum as f32 }
    }

    fn apply(&self, params: &mut [f32], grads: &[f32], mut moments: Moments<'_>) {
        let square = moments.always();
        match moments.next() {
            None => Level::current().run(Plain { step: self, params, grads, square }),
            Some(velocity) => {
                Level::current().run(WithMomentum { step: self, params, grads, square, velocity });
            }
        }
    }
}

impl Rmsprop {
    /// Updates the mean square, and returns the gradient divided by its root.
    #[inline(always)]
    fn scaled(&self, param: f32, grad: f32, square: &mut f32) -> f32 {
        let grad = grad + self.penalty * param;
        *square = *square * ALPHA as f32 + grad * grad * (1.0 - ALPHA) as f32;
        grad / (square.sqrt() + EPS as f32)
    }
}

struct Plain<'a> {
    step: &'a Rmsprop,
    params: &'a mut [f32],
    grads: &'a [f32],
    square: &'a mut [f32],
}

impl Kernel for Plain<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        let step = *self.step;
        for ((param, &grad), square) in self.params.iter_mut().zip(self.grads).zip(self.square) {
            *param -= step.lr * step.scaled(*param, grad, square);
        }
    }
}

struct WithMomentum<'a> {
    step: &'a Rmsprop,
    params: &'a mut [f32],
    grads: &'a [f32],
    square: &'a mut [f32],
    velocity: &'a mut [f32],
}

impl Kernel for WithMomentum<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        let step = *self.step;
        let moments = self.square.iter_mut().zip(self.velocity);
        for ((param, &grad), (square, velocity)) in self.params.iter_mut().zip(self.grads).zip(moments) {
            *velocity = *velocity * step.momentum + step.scaled(*param, grad, square);
            *param -= step.lr * *velocity;
        }
    }
}
