//! Confusion matrix of a test: how many samples of each class the network assigned to each class. Accuracy,
//! precision and recall by class are computed from it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Maximum number of classes for which `run.json` contains the matrix.
const MOST_ROWS: usize = 100;

/// Number of test samples by true class and predicted class, as `(true class, predicted class, samples)`.
/// Contains only the pairs that occurred, sorted by true class and then by predicted class.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Confusion(Vec<(u16, u16, u64)>);

impl FromIterator<(u16, u16, u64)> for Confusion {
    /// Sums the samples of entries that have the same pair of classes.
    fn from_iter<I: IntoIterator<Item = (u16, u16, u64)>>(entries: I) -> Self {
        let mut sums = BTreeMap::new();
        for (class, named, samples) in entries {
            *sums.entry((class, named)).or_insert(0) += samples;
        }
        Self(sums.into_iter().map(|((class, named), samples)| (class, named, samples)).collect())
    }
}

impl IntoIterator for Confusion {
    type Item = (u16, u16, u64);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// Results of a test by class, in `run.json`. Accuracies, precision and recall are in percent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ByClass {
    /// Mean of the recalls of all classes that have samples. Each of these classes has the same weight,
    /// whatever its number of samples.
    pub balanced_accuracy: f64,
    /// Accuracy of a model that always predicts the class with the most test samples.
    pub largest_class_accuracy: f64,
    /// Results of each class, in the order of the classes.
    pub classes: Vec<ClassRecord>,
    /// One row for each true class: how many of its samples were predicted as each class. Empty if there are
    /// more than 100 classes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub confusion_matrix: Vec<Vec<u64>>,
}

/// One class's results in a test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClassRecord {
    /// Name of the class.
    pub name: String,
    /// Test samples of the class.
    pub samples: u64,
    /// Test samples that were predicted as this class.
    pub named: u64,
    /// Test samples of this class that were predicted as this class.
    pub correct: u64,
    /// Of the samples predicted as this class, the share that belong to it; `None` if no sample was predicted
    /// as this class.
    pub precision: Option<f64>,
    /// Of the samples of this class, the share that were predicted as it; `None` if the class has no samples.
    pub recall: Option<f64>,
    /// True positives and true negatives in percent of all samples. A true negative belongs to another class
    /// and was predicted as another class.
    pub accuracy: f64,
    /// The most frequent wrong prediction for samples of this class; `None` if no sample of this class was
    /// predicted wrongly.
    pub taken_for: Option<String>,
}

impl ByClass {
    /// Computes the results by class from `confusion`. `names` are the names of the classes. Returns `None`
    /// if there are no samples, or if a class in `confusion` has no name.
    pub fn from_confusion(confusion: &Confusion, names: &[String]) -> Option<Self> {
        let mut counts = vec![Count::default(); names.len()];
        let rows = if names.len() <= MOST_ROWS { names.len() } else { 0 };
        let mut confusion_matrix = vec![vec![0; rows]; rows];
        for &(class, named, samples) in &confusion.0 {
            let (class, named) = (usize::from(class), usize::from(named));
            counts.get_mut(named)?.named += samples;
            let of_class = counts.get_mut(class)?;
            of_class.samples += samples;
            if class == named {
                of_class.correct += samples;
            } else if of_class.taken_for.is_none_or(|(most, _)| samples > most) {
                of_class.taken_for = Some((samples, named));
            }
            if rows > 0 {
                confusion_matrix[class][named] = samples;
            }
        }
        let all: u64 = counts.iter().map(|count| count.samples).sum();
        let share = |part: u64, of: u64| (of > 0).then(|| 100.0 * part as f64 / of as f64);
        let record = |(name, count): (&String, &Count)| {
            let Count { samples, named, correct, taken_for } = *count;
            Some(ClassRecord {
                name: name.clone(),
                samples,
                named,
                correct,
                precision: share(correct, named),
                recall: share(correct, samples),
                accuracy: share(all + 2 * correct - samples - named, all)?,
                taken_for: taken_for.map(|(_, other)| names[other].clone()),
            })
        };
        let classes = names.iter().zip(&counts).map(record).collect::<Option<Vec<_>>>()?;
        let recalls: Vec<f64> = classes.iter().filter_map(|class| class.recall).collect();
        let largest = counts.iter().map(|count| count.samples).max()?;
        Some(Self {
            balanced_accuracy: recalls.iter().sum::<f64>() / recalls.len() as f64,
            largest_class_accuracy: share(largest, all)?,
            classes,
            confusion_matrix,
        })
    }
}

/// Counts of one class.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    samples: u64,
    named: u64,
    correct: u64,
    /// The most frequent wrong prediction for samples of this class: the number of these samples, and the
    /// index of the predicted class.
    taken_for: Option<(u64, usize)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|class| format!("c{class}")).collect()
    }

    #[test]
    fn shares_are_those_of_the_definitions() {
        // Four of the six samples of class 0 are right. The sample of class 1 is predicted as 0. Class 2 has
        // no sample, and one sample is predicted as 2.
        let mine = [(0, 0, 1), (0, 1, 1), (1, 0, 1)];
        let others = [(0, 0, 3), (0, 2, 1)];
        let found = ByClass::from_confusion(&mine.into_iter().chain(others).collect(), &names(3)).unwrap();
        assert_eq!(found.confusion_matrix, [[4, 1, 1], [1, 0, 0], [0, 0, 0]]);
        let [first, second, third] = &found.classes[..] else { panic!("three classes") };
        assert_eq!((first.recall, first.precision), (Some(400.0 / 6.0), Some(80.0)));
        assert_eq!((first.samples, first.named, first.correct), (6, 5, 4));
        assert_eq!(first.accuracy, 400.0 / 7.0, "4 of class 0 and none of the others are right");
        assert_eq!((second.recall, second.precision), (Some(0.0), Some(0.0)));
        assert_eq!((second.taken_for.as_deref(), first.taken_for.as_deref()), (Some("c0"), Some("c1")));
        assert_eq!((third.recall, third.precision, third.accuracy), (None, Some(0.0), 600.0 / 7.0));
        assert_eq!(
            found.balanced_accuracy,
            (400.0 / 6.0 + 0.0) / 2.0,
            "classes without samples do not count"
        );
        assert_eq!(found.largest_class_accuracy, 600.0 / 7.0);
    }

    #[test]
    fn many_classes_have_no_matrix_and_no_samples_no_results() {
        let found = ByClass::from_confusion(&[(0, 100, 1), (100, 100, 1)].into_iter().collect(), &names(101))
            .unwrap();
        assert!(found.confusion_matrix.is_empty());
        assert_eq!(found.balanced_accuracy, 50.0);
        assert_eq!(ByClass::from_confusion(&Confusion::default(), &names(3)), None);
        assert_eq!(
            ByClass::from_confusion(&[(3, 0, 1)].into_iter().collect(), &names(3)),
            None,
            "a class without a name"
        );
    }
}
