//! Options of local updates: ranks train alone for some steps, and then average the changes of parameters.

use burn_mpi::{LocalOptions, Outer};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::Communication;
use crate::values::{Above0, Below1, Optional, Positive, Whole, display_names, one_of, or_none};

/// Default learning rate of DiLoCo's outer optimizer (Douillard et al., arXiv 2311.08105, 2023).
pub const OUTER_LR: Above0 = Above0(0.7);
/// Default momentum of DiLoCo's outer optimizer.
pub const OUTER_MOMENTUM: Below1 = Below1(0.9);

/// Local updates instead of averaged gradients.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Distribution")]
pub struct LocalUpdatesOptions {
    /// Local updates: each rank trains alone for H steps, and then the ranks average the changes of their
    /// parameters, with --reduce and --grad-dtype. Without this option, they average the gradients of each
    /// step.
    #[arg(long, value_name = "H", default_value = "none", value_parser = or_none::<Positive>)]
    pub sync_every: Optional<Positive>,
    /// --sync-every: optimizer of the averaged changes; nesterov is DiLoCo.
    #[arg(long, value_name = "NAME", default_value = "none", value_parser = one_of::<OuterKind>())]
    pub outer: OuterKind,
    /// --outer nesterov: learning rate [default: 0.7].
    #[arg(long, value_name = "X", default_value = "none", value_parser = or_none::<Above0>)]
    pub outer_lr: Optional<Above0>,
    /// --outer nesterov: momentum, from 0 to below 1 [default: 0.9].
    #[arg(long, value_name = "X", default_value = "none", value_parser = or_none::<Below1>)]
    pub outer_momentum: Optional<Below1>,
    /// --sync-every: average the gradients of each step in the first epochs (post-local SGD).
    #[arg(long, value_name = "EPOCHS", default_value = "none", value_parser = or_none::<Positive>)]
    pub local_after: Optional<Positive>,
    /// --sync-every: parts of the parameters, which synchronise H/F steps apart; F divides H.
    #[arg(long, value_name = "F", default_value = "1")]
    pub fragments: Positive,
    /// --sync-every: local steps during which a fragment's average is in flight, below H.
    #[arg(long, value_name = "STEPS", default_value = "0")]
    pub sync_delay: Whole,
    /// --sync-delay: share of a rank's own parameters after a synchronisation, from 0 to below 1. Streaming
    /// DiLoCo recommends 0.5.
    #[arg(long, value_name = "ALPHA", default_value = "0")]
    pub merge: Below1,
}

/// Optimizer of the averaged changes of parameters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum OuterKind {
    /// The averaged change is added to the parameters.
    #[default]
    None,
    /// SGD with Nesterov momentum.
    Nesterov,
}

display_names!(OuterKind);

impl Communication {
    /// Returns the options of local updates; `None` if gradients are averaged in all epochs.
    pub fn local_options(&self) -> Option<LocalOptions> {
        let local = &self.local;
        let outer = match local.outer {
            OuterKind::None => Outer::None,
            OuterKind::Nesterov => Outer::Nesterov {
                learning_rate: local.outer_lr.unwrap_or(OUTER_LR).get() as f32,
                momentum: local.outer_momentum.unwrap_or(OUTER_MOMENTUM).get() as f32,
            },
        };
        Some(
            LocalOptions::default()
                .with_every(local.sync_every?.get())
                .with_outer(outer)
                .with_fragments(local.fragments.get())
                .with_delay(local.sync_delay.get())
                .with_merge(local.merge.get() as f32)
                .with_wire(self.grad_dtype)
                .with_reduction(self.reduce),
        )
    }
}
