//! Burn's optimizers with fused updates: a program changes `burn::optim` to `burn_fused::optim` in its imports.
//!
//! All of [`burn::optim`] is here at the same paths. [`AdamW`], [`Adam`] and [`Sgd`] are ours: they read the
//! parameter, its gradient and its moments once and write them once, in place, where Burn's make a pass over memory
//! for each operation. They are optimizers of Burn's [`ModuleOptimizer`], with its parameter groups and gradient
//! clipping; records of either load into the other. [`flat`] has the same passes for slices.
//!
//! Results equal those of Burn's optimizers within rounding. Parameters of another type than f32 or on another
//! backend than flex are updated by Burn's operators.
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
//! The formulas are those of `torch.optim`: epsilon is added after the bias correction, and [`AdamW`] decays the
//! parameter by `1 - lr * weight_decay` before the update. Defaults differ:
//!
//! | option | Burn, and here | PyTorch |
//! | --- | --- | --- |
//! | epsilon of Adam and AdamW | 1e-5 | 1e-8 |
//! | weight decay of AdamW | 1e-4 | 1e-2 |
//! | dampening of momentum in SGD | 0.1 | 0 |
//!
//! Decay rates are f32, as in Burn. Bias corrections are computed in f64, as in PyTorch; Burn computes them in f32,
//! which differs by up to 7e-5 of a correction of the second moment.

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

/// The optimizer of a module, with its clipping of gradients.
fn of_module(optimizer: impl Optimizer, clipping: Option<&GradientClippingConfig>) -> ModuleOptimizer {
    let optimizer = ModuleOptimizer::from(optimizer);
    match clipping {
        Some(clipping) => optimizer.with_grad_clipping(clipping.init()),
        None => optimizer,
    }
}
