//! Cross entropy of scores against class indices: the loss of [`CrossEntropyLoss`].
//!
//! Forward reads the scores once, and writes their gradient where they are, if nothing else refers to them.
//! Otherwise it saves two numbers of each row, and backward computes the probabilities again. Burn's composition
//! stores five matrices of the size of the scores.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Int, Tensor};
use rayon::iter::{ParallelBridge, ParallelIterator};

use super::scaled;

use crate::kernels::simd::math::exp;
use crate::kernels::simd::{Level, kernel};
use crate::nn::loss::CrossEntropyLoss;
use crate::ops::extension::{Backward, Saved, on_flex_or};
use crate::ops::flex_tensor::{contiguous, f32_on_flex, tensor, values};
use crate::runtime::memory::Buffer;
use crate::runtime::poll;

/// The mean cross entropy `[1]` of `scores` `[batch, classes]`, with the options of `loss`; or `composed` of the scores,
/// if the operator does not support them or the targets.
pub(crate) fn cross_entropy_of_indices(
    scores: Tensor<2>,
    targets: &Tensor<1, Int>,
    loss: &CrossEntropyLoss,
    composed: impl FnOnce(Tensor<2>) -> Tensor<1>,
) -> Tensor<1> {
    let labels = |[scores]: [&FlexTensor; 1]| Labels::of(scores, targets, loss);
    let forward = |[scores]: [FlexTensor; 1], labels: Labels, backward| labels.forward(scores, backward);
    on_flex_or("cross_entropy", [scores.into_dispatch()], labels, forward, |[scores]| {
        composed(Tensor::from_dispatch(scores))
    })
}

/// The classes of the rows, and how they count.
#[derive(Debug, Clone)]
struct Labels {
    rows: Vec<Row>,
    classes: usize,
    /// The weight of each class, if there are weights.
    weights: Option<FlexTensor>,
    /// The sum of the classes' weights.
    uniform: f32,
    smoothing: Option<f32>,
    /// The sum of the weights of the rows that count.
    normalizer: f64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Row {
    target: usize,
    is_padding: bool,
    /// The highest score.
    highest: f32,
    /// The sum of the exponentials of the scores' distances from it.
    sum: f32,
    /// Weighted, of a row that counts.
    loss: f32,
}

/// Values of a block of rows, between polls.
const BLOCK: usize = 1 << 16;

impl Labels {
    fn of(scores: &FlexTensor, targets: &Tensor<1, Int>, loss: &CrossEntropyLoss) -> Option<Self> {
        let CrossEntropyLoss { pad_tokens, weights, smoothing, .. } = loss;
        let [batch, classes] = scores.shape().dims();
        let is_tracked = weights.as_ref().is_some_and(|weights| weights.is_tracked());
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
            let is_padding = pad_tokens.as_ref().is_some_and(|padding| padding.contains(&target));
            Some(Row { target, is_padding, ..Row::default() })
        });
        let rows: Vec<Row> = rows.collect::<Option<_>>()?;
        let of_classes = weights.as_ref().map(values);
        let weight = |row: &Row| of_classes.map_or(1.0, |weights| f64::from(weights[row.target]));
        let normalizer = rows.iter().filter(|row| !row.is_padding).map(weight).sum();
        let uniform = of_classes
            .map_or(classes as f64, |weights| weights.iter().map(|&weight| f64::from(weight)).sum());
        let (uniform, smoothing) = (uniform as f32, *smoothing);
        Some(Self { rows, classes, weights, uniform, smoothing, normalizer })
    }

    fn forward(mut self, scores: FlexTensor, backward: bool) -> (FlexTensor, Backward<impl Saved, 1>) {
        let (mut scores, level) = (contiguous(scores), Level::current());
        let mut rows = std::mem::take(&mut self.rows);
        let (at_once, factor) = (self.rows_at_once(), (1.0 / self.normalizer) as f32);
        let size = at_once * self.classes;
        // The gradient takes the memory of scores that nothing else refers to while they are in the cache.
        let is_gradient = backward && scores.is_unique();
        if is_gradient {
            let blocks = rows.chunks_mut(at_once).zip(scores.storage_mut::<f32>().chunks_mut(size));
            in_parallel(
                blocks,
                || (),
                |(rows, target)| {
                    losses(level, &self, target, rows);
                    gradients(level, &self, rows, None, target, factor);
                },
            );
        } else {
            let blocks = rows.chunks_mut(at_once).zip(values(&scores).chunks(size));
            in_parallel(blocks, || (), |(rows, scores)| losses(level, &self, scores, rows));
        }
        let counting = rows.iter().filter(|row| !row.is_padding);
        let loss = counting.map(|row| f64::from(row.loss)).sum::<f64>() / self.normalizer;
        self.rows = rows;
        let backward = Backward::new(move |upstream, _of_scores| {
            if is_gradient {
                return [Some(scaled(scores, &upstream))];
            }
            let factor = (f64::from(values(&upstream)[0]) / self.normalizer) as f32;
            let mut gradient = Buffer::new(values(&scores).len());
            let blocks = values(&scores).chunks(size).zip(gradient.chunks_mut(size));
            let blocks = self.rows.chunks(at_once).zip(blocks);
            in_parallel(blocks, poll::current(), |(rows, (source, target))| {
                gradients(level, &self, rows, Some(source), target, factor);
            });
            [Some(gradient.into_tensor(&scores.shape()))]
        });
        (tensor(vec![loss as f32], &[1]), backward)
    }

    /// Rows of a block.
    fn rows_at_once(&self) -> usize {
        (BLOCK / self.classes).max(1)
    }

    /// The weight of a class.
    #[inline(always)]
    fn weight(&self, weights: &[f32], class: usize) -> f32 {
        weights.get(class).copied().unwrap_or(1.0)
    }
}

