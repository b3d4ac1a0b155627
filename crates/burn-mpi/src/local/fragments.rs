//! A fragment: the part of the parameters that synchronises at the same steps. It has the values on which all
//! ranks agreed last, and the state of the outer optimizer.
//!
//! A fragment consists of whole parameters. The largest parameter goes first, each to the fragment with the
//! fewest values so far. Fragments therefore have about equal sizes. Parameters of equal sizes, such as those
//! of a transformer's blocks, are dealt in turn, as in the strided pattern of Streaming DiLoCo (Douillard et
//! al., arXiv 2501.18512, 2025).

use std::cmp::Reverse;
use std::ops::Range;

use super::message::{Note, digest};
use super::options::{LocalError, Outer};
use crate::ParamLayout;

/// The part of the parameters that synchronises at the same steps. Its values are contiguous here, in visit
/// order.
pub(super) struct Fragment {
    /// Ranges of its parameters in the flat buffer of all parameters.
    pub ranges: Vec<Range<usize>>,
    /// The values after the last synchronisation, equal on all ranks.
    pub anchor: Vec<f32>,
    /// Velocity of the outer optimizer; empty without an outer optimizer.
    pub velocity: Vec<f32>,
    /// Samples of all ranks in the last synchronisation; 0 before the first one.
    pub total: u64,
    pub exchange: Exchange,
}

/// The synchronisation of a fragment.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Exchange {
    /// None is in progress.
    Idle,
    /// The transport has the message, which was scaled by this power of two.
    InFlight { scale: f32 },
    /// The sum of all ranks' messages, not scaled, until the step at which it is due.
    Arrived(Vec<f32>),
}

/// Divides the trainable parameters of `layout` into fragments.
pub(super) fn divide(layout: &ParamLayout, fragments: usize) -> Result<Vec<Vec<Range<usize>>>, LocalError> {
    let trainable = layout.specs().iter().filter(|spec| spec.trainable && !spec.range.is_empty());
    let mut largest_first: Vec<Range<usize>> = trainable.map(|spec| spec.range.clone()).collect();
    let parameters = largest_first.len();
    if fragments > parameters.max(1) {
        return Err(LocalError::FewParameters { fragments, parameters });
    }
    // A stable sort: parameters of equal sizes keep their order.
    largest_first.sort_by_key(|range| Reverse(range.len()));
    let mut parts = vec![(0, Vec::new()); fragments];
    for range in largest_first {
        if let Some((values, ranges)) = parts.iter_mut().min_by_key(|(values, _)| *values) {
            *values += range.len();
            ranges.push(range);
        }
    }
    let in_visit_order = |(_, mut ranges): (usize, Vec<Range<usize>>)| {
        ranges.sort_by_key(|range| range.start);
        ranges
    };
    Ok(parts.into_iter().map(in_visit_order).collect())
}

impl Fragment {
    pub fn new(ranges: Vec<Range<usize>>, params: &[f32], outer: Outer) -> Self {
        let mut fragment =
            Self { ranges, anchor: Vec::new(), velocity: Vec::new(), total: 0, exchange: Exchange::Idle };
        fragment.adopt(params);
        if outer != Outer::None {
            fragment.velocity = vec![0.0; fragment.anchor.len()];
        }
        fragment
    }

    /// Number of values of a message on `ranks` ranks.
    pub fn message_length(&self, ranks: usize) -> usize {
        self.anchor.len() + ranks * Note::VALUES
    }

