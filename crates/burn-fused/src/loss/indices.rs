//! Cross entropy of scores against class indices: the loss of [`CrossEntropyLoss`](crate::nn::loss::CrossEntropyLoss).
//!
//! Forward reads the scores once and saves two numbers of each row; backward computes the probabilities again,
//! where the scores are. Burn's composition stores five matrices of the size of the scores.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Int, Tensor};
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};

use crate::extension::{Saved, on_flex};
use crate::flex_tensor::{contiguous, f32_on_flex, tensor, values};
use crate::memory::Buffer;
use crate::poll;
use crate::simd::math::exp;
use crate::simd::{Kernel, Lanes, Level};

/// The loss beside scores and targets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options<'a> {
    /// Classes whose rows do not count.
    pub padding: Option<&'a [usize]>,
    /// The weight of each class.
    pub weights: Option<&'a Tensor<1>>,
    /// The share of each target that is distributed uniformly over the classes.
    pub smoothing: Option<f32>,
}

/// The mean cross entropy `[1]` of `scores` `[batch, classes]`, weighted by the classes' weights; or `composed` of
/// the scores, if the operator does not support them or the targets.
pub(crate) fn cross_entropy_of_indices(
    scores: Tensor<2>,
    targets: &Tensor<1, Int>,
    options: Options<'_>,
    composed: impl FnOnce(Tensor<2>) -> Tensor<1>,
) -> Tensor<1> {
    let aims = |[scores]: [&FlexTensor; 1]| Aims::of(scores, targets, options);
    match on_flex([scores.into_dispatch()], aims, |[scores], aims, _| aims.forward(scores)) {
        Ok(loss) => Tensor::from_dispatch(loss),
        Err([scores]) => composed(Tensor::from_dispatch(scores)),
    }
}

