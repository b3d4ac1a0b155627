//! The update of Adam and AdamW.

use burn::optim::AdaptiveMomentumState;
use burn::tensor::Tensor;

use super::update::{Rule, Values, is_supported, update, zeros_like};

/// Weight decay in the update.
#[derive(Debug, Clone, Copy)]
pub enum Decay {
    /// This multiple of the parameter is added to its gradient.
    Coupled(f32),
    /// The parameter is multiplied by this before the update.
    Decoupled(f32),
    /// This multiple of the parameter is subtracted where the update has its sign.
    Cautious(f32),
}

/// What the optimizers' moments depend on.
#[derive(Debug, Clone, Copy)]
pub struct AdaptiveMomentum {
    pub beta_1: f32,
    pub beta_2: f32,
    pub epsilon: f32,
    pub amsgrad: bool,
}

impl AdaptiveMomentum {
    /// The parameter and the state after a step, or `None` if the tensors are not supported.
    pub fn step<const D: usize>(
        self,
        lr: f64,
        decay: Decay,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<AdaptiveMomentumState<D>>,
    ) -> (Tensor<D>, AdaptiveMomentumState<D>) {
        let state =
            state.unwrap_or_else(|| AdaptiveMomentumState::new(0, zeros_like(&tensor), zeros_like(&tensor)));
        let AdaptiveMomentumState { time, moment_1, moment_2, mut max_moment_2 } = state;
        let time = time + 1;
        let root = (1.0 - self.beta_2.powi(time as i32)).sqrt();
        let correction = root / (1.0 - self.beta_1.powi(time as i32));
        let rule = Adaptive {
            kept: [self.beta_1, self.beta_2],
            added: [1.0 - self.beta_1, 1.0 - self.beta_2],
            rate: (lr * f64::from(correction)) as f32,
            epsilon: self.epsilon * root,
            decay,
        };
        let (tensor, moment_1, moment_2) = if self.amsgrad {
            let most = max_moment_2.take().unwrap_or_else(|| zeros_like(&tensor));
            let (tensor, [first, second, most]) = update(rule, tensor, gradient, [moment_1, moment_2, most]);
            max_moment_2 = Some(most);
            (tensor, first, second)
        } else {
            let (tensor, [first, second]) = update(rule, tensor, gradient, [moment_1, moment_2]);
            (tensor, first, second)
        };
        (tensor, AdaptiveMomentumState { time, moment_1, moment_2, max_moment_2 })
    }

    /// Whether [`step`](Self::step) takes these.
    pub fn is_supported<const D: usize>(
        tensor: &Tensor<D>,
        gradient: &Tensor<D>,
        state: Option<&AdaptiveMomentumState<D>>,
    ) -> bool {
        let moments = state
            .into_iter()
            .flat_map(|state| [&state.moment_1, &state.moment_2].into_iter().chain(&state.max_moment_2));
        is_supported(tensor, moments.chain([gradient]))
    }
}

/// The numbers of a step, for two moments, or three with the largest of the second so far (AMSGrad).
///
/// The order is that of section 2 of Kingma and Ba, "Adam: a method for stochastic optimization" (2015): bias
/// corrections are factors of the rate and of epsilon.
#[derive(Debug, Clone, Copy)]
struct Adaptive {
    kept: [f32; 2],
    added: [f32; 2],
    rate: f32,
    epsilon: f32,
    decay: Decay,
}

impl<const M: usize> Rule<M> for Adaptive {
    #[inline(always)]
    fn run(self, values: Values<'_, M>) {
        match self.decay {
            Decay::Coupled(factor) => self.update(values, |x, g| x * factor + g, |x, _| x),
            Decay::Decoupled(factor) => self.update(values, |_, g| g, |x, _| x * factor),
            Decay::Cautious(rate) => {
                let decayed = |x, moment| if (x >= 0.0) == (moment >= 0.0) { x - x * rate } else { x };
                self.update(values, |_, g| g, decayed)
            }
        }
    }
}

impl Adaptive {
    #[inline(always)]
    fn update<const M: usize>(
        self,
        values: Values<'_, M>,
        gradient: impl Fn(f32, f32) -> f32,
        decayed: impl Fn(f32, f32) -> f32,
    ) {
        let Self { kept, added, rate, epsilon, .. } = self;
        values.each(|x, g, mut moments| {
            let g = gradient(x, g);
            moments[0] = moments[0] * kept[0] + g * added[0];
            moments[1] = moments[1] * kept[1] + g * g * added[1];
            let mut second = moments[1];
            if M == 3 {
                second = if moments[2] < second { second } else { moments[2] };
                moments[2] = second;
            }
            (decayed(x, moments[0]) - moments[0] * rate / (second.sqrt() + epsilon), moments)
        });
    }
}
