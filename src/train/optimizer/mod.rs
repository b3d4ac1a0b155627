//! Optimizers over flat memory, one pass a parameter, with PyTorch's arithmetic:
//! what depends on the step alone in f64, everything else element by element in
//! f32. Each element is alone, so the bits are the same at every level of vector
//! instructions.

mod adam;
mod rmsprop;
mod sgd;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::slice::IterMut;
use std::str::FromStr;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::{Moment, TrainError};
use crate::names;

/// One update of an optimizer: what is alike for all elements, computed once.
trait Step {
    /// Whether it takes a momentum from the user. Otherwise its momentum is the
    /// decay rate of its first moments.
    const TAKES_MOMENTUM: bool;
    /// PyTorch's default of it.
    const DEFAULT_MOMENTUM: f64;

    /// What it remembers of each weight, with a momentum above 0 or without.
    fn moments(momentum: bool) -> &'static [&'static str];

    /// Update number `update`, from 1.
    fn new(rate: Rate, weight_decay: f64, update: u64) -> Self;

    /// Updates one parameter, whose moments come in the order of their names.
    fn apply(&self, params: &mut [f32], grads: &[f32], moments: Moments<'_>);
}

/// The optimizers: a line for each.
macro_rules! optimizers {
    ($($(#[$meta:meta])* $rule:ident: $step:ty,)+) => {
        /// How gradients become new weights.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
        #[serde(rename_all = "lowercase")]
        pub enum Rule {
            $($(#[$meta])* $rule,)+
        }

        impl Rule {
            /// Whether it takes a momentum from the user; Adam and AdamW have the
            /// decay rate of their first moments instead.
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

            /// What it remembers of each weight.
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

        /// A step of one of the optimizers. An enum, as a trait object would be
        /// one more allocation in every step.
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
    /// Adam with weight decay apart from the gradient (Loshchilov and Hutter,
    /// 2019).
    Adamw: adam::Adam<true>,
    /// Stochastic gradient descent, with momentum (Polyak, 1964) if asked for.
    Sgd: sgd::Sgd,
    /// RMSprop (Hinton, 2012), with momentum if asked for.
    Rmsprop: rmsprop::Rmsprop,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&names::name(self))
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        names::parse("optimizer", text)
    }
}

/// What a schedule changes from step to step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Learning rate.
    pub lr: f64,
    /// Momentum of SGD and RMSprop; of Adam and AdamW the decay rate of the
    /// first moments, which PyTorch's schedules treat alike.
    pub momentum: f64,
}

/// An optimizer and what it remembers.
#[derive(Debug, Clone, PartialEq)]
pub struct Optimizer {
    rule: Rule,
    weight_decay: f64,
    moments: Vec<Moment>,
    updates: u64,
}

impl Optimizer {
    /// Zero moments for `length` parameters. `momentum` says whether SGD and
    /// RMSprop will be given any.
    pub fn new(rule: Rule, weight_decay: f64, momentum: bool, length: usize) -> Self {
        let zeros = |&name: &&str| Moment { name: name.to_owned(), values: vec![0.0; length] };
        let moments = rule.moments(momentum).iter().map(zeros).collect();
        Self { rule, weight_decay, moments, updates: 0 }
    }

    /// What it remembers, each as long as the parameters.
    pub fn moments(&self) -> &[Moment] {
        &self.moments
    }

    /// Updates made.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// Goes on from `moments` after `updates` updates.
    ///
    /// # Errors
    /// When they are another optimizer's.
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

    /// Begins an update: the parameters follow, each through
    /// `Update::apply` once.
    pub fn begin(&mut self, rate: Rate) -> Update<'_> {
        self.updates += 1;
        let step = self.rule.step(rate, self.weight_decay, self.updates);
        Update { moments: &mut self.moments, step }
    }
}

/// One update under way.
pub struct Update<'a> {
    moments: &'a mut [Moment],
    step: AnyStep,
}

impl Update<'_> {
    /// Updates the parameters `params`, which lie at `offset` in the flat
    /// buffer, by their gradients.
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
    /// The next, where the optimizer has one more.
    fn next(&mut self) -> Option<&'a mut [f32]> {
        let moment = self.all.next()?;
        Some(&mut moment.values[self.range.clone()])
    }

    /// The next, which the optimizer has whatever its momentum.
    fn always(&mut self) -> &'a mut [f32] {
        match self.next() {
            Some(values) => values,
            None => unreachable!("an optimizer is restored with the moments that it names"),
        }
    }
}