/// Runs `block` for each block, on all threads if there are several blocks, and `after` each, on this one.
fn in_parallel<B: Send>(
    blocks: impl ExactSizeIterator<Item = B> + Send,
    after: impl Fn(),
    block: impl Fn(B) + Sync + Send,
) {
    match blocks.len() > 1 && rayon::current_num_threads() > 1 {
        true => {
            blocks.par_bridge().for_each(block);
            after();
        }
        false => blocks.for_each(|values| {
            block(values);
            after();
        }),
    }
}

kernel! {
    /// Sums and losses of rows.
    fn losses<S>(_simd: S, labels: &Labels, scores: &[f32], rows: &mut [Row]) {
        let weights = labels.weights.as_ref().map_or(&[][..], values);
        match labels.classes < LANES {
            true => few_sums(rows, scores, labels.classes),
            false => sums(rows, scores, labels.classes),
        }
        for (row, scores) in rows.iter_mut().zip(scores.chunks_exact(labels.classes)) {
            let Row { highest, sum, .. } = *row;
            let log = sum.ln();
            let own = labels.weight(weights, row.target) * (scores[row.target] - highest - log);
            row.loss = match labels.smoothing {
                None => -own,
                Some(share) => {
                    // Apart from the target's: a probability of 0 may be infinitely far from theirs.
                    let others = [0..row.target, row.target + 1..labels.classes].map(|classes| {
                        let scores = &scores[classes.clone()];
                        if weights.is_empty() {
                            let distances = fold(scores, 0.0, |sum, x| sum + (x - highest), |a, b| a + b);
                            return distances - log * scores.len() as f32;
                        }
                        let terms = scores.iter().zip(&weights[classes]);
                        terms.map(|(x, weight)| f64::from(weight * (x - highest - log))).sum::<f64>() as f32
                    });
                    let each = share / labels.classes as f32;
                    -((1.0 - share + each) * own + each * (others[0] + others[1]))
                }
            };
        }
    }
}

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// The highest score and the sum of exponentials of each row.
#[inline(always)]
fn sums(rows: &mut [Row], scores: &[f32], classes: usize) {
    for (row, scores) in rows.iter_mut().zip(scores.chunks_exact(classes)) {
        let highest = fold(scores, f32::NEG_INFINITY, larger, larger);
        row.sum = fold(scores, 0.0, |sum, x| sum + exp(x - highest), |a, b| a + b);
        row.highest = highest;
    }
}

/// As [`sums`], with the exponentials of several rows in the lanes of a vector.
#[inline(always)]
fn few_sums(rows: &mut [Row], scores: &[f32], classes: usize) {
    const VALUES: usize = 16 * LANES;
    let at_once = VALUES / classes;
    let mut powers = [0.0f32; VALUES];
    for (rows, scores) in rows.chunks_mut(at_once).zip(scores.chunks(at_once * classes)) {
        let powers = &mut powers[..scores.len()];
        let each = powers.chunks_exact_mut(classes).zip(scores.chunks_exact(classes));
        for (row, (powers, scores)) in rows.iter_mut().zip(each) {
            row.highest = scores.iter().fold(f32::NEG_INFINITY, |most, x| larger(most, *x));
            powers.iter_mut().zip(scores).for_each(|(power, x)| *power = x - row.highest);
        }
        powers.iter_mut().for_each(|power| *power = exp(*power));
        for (row, powers) in rows.iter_mut().zip(powers.chunks_exact(classes)) {
            row.sum = powers.iter().sum();
        }
    }
}

/// Lanes of a sum: a few vectors.
const LANES: usize = 32;

/// `values` combined into `first` lane by lane, and the lanes by `join`.
#[inline(always)]
fn fold(values: &[f32], first: f32, add: impl Fn(f32, f32) -> f32, join: impl Fn(f32, f32) -> f32) -> f32 {
    if values.len() < LANES {
        return values.iter().fold(first, |sum, value| add(sum, *value));
    }
    let mut lanes = [first; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = add(*lane, *value);
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane = add(*lane, *value);
    }
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] = join(lanes[lane], lanes[lane + half]);
        }
        half /= 2;
    }
    lanes[0]
}

kernel! {
    /// Gradients of rows of scores.
    fn gradients<S>(
        _simd: S,
        labels: &Labels,
        rows: &[Row],
        // The scores, if they are not in the target.
        source: Option<&[f32]>,
        target: &mut [f32],
        // The gradient of the loss over the normalizer.
        factor: f32,
    ) {
        let weights = labels.weights.as_ref().map_or(&[][..], values);
        let share = labels.smoothing.unwrap_or(0.0);
        let each = factor * share / labels.classes as f32;
        for (at, (row, scores)) in rows.iter().zip(target.chunks_exact_mut(labels.classes)).enumerate() {
            if let Some(source) = source {
                scores.copy_from_slice(&source[at * labels.classes..][..labels.classes]);
            }
            let own = factor * (1.0 - share) * labels.weight(weights, row.target);
            let (each, own) = if row.is_padding { (0.0, 0.0) } else { (each, own) };
            // The terms of the loss, times the probability.
            let scale = (own + each * labels.uniform) / row.sum;
            match weights.is_empty() || share == 0.0 {
                true => scores.iter_mut().for_each(|x| *x = exp(*x - row.highest) * scale - each),
                false => {
                    for (x, weight) in scores.iter_mut().zip(weights) {
                        *x = exp(*x - row.highest) * scale - each * weight;
                    }
                }
            }
            scores[row.target] -= own;
        }
    }
}
