//! Optimizers over flat memory, one pass per parameter, with PyTorch's
//! arithmetic: values that depend only on the step in f64, everything else
//! element by element in f32. Elements are independent, so the bits are the same
//! at every SIMD level.

mod adam;
mod rmsprop;
mod sgd;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::slice::IterMut;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::{Moment, TrainError};
use crate::values;

/// One update of an optimizer: values common to all elements, computed once.
trait Step {
    /// Whether the user sets a momentum. Otherwise the momentum is the decay rate
    /// of the first moments.
    const TAKES_MOMENTUM: bool;
    /// PyTorch's default momentum.
    const DEFAULT_MOMENTUM: f64;

    /// Names of the moments of each weight, depending on whether momentum is
    /// above 0.
    fn moments(momentum: bool) -> &'static [&'static str];

    /// Constants of update number `update`, from 1.
    fn new(rate: Rate, weight_decay: f64, update: u64) -> Self;

    /// Updates one parameter; moments are in the order of their names.
    fn apply(&self, params: &mut [f32], grads: &[f32], moments: Moments<'_>);
}

/// The optimizers, one line each.
macro_rules! optimizers {
    ($($(#[$meta:meta])* $rule:ident: $step:ty,)+) => {
        /// Optimizer kind.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
        #[serde(rename_all = "lowercase")]
        pub enum Rule {
            $($(#[$meta])* $rule,)+
        }

        impl Rule {
            /// Whether the user sets a momentum; for Adam and AdamW it is the
            /// decay rate of their first moments.
            pub fn takes_momentum(self) -> bool {
                match self {
                    $(Self::$rule => <$step>::TAKES_MOMENTUM,)+
                }
            }

            /// PyTorch's default momentum, or decay rate of the first moments.
            pub fn default_momentum(self) -> f64 {
                match self {
                    $(Self::$rule => <$step>::DEFAULT_MOMENTUM,)+
                }
            }

            /// Names of the moments of each weight.
            fn moments(self, momentum: bool) -> &'static [&'static str] {
                match self {
                    $(Self::$rule => <$step>::moments(momentum),)+
                }
            }

            fn step(self, rate: Rate, weight_decay: f64, update: u64) -> AnyStep {
                match self {
                    $(Self::$rule => AnyStep::$rule(<$step>::new(rate, weight_decay, update)),)+
                }
            }
        }

        /// A step of one of the optimizers. An enum, because a trait object would
        /// add an allocation in every step.
        enum AnyStep {
            $($rule($step),)+
        }

        impl AnyStep {
            fn apply(&self, params: &mut [f32], grads: &[f32], moments: Moments<'_>) {
                match self {
                    $(Self::$rule(step) => step.apply(params, grads, moments),)+
                }
            }
        }
    };
}

optimizers! {
    /// Adam (Kingma and Ba, 2015); weight decay is an L2 penalty.
    #[default]
    Adam: adam::Adam<false>,
    /// Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
    Adamw: adam::Adam<true>,
    /// Stochastic gradient descent, optionally with momentum (Polyak, 1964).
    Sgd: sgd::Sgd,
    /// RMSprop (Hinton, 2012), optionally with momentum.
    Rmsprop: rmsprop::Rmsprop,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&values::name(self))
    }
}

/// Values that a schedule changes from step to step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Learning rate.
    pub lr: f64,
    /// Momentum of SGD and RMSprop; for Adam and AdamW the decay rate of the
    /// first moments, which PyTorch's schedules treat alike.
    pub momentum: f64,
}

/// An optimizer and its moments.
#[derive(Debug, Clone, PartialEq)]
pub struct Optimizer {
    rule: Rule,
    weight_decay: f64,
    moments: Vec<Moment>,
    updates: u64,
}

impl Optimizer {
    /// Zero moments for `length` parameters. `momentum` is whether SGD and
    /// RMSprop use momentum.
    pub fn new(rule: Rule, weight_decay: f64, momentum: bool, length: usize) -> Self {
        let zeros = |&name: &&str| Moment { name: name.to_owned(), values: vec![0.0; length] };
        let moments = rule.moments(momentum).iter().map(zeros).collect();
        Self { rule, weight_decay, moments, updates: 0 }
    }

    /// The moments, each as long as the parameters.
    pub fn moments(&self) -> &[Moment] {
        &self.moments
    }

    /// Number of updates so far.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// Restores `moments` after `updates` updates.
    ///
    /// # Errors
    /// If they belong to a different optimizer.
    pub fn restore(&mut self, moments: Vec<Moment>, updates: u64) -> Result<(), TrainError> {
        let names = |moments: &[Moment]| {
            let names: Vec<_> = moments.iter().map(|moment| moment.name.as_str()).collect();
            if names.is_empty() { "none".into() } else { names.join(", ") }
        };
        let (found, expected) = (names(&moments), names(&self.moments));
        if found != expected {
            return Err(TrainError::OtherOptimizer { rule: self.rule, found, expected });
        }
        (self.moments, self.updates) = (moments, updates);
        Ok(())
    }

    /// Begins an update: each parameter follows through `Update::apply` once.
    pub fn begin(&mut self, rate: Rate) -> Update<'_> {
        self.updates += 1;
        let step = self.rule.step(rate, self.weight_decay, self.updates);
        Update { moments: &mut self.moments, step }
    }
}

/// One update in progress.
pub struct Update<'a> {
    moments: &'a mut [Moment],
    step: AnyStep,
}

impl Update<'_> {
    /// Updates the parameters `params`, at `offset` in the flat buffer, by their
    /// gradients.
    pub fn apply(&mut self, offset: usize, params: &mut [f32], grads: &[f32]) {
        let range = offset..offset + params.len();
        self.step.apply(params, grads, Moments { all: self.moments.iter_mut(), range });
    }
}

/// The moments of one parameter.
struct Moments<'a> {
    all: IterMut<'a, Moment>,
    range: Range<usize>,
}

impl<'a> Moments<'a> {
    /// The next moments, if the optimizer has more.
    fn next(&mut self) -> Option<&'a mut [f32]> {
        let moment = self.all.next()?;
        Some(&mut moment.values[self.range.clone()])
    }

    /// The next moments, which the optimizer has with any momentum.
    fn always(&mut self) -> &'a mut [f32] {
        match self.next() {
            Some(values) => values,
            None => unreachable!("an optimizer is restored with the moments that it names"),
        }
    }
}
