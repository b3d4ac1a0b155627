//! Adam over flat memory, one pass a parameter, with PyTorch's arithmetic.

use crate::ops::conv::{Kernel, Lanes, Level};

/// Settings of [`Adam`]; the defaults are PyTorch's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamSettings {
    /// Step size.
    pub lr: f64,
    /// L2 penalty: added to the gradient, times the weight.
    pub weight_decay: f64,
    /// Decay rates of the two moments.
    pub betas: (f64, f64),
    /// Added to the denominator.
    pub eps: f64,
}

impl AdamSettings {
    /// PyTorch's defaults with this step size and penalty.
    pub fn new(lr: f64, weight_decay: f64) -> Self {
        Self { lr, weight_decay, betas: (0.9, 0.999), eps: 1e-8 }
    }
}

/// Adam (Kingma and Ba, 2015), as `torch.optim.Adam` computes it in f32: the
/// bias corrections in f64, everything else element by element in f32.
#[derive(Debug, Clone, PartialEq)]
pub struct Adam {
    settings: AdamSettings,
    /// First moments, as long as the parameters.
    pub first: Vec<f32>,
    /// Second moments, as long as the parameters.
    pub second: Vec<f32>,
    /// Updates made.
    pub step: u64,
}

impl Adam {
    /// Zero moments for `length` parameters.
    pub fn new(settings: AdamSettings, length: usize) -> Self {
        Self { settings, first: vec![0.0; length], second: vec![0.0; length], step: 0 }
    }

    /// Begins an update: the parameters follow, each through
    /// [`Update::apply`] once.
    pub fn begin(&mut self) -> Update<'_> {
        self.step += 1;
        let (beta1, beta2) = self.settings.betas;
        let correction = |beta: f64| 1.0 - beta.powi(self.step.min(i32::MAX as u64) as i32);
        Update {
            step_size: (self.settings.lr / correction(beta1)) as f32,
            denominator_scale: correction(beta2).sqrt() as f32,
            adam: self,
        }
    }
}

/// One update under way.
pub struct Update<'a> {
    adam: &'a mut Adam,
    step_size: f32,
    denominator_scale: f32,
}

impl Update<'_> {
    /// Updates the parameters `params`, which lie at `offset` in the flat
    /// buffer, by their gradients.
    pub fn apply(&mut self, offset: usize, params: &mut [f32], grads: &[f32]) {
        let AdamSettings { weight_decay, betas, eps, .. } = self.adam.settings;
        let range = offset..offset + params.len();
        Level::current().run(Elements {
            params,
            grads,
            first: &mut self.adam.first[range.clone()],
            second: &mut self.adam.second[range],
            decay: weight_decay as f32,
            eps: eps as f32,
            take1: (1.0 - betas.0) as f32,
            keep2: betas.1 as f32,
            take2: (1.0 - betas.1) as f32,
            step_size: self.step_size,
            denominator_scale: self.denominator_scale,
        });
    }
}

/// One pass over a parameter, each of its elements alone: the same bits at every
/// level.
struct Elements<'a> {
    params: &'a mut [f32],
    grads: &'a [f32],
    first: &'a mut [f32],
    second: &'a mut [f32],
    decay: f32,
    eps: f32,
    take1: f32,
    keep2: f32,
    take2: f32,
    step_size: f32,
    denominator_scale: f32,
}

impl Kernel for Elements<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        let Self { decay, eps, take1, keep2, take2, step_size, denominator_scale, .. } = self;
        let moments = self.first.iter_mut().zip(self.second);
        for ((param, &grad), (first, second)) in self.params.iter_mut().zip(self.grads).zip(moments) {
            let grad = grad + decay * *param;
            *first += (grad - *first) * take1;
            *second = *second * keep2 + grad * grad * take2;
            let denominator = second.sqrt() / denominator_scale + eps;
            *param -= step_size * (*first / denominator);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures of `torch.optim.Adam([w], lr=0.1, weight_decay=0.01)` in f64,
    /// worked out by hand from its definition.
    fn reference(steps: usize, mut w: f64, grad: impl Fn(f64) -> f64) -> f64 {
        let (mut m, mut v) = (0.0, 0.0);
        for t in 1..=steps as i32 {
            let g = grad(w) + 0.01 * w;
            m = 0.9 * m + 0.1 * g;
            v = 0.999 * v + 0.001 * g * g;
            let (m_hat, v_hat) = (m / (1.0 - 0.9f64.powi(t)), v / (1.0 - 0.999f64.powi(t)));
            w -= 0.1 * m_hat / (v_hat.sqrt() + 1e-8);
        }
        w
    }

    #[test]
    fn updates_follow_the_definition() {
        let mut adam = Adam::new(AdamSettings::new(0.1, 0.01), 3);
        let mut params = [1.0f32, -2.0, 0.5];
        for _ in 0..20 {
            let grads = params.map(|w| 2.0 * w + 0.3);
            let mut update = adam.begin();
            update.apply(0, &mut params[..1], &grads[..1]);
            update.apply(1, &mut params[1..], &grads[1..]);
        }
        for (param, start) in params.into_iter().zip([1.0, -2.0, 0.5]) {
            let expected = reference(20, start, |w| 2.0 * w + 0.3);
            assert!((f64::from(param) - expected).abs() < 1e-5, "{param} against {expected}");
        }
        assert_eq!(adam.step, 20);
    }

    #[test]
    fn the_first_update_is_the_step_size_whatever_the_gradient() {
        for grad in [1e-3f32, 1.0, 1e3] {
            let mut adam = Adam::new(AdamSettings::new(0.01, 0.0), 1);
            let mut param = [1.0f32];
            adam.begin().apply(0, &mut param, &[grad]);
            assert!((param[0] - 0.99).abs() < 1e-6, "gradient {grad}: {}", param[0]);
        }
    }
}
