//! The weight update: penalties, clipping and optimizer, applied to averaged gradients.
//!
//! A rank updates its share of the parameters, and has the moments of this share alone. Unless the optimizer
//! is sharded, the share is all parameters: every rank does the same computation on the same bits, so weights
//! stay equal on all ranks without communication.

#[cfg(test)]
mod tests;

use burn_fused::optim::flat::{self, AdamOptions, Decay, LambOptions, RmspropOptions, SgdOptions};
use burn_mpi::{CommError, GradientSync, Piece};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::{RunConfig, TrainError};
use crate::values::{Above0, display_names};

/// Optimizer kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerKind {
    /// Adam (Kingma and Ba, 2015); weight decay is an L2 penalty.
    #[default]
    Adam,
    /// Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
    Adamw,
    /// Stochastic gradient descent, optionally with momentum (Polyak, 1964).
    Sgd,
    /// RMSprop (Hinton, 2012), optionally with momentum.
    Rmsprop,
    /// LAMB (You et al., 2020): Adam with a rate for each parameter, for large batches.
    Lamb,
}

display_names!(OptimizerKind);

impl OptimizerKind {
    /// Whether `--momentum` applies. In this module, the momentum of Adam, AdamW and LAMB is the decay rate
    /// of their first moments.
    pub fn takes_momentum(self) -> bool {
        matches!(self, Self::Sgd | Self::Rmsprop)
    }

    /// PyTorch's default momentum. For Adam, AdamW and LAMB, the default decay rate of the first moments.
    pub fn default_momentum(self) -> f64 {
        if self.takes_momentum() { 0.0 } else { 0.9 }
    }

    /// Names of the moments that the optimizer keeps for each weight. `momentum` is true if the momentum is
    /// above 0.
    pub fn moments(self, momentum: bool) -> &'static [&'static str] {
        match (self, momentum) {
            (Self::Adam | Self::Adamw | Self::Lamb, _) => &["first", "second"],
            (Self::Sgd, false) => &[],
            (Self::Sgd, true) => &["velocity"],
            (Self::Rmsprop, false) => &["square"],
            (Self::Rmsprop, true) => &["square", "velocity"],
        }
    }
}

/// Values that a schedule changes from step to step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Learning rate.
    pub lr: f64,
    /// Momentum of SGD and RMSprop; decay rate of the first moments of Adam, AdamW and LAMB. OneCycle changes
    /// it too, as in PyTorch.
    pub momentum: f64,
}

/// The averaged gradients of this rank's share of the parameters, which the weight update reads and
/// overwrites.
pub trait AveragedGradients {
    /// Returns the number of values in the share.
    ///
    /// # Errors
    /// If the share is not known yet.
    fn share_length(&self) -> Result<usize, CommError>;

    /// Returns the gradients of the share in visit order: the order in which Burn visits the parameters of a
    /// module.
    ///
    /// # Errors
    /// If there are no gradients.
    fn pieces(&mut self) -> Result<Vec<Piece<'_>>, CommError>;

    /// Clips the gradients by the norm over the shares of all ranks that have different shares.
    ///
    /// # Errors
    /// If there are no gradients, or the transport fails.
    fn clip_norm(&mut self, max: f64) -> Result<(), CommError>;
}

impl AveragedGradients for GradientSync {
    fn share_length(&self) -> Result<usize, CommError> {
        Ok(self.share()?.iter().map(|(_, range)| range.len()).sum())
    }

    fn pieces(&mut self) -> Result<Vec<Piece<'_>>, CommError> {
        Self::pieces(self)
    }

    fn clip_norm(&mut self, max: f64) -> Result<(), CommError> {
        Self::clip_norm(self, max).map(drop)
    }
}

/// The optimizer of a run, with its moments.
///
/// An update does the same as this PyTorch program: it adds `l1 * sum |w|` and `l2 * sum w^2` over all its
/// parameters to the loss, calls `clip_grad_norm_`, and then calls its optimizer.
#[derive(Debug, Clone, PartialEq)]
pub struct Optimizer {
    kind: OptimizerKind,
    weight_decay: f64,
    l1: f32,
    l2: f32,
    clip_norm: Option<f64>,
    /// Name and values of each moment. A moment has one value for each value of this rank's share, in visit
    /// order. Before the first update, when ranks do not know their shares yet, it has no values.
    pub(super) moments: Vec<(String, Vec<f32>)>,
    updates: u64,
}

impl Optimizer {
    /// Returns the optimizer of a run. Its moments are zero.
    pub fn new(options: &RunConfig) -> Self {
        let recipe = &options.recipe;
        let empty = |&name: &&str| (name.to_owned(), Vec::new());
        let names = recipe.optimizer.moments(options.base_rate().momentum > 0.0);
        Self {
            kind: recipe.optimizer,
            weight_decay: recipe.weight_decay.get(),
            l1: recipe.l1.get() as f32,
            l2: recipe.l2.get() as f32,
            clip_norm: recipe.clip_norm.map(Above0::get),
            moments: names.iter().map(empty).collect(),
            updates: 0,
        }
    }

