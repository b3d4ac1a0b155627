//! Burn's optimizers with fused updates: a program changes `burn::optim` to `burn_fused::optim` in its
//! imports.
//!
//! Everything in [`burn::optim`] is here at the same paths. [`AdamW`], [`Adam`] and [`Sgd`] replace Burn's: a
//! step reads the parameter, its gradient and its moments once, and writes the parameter and the moments
//! once, in place if no other tensor shares their memory. Burn's optimizers make a pass over memory for each
//! operation. The fused optimizers run in Burn's [`ModuleOptimizer`], with its parameter groups and gradient
//! clipping. A record of Burn's optimizer loads into the fused optimizer, and a record of the fused optimizer
//! loads into Burn's. [`flat`] has the same updates for slices.
//!
//! Results equal those of Burn's optimizers within rounding. Parameters of a type other than f32, or on a
//! backend other than flex, are updated by Burn's operators.
//!
//! ```
//! use burn::nn::LinearConfig;
//! use burn::tensor::{Device, Tensor};
//! use burn_fused::optim::{AdamWConfig, GradientsParams};
//!
//! let device = Device::flex().autodiff();
//! let mut layer = LinearConfig::new(4, 2).init(&device);
//! let mut optimizer = AdamWConfig::new().with_weight_decay(0.01).init();
//! let gradients = layer.forward(Tensor::<2>::ones([3, 4], &device)).sum().backward();
//! let gradients = GradientsParams::from_grads(gradients, &layer);
//! layer = optimizer.step(1e-3, layer, gradients);
//! ```
//!
//! # Differences to PyTorch
//!
//! The formulas are those of `torch.optim`: epsilon is added after the bias correction, and [`AdamW`]
//! multiplies the parameter by `1 - lr * weight_decay` before the update. Defaults differ:
//!
//! | option | Burn, and here | PyTorch |
//! | --- | --- | --- |
//! | epsilon of Adam and AdamW | 1e-5 | 1e-8 |
//! | weight decay of AdamW | 1e-4 | 1e-2 |
//! | dampening of momentum in SGD | 0.1 | 0 |
//!
//! Decay rates are f32, as in Burn. Bias corrections are computed in f64, as in PyTorch. Burn computes bias
//! corrections in f32, with a relative error of up to 7e-5 in the correction of the second moment.

use burn::grad_clipping::GradientClippingConfig;

mod adam;
mod adamw;
mod adaptive;
pub mod flat;
mod sgd;
mod tensors;
#[cfg(test)]
mod tests;

pub use adam::{Adam, AdamConfig};
pub use adamw::{AdamW, AdamWConfig};
pub use burn::optim::*;
pub use sgd::{Sgd, SgdConfig, SgdState};

/// Returns `optimizer` as the optimizer of a module. It clips gradients if `clipping` is set.
fn of_module(optimizer: impl Optimizer, clipping: Option<&GradientClippingConfig>) -> ModuleOptimizer {
    let optimizer = ModuleOptimizer::from(optimizer);
    match clipping {
        Some(clipping) => optimizer.with_grad_clipping(clipping.init()),
        None => optimizer,
    }
}