/// What the loss compares the scores with.
#[derive(Debug, Clone)]
struct Aims {
    rows: Vec<Row>,
    classes: usize,
    /// The weight of each class, if there are weights.
    weights: Option<FlexTensor>,
    smoothing: Option<f32>,
    /// The sum of the rows' weights.
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

impl Aims {
    fn of(scores: &FlexTensor, targets: &Tensor<1, Int>, options: Options<'_>) -> Option<Self> {
        let Options { padding, weights, smoothing } = options;
        let [batch, classes] = scores.shape().dims();
        let is_tracked = weights.is_some_and(|weights| weights.is_tracked());
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
            let is_padding = padding.is_some_and(|padding| padding.contains(&target));
            Some(Row { target, is_padding, ..Row::default() })
        });
        let rows: Vec<Row> = rows.collect::<Option<_>>()?;
        let of_targets = weights.as_ref().map(values);
        let weight = |row: &Row| of_targets.map_or(1.0, |weights| f64::from(weights[row.target]));
        let normalizer = rows.iter().filter(|row| !row.is_padding).map(weight).sum();
        Some(Self { rows, classes, weights, smoothing, normalizer })
    }

    fn forward(mut self, scores: FlexTensor) -> (FlexTensor, State) {
        let (scores, level, classes) = (contiguous(scores), Level::current(), self.classes);
        let mut rows = std::mem::take(&mut self.rows);
        let run = |(scores, rows)| level.run(Forward { aims: &self, scores, rows });
        let at_once = self.rows_at_once();
        let blocks = (values(&scores), &mut rows[..]);
        match rayon::current_num_threads() > 1 {
            true => {
                let rows = blocks.1.par_chunks_mut(at_once);
                blocks.0.par_chunks(at_once * classes).zip(rows).for_each(run);
            }
            false => blocks.0.chunks(at_once * classes).zip(blocks.1.chunks_mut(at_once)).for_each(run),
        }
        let counting = rows.iter().filter(|row| !row.is_padding);
        let loss = counting.map(|row| f64::from(row.loss)).sum::<f64>() / self.normalizer;
        self.rows = rows;
        (tensor(vec![loss as f32], &[1]), State { aims: self, scores, level })
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

/// Saved by forward for backward.
#[derive(Debug, Clone)]
struct State {
    aims: Aims,
    scores: FlexTensor,
    level: Level,
}

impl Saved<1> for State {
    fn backward(self, upstream: FlexTensor, _of_scores: bool) -> [Option<FlexTensor>; 1] {
        let Self { aims, mut scores, level } = self;
        let factor = (f64::from(values(&upstream)[0]) / aims.normalizer) as f32;
        let is_own = scores.is_unique();
        let shape = scores.shape();
        let mut elsewhere = Buffer::new(if is_own { 0 } else { shape.num_elements() });
        let (source, target) = match is_own {
            true => (None, scores.storage_mut::<f32>()),
            false => (Some(values(&scores)), &mut elsewhere[..]),
        };
        let (poll, at_once) = (poll::current(), aims.rows_at_once());
        let size = at_once * aims.classes;
        let run = |(block, (rows, target)): (usize, (&[Row], &mut [f32]))| {
            let source = source.map(|source| &source[block * size..][..target.len()]);
            level.run(Backward { aims: &aims, rows, source, target, factor });
        };
        match rayon::current_num_threads() > 1 {
            true => {
                aims.rows.par_chunks(at_once).zip(target.par_chunks_mut(size)).enumerate().for_each(run);
                poll();
            }
            false => {
                for block in aims.rows.chunks(at_once).zip(target.chunks_mut(size)).enumerate() {
                    run(block);
                    poll();
                }
            }
        }
        [Some(if is_own { scores } else { elsewhere.into_tensor(&shape) })]
    }
}

/// Sums and losses of rows.
struct Forward<'a> {
    aims: &'a Aims,
    scores: &'a [f32],
    rows: &'a mut [Row],
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        let Self { aims, scores, rows } = self;
        let weights = aims.weights.as_ref().map_or(&[][..], values);
        for (row, scores) in rows.iter_mut().zip(scores.chunks_exact(aims.classes)) {
            let larger = |a: f32, b: f32| if b > a { b } else { a };
            let highest = fold(scores, f32::NEG_INFINITY, larger, larger);
            let sum = fold(scores, 0.0, |sum, x| sum + exp(x - highest), |a, b| a + b);
            let log = sum.ln();
            let own = aims.weight(weights, row.target) * (scores[row.target] - highest - log);
            let loss = match aims.smoothing {
                None => -own,
                Some(share) => {
                    // Apart from the target's: a probability of 0 may be infinitely far from theirs.
                    let others = [0..row.target, row.target + 1..aims.classes].map(|classes| {
                        let scores = &scores[classes.clone()];
                        if weights.is_empty() {
                            let distances = fold(scores, 0.0, |sum, x| sum + (x - highest), |a, b| a + b);
                            return distances - log * scores.len() as f32;
                        }
                        let terms = scores.iter().zip(&weights[classes]);
                        terms.map(|(x, weight)| f64::from(weight * (x - highest - log))).sum::<f64>() as f32
                    });
                    let each = share / aims.classes as f32;
                    -((1.0 - share + each) * own + each * (others[0] + others[1]))
                }
            };
            (row.highest, row.sum, row.loss) = (highest, sum, loss);
        }
    }
}

/// Lanes of a sum: a few vectors.
const LANES: usize = 32;

/// `values` combined into `first` lane by lane, and the lanes by `join`.
#[inline(always)]
fn fold(values: &[f32], first: f32, add: impl Fn(f32, f32) -> f32, join: impl Fn(f32, f32) -> f32) -> f32 {
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
    lanes.into_iter().fold(first, join)
}

/// Gradients of rows of scores.
struct Backward<'a> {
    aims: &'a Aims,
    rows: &'a [Row],
    /// The scores, if they are not in the target.
    source: Option<&'a [f32]>,
    target: &'a mut [f32],
    /// The gradient of the loss over the normalizer.
    factor: f32,
}

impl Kernel for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        let Self { aims, rows, source, target, factor } = self;
        let weights = aims.weights.as_ref().map_or(&[][..], values);
        let share = aims.smoothing.unwrap_or(0.0);
        let each = factor * share / aims.classes as f32;
        let uniform: f32 = match weights.is_empty() {
            true => aims.classes as f32,
            false => weights.iter().sum(),
        };
        for (at, (row, scores)) in rows.iter().zip(target.chunks_exact_mut(aims.classes)).enumerate() {
            if let Some(source) = source {
                scores.copy_from_slice(&source[at * aims.classes..][..aims.classes]);
            }
            let own = factor * (1.0 - share) * aims.weight(weights, row.target);
            let (each, own) = if row.is_padding { (0.0, 0.0) } else { (each, own) };
            // The terms of the loss, times the probability.
            let scale = (own + each * uniform) / row.sum;
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
