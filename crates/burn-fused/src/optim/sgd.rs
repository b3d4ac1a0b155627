//! The SGD optimizer (stochastic gradient descent).

use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::{MomentumConfig, MomentumState};
use burn::optim::{LearningRate, ModuleOptimizer, Optimizer, RecordState, StateSink, StateSource, join_path};
use burn::tensor::{Device, Tensor};

use super::flat::SgdOptions;
use super::tensors::{PARAMETERS, is_supported, update_tensors, zeros_like};
use crate::runtime::fallback::unsupported;

/// Configuration of [`Sgd`]; replaces [`burn::optim::SgdConfig`].
#[derive(Config, Debug)]
pub struct SgdConfig {
    /// L2 penalty: this multiple of the parameter is added to its gradient.
    weight_decay: Option<WeightDecayConfig>,
    /// Factor and dampening of the momentum, and whether the momentum is Nesterov's.
    momentum: Option<MomentumConfig>,
    /// Gradient clipping, applied by the optimizer that [`init`](Self::init) creates.
    gradient_clipping: Option<GradientClippingConfig>,
}

impl From<SgdConfig> for burn::optim::SgdConfig {
    fn from(ours: SgdConfig) -> Self {
        Self::new()
            .with_weight_decay(ours.weight_decay)
            .with_momentum(ours.momentum)
            .with_gradient_clipping(ours.gradient_clipping)
    }
}

impl SgdConfig {
    /// Creates the optimizer of one parameter, for [`ModuleOptimizer::with_group`]. It does not clip
    /// gradients.
    pub fn build(&self) -> Sgd {
        Sgd { weight_decay: self.weight_decay.clone(), momentum: self.momentum.clone() }
    }

    /// Creates the optimizer of a module.
    pub fn init(&self) -> ModuleOptimizer {
        super::of_module(self.build(), self.gradient_clipping.as_ref())
    }
}

/// Stochastic gradient descent. A step is one pass over memory. Replaces [`burn::optim::Sgd`].
#[derive(Debug, Clone)]
pub struct Sgd {
    weight_decay: Option<WeightDecayConfig>,
    momentum: Option<MomentumConfig>,
}

/// State of [`Sgd`]. It replaces [`burn::optim::SgdState`], whose velocity is private. Both have the same
/// records.
#[derive(Debug, Clone)]
pub struct SgdState<const D: usize> {
    /// The accumulated gradients; `None` without momentum.
    pub velocity: Option<Tensor<D>>,
}

impl<const D: usize> RecordState for SgdState<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        let momentum = self.velocity.clone().map(MomentumState::new);
        burn::optim::SgdState::new(momentum).state_flatten(prefix, out);
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let velocity = source.take_tensor(&join_path(prefix, "momentum"), "velocity");
        Some(Self { velocity: velocity.map(|velocity| Tensor::from_data(velocity, device)) })
    }
}

impl Optimizer for Sgd {
    type State<const D: usize> = SgdState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<SgdState<D>>,
    ) -> (Tensor<D>, Option<SgdState<D>>) {
        let velocity = state.and_then(|state| state.velocity);
        if !is_supported(&tensor, velocity.iter().chain([&grad])) {
            unsupported("sgd", PARAMETERS);
            let (tensor, velocity) = self.composed(lr, tensor, grad, velocity);
            return (tensor, Some(SgdState { velocity }));
        }
        let penalty = self.weight_decay.as_ref().map_or(0.0, |decay| decay.penalty);
        let options = SgdOptions { lr, weight_decay: f64::from(penalty), ..SgdOptions::default() };
        let Some(momentum) = &self.momentum else {
            return (update_tensors(options.rule(), tensor, grad, []).0, Some(SgdState { velocity }));
        };
        let MomentumConfig { momentum, dampening, nesterov } = *momentum;
        // The first gradient is not dampened.
        let dampening = if velocity.is_some() { dampening } else { 0.0 };
        let rule = SgdOptions { momentum, dampening, nesterov, ..options }.rule();
        let velocity = velocity.unwrap_or_else(|| zeros_like(&tensor));
        let (tensor, [velocity]) = update_tensors(rule, tensor, grad, [velocity]);
        (tensor, Some(SgdState { velocity: Some(velocity) }))
    }

    fn to_device<const D: usize>(state: SgdState<D>, device: &Device) -> SgdState<D> {
        SgdState { velocity: state.velocity.map(|velocity| velocity.to_device(device)) }
    }
}

impl Sgd {
    /// Makes a step with Burn's operators.
    fn composed<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        mut grad: Tensor<D>,
        mut velocity: Option<Tensor<D>>,
    ) -> (Tensor<D>, Option<Tensor<D>>) {
        if let Some(decay) = &self.weight_decay {
            grad = tensor.clone() * decay.penalty + grad;
        }
        if let Some(momentum) = &self.momentum {
            let factor = momentum.momentum as f32;
            let now = match velocity {
                Some(velocity) => grad.clone() * (1.0 - momentum.dampening) + velocity * factor,
                None => grad.clone(),
            };
            grad = if momentum.nesterov { now.clone() * factor + grad } else { now.clone() };
            velocity = Some(now);
        }
        (tensor - grad * lr, velocity)
    }
}
