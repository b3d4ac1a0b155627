//! What is set between steps: the order of arrival, values that travel along, overlap.

use super::GradientSync;
use crate::ddp::options::plan_of;
use crate::{ArrivalOrder, CommError};

impl GradientSync {
    /// Takes the order of an earlier run, so that its steps are continued to
    /// the bit. Between steps only.
    ///
    /// # Errors
    /// [`CommError::Interrupted`] after a backward that panicked.
    pub fn adopt(&mut self, arrival: ArrivalOrder) -> Result<(), CommError> {
        self.set_plan(&arrival)?;
        self.arrival = Some(arrival);
        self.adopt_next = false;
        Ok(())
    }

    /// Makes room for `values` that [`reduce_with`](Self::reduce_with) averages.
    /// Between steps only, and on all ranks alike.
    ///
    /// # Errors
    /// [`CommError::Interrupted`] after a backward that panicked.
    pub fn carry(&mut self, values: usize) -> Result<(), CommError> {
        self.carried = values;
        let world_size = self.world.size();
        let buckets = self.buckets()?;
        buckets.set_plan(buckets.plan.clone().carrying(values, world_size));
        Ok(())
    }

    pub(super) fn set_plan(&mut self, arrival: &ArrivalOrder) -> Result<(), CommError> {
        let plan = plan_of(&self.layout, &arrival.order, &self.options, self.world.size());
        self.averaged = false;
        let plan = plan.carrying(self.carried, self.world.size());
        let buckets = self.buckets()?;
        buckets.uses.clone_from(&arrival.uses);
        buckets.set_plan(plan);
        Ok(())
    }

    /// The order learned in the first step; none before it is over.
    pub fn arrival(&self) -> Option<&ArrivalOrder> {
        self.arrival.as_ref()
    }

    /// Sets whether buckets travel while backward runs; to be changed between
    /// steps, on all ranks.
    ///
    /// # Errors
    /// [`CommError::Interrupted`] after a backward that panicked.
    pub fn set_overlap(&mut self, overlap: bool) -> Result<(), CommError> {
        self.options.overlap = overlap;
        self.buckets()?.set_overlap(overlap);
        Ok(())
    }
}