    /// Number of updates so far.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// Sets the length of the moments, the number of values in this rank's share, before the first update.
    pub fn begin(&mut self, length: usize) {
        self.moments.iter_mut().for_each(|(_, moment)| moment.resize(length, 0.0));
    }

    /// Names of the moments.
    pub fn names(&self) -> Vec<String> {
        self.moments.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Sets the moments, and the number of updates that led to them.
    ///
    /// # Errors
    /// If `moments` belong to a different optimizer.
    pub fn restore(&mut self, moments: Vec<(String, Vec<f32>)>, updates: u64) -> Result<(), TrainError> {
        self.check(&moments)?;
        (self.moments, self.updates) = (moments, updates);
        Ok(())
    }

    /// Checks that `moments` have the names of this optimizer's moments.
    ///
    /// # Errors
    /// If they belong to a different optimizer.
    pub fn check(&self, moments: &[(String, Vec<f32>)]) -> Result<(), TrainError> {
        let names = |moments: &[(String, Vec<f32>)]| {
            let names: Vec<_> = moments.iter().map(|(name, _)| name.as_str()).collect();
            if names.is_empty() { "none".into() } else { names.join(", ") }
        };
        let (found, expected) = (names(moments), names(&self.moments));
        if found != expected {
            return Err(TrainError::Ends(format!(
                "the checkpoint's moments are {found}, but {} (the optimizer in run.json) requires {expected}: restore \
                 the run's own optimizer, or the run's own schedule if the schedule changes the momentum",
                self.kind
            )));
        }
        Ok(())
    }

    /// Updates this rank's share of `params` from `gradients`, which are overwritten. `params` are all
    /// parameters and buffers in visit order.
    ///
    /// # Errors
    /// If there are no gradients, or the transport fails. `params` must not be used after an error.
    pub fn update(
        &mut self,
        params: &mut [f32],
        gradients: &mut impl AveragedGradients,
        rate: Rate,
    ) -> Result<(), CommError> {
        if self.updates == 0 {
            self.begin(gradients.share_length()?);
        }
        if self.l1 > 0.0 || self.l2 > 0.0 {
            for Piece { range, gradient, .. } in gradients.pieces()? {
                flat::add_penalties(self.l1, self.l2, &params[range], gradient);
            }
        }
        if let Some(most) = self.clip_norm {
            gradients.clip_norm(most)?;
        }
        self.updates += 1;
        for piece in gradients.pieces()? {
            self.apply(rate, &mut params[piece.range], piece.start, piece.gradient);
        }
        Ok(())
    }

    /// Updates `weights`, whose first moments have the index `start`.
    fn apply(&mut self, rate: Rate, weights: &mut [f32], start: usize, grads: &mut [f32]) {
        let Rate { lr, momentum } = rate;
        let (range, weight_decay) = (start..start + weights.len(), self.weight_decay);
        let adam = |decay| AdamOptions { lr, beta_1: momentum, decay, ..AdamOptions::default() };
        let sgd = SgdOptions { lr, momentum, weight_decay, ..SgdOptions::default() };
        let rmsprop = RmspropOptions { lr, momentum, weight_decay, ..RmspropOptions::default() };
        match (self.kind, self.moments.as_mut_slice()) {
            (OptimizerKind::Adam | OptimizerKind::Adamw, [(_, first), (_, second)]) => {
                let coupled = self.kind == OptimizerKind::Adam;
                let decay = if coupled { Decay::L2(weight_decay) } else { Decay::Decoupled(weight_decay) };
                let moments = [&mut first[range.clone()], &mut second[range]];
                flat::update(adam(decay).rule(self.updates), weights, grads, moments);
            }
            (OptimizerKind::Lamb, [(_, first), (_, second)]) => {
                let lamb = LambOptions { lr, beta_1: momentum, weight_decay, ..LambOptions::default() };
                let moments = [&mut first[range.clone()], &mut second[range]];
                lamb.update(self.updates, weights, grads, moments);
            }
            (OptimizerKind::Sgd, []) => flat::update(sgd.rule(), weights, grads, []),
            (OptimizerKind::Sgd, [(_, velocity)]) => {
                flat::update(sgd.rule(), weights, grads, [&mut velocity[range]]);
            }
            (OptimizerKind::Rmsprop, [(_, square)]) => {
                flat::update(rmsprop.rule(), weights, grads, [&mut square[range]]);
            }
            (OptimizerKind::Rmsprop, [(_, square), (_, velocity)]) => {
                let moments = [&mut square[range.clone()], &mut velocity[range]];
                flat::update(rmsprop.rule(), weights, grads, moments);
            }
            _ => unreachable!("`new` and `restore` check the moments of the optimizer"),
        }
    }
}
