//! [`LocalState`]: the state of local updates between two steps, for checkpoints.

use serde::{Deserialize, Serialize};

use super::LocalUpdates;
use super::fragments::{Exchange, Fragment};
use super::message::digest;
use super::options::{LocalError, Outer};
use crate::CommError;
use crate::calling::calling;

/// The state of [`LocalUpdates`] between two steps. All fields except `samples` are equal on all ranks. The
/// parameters, the local optimizer and the samples differ between ranks, so a checkpoint needs those of each
/// rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LocalState {
    /// Number of local steps.
    pub steps: usize,
    /// The parts of the parameters that synchronise at different steps.
    pub fragments: Vec<FragmentState>,
    /// For each fragment, the number of samples that this rank has trained since the last synchronisation,
    /// including the samples that a synchronisation in progress counts.
    pub samples: Vec<u64>,
}

/// The state of one fragment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FragmentState {
    /// The values after the last synchronisation.
    pub anchor: Vec<f32>,
    /// The velocity of the outer optimizer; empty without an outer optimizer.
    pub velocity: Vec<f32>,
    /// Samples of all ranks in the last synchronisation; 0 before the first one.
    pub total: u64,
    /// The sum over ranks of a synchronisation that has started and is not due yet; `None` if there is none.
    pub arrived: Option<Vec<f32>>,
}

impl FragmentState {
    /// Returns why this is not the state of `fragment`; `None` if it can be. `is_in_progress` says whether the
    /// options have a synchronisation in progress after the state's step.
    fn misfit(
        &self,
        fragment: &Fragment,
        outer: Outer,
        ranks: usize,
        is_in_progress: bool,
    ) -> Option<String> {
        let (found, expected) = (self.anchor.len(), fragment.anchor.len());
        if found != expected {
            return Some(format!("it has {found} values instead of {expected}"));
        }
        let velocity = if outer == Outer::None { 0 } else { expected };
        let (found, expected) = (self.velocity.len(), velocity);
        if found != expected {
            return Some(format!(
                "its velocity has {found} values instead of {expected}: the outer optimizer differs"
            ));
        }
        match &self.arrived {
            Some(_) if !is_in_progress => Some(
                "it has a synchronisation in progress, which these options do not have after this step"
                    .into(),
            ),
            Some(sum) if sum.len() != fragment.message_length(ranks) => {
                Some(format!("its sum is not that of {ranks} ranks"))
            }
            _ => None,
        }
    }
}

impl LocalUpdates {
    /// Returns the state. Waits for the fragments in flight, and keeps their sums until they are due, so the
    /// training that continues has the same bits as without this call. All ranks must call it after the same
    /// step.
    ///
    /// # Errors
    /// The transport's errors; every later call returns the same error.
    pub fn state(&mut self) -> Result<LocalState, CommError> {
        self.guarded(|this| {
            this.arrive_all()?;
            let fragment = |fragment: &Fragment| FragmentState {
                anchor: fragment.anchor.clone(),
                velocity: fragment.velocity.clone(),
                total: fragment.total,
                arrived: match &fragment.exchange {
                    Exchange::Arrived(sum) => Some(sum.clone()),
                    _ => None,
                },
            };
            Ok(LocalState {
                steps: this.steps,
                fragments: this.fragments.iter().map(fragment).collect(),
                samples: this.samples.clone(),
            })
        })
    }

    /// Continues from a state of the same module, number of ranks and options; the learning rate, the momentum
    /// and the merge factor may differ. The next step has the bits that it had after [`state`](Self::state),
    /// if each rank also restores its own parameters and optimizer. All ranks must call it.
    ///
    /// # Errors
    /// On all ranks: [`SharedError::Elsewhere`](crate::SharedError::Elsewhere) with a [`LocalError::State`] if
    /// the state of a rank does not fit; [`SharedError::Diverged`](crate::SharedError::Diverged) if a part of
    /// the state that should be equal on all ranks is not. After these errors, another state can be restored.
    /// Other errors come from the transport.
    pub fn restore(&mut self, state: LocalState) -> Result<(), CommError> {
        let _calling = calling("restore of local updates");
        self.guarded(Self::arrive_all)?;
        self.world.agree(self.check_state(&state))?;
        self.world.check_equal("the state of local updates", &state.describe())?;
        self.steps = state.steps;
        self.samples = state.samples;
        for (fragment, state) in self.fragments.iter_mut().zip(state.fragments) {
            fragment.anchor = state.anchor;
            fragment.velocity = state.velocity;
            fragment.total = state.total;
            fragment.exchange = state.arrived.map_or(Exchange::Idle, Exchange::Arrived);
        }
        Ok(())
    }

    fn check_state(&self, state: &LocalState) -> Result<(), LocalError> {
        let (found, expected) = (state.fragments.len().min(state.samples.len()), self.fragments.len());
        if found != expected || state.fragments.len() != state.samples.len() {
            return Err(LocalError::State(format!("it has {found} fragments instead of {expected}")));
        }
        let in_progress: Vec<usize> = self.options.in_flight_after(state.steps).collect();
        let fragments = self.fragments.iter().zip(&state.fragments).enumerate();
        for (at, (fragment, state)) in fragments {
            let is_in_progress = in_progress.contains(&at);
            let misfit = state.misfit(fragment, self.options.outer, self.world.size(), is_in_progress);
            if let Some(reason) = misfit {
                return Err(LocalError::State(format!("fragment {at}: {reason}")));
            }
        }
        Ok(())
    }
}

impl LocalState {
    /// Returns a text that differs if a part that should be equal on all ranks differs.
    fn describe(&self) -> String {
        let fragment = |fragment: &FragmentState| {
            let FragmentState { anchor, velocity, total, arrived } = fragment;
            let [anchor, velocity, arrived] =
                [anchor, velocity, arrived.as_ref().unwrap_or(&Vec::new())].map(|values| digest(values));
            format!("{anchor:016x}-{velocity:016x}-{arrived:016x}-{total}")
        };
        let fragments: Vec<String> = self.fragments.iter().map(fragment).collect();
        format!("step {}, digests {}", self.steps, fragments.join(" "))
    }
}
