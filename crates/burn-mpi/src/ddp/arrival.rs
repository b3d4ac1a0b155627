//! [`ArrivalOrder`]: the order in which the gradients of a model become final during backward, and how often
//! the model uses each parameter. A gradient is final when backward no longer changes it.
//!
//! Gradients are sent in buckets, buffers of several gradients. Buckets are packed in this order, so that the
//! first bucket can be sent early. The order is not known before the first backward. So each rank records a
//! [`Probe`] in the first step: the order in which its gradients become final. Until the first step has
//! ended, buckets are packed in reverse visit order; visit order is the order in which Burn visits the
//! parameters of a module. Reverse visit order differs from the recorded order: the gradients of Burn's
//! linear biases, for example, become final last of all.
//!
//! The lowest rank that ran a backward determines the order for all ranks. If a model uses a parameter
//! several times, autodiff adds to the parameter's gradient once for each use. Ranks may use a parameter a
//! different number of times, so a bucket waits for the largest number of uses that a rank has recorded so
//! far.

use serde::{Deserialize, Serialize};

use crate::{CommError, ParamLayout};

/// The order in which the gradients of a model become final, and the uses of its parameters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrivalOrder {
    /// Trainable parameters, by their index in visit order.
    pub order: Vec<usize>,
    /// Number of times that the model uses each parameter in a forward pass.
    pub uses: Vec<usize>,
}

impl ArrivalOrder {
    /// Checks that `order` contains each trainable parameter of `layout` once, and that `uses` has a number
    /// above 0 for each parameter.
    pub(crate) fn check(&self, layout: &ParamLayout) -> Result<(), CommError> {
        let mut sorted = self.order.clone();
        sorted.sort_unstable();
        let trainable: Vec<usize> = unknown(layout).into_iter().rev().collect();
        if sorted != trainable {
            return Err(CommError::Arrival(format!(
                "the order {:?} must list each of the {} trainable parameters once",
                self.order,
                trainable.len()
            )));
        }
        let params = layout.specs().len();
        if self.uses.len() == params && self.uses.iter().all(|&uses| uses > 0) {
            Ok(())
        } else {
            Err(CommError::Arrival(format!(
                "the uses {:?} must be {params} numbers above 0, one for each parameter",
                self.uses
            )))
        }
    }
}

/// What one rank records in a backward. Autodiff registers the gradient of a parameter once for each use of
/// the parameter.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Probe {
    /// Parameters in the order of their last registrations.
    order: Vec<usize>,
    /// Number of registrations of each parameter; empty if this rank has run no backward.
    uses: Vec<usize>,
}

impl Probe {
    /// Creates the probe of a backward. `registered` contains the parameter of each registration, in order.
    /// `params` is the number of parameters.
    pub fn new(registered: Vec<usize>, params: usize) -> Self {
        let (mut order, mut uses) = (Vec::new(), vec![0; params]);
        for param in registered.into_iter().rev() {
            if uses[param] == 0 {
                order.push(param);
            }
            uses[param] += 1;
        }
        order.reverse();
        Self { order, uses }
    }
}

/// Returns the order that applies until the first step has ended: trainable parameters in reverse visit
/// order.
pub(crate) fn unknown(layout: &ParamLayout) -> Vec<usize> {
    let trainable = |&param: &usize| layout.specs()[param].trainable;
    (0..layout.specs().len()).rev().filter(trainable).collect()
}

/// Combines all ranks' probes into one order; `None` if no rank has run a backward yet. The result has no
/// fewer uses of a parameter than `known`.
pub(crate) fn merge(
    layout: &ParamLayout,
    probes: &[Probe],
    known: Option<&ArrivalOrder>,
) -> Option<ArrivalOrder> {
    let first = probes.iter().find(|probe| !probe.uses.is_empty())?;
    let mut order = first.order.clone();
    // Parameters that the probe does not contain come last, in reverse visit order.
    order.extend(unknown(layout).into_iter().filter(|param| !first.order.contains(param)));
    let uses = (0..layout.specs().len())
        .map(|param| {
            let seen = probes.iter().filter_map(|probe| probe.uses.get(param)).copied();
            seen.chain(known.map(|known| known.uses[param])).max().unwrap_or(0).max(1)
        })
        .collect();
    Some(ArrivalOrder { order, uses })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ParamSpec;

    fn layout() -> ParamLayout {
        let spec = |param: usize| ParamSpec {
            name: param.to_string(),
            shape: vec![1],
            range: param..param + 1,
            dtype: burn::tensor::DType::F32,
            transposed: false,
            trainable: param != 2,
            tied_to: None,
        };
        ParamLayout { specs: (0..5).map(spec).collect(), fields: Vec::new(), shadowed: None }
    }

    #[test]
    fn the_lowest_rank_with_a_backward_gives_the_order_and_all_ranks_the_uses() {
        let probes = [Probe::default(), Probe::new(vec![3, 1, 3], 5), Probe::new(vec![0, 0, 0, 4], 5)];
        let learned = merge(&layout(), &probes, None).unwrap();
        assert_eq!(learned.order, [1, 3, 4, 0], "by last registration, then the unseen");
        assert_eq!(learned.uses, [3, 1, 1, 2, 1]);
    }

    #[test]
    fn an_order_from_a_file_is_checked() {
        let check = |order: &[usize], uses: &[usize]| {
            ArrivalOrder { order: order.to_vec(), uses: uses.to_vec() }.check(&layout())
        };
        assert!(check(&[4, 0, 3, 1], &[1, 2, 1, 1, 1]).is_ok());
        for (order, uses) in [
            (&[4, 0, 3][..], &[1; 5][..]),
            (&[4, 0, 3, 3], &[1; 5]),
            (&[4, 0, 3, 2], &[1; 5]),
            (&[4, 0, 3, 99], &[1; 5]),
            (&[4, 0, 3, 1, 1], &[1; 5]),
            (&[4, 0, 3, 1], &[1; 4]),
            (&[4, 0, 3, 1], &[1, 1, 1, 0, 1]),
        ] {
            assert!(matches!(check(order, uses), Err(CommError::Arrival(_))));
        }
    }

    #[test]
    fn uses_never_fall() {
        let known = ArrivalOrder { order: vec![0, 1, 3, 4], uses: vec![1, 7, 1, 1, 1] };
        let learned = merge(&layout(), &[Probe::new(vec![0, 1, 3, 4], 5)], Some(&known)).unwrap();
        assert_eq!(learned.uses, known.uses);
    }

    #[test]
    fn nothing_is_learned_where_no_rank_has_run_a_backward() {
        assert_eq!(merge(&layout(), &[Probe::default(), Probe::default()], None), None);
    }
}
