//! Finds equal samples that make results misleading: samples in both splits, and samples in two classes.

use std::collections::HashMap;

use run_record::count;
use sha2::{Digest, Sha256};

/// A sample: its split (0 for training, 1 for test) and its index in the split.
type At = (usize, usize);

/// The samples so far, and the equal ones among them. `first` has the first sample with each SHA-256 digest,
/// and its label.
#[derive(Default)]
pub(crate) struct Copies {
    first: HashMap<[u8; 32], (At, u16)>,
    in_both: Pairs,
    in_two_classes: Pairs,
}

/// Pairs of a sample and an equal earlier sample: their number, and the first pair.
#[derive(Default)]
struct Pairs {
    number: usize,
    first: Option<[At; 2]>,
}

impl Pairs {
    fn add(&mut self, pair: [At; 2]) {
        self.number += 1;
        self.first.get_or_insert(pair);
    }
}

impl Copies {
    /// Adds the bytes of a sample. Training samples must be added before test samples.
    pub(crate) fn add(&mut self, at: At, label: u16, sample: &[u8]) {
        let digest = Sha256::digest(sample).into();
        let (first, of_first) = *self.first.entry(digest).or_insert((at, label));
        if first.0 != at.0 {
            self.in_both.add([at, first]);
        }
        if of_first != label {
            self.in_two_classes.add([at, first]);
        }
    }

    /// Returns the warnings about equal samples. `names` has the name of each sample, by split.
    pub(crate) fn warnings(&self, names: [&[String]; 2]) -> Vec<String> {
        let name = |(split, index): At| &names[split][index];
        let is = |number: usize| if number == 1 { "is" } else { "are" };
        let both = self.in_both.first.map(|[test, train]| {
            format!(
                "{} of the test split {} also in the training split: test accuracy may be too high (the first: {} \
                 equals {})",
                count(self.in_both.number, "sample"),
                is(self.in_both.number),
                name(test),
                name(train)
            )
        });
        let classes = self.in_two_classes.first.map(|[second, first]| {
            format!(
                "{} {} equal to a sample of another class: no network can tell them apart (the first: {} equals {})",
                count(self.in_two_classes.number, "sample"),
                is(self.in_two_classes.number),
                name(second),
                name(first)
            )
        });
        both.into_iter().chain(classes).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::names_all;

    #[test]
    fn copies_in_both_splits_and_in_two_classes_are_told() {
        let names =
            [vec!["a/1".to_owned(), "b/1".into(), "a/2".into()], vec!["b/3".to_owned(), "a/3".into()]];
        let warnings = |samples: &[(At, u16, u8)]| {
            let mut copies = Copies::default();
            samples.iter().for_each(|&(at, label, byte)| copies.add(at, label, &[byte]));
            copies.warnings(names.each_ref().map(|names| &names[..]))
        };
        let [a1, b1, a2] = [(0, 0), (0, 1), (0, 2)];
        assert!(warnings(&[(a1, 0, 7), (b1, 1, 8), (a2, 0, 7)]).is_empty(), "twice in one class and split");
        let found = warnings(&[(a1, 0, 7), (b1, 1, 7), (a2, 0, 9)]);
        let [one] = &found[..] else { panic!("{found:?}") };
        assert!(names_all(one, "1 sample | another class | b/1 | a/1"), "{one}");
        let found = warnings(&[(a1, 0, 7), (b1, 1, 8), ((1, 0), 1, 7), ((1, 1), 0, 7)]);
        let [both, classes] = &found[..] else { panic!("{found:?}") };
        assert!(names_all(both, "2 samples of the test split | training split | b/3 | a/1"), "{both}");
        assert!(names_all(classes, "1 sample | another class | b/3 | a/1"), "{classes}");
    }
}
