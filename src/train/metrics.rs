//! What a batch of class scores got right.

/// Number of rows of `scores` (`[batch, classes]`, flat) whose largest value
/// is that of their label. The first of equal values counts, as in PyTorch.
pub fn count_correct(scores: &[f32], labels: &[u8]) -> usize {
    let classes = scores.len() / labels.len().max(1);
    let rows = scores.chunks_exact(classes.max(1)).zip(labels);
    rows.filter(|(row, label)| argmax(row) == usize::from(**label)).count()
}

fn argmax(row: &[f32]) -> usize {
    let better = |best: usize, at: usize| if row[at] > row[best] { at } else { best };
    (1..row.len()).fold(0, better)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_score_counts() {
        let scores = [0.1, 0.9, 0.0, 3.0, 3.0, 1.0];
        assert_eq!(count_correct(&scores, &[1, 0]), 2);
        assert_eq!(count_correct(&scores, &[1, 1]), 1);
        assert_eq!(count_correct(&[], &[]), 0);
    }
}
