//! Settings between steps: order of arrival, additional averaged values, overlap.

use super::GradientSync;
use crate::ddp::options::plan_of;
use crate::{ArrivalOrder, CommError};

impl GradientSync {
    /// Restores the order of an earlier run, so that a resumed run is bit-identical.
    /// Between steps only.
    ///
    /// # Errors
    /// [`CommError::Arrival`] if it is not an order of this module's parameters,
    /// [`CommError::Interrupted`] after a backward that panicked.
    pub fn adopt(&mut self, arrival: ArrivalOrder) -> Result<(), CommError> {
        arrival.check(&self.layout)?;
        self.set_plan(&arrival)?;
        self.arrival = Some(arrival);
        self.adopt_next = false;
        Ok(())
    }

    /// Reserves space for `values` that [`reduce_with`](Self::reduce_with) averages.
    /// Between steps only, with the same number on all ranks.
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

    /// The order determined in the first step; `None` before it has ended.
    pub fn arrival(&self) -> Option<&ArrivalOrder> {
        self.arrival.as_ref()
    }

    /// Sets whether buckets are reduced during backward. Call it between steps, on all
    /// ranks.
    ///
    /// # Errors
    /// [`CommError::Interrupted`] after a backward that panicked.
    pub fn set_overlap(&mut self, overlap: bool) -> Result<(), CommError> {
        self.options.overlap = overlap;
        self.buckets()?.options.overlap = overlap;
        Ok(())
    }
}