    /// Returns, for each parameter, its range in the flat buffer and its range in this fragment. Loops over
    /// slices are vectorised; loops over single values of several ranges are not.
    fn parts(&self) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        self.ranges.iter().scan(0, |end, range| {
            let start = *end;
            *end += range.len();
            Some((range.clone(), start..*end))
        })
    }

    /// Appends `weight` times the change of `params` since the last synchronisation to `message`.
    pub fn append_change(&self, params: &[f32], weight: f32, message: &mut Vec<f32>) {
        for (flat, own) in self.parts() {
            let values = params[flat].iter().zip(&self.anchor[own]);
            message.extend(values.map(|(value, anchor)| weight * (value - anchor)));
        }
    }

    /// Returns the message of `rank` of `ranks`: its change, weighted by its samples times `scale`, and its
    /// note.
    pub fn message(
        &self,
        params: &[f32],
        samples: u64,
        scale: f32,
        (rank, ranks): (usize, usize),
    ) -> Vec<f32> {
        let mut message = Vec::with_capacity(self.message_length(ranks));
        self.append_change(params, samples as f32 * scale, &mut message);
        Note { samples, digest: digest(&self.anchor) }.write(rank, ranks, &mut message);
        message
    }

    /// Returns the notes of all ranks in the sum of their messages.
    pub fn notes(&self, sum: &[f32]) -> Vec<Note> {
        Note::read_all(&sum[self.anchor.len()..])
    }

    /// Removes the scale from the changes in the sum of all ranks' messages.
    pub fn unscale(&self, sum: &mut [f32], scale: f32) {
        if scale != 1.0 {
            sum[..self.anchor.len()].iter_mut().for_each(|value| *value /= scale);
        }
    }

    /// Moves the anchor by the mean of the ranks' changes. `sum` has the sum of the changes, each multiplied
    /// by its rank's samples; `total` is the number of samples of all ranks. If no rank has trained, there is
    /// no change.
    pub fn update(&mut self, sum: &[f32], total: u64, outer: Outer) {
        self.total = total;
        if total == 0 {
            return;
        }
        let total = total as f32;
        match outer {
            Outer::None => {
                self.anchor.iter_mut().zip(sum).for_each(|(anchor, sum)| *anchor += sum / total);
            }
            Outer::Nesterov { learning_rate, momentum } => {
                let velocity = self.velocity.iter_mut();
                for ((anchor, velocity), sum) in self.anchor.iter_mut().zip(velocity).zip(sum) {
                    let gradient = -(sum / total);
                    *velocity = momentum * *velocity + gradient;
                    *anchor -= learning_rate * (gradient + momentum * *velocity);
                }
            }
        }
    }

    /// Moves `params` towards the anchor; `merge` is the share of the present values in the result.
    pub fn merge(&self, params: &mut [f32], merge: f32) {
        for (flat, own) in self.parts() {
            let (params, anchor) = (&mut params[flat], &self.anchor[own]);
            if merge == 0.0 {
                params.copy_from_slice(anchor);
            } else {
                let values = params.iter_mut().zip(anchor);
                values.for_each(|(value, anchor)| *value = merge * *value + (1.0 - merge) * anchor);
            }
        }
    }

    /// Sets `params` to the anchor plus `change`.
    pub fn set(&self, params: &mut [f32], change: &[f32]) {
        for (flat, own) in self.parts() {
            let values = params[flat].iter_mut().zip(&self.anchor[own.clone()]).zip(&change[own]);
            values.for_each(|((value, anchor), change)| *value = anchor + change);
        }
    }

    /// Makes the values in `params` the anchor.
    pub fn adopt(&mut self, params: &[f32]) {
        self.anchor.clear();
        self.ranges.iter().for_each(|range| self.anchor.extend_from_slice(&params[range.clone()]));
    }
}

#[cfg(test)]
mod tests {
    use burn::module::Param;
    use burn::tensor::{Device, Tensor};

    use super::*;

    fn layout(lengths: &[usize]) -> ParamLayout {
        let device = Device::flex().autodiff();
        let param = |&length: &usize| Param::from_tensor(Tensor::<1>::zeros([length], &device));
        ParamLayout::of_module(&lengths.iter().map(param).collect::<Vec<_>>())
    }

    #[test]
    fn parameters_are_divided_into_fragments_of_about_equal_sizes() {
        for (lengths, fragments) in [
            (vec![8, 8, 8, 8, 8, 8, 8], 3),
            (vec![60, 40, 100], 2),
            (vec![1, 500, 30, 30, 7, 250, 0, 250], 4),
            (vec![5], 1),
        ] {
            let layout = layout(&lengths);
            let parts = divide(&layout, fragments).unwrap();
            let mut all: Vec<Range<usize>> = parts.concat();
            all.sort_by_key(|range| range.start);
            let whole: Vec<Range<usize>> = layout.specs().iter().map(|spec| spec.range.clone()).collect();
            assert_eq!(all, whole.into_iter().filter(|range| !range.is_empty()).collect::<Vec<_>>());
            let sizes: Vec<usize> = parts.iter().map(|part| part.iter().map(Range::len).sum()).collect();
            let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            assert!(most - least <= *lengths.iter().max().unwrap(), "{sizes:?}");
        }
        let parts = divide(&layout(&[8; 6]), 2).unwrap();
        assert_eq!(parts[0], [0..8, 16..24, 32..40], "parameters of equal sizes are dealt in turn");
        let parts = divide(&layout(&[60, 40, 100]), 2).unwrap();
        assert_eq!(parts[1], [0..60, 60..100], "the largest parameter comes first");
        assert_eq!(
            divide(&layout(&[3, 0, 3]), 3),
            Err(LocalError::FewParameters { fragments: 3, parameters: 2 })
        );
        assert_eq!(divide(&layout(&[]), 1), Ok(vec![Vec::new()]));
    }
}
