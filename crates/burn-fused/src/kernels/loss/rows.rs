//! Cross-entropy losses of rows of scores (logits), and their gradients. A row has one score for each class,
//! and one target class.

use crate::kernels::simd::kernel;
use crate::kernels::simd::math::exp;

/// The classes, their weights, and label smoothing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Classes<'a> {
    /// Number of classes.
    pub number: usize,
    /// The weight of each class. If `weights` is empty, each class counts as 1.
    pub weights: &'a [f32],
    /// The sum of the weights of all classes.
    pub uniform: f32,
    /// The share of each target that is distributed uniformly over all classes. `None` means no smoothing.
    /// `Some(0.0)` differs from `None`, as in Burn: with `Some(0.0)`, the log-probabilities of the other
    /// classes are multiplied by 0, so the loss is NaN if one of them is infinite.
    pub smoothing: Option<f32>,
}

impl Classes<'_> {
    /// The weight of a class.
    #[inline(always)]
    fn weight(&self, class: usize) -> f32 {
        self.weights.get(class).copied().unwrap_or(1.0)
    }
}

/// A row of scores: its target, and the results of [`losses`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    /// Index of the target class.
    pub target: usize,
    /// Whether the row is padding, which does not count in the loss and has no gradient.
    pub is_padding: bool,
    /// The highest score.
    highest: f32,
    /// The sum of `exp(score - highest)` over all scores.
    sum: f32,
    /// The weighted loss. Callers ignore the loss of padding.
    pub loss: f32,
}

impl Row {
    /// Makes a row from its target, before its scores are read.
    pub fn new(target: usize, is_padding: bool) -> Self {
        Self { target, is_padding, highest: 0.0, sum: 0.0, loss: 0.0 }
    }
}

kernel! {
    /// Computes the sums and the loss of each row.
    pub(crate) fn losses<S>(_simd: S, classes: Classes<'_>, scores: &[f32], rows: &mut [Row]) {
        if classes.number < LANES {
            few_sums(rows, scores, classes.number);
        } else {
            sums(rows, scores, classes.number);
        }
        for (row, scores) in rows.iter_mut().zip(scores.chunks_exact(classes.number)) {
            let Row { highest, sum, .. } = *row;
            let log = sum.ln();
            let own = classes.weight(row.target) * (scores[row.target] - highest - log);
            row.loss = match classes.smoothing {
                None => -own,
                Some(share) => {
                    // These sums leave out the target. The target's logarithm is multiplied once, by the sum
                    // of its two factors. If it were multiplied by each factor, the product could be NaN:
                    // with a smoothing of 1, one factor is 0, and 0 times an infinite logarithm is NaN.
                    let others = [0..row.target, row.target + 1..classes.number].map(|others| {
                        let scores = &scores[others.clone()];
                        if classes.weights.is_empty() {
                            let distances = fold(scores, 0.0, |sum, x| sum + (x - highest), |a, b| a + b);
                            return distances - log * scores.len() as f32;
                        }
                        let terms = scores.iter().zip(&classes.weights[others]);
                        terms.map(|(x, weight)| f64::from(weight * (x - highest - log))).sum::<f64>() as f32
                    });
                    let each = share / classes.number as f32;
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

/// Computes the highest score and the sum of exponentials of each row.
#[inline(always)]
fn sums(rows: &mut [Row], scores: &[f32], classes: usize) {
    for (row, scores) in rows.iter_mut().zip(scores.chunks_exact(classes)) {
        let highest = fold(scores, f32::NEG_INFINITY, larger, larger);
        row.sum = fold(scores, 0.0, |sum, x| sum + exp(x - highest), |a, b| a + b);
        row.highest = highest;
    }
}

/// Does the same as [`sums`] for few classes: a vector computes the exponentials of several rows.
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

/// Number of partial results in [`fold`]. They fill a few vectors.
const LANES: usize = 32;

/// Combines `values` in [`LANES`] partial results, which start at `first`. `add` adds a value to a partial
/// result, and `join` combines two partial results. Fewer than [`LANES`] values are combined in a single
/// result.
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
    /// Writes the gradients of the scores to `target`, row by row.
    pub(crate) fn gradients<S>(
        _simd: S,
        classes: Classes<'_>,
        rows: &[Row],
        // Scores that are copied into `target` first. `None` if `target` has the scores already.
        source: Option<&[f32]>,
        target: &mut [f32],
        // The gradient of the loss, divided by a sum of weights. The sum has the weight of the target class
        // of each row that is not padding.
        factor: f32,
    ) {
        let share = classes.smoothing.unwrap_or(0.0);
        let each = factor * share / classes.number as f32;
        for (at, (row, scores)) in rows.iter().zip(target.chunks_exact_mut(classes.number)).enumerate() {
            if let Some(source) = source {
                scores.copy_from_slice(&source[at * classes.number..][..classes.number]);
            }
            let own = factor * (1.0 - share) * classes.weight(row.target);
            let (each, own) = if row.is_padding { (0.0, 0.0) } else { (each, own) };
            // The loss of a row is the sum of -c_k * log(p_k) over all classes k, with probability p_k and a
            // factor c_k. The gradient of score j is therefore (sum of all c_k) * p_j - c_j. `scale` times an
            // exponential is the first term.
            let scale = (own + each * classes.uniform) / row.sum;
            if classes.weights.is_empty() || share == 0.0 {
                scores.iter_mut().for_each(|x| *x = exp(*x - row.highest) * scale - each);
            } else {
                for (x, weight) in scores.iter_mut().zip(classes.weights) {
                    *x = exp(*x - row.highest) * scale - each * weight;
                }
            }
            scores[row.target] -= own;
        }
    }
}
