//! Generates feature vectors: a data set that resembles the activations of a large network's last hidden
//! layer. Samples have 512 features and belong to 20 classes.
//!
//! Each class is an approximately Gaussian cluster in a space of 24 dimensions. A point of this space becomes
//! 512 features in three steps: a random linear map, which is the same for all samples, then noise, then a
//! ReLU. The clusters overlap, so at most about 88 % of the samples can be classified correctly.
//!
//! A sample depends only on the seed, the split and its index, and its bytes are the same on every machine
//! (see [`super::digits`]).

use std::io::{self, Write};
use std::path::Path;

use run_record::files::WholeFile;

use super::AfterSample;
use super::chance::{Chance, Stream};
use crate::Split;
use crate::formats::npy::npy_header;

/// Number of features of a sample.
pub const FEATURES: usize = 512;
/// Number of classes.
pub const CLASSES: usize = 20;

/// Dimensions of the space that the clusters are in.
const SPACE: usize = 24;
/// Standard deviation of each coordinate of the cluster centres. Around the centre of its cluster, each
/// coordinate of a sample has a standard deviation of 1. A smaller `SPREAD` therefore makes clusters overlap
/// more, and the data set more difficult.
const SPREAD: f32 = 0.69;
/// Standard deviation of the noise that is added to each feature.
const NOISE: f32 = 0.3;

/// Parameters that all samples of a data set share.
pub struct FeatureSpace {
    seed: u64,
    centres: Vec<[f32; SPACE]>,
    /// Weights and bias of the linear map, for each feature.
    map: Vec<([f32; SPACE], f32)>,
}

impl FeatureSpace {
    /// Draws the clusters and the linear map of the data set of `seed`.
    pub fn new(seed: u64) -> Self {
        let chance = &mut Chance::of_sample(Stream::FeatureSpace, seed, Split::Train, 0);
        let scale = 1.0 / (SPACE as f32).sqrt();
        Self {
            seed,
            centres: (0..CLASSES).map(|_| std::array::from_fn(|_| chance.normal(SPREAD))).collect(),
            map: (0..FEATURES)
                .map(|_| (std::array::from_fn(|_| chance.normal(scale)), chance.normal(0.5)))
                .collect(),
        }
    }

    /// Draws sample `index` of `split`: its features and its label.
    ///
    /// Samples do not depend on each other and can be drawn in any order.
    pub fn draw(&self, split: Split, index: u64) -> ([f32; FEATURES], u8) {
        let ((class, point), mut chance) = self.point(split, index);
        let features = std::array::from_fn(|feature| {
            let (weights, bias) = &self.map[feature];
            let sum: f32 = weights.iter().zip(&point).map(|(weight, at)| weight * at).sum();
            (sum + bias + chance.normal(NOISE)).max(0.0)
        });
        (features, class as u8)
    }

    /// Draws the class of a sample and its point in the space of the clusters. Also returns the random
    /// stream, to draw the noise from.
    fn point(&self, split: Split, index: u64) -> ((usize, [f32; SPACE]), Chance) {
        let mut chance = Chance::of_sample(Stream::Features, self.seed, split, index);
        let class = chance.below(CLASSES);
        let point = self.centres[class].map(|centre| centre + chance.normal(1.0));
        ((class, point), chance)
    }
}

/// Returns a class that has test samples but no training samples, or `None` if there is no such class.
/// `train` and `test` are the numbers of samples of the splits.
pub fn unlearned(train: usize, test: usize, seed: u64) -> Option<usize> {
    let space = FeatureSpace::new(seed);
    let class = |split, index: usize| space.point(split, index as u64).0.0;
    let mut learned = [false; CLASSES];
    for index in 0..train {
        learned[class(Split::Train, index)] = true;
        if learned == [true; CLASSES] {
            return None;
        }
    }
    (0..test).map(|index| class(Split::Test, index)).find(|&class| !learned[class])
}

/// Writes the data set of `seed` into the existing folder `out`: `train_data/train_x.npy` with `train` rows
/// of f32, `train_data/train_y.npy` with their labels as i64, and the same files for `test`.
///
/// After each sample, `progress` is called with the number of samples written so far, in both splits
/// together.
///
/// # Errors
/// When a file cannot be written, or when `progress` returns an error.
pub fn write(out: &Path, train: usize, test: usize, seed: u64, progress: AfterSample<'_>) -> io::Result<()> {
    let space = FeatureSpace::new(seed);
    for (split, name, count, before) in
        [(Split::Train, "train", train, 0), (Split::Test, "test", test, train)]
    {
        let folder = out.join(format!("{name}_data"));
        std::fs::create_dir_all(&folder)?;
        let mut features = WholeFile::create(&folder, format!("{name}_x.npy"))?;
        let mut labels = WholeFile::create(&folder, format!("{name}_y.npy"))?;
        features.write_all(&npy_header("<f4", &[count, FEATURES]))?;
        labels.write_all(&npy_header("<i8", &[count]))?;
        for index in 0..count {
            let (row, label) = space.draw(split, index as u64);
            for value in row {
                features.write_all(&value.to_le_bytes())?;
            }
            labels.write_all(&i64::from(label).to_le_bytes())?;
            progress(before + index + 1)?;
        }
        features.finish()?;
        labels.finish()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the FNV-1a hash of features and labels.
    fn checksum(seed: u64, split: Split, count: u64) -> u64 {
        let space = FeatureSpace::new(seed);
        let samples = (0..count).map(|index| space.draw(split, index));
        let bytes = samples.flat_map(|(row, label)| {
            row.map(f32::to_le_bytes).as_flattened().iter().copied().chain([label]).collect::<Vec<u8>>()
        });
        bytes
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    #[test]
    fn bytes_are_the_same_on_every_machine() {
        assert_eq!(checksum(7, Split::Train, 200), 0xc5dc_cdb9_b1ee_ddb6);
        assert_eq!(checksum(7, Split::Test, 200), 0x95f1_dd97_9899_6769);
    }

    /// The classifier of this test knows the centres and the point of each sample in their space, and chooses
    /// the nearest centre. Hardly any classifier can do better, so its accuracy is nearly an upper bound for
    /// every network.
    #[test]
    fn the_best_accuracy_is_as_documented() {
        let space = FeatureSpace::new(7);
        let count = 8000;
        let right = (0..count)
            .filter(|&index| {
                let (class, point) = space.point(Split::Test, index).0;
                let far = |centre: &[f32; SPACE]| -> f32 {
                    centre.iter().zip(&point).map(|(a, b)| (a - b) * (a - b)).sum()
                };
                let nearest =
                    (0..CLASSES).min_by(|&a, &b| far(&space.centres[a]).total_cmp(&far(&space.centres[b])));
                nearest == Some(class)
            })
            .count();
        let share = 100.0 * right as f64 / count as f64;
        assert!((86.0..90.0).contains(&share), "{share} %");
    }
}
