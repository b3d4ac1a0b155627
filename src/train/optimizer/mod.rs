//! Optimizers over flat memory, one pass a parameter, with PyTorch's arithmetic:
//! what depends on the step alone in f64, everything else element by element in
//! f32. Each element is alone, so the bits are the same at every level of vector
//! instructions.

mod adam;
mod rmsprop;
mod sgd;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use super::{Moment, TrainError};

/// How gradients become new weights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rule {
    /// Adam (Kingma and Ba, 2015); weight decay is an L2 penalty.
    #[default]
    Adam,
    /// Adam with weight decay apart from the gradient (Loshchilov and Hutter,
    /// 2019).
    Adamw,
    /// Stochastic gradient descent, with momentum (Polyak, 1964) if asked for.
    Sgd,
    /// RMSprop (Hinton, 2012), with momentum if asked for.
    Rmsprop,
}

impl Rule {
    const ALL: [Self; 4] = [Self::Adam, Self::Adamw, Self::Sgd, Self::Rmsprop];

    /// The option's value for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Adam => "adam",
            Self::Adamw => "adamw",
            Self::Sgd => "sgd",
            Self::Rmsprop => "rmsprop",
        }
    }

    /// Whether it takes a momentum from the user; Adam and AdamW have the decay
    /// rate of their first moments instead.
    pub fn takes_momentum(self) -> bool {
        matches!(self, Self::Sgd | Self::Rmsprop)
    }

    /// PyTorch's default momentum, or decay rate of the first moments.
    pub fn default_momentum(self) -> f64 {
        if self.takes_momentum() { 0.0 } else { 0.9 }
    }

    /// What it remembers of each weight.
    fn moments(self, momentum: bool) -> &'static [&'static str] {
        match (self, momentum) {
            (Self::Adam | Self::Adamw, _) => &["first", "second"],
            (Self::Sgd, false) => &[],
            (Self::Sgd, true) => &["velocity"],
            (Self::Rmsprop, false) => &["square"],
            (Self::Rmsprop, true) => &["square", "velocity"],
        }
    }
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|rule| rule.name() == text);
        found.ok_or_else(|| format!("unknown optimizer {text}: choose adam, adamw, sgd or rmsprop"))
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
    /// [`Update::apply`] once.
    pub fn begin(&mut self, rate: Rate) -> Update<'_> {
        self.updates += 1;
        let step = match self.rule {
            Rule::Adam => Step::Adam(adam::Step::new(rate, self.weight_decay, false, self.updates)),
            Rule::Adamw => Step::Adam(adam::Step::new(rate, self.weight_decay, true, self.updates)),
            Rule::Sgd => Step::Sgd(sgd::Step::new(rate, self.weight_decay)),
            Rule::Rmsprop => Step::Rmsprop(rmsprop::Step::new(rate, self.weight_decay)),
        };
        Update { moments: &mut self.moments, step }
    }
}

/// One update under way.
pub struct Update<'a> {
    moments: &'a mut [Moment],
    step: Step,
}

enum Step {
    Adam(adam::Step),
    Sgd(sgd::Step),
    Rmsprop(rmsprop::Step),
}

impl Update<'_> {
    /// Updates the parameters `params`, which lie at `offset` in the flat
    /// buffer, by their gradients.
    pub fn apply(&mut self, offset: usize, params: &mut [f32], grads: &[f32]) {
        let range = offset..offset + params.len();
        let mut moments = self.moments.iter_mut().map(|moment| &mut moment.values[range.clone()]);
        match (&self.step, moments.next(), moments.next()) {
            (Step::Adam(step), Some(first), Some(second)) => step.apply(params, grads, first, second),
            (Step::Sgd(step), velocity, None) => step.apply(params, grads, velocity),
            (Step::Rmsprop(step), Some(square), velocity) => step.apply(params, grads, square, velocity),
            _ => unreachable!("an optimizer has the moments of its rule"),
        }
    }
}
