//! Finds equal samples that make results misleading: samples in both splits, and samples in two classes.

use std::collections::{HashMap, HashSet};

use run_record::count;
use sha2::{Digest, Sha256};

/// A sample: its split (0 for training, 1 for test) and its index in the split.
type At = (usize, usize);

/// A group of samples with equal bytes.
struct Equal {
    /// The first sample of the group that was added. `label` is the label of this sample.
    first: At,
    label: u16,
    /// Number of samples in the group.
    number: u32,
}

/// All samples that were added, grouped by their SHA-256 digests.
#[derive(Default)]
pub(crate) struct Copies {
    samples: HashMap<[u8; 32], Equal>,
    /// Number of test samples that equal a training sample.
    in_both: usize,
    /// The first test sample that equals a training sample, and this training sample.
    first_in_both: Option<[At; 2]>,
    /// Digests of samples whose copies have different classes.
    in_two_classes: HashSet<[u8; 32]>,
    /// The first two samples that are equal but have different classes.
    first_in_two_classes: Option<[At; 2]>,
}

impl Copies {
    /// Adds the bytes of a sample. Training samples must be added before test samples.
    pub(crate) fn add(&mut self, at: At, label: u16, sample: &[u8]) {
        let digest = Sha256::digest(sample).into();
        let equal = self.samples.entry(digest).or_insert(Equal { first: at, label, number: 0 });
        equal.number += 1;
        if equal.first.0 != at.0 {
            self.in_both += 1;
            self.first_in_both.get_or_insert([at, equal.first]);
        }
        if equal.label != label {
            self.in_two_classes.insert(digest);
            self.first_in_two_classes.get_or_insert([equal.first, at]);
        }
    }

    /// Returns the warnings about equal samples. `names` has the names of the samples of each split.
    pub(crate) fn warnings(&self, names: [&[String]; 2]) -> Vec<String> {
        let name = |(split, index): At| &names[split][index];
        let both = self.first_in_both.map(|[test, train]| {
            format!(
                "{} of the test split {} also in the training split: test accuracy may be too high (for example {} \
                 equals {})",
                count(self.in_both, "sample"),
                if self.in_both == 1 { "is" } else { "are" },
                name(test),
                name(train)
            )
        });
        let number = self.in_two_classes.iter().map(|digest| self.samples[digest].number as usize).sum();
        let classes = self.first_in_two_classes.map(|[first, second]| {
            format!(
                "{} are equal to samples of other classes, so no network can tell them apart (for example {} and {})",
                count(number, "sample"),
                name(first),
                name(second)
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
        assert!(names_all(one, "2 samples | other classes | a/1 and b/1"), "{one}");
        let found = warnings(&[(a1, 0, 7), (b1, 1, 8), ((1, 0), 1, 7), ((1, 1), 0, 7)]);
        let [both, classes] = &found[..] else { panic!("{found:?}") };
        assert!(names_all(both, "2 samples of the test split | training split | b/3 | a/1"), "{both}");
        assert!(!both.contains("first"), "samples are in random order: {both}");
        assert!(names_all(classes, "3 samples | other classes | a/1 and b/3"), "{classes}");
    }
}
