//! The AdamW optimizer.

use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::{AdamWState, LearningRate, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Tensor};

use super::adaptive::{adam_step, is_state_supported};
use super::flat::{AdamOptions, Decay};
use super::tensors::PARAMETERS;
use crate::runtime::fallback::unsupported;

/// Configuration of [`AdamW`]; replaces [`burn::optim::AdamWConfig`].
#[derive(Config, Debug)]
pub struct AdamWConfig {
    /// Decay rate of the first moment.
    #[config(default = 0.9)]
    beta_1: f32,
    /// Decay rate of the second moment.
    #[config(default = 0.999)]
    beta_2: f32,
    /// Number that is added to the root of the second moment, after the bias correction.
    #[config(default = 1e-5)]
    epsilon: f32,
    /// Weight decay: a step multiplies parameters by `1 - lr * weight_decay`.
    #[config(default = 1e-4)]
    weight_decay: f32,
    /// Whether a weight decays only if it has the sign of its first moment: "Cautious weight decay" (2025),
    /// arXiv 2510.12402.
    #[config(default = false)]
    cautious_weight_decay: bool,
    /// Whether the optimizer is AMSGrad, which divides updates by the root of the largest second moment so
    /// far: Reddi et al., "On the convergence of Adam and beyond" (2018).
    #[config(default = false)]
    amsgrad: bool,
    /// Gradient clipping, applied by the optimizer that [`init`](Self::init) creates.
    grad_clipping: Option<GradientClippingConfig>,
}

impl From<AdamWConfig> for burn::optim::AdamWConfig {
    fn from(ours: AdamWConfig) -> Self {
        Self::new()
            .with_beta_1(ours.beta_1)
            .with_beta_2(ours.beta_2)
            .with_epsilon(ours.epsilon)
            .with_weight_decay(ours.weight_decay)
            .with_cautious_weight_decay(ours.cautious_weight_decay)
            .with_amsgrad(ours.amsgrad)
            .with_grad_clipping(ours.grad_clipping)
    }
}

impl AdamWConfig {
    /// Creates the optimizer of one parameter, for [`ModuleOptimizer::with_group`]. It does not clip
    /// gradients.
    pub fn build(&self) -> AdamW {
        AdamW { config: self.clone(), burns: burn::optim::AdamWConfig::from(self.clone()).build() }
    }

    /// Creates the optimizer of a module.
    pub fn init(&self) -> ModuleOptimizer {
        super::of_module(self.build(), self.grad_clipping.as_ref())
    }
}

/// AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019). A step is one pass over
/// memory. Replaces [`burn::optim::AdamW`].
#[derive(Clone)]
pub struct AdamW {
    config: AdamWConfig,
    burns: burn::optim::AdamW,
}

impl Optimizer for AdamW {
    type State<const D: usize> = AdamWState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<AdamWState<D>>,
    ) -> (Tensor<D>, Option<AdamWState<D>>) {
        if !is_state_supported(&tensor, &grad, state.as_ref().map(|state| &state.momentum)) {
            unsupported("adamw", PARAMETERS);
            return self.burns.step(lr, tensor, grad, state);
        }
        let AdamWConfig { beta_1, beta_2, epsilon, weight_decay, cautious_weight_decay, amsgrad, .. } =
            self.config;
        let decay = f64::from(weight_decay);
        let options = AdamOptions {
            lr,
            beta_1: f64::from(beta_1),
            beta_2: f64::from(beta_2),
            epsilon: f64::from(epsilon),
            decay: if cautious_weight_decay { Decay::Cautious(decay) } else { Decay::Decoupled(decay) },
        };
        let (tensor, state) = adam_step(options, amsgrad, tensor, grad, state.map(|state| state.momentum));
        (tensor, Some(AdamWState::new(state)))
    }

    fn to_device<const D: usize>(state: AdamWState<D>, device: &Device) -> AdamWState<D> {
        burn::optim::AdamW::to_device(state, device)
    }
}
