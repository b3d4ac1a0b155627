//! Cross entropy of scores against class indices, with class weights, label smoothing and padding.
//!
//! Forward reads the scores once. If a backward pass follows and no other tensor shares the memory of the
//! scores, forward overwrites the scores with their gradient. Otherwise, forward saves two numbers for each
//! row, and backward computes the probabilities again. The same loss composed of Burn's operators stores five
//! matrices of the size of the scores.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Int, Tensor};

use super::scaled;

use crate::kernels::loss::rows::{Classes, Row, gradients, losses};
use crate::kernels::simd::Level;
use crate::ops::extension::{Backward, Saved, on_flex_or};
use crate::ops::flex_tensor::{contiguous, f32_on_flex, tensor, values};
use crate::runtime::memory::Buffer;
use crate::runtime::poll::Poll;
use crate::runtime::threads::each;

/// Options of [`cross_entropy_of_indices`].
pub(crate) struct IndexLoss<'a> {
    /// Rows with one of these targets do not count.
    pub pad_tokens: Option<&'a [usize]>,
    /// Class weights, `[classes]`.
    pub weights: Option<&'a Tensor<1>>,
    /// Label smoothing, from 0 to 1.
    pub smoothing: Option<f32>,
}

/// Returns the mean cross entropy `[1]` of `scores` `[batch, classes]`, with the options of `loss`. If the
/// operator does not support the scores or the targets, returns `composed(scores)`.
pub(crate) fn cross_entropy_of_indices(
    scores: Tensor<2>,
    targets: &Tensor<1, Int>,
    loss: IndexLoss<'_>,
    composed: impl FnOnce(Tensor<2>) -> Tensor<1>,
) -> Tensor<1> {
    let labels = |[scores]: [&FlexTensor; 1]| Labels::from_targets(scores, targets, loss);
    let forward = |[scores]: [FlexTensor; 1], labels: Labels, backward| labels.forward(scores, backward);
    on_flex_or("cross_entropy", [scores.into_dispatch()], labels, forward, |[scores]| {
        composed(Tensor::from_dispatch(scores))
    })
}

/// The class of each row, and the weights of classes and rows.
#[derive(Debug, Clone)]
struct Labels {
    rows: Vec<Row>,
    classes: usize,
    /// Class weights; `None` if all are 1.
    weights: Option<FlexTensor>,
    /// The sum of the class weights.
    uniform: f32,
    smoothing: Option<f32>,
    /// The sum of the weights of the rows that count.
    normalizer: f64,
}

/// Number of scores in a block of rows. The poll callback is called between blocks.
const BLOCK: usize = 1 << 14;

impl Labels {
    fn from_targets(
        scores: &FlexTensor,
        targets: &Tensor<1, Int>,
        IndexLoss { pad_tokens, weights, smoothing }: IndexLoss<'_>,
    ) -> Option<Self> {
        let [batch, classes] = scores.shape().dims();
        let is_tracked = weights.is_some_and(Tensor::is_tracked);
        if scores.dtype() != DType::F32 || batch * classes == 0 || targets.dims() != [batch] || is_tracked {
            return None;
        }
        let weights = match weights {
            Some(weights) if weights.dims() == [classes] => Some(f32_on_flex(weights)?),
            Some(_) => return None,
            None => None,
        };
        let targets = targets.clone().inner().into_data().convert_dtype(DType::I64);
        let rows = targets.as_slice::<i64>().ok()?.iter().map(|&target| {
            let target = usize::try_from(target).ok().filter(|&target| target < classes)?;
            let is_padding = pad_tokens.is_some_and(|padding| padding.contains(&target));
            Some(Row::new(target, is_padding))
        });
        let rows: Vec<Row> = rows.collect::<Option<_>>()?;
        let of_classes = weights.as_ref().map(values);
        let weight = |row: &Row| of_classes.map_or(1.0, |weights| f64::from(weights[row.target]));
        let normalizer = rows.iter().filter(|row| !row.is_padding).map(weight).sum();
        let uniform = of_classes
            .map_or(classes as f64, |weights| weights.iter().map(|&weight| f64::from(weight)).sum());
        Some(Self { rows, classes, weights, uniform: uniform as f32, smoothing, normalizer })
    }

    fn forward(mut self, scores: FlexTensor, backward: bool) -> (FlexTensor, Backward<impl Saved, 1>) {
        let (mut scores, level) = (contiguous(scores), Level::current());
        let mut rows = std::mem::take(&mut self.rows);
        let (at_once, factor) = (self.rows_at_once(), (1.0 / self.normalizer) as f32);
        let size = at_once * self.classes;
        // About a nanosecond for a score: an exponential, and several passes.
        let time = rows.len() * self.classes;
        // If nothing else refers to the scores, the gradient overwrites them while they are in the cache.
        let is_gradient = backward && scores.is_unique();
        if is_gradient {
            let blocks = rows.chunks_mut(at_once).zip(scores.storage_mut::<f32>().chunks_mut(size));
            each(time, blocks, |(rows, target)| {
                losses(level, self.counted(), target, rows);
                gradients(level, self.counted(), rows, None, target, factor);
            });
        } else {
            let blocks = rows.chunks_mut(at_once).zip(values(&scores).chunks(size));
            each(time, blocks, |(rows, scores)| losses(level, self.counted(), scores, rows));
        }
        let counting = rows.iter().filter(|row| !row.is_padding);
        let loss = counting.map(|row| f64::from(row.loss)).sum::<f64>() / self.normalizer;
        self.rows = rows;
        let backward = Backward::new(move |upstream, _of_scores| {
            if is_gradient {
                return [Some(scaled(scores, &upstream))];
            }
            let factor = (f64::from(values(&upstream)[0]) / self.normalizer) as f32;
            let (mut gradient, poll) = (Buffer::new(values(&scores).len()), Poll::current());
            let blocks = values(&scores).chunks(size).zip(gradient.chunks_mut(size));
            let blocks = self.rows.chunks(at_once).zip(blocks);
            each(time, blocks, |(rows, (source, target))| {
                gradients(level, self.counted(), rows, Some(source), target, factor);
                poll.call();
            });
            [Some(gradient.into_tensor(&scores.shape()))]
        });
        (tensor(vec![loss as f32], &[1]), backward)
    }

    /// Returns the weights and the smoothing of the classes, for the kernels.
    fn counted(&self) -> Classes<'_> {
        let weights = self.weights.as_ref().map_or(&[][..], values);
        Classes { number: self.classes, weights, uniform: self.uniform, smoothing: self.smoothing }
    }

    /// Returns the number of rows in a block.
    fn rows_at_once(&self) -> usize {
        (BLOCK / self.classes).max(1)
    }
}
