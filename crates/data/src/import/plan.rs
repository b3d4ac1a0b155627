//! Chooses the test samples and the order of the samples in each split.

use chacha20::ChaCha8Rng;
use chacha20::rand_core::{Rng, SeedableRng};

use crate::DataError;
use crate::import::{ImportArgs, Order, same_class};
use crate::quote::quoted;

/// Share of each class that becomes the test split if the source has no test split.
const TEST_FRACTION: f64 = 0.2;

/// Returns the training samples and the test samples, in the order in which they are to be written. If `test`
/// is `None`, a part of `train` becomes the test split.
///
/// Also calls [`same_class::check`], because imports of all kinds of sources pass through this function.
pub(crate) fn splits<T>(
    args: &ImportArgs,
    train: Vec<T>,
    test: Option<Vec<T>>,
    classes: &[String],
    class: impl Fn(&T) -> u16,
) -> Result<[Vec<T>; 2], DataError> {
    let counts = [&train[..], test.as_deref().unwrap_or_default()].map(|split| {
        let mut counts = vec![0; classes.len()];
        split.iter().for_each(|sample| counts[usize::from(class(sample))] += 1);
        counts
    });
    same_class::check(args, classes, &counts, test.is_some())?;
    let mut rng = ChaCha8Rng::seed_from_u64(args.seed);
    let splits = match (test, args.test_fraction) {
        (Some(test), None) => [train, test],
        (Some(_), Some(share)) => {
            let problem = format!("{} already has a test split: leave the option out", args.source.display());
            return Err(DataError::option("test-fraction", share, problem));
        }
        (None, _) if counts[0].iter().all(|&samples| samples < 2) && !train.is_empty() => {
            let each = match &train[..] {
                [only] => format!("the only class, {},", quoted(&classes[usize::from(class(only))])),
                _ => format!("each of the {} classes", train.len()),
            };
            bail!(
                &args.source,
                "{each} has one sample, but the training split and the test split need one sample each: add \
                 samples, or check that the classes are the right ones"
            );
        }
        (None, share) => {
            let (share, all) = (share.unwrap_or(TEST_FRACTION), train.len());
            let splits = divide(&mut rng, train, classes.len(), |sample| class(sample).into(), share);
            let test = splits[1].len();
            log::info!("{}", describe(test, all, share));
            splits
        }
    };
    Ok(splits.map(|split| order(&mut rng, split, args.order)))
}

/// Says for the log how many samples became the test split, and by which rule.
fn describe(test: usize, all: usize, share: f64) -> String {
    format!(
        "the test split takes {test} of {all} samples: {share} of each class, and at least one sample; a class with a single \
         sample stays in training"
    )
}

/// Shuffles the values (Fisher-Yates).
fn shuffle<T>(rng: &mut ChaCha8Rng, values: &mut [T]) {
    for last in (1..values.len()).rev() {
        // Multiply a random u64 by `last + 1`, and take the high half of the product. The result is below
        // `last + 1`. It is practically uniform because `last + 1` is far below 2^64.
        let other = ((u128::from(rng.next_u64()) * (last as u128 + 1)) >> 64) as usize;
        values.swap(last, other);
    }
}

/// Returns the samples in the order that the user asked for.
fn order<T>(rng: &mut ChaCha8Rng, mut samples: Vec<T>, order: Order) -> Vec<T> {
    if order == Order::Random {
        shuffle(rng, &mut samples);
    }
    samples
}

/// Divides samples into training and test split. The test split takes `share` of the samples of each class,
/// rounded. It takes at least one sample of a class, but always leaves one for training. It therefore takes
/// none of a class with one sample. Both splits keep the order of `samples`.
fn divide<T>(
    rng: &mut ChaCha8Rng,
    samples: Vec<T>,
    classes: usize,
    class: impl Fn(&T) -> usize,
    share: f64,
) -> [Vec<T>; 2] {
    let mut of_class = vec![Vec::new(); classes];
    samples.iter().enumerate().for_each(|(at, sample)| of_class[class(sample)].push(at));
    let mut is_test = vec![false; samples.len()];
    for samples in &mut of_class {
        let count = samples.len();
        let test = ((count as f64 * share).round() as usize).max(1).min(count.saturating_sub(1));
        shuffle(rng, samples);
        samples[..test].iter().for_each(|&at| is_test[at] = true);
    }
    let (test, train): (Vec<_>, Vec<_>) = samples.into_iter().zip(is_test).partition(|(_, test)| *test);
    [train, test].map(|split| split.into_iter().map(|(sample, _)| sample).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::names_all;

    #[test]
    fn each_class_gives_its_share_and_never_all() {
        let counts = [1, 2, 3, 10, 11, 1000];
        let samples: Vec<(usize, usize)> = counts
            .iter()
            .enumerate()
            .flat_map(|(class, &count)| (0..count).map(move |n| (class, n)))
            .collect();
        let divide = |seed| {
            let rng = &mut ChaCha8Rng::seed_from_u64(seed);
            super::divide(rng, samples.clone(), counts.len(), |sample| sample.0, 0.2)
        };
        let [train, test] = divide(7);
        let count_of =
            |split: &[(usize, usize)], class| split.iter().filter(|sample| sample.0 == class).count();
        assert_eq!(std::array::from_fn(|class| count_of(&test, class)), [0, 1, 1, 2, 2, 200]);
        assert_eq!(std::array::from_fn(|class| count_of(&train, class) + count_of(&test, class)), counts);
        assert!(train.is_sorted() && test.is_sorted(), "each in the order of the files");
        assert_eq!(divide(7), [train, test.clone()]);
        assert_ne!(divide(8)[1], test);
    }

    #[test]
    fn both_limits_of_the_test_split_are_told() {
        let text = describe(1, 3, 0.2);
        assert!(names_all(&text, "1 of 3 samples | 0.2 | at least one | single sample | training"), "{text}");
    }

    #[test]
    fn an_order_has_every_sample_once() {
        let samples: Vec<usize> = (0..1000).collect();
        let rng = &mut ChaCha8Rng::seed_from_u64(3);
        let mut drawn = order(rng, samples.clone(), Order::Random);
        assert_ne!(drawn, samples);
        drawn.sort_unstable();
        assert_eq!(drawn, samples);
        assert_eq!(order(rng, samples.clone(), Order::Files), samples);
    }
}
