//! Cross-entropy loss and accuracy, computed together from the scores (logits). The softmax of the scores is
//! saved, and the gradient is computed from it.

use crate::kernels::simd::Level;
use crate::kernels::simd::math::exp_each;

/// Returns the class with the highest score in `row`, the scores of one sample. Of equal scores, the first
/// wins. If `row` is empty, returns 0.
pub fn argmax(row: &[f32]) -> usize {
    let Some((&first, others)) = row.split_first() else { return 0 };
    let better = |best: (usize, f32), (at, &x): (usize, &f32)| if x > best.1 { (at + 1, x) } else { best };
    others.iter().enumerate().fold((0, first), better).0
}

/// What is computed from the scores.
pub(crate) struct Read {
    /// Sum of the weighted losses, divided by the number of samples.
    pub loss: f64,
    /// Number of samples for which the label's score is the highest.
    pub correct: usize,
    /// Softmax of the scores.
    shares: Vec<f32>,
    /// The weight of each sample. `None` if each sample counts as 1.
    weights: Option<Vec<f32>>,
    classes: usize,
    smoothing: f64,
}

impl Read {
    /// Reads one row of scores for each label. Returns `None` if there are no scores, or fewer scores than
    /// labels.
    pub fn from_scores(
        scores: &[f32],
        labels: &[u16],
        smoothing: f64,
        weights: Option<Vec<f32>>,
    ) -> Option<Self> {
        let classes = scores.len() / labels.len().max(1);
        if classes == 0 {
            return None;
        }
        let weight = |row: usize| weights.as_ref().map_or(1.0, |weights| f64::from(weights[row]));
        let mut shares = scores.to_vec();
        let (mut loss, mut correct) = (0.0, 0);
        for (at, (row, &label)) in shares.chunks_exact_mut(classes).zip(labels).enumerate() {
            let (label, highest) = (usize::from(label), argmax(row));
            correct += usize::from(highest == label);
            let (highest, own) = (row[highest], row[label]);
            // Without smoothing, the mean is not computed: a score of minus infinity would make the mean, and
            // the loss, infinite.
            let aim = if smoothing > 0.0 {
                let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / classes as f64;
                ((1.0 - smoothing) * f64::from(own) + smoothing * mean) as f32
            } else {
                own
            };
            row.iter_mut().for_each(|x| *x -= highest);
            loss -= weight(at) * f64::from(aim - highest);
        }
        exp_each(Level::current(), &mut shares);
        for (at, row) in shares.chunks_exact_mut(classes).enumerate() {
            let sum: f32 = row.iter().sum();
            row.iter_mut().for_each(|x| *x /= sum);
            loss += weight(at) * f64::from(sum.ln());
        }
        Some(Self { loss: loss / labels.len() as f64, correct, shares, weights, classes, smoothing })
    }

    /// Returns the gradient of the loss with respect to the scores.
    pub fn gradient(self, labels: &[u16]) -> Vec<f32> {
        let Self { mut shares, weights, classes, smoothing, .. } = self;
        let share = 1.0 / labels.len() as f32;
        for (at, (row, &label)) in shares.chunks_exact_mut(classes).zip(labels).enumerate() {
            let scale = weights.as_ref().map_or(share, |weights| weights[at] * share);
            if smoothing > 0.0 {
                row.iter_mut().for_each(|x| *x -= (smoothing / classes as f64) as f32);
            }
            row[usize::from(label)] -= (1.0 - smoothing) as f32;
            row.iter_mut().for_each(|x| *x *= scale);
        }
        shares
    }
}
