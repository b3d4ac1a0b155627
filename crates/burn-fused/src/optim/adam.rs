//! The Adam optimizer.

use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::{AdamState, LearningRate, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Tensor};

use super::adaptive::{adam_step, is_state_supported};
use super::flat::{AdamOptions, Decay};
use super::tensors::PARAMETERS;
use crate::runtime::fallback::unsupported;

/// Configuration of [`Adam`]; replaces [`burn::optim::AdamConfig`].
#[derive(Config, Debug)]
pub struct AdamConfig {
    /// Decay rate of the first moment.
    #[config(default = 0.9)]
    beta_1: f32,
    /// Decay rate of the second moment.
    #[config(default = 0.999)]
    beta_2: f32,
    /// Number that is added to the root of the second moment, after the bias correction.
    #[config(default = 1e-5)]
    epsilon: f32,
    /// Whether the optimizer is AMSGrad, which divides updates by the root of the largest second moment so
    /// far: Reddi et al., "On the convergence of Adam and beyond" (2018).
    #[config(default = false)]
    amsgrad: bool,
    /// L2 penalty: this multiple of the parameter is added to its gradient.
    weight_decay: Option<WeightDecayConfig>,
    /// Gradient clipping, applied by the optimizer that [`init`](Self::init) creates.
    grad_clipping: Option<GradientClippingConfig>,
}

impl From<AdamConfig> for burn::optim::AdamConfig {
    fn from(ours: AdamConfig) -> Self {
        Self::new()
            .with_beta_1(ours.beta_1)
            .with_beta_2(ours.beta_2)
            .with_epsilon(ours.epsilon)
            .with_amsgrad(ours.amsgrad)
            .with_weight_decay(ours.weight_decay)
            .with_grad_clipping(ours.grad_clipping)
    }
}

impl AdamConfig {
    /// Creates the optimizer of one parameter, for [`ModuleOptimizer::with_group`]. It does not clip
    /// gradients.
    pub fn build(&self) -> Adam {
        Adam { config: self.clone(), burns: burn::optim::AdamConfig::from(self.clone()).build() }
    }

    /// Creates the optimizer of a module.
    pub fn init(&self) -> ModuleOptimizer {
        super::of_module(self.build(), self.grad_clipping.as_ref())
    }
}

/// Adam (Kingma and Ba, "Adam: a method for stochastic optimization", 2015). A step is one pass over memory.
/// Replaces [`burn::optim::Adam`].
#[derive(Clone)]
pub struct Adam {
    config: AdamConfig,
    burns: burn::optim::Adam,
}

impl Optimizer for Adam {
    type State<const D: usize> = AdamState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<AdamState<D>>,
    ) -> (Tensor<D>, Option<AdamState<D>>) {
        if !is_state_supported(&tensor, &grad, state.as_ref().map(|state| &state.momentum)) {
            unsupported("adam", PARAMETERS);
            return self.burns.step(lr, tensor, grad, state);
        }
        let AdamConfig { beta_1, beta_2, epsilon, amsgrad, weight_decay, .. } = &self.config;
        let penalty = weight_decay.as_ref().map_or(0.0, |decay| decay.penalty);
        let options = AdamOptions {
            lr,
            beta_1: f64::from(*beta_1),
            beta_2: f64::from(*beta_2),
            epsilon: f64::from(*epsilon),
            decay: Decay::L2(f64::from(penalty)),
        };
        let (tensor, state) = adam_step(options, *amsgrad, tensor, grad, state.map(|state| state.momentum));
        (tensor, Some(AdamState::new(state)))
    }

    fn to_device<const D: usize>(state: AdamState<D>, device: &Device) -> AdamState<D> {
        burn::optim::Adam::to_device(state, device)
    }
}
