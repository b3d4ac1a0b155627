//! Steps that do not fit the bucket plan on some rank: gradients that come after
//! their bucket has started, and parameters without a gradient.
//!
//! A bucket starts when each of its parameters has been registered as often as
//! the plan expects. A network may use a parameter more often than that, on one
//! rank only, or run another backward after the last one. The difference is then
//! kept here and reduced at the end of the step, on all ranks.

use std::collections::BTreeMap;

use crate::{Collective, CommError, Reduction, Wire};

/// Irregularities of a step, the same on every rank.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Irregular {
    /// Parameters with a late gradient on some rank.
    pub late: Vec<usize>,
    /// Parameters without a gradient on any rank.
    pub absent: Vec<usize>,
}

/// This rank's late gradients, scaled by its share of the samples.
pub(crate) struct LateGradients {
    /// Values of each parameter.
    lengths: Vec<usize>,
    sums: BTreeMap<usize, Vec<f32>>,
}

impl LateGradients {
    /// For parameters of these lengths, in visit order.
    pub fn new(lengths: Vec<usize>) -> Self {
        Self { lengths, sums: BTreeMap::new() }
    }

    /// Begins a step.
    pub fn clear(&mut self) {
        self.sums.clear();
    }

    /// Whether this rank has any.
    pub fn any(&self) -> bool {
        !self.sums.is_empty()
    }

    /// Adds `gradient * weight` to the late gradient of `param`.
    pub fn add(&mut self, param: usize, gradient: &[f32], weight: f32) {
        let sum = self.sums.entry(param).or_insert_with(|| vec![0.0; gradient.len()]);
        sum.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value * weight);
    }

    /// Exchanges which parameters are late on this rank, and for which it has
    /// `written` a gradient.
    pub fn exchange(
        &self,
        collective: &mut dyn Collective,
        how: Reduction,
        written: &[bool],
    ) -> Result<Irregular, CommError> {
        let params = self.lengths.len();
        let late = (0..params).map(|param| self.sums.contains_key(&param));
        let flags: Vec<f32> =
            late.chain(written.iter().copied()).map(|flag| f32::from(u8::from(flag))).collect();
        let ranks = all_reduce(collective, how, flags)?;
        Ok(Irregular {
            late: (0..params).filter(|&param| ranks[param] > 0.0).collect(),
            absent: (0..params).filter(|&param| ranks[params + param] == 0.0).collect(),
        })
    }

    /// The sums over ranks of late gradients, by parameter.
    pub fn sums(
        &self,
        collective: &mut dyn Collective,
        how: Reduction,
        irregular: &Irregular,
    ) -> Result<Vec<(usize, Vec<f32>)>, CommError> {
        let zeros = |param: usize| vec![0.0; self.lengths[param]];
        let own = |&param: &usize| self.sums.get(&param).cloned().unwrap_or_else(|| zeros(param));
        if irregular.late.is_empty() {
            return Ok(Vec::new());
        }
        let all = all_reduce(collective, how, irregular.late.iter().flat_map(own).collect())?;
        let mut rest = &all[..];
        let mut take = |param: usize| {
            let (sum, after) = rest.split_at(self.lengths[param]);
            rest = after;
            (param, sum.to_vec())
        };
        Ok(irregular.late.iter().map(|&param| take(param)).collect())
    }
}

/// Sums `values` over ranks. Always sent as f32, whatever the gradients' type: such
/// steps are rare.
pub(super) fn all_reduce(
    collective: &mut dyn Collective,
    how: Reduction,
    mut values: Vec<f32>,
) -> Result<Vec<f32>, CommError> {
    if collective.world_size() > 1 {
        let mut wire = Wire::F32(values);
        collective.all_reduce(&mut wire, how)?;
        values = match wire {
            Wire::F32(values) => values,
            _ => unreachable!("a buffer comes back as it left"),
        };
    }
    Ok(values)
}
