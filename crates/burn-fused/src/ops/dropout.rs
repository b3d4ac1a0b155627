//! Dropout without stored masks: backward computes the mask of forward again.
//!
//! A [`DropoutMask`] is a function of a key and of a value's index. Only the key is kept from forward to
//! backward.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Device, Distribution, Int, Tensor, TensorData};

use crate::kernels::dropout::{BatchPlace, DropoutMask, drop_part};
use crate::kernels::simd::Level;
use crate::ops::extension::{Backward, Saved, on_flex, on_flex_or};
use crate::ops::flex_tensor::{contiguous, target_of, values};
use crate::ops::precision::cast;
use crate::runtime::poll::Poll;
use crate::runtime::threads::each;

impl DropoutMask {
    /// Draws a new mask, with a key from the random generator of `device`. Returns `None` for a probability
    /// of 0.
    ///
    /// # Panics
    /// If the probability is not in the range [0, 1).
    pub fn draw(prob: f64, device: &Device) -> Option<Self> {
        if prob == 0.0 {
            return None;
        }
        let key = Tensor::<1, Int>::random([1], Distribution::Default, (device, DType::I64));
        let key = key.into_data().iter::<i64>().next().expect("one value");
        Some(Self::new(prob, key as u64))
    }
}

/// Sets each value of `x` to zero with probability `prob`, and scales the others. The mask is drawn from the
/// generator of the device.
pub(crate) fn dropout<const D: usize>(x: Tensor<D>, prob: f64) -> Tensor<D> {
    if prob == 0.0 {
        return x;
    }
    let device = x.device();
    let masks = |[x]: [&FlexTensor; 1]| {
        (x.dtype() == DType::F32).then(|| DropoutMask::draw(prob, &device).into_iter().collect())
    };
    on_flex_or("dropout", [x.into_dispatch()], masks, forward, |[x]| {
        burn::nn::DropoutConfig::new(prob).init().forward(Tensor::from_dispatch(x))
    })
}

/// Applies [`dropout`] to `x` `[batch, ...]` with one mask for each sample. `place` gives a seed, a step and
/// the index of each sample. A mask depends only on these three, so masks are the same for all types and
/// backends.
pub(crate) fn dropout_at<const D: usize>(x: Tensor<D>, prob: f64, place: &BatchPlace) -> Tensor<D> {
    let batch = x.dims()[0];
    let masks = || place.masks(prob, batch);
    let on_flex = |[x]: [&FlexTensor; 1]| (x.dtype() == DType::F32).then(masks);
    on_flex_or("dropout", [x.into_dispatch()], on_flex, forward, |[x]| {
        let x = Tensor::<D>::from_dispatch(x);
        let length = x.dims()[1..].iter().product();
        let factors = masks().into_iter().flat_map(|mask| (0..length).map(move |at| mask.factor(at)));
        let factors = TensorData::new(factors.collect::<Vec<_>>(), x.dims());
        let factors = cast(Tensor::from_data(factors, (&x.device(), DType::F32)), x.dtype());
        x * factors
    })
}

fn forward(
    [x]: [FlexTensor; 1],
    masks: Vec<DropoutMask>,
    _backward: bool,
) -> (FlexTensor, Backward<impl Saved, 1>) {
    let output = apply(&masks, contiguous(x), &[], Poll::nothing());
    let backward =
        Backward::new(move |gradient, _of_x| [Some(apply(&masks, gradient, &[], Poll::current()))]);
    (output, backward)
}

/// Computes `residual + dropout(x)` in one pass, for the end of a residual block.
pub(crate) fn add_dropped<const D: usize>(residual: Tensor<D>, x: Tensor<D>, prob: f64) -> Tensor<D> {
    let device = x.device();
    let masks = |[residual, x]: [&FlexTensor; 2]| {
        let fits = [residual, x].iter().all(|tensor| tensor.dtype() == DType::F32);
        (fits && residual.shape() == x.shape())
            .then(|| DropoutMask::draw(prob, &device).into_iter().collect())
    };
    match on_flex([residual.into_dispatch(), x.into_dispatch()], masks, forward_added) {
        Ok(output) => Tensor::from_dispatch(output),
        Err(tensors) => {
            let [residual, x] = tensors;
            Tensor::from_dispatch(residual) + dropout(Tensor::<D>::from_dispatch(x), prob)
        }
    }
}

fn forward_added(
    tensors: [FlexTensor; 2],
    masks: Vec<DropoutMask>,
    _backward: bool,
) -> (FlexTensor, Backward<impl Saved, 2>) {
    let [residual, x] = tensors.map(contiguous);
    let output = apply(&masks, x, values(&residual), Poll::nothing());
    let backward = Backward::new(move |gradient, _of_residual| {
        let of_residual = gradient.clone();
        let of_x = if masks.is_empty() { gradient } else { apply(&masks, gradient, &[], Poll::current()) };
        [Some(of_residual), Some(of_x)]
    });
    (output, backward)
}

/// Number of values in an item for a thread.
const PART: usize = 1 << 14;

/// Computes `x * mask + residual`, in the memory of `x` if no other tensor shares it. An empty `residual`
/// adds nothing. `x` is divided into equal parts, one for each mask. Without masks, `mask` is 1.
fn apply(masks: &[DropoutMask], x: FlexTensor, residual: &[f32], poll: Poll) -> FlexTensor {
    let (level, (mut target, x)) = (Level::current(), target_of(x));
    let (all, x) = (target.storage_mut::<f32>(), x.as_ref().map(values));
    let length = (all.len() / masks.len().max(1)).max(1);
    each(all.len() / 4, all.chunks_mut(PART).enumerate(), |(part, mut rest)| {
        let mut at = part * PART;
        while !rest.is_empty() {
            let (sample, first) = (at / length, at % length);
            let count = rest.len().min(length - first);
            let target = rest.split_off_mut(..count).expect("at most the rest");
            let range = at..at + count;
            let (mask, x) = (masks.get(sample).copied(), x.map(|x| &x[range.clone()]));
            drop_part(level, mask, first, x, residual.get(range).unwrap_or_default(), target);
            at += count;
        }
        poll.call();
    });
    target
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::ops::testing::{numbers, random};

    fn kept(mask: DropoutMask, indices: impl Iterator<Item = usize>) -> Vec<bool> {
        indices.map(|at| mask.factor(at) != 0.0).collect()
    }

    /// Asserts that the number of events is within five standard deviations of the number expected for this
    /// probability.
    #[track_caller]
    fn assert_share(events: impl Iterator<Item = bool>, probability: f64, context: &str) {
        let (mut all, mut found) = (0.0, 0.0);
        for event in events {
            all += 1.0;
            found += f64::from(u8::from(event));
        }
        let deviation = (all * probability * (1.0 - probability)).sqrt();
        let distance = (found - all * probability).abs() / deviation;
        assert!(distance < 5.0, "{context}: {found} of {all}, probability {probability}");
    }

    #[test]
    fn values_are_kept_with_the_probability_and_independently() {
        const COUNT: usize = 1 << 16;
        for prob in [0.1, 0.5, 0.9] {
            let keep = 1.0 - prob;
            let masks =
                [0, 1, 1 << 32, 2, 0x1234_5678_9abc_def0, u64::MAX].map(|key| DropoutMask::new(prob, key));
            for mask in masks {
                let mask_kept = kept(mask, 0..COUNT + 4096);
                assert_share(mask_kept[..COUNT].iter().copied(), keep, "all");
                // Pairs of values at a distance are independent. In a matrix, neighbours in a row have
                // distance 1, and neighbours in a column have the width of a row as their distance.
                for distance in [1, 2, 3, 16, 32, 64, 256, 512, 768, 1024, 4096] {
                    let both = (0..COUNT).map(|at| mask_kept[at] && mask_kept[at + distance]);
                    assert_share(both, keep * keep, &format!("{distance} apart"));
                }
                // In rows of 64 values, each column has the same share of kept values.
                for position in 0..64 {
                    let column = (0..COUNT / 64).map(|row| mask_kept[row * 64 + position]);
                    assert_share(column, keep, &format!("position {position}"));
                }
                assert_share(
                    kept(mask, (0..COUNT).map(|at| at << 15)).into_iter(),
                    keep,
                    "indices far apart",
                );
            }
            // Two masks are independent, at the same index and at indices that differ in some bits.
            for (n, first) in masks.iter().enumerate() {
                for second in &masks[n + 1..] {
                    for other in [0, 1, 2, 3, 255, 1 << 15] {
                        let both =
                            (0..COUNT).map(|at| first.factor(at) != 0.0 && second.factor(at ^ other) != 0.0);
                        assert_share(
                            both,
                            keep * keep,
                            &format!("two masks, indices that differ by {other}"),
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn each_position_is_kept_by_as_many_keys() {
        for position in [0, 1, 255, 256, 65_535, 1 << 31] {
            let events = (0..10_000).map(|key: u64| DropoutMask::new(0.3, key << 7).factor(position) != 0.0);
            assert_share(events, 0.7, &format!("position {position}"));
        }
    }

    #[test]
    fn factors_are_those_of_the_indices() {
        let mask = DropoutMask::new(0.25, 99);
        let mut factors = [0.0; 100];
        mask.factors(1000, &mut factors);
        for (at, &factor) in factors.iter().enumerate() {
            assert_eq!(factor, mask.factor(1000 + at));
            assert!(factor == 0.0 || factor == 1.0 / 0.75);
        }
    }

    const ALONE: BatchPlace = BatchPlace { seed: 7, step: 3, first: 0, stride: 1 };

    /// Returns which of 384 values of each sample are kept, with a probability of 0.7.
    fn kept_at(place: BatchPlace, batch: usize) -> Vec<Vec<bool>> {
        place.masks(0.3, batch).into_iter().map(|mask| kept(mask, 0..384)).collect()
    }

    #[test]
    fn masks_of_samples_are_kept_with_the_probability_and_independently() {
        let (keep, samples) = (0.7, 512);
        for seed in [0, 1, 123, u64::MAX] {
            let steps: Vec<_> =
                (0..4).map(|step| kept_at(BatchPlace { seed, step, ..ALONE }, samples)).collect();
            for rows in &steps {
                assert_share(rows.iter().flatten().copied(), keep, &format!("all, seed {seed}"));
                for position in 0..384 {
                    let column = rows.iter().map(|row| row[position]);
                    assert_share(column, keep, &format!("position {position}, seed {seed}"));
                }
            }
            // The masks of two samples, of two steps and of two seeds are independent, at positions that
            // differ by 0, 1 or 8.
            let other_seed = kept_at(BatchPlace { seed: seed ^ 1, step: 0, ..ALONE }, samples);
            for other in [0, 1, 8] {
                let both = |first: &[Vec<bool>], second: &[Vec<bool>], what: &str| {
                    let both = first.iter().zip(second).flat_map(|(first, second)| {
                        (0..384).map(|at| first[at] && second[at ^ other]).collect::<Vec<_>>()
                    });
                    assert_share(both, keep * keep, &format!("{what}, {other} apart, seed {seed}"));
                };
                for distance in [1, 2, 3, 16, 64] {
                    both(&steps[0], &steps[0][distance..], &format!("samples {distance} apart"));
                }
                both(&steps[0], &steps[1], "two steps");
                both(&steps[0], &steps[1][1..], "the next sample of the next step");
                both(&steps[2], &steps[3], "two steps");
                both(&steps[0], &other_seed, "two seeds");
            }
        }
    }

    #[test]
    fn processes_share_the_masks_that_one_alone_would_draw() {
        let alone = kept_at(ALONE, 6);
        for (first, expected) in [[0, 2, 4], [1, 3, 5]].into_iter().enumerate() {
            let own = kept_at(BatchPlace { first, stride: 2, ..ALONE }, 3);
            assert_eq!(own, expected.map(|sample| alone[sample].clone()), "process {first}");
        }
        assert_eq!(alone[2..], kept_at(BatchPlace { first: 2, ..ALONE }, 4));
    }

    #[test]
    fn at_a_place_all_types_and_backends_have_the_same_mask() {
        let device = Device::flex().autodiff();
        for shape in [[5, 3, 7], [1, 1, 1], [3, 0, 2], [0, 2, 2], [3, 300, 256]] {
            let x = random(shape, 1, &device) + 3.0;
            let run = |x: Tensor<3>, kept: bool| {
                let x = x.detach().require_grad();
                // The operator writes to the memory of its input if nothing else refers to it.
                let input = if kept { x.clone() } else { x.clone() * 1.0 };
                let output = dropout_at(input, 0.3, &ALONE);
                let gradient = x.grad(&output.clone().sum().backward()).expect("it is tracked");
                [output, gradient].map(|tensor| tensor.into_data().try_into_vec_as::<f32>().expect("floats"))
            };
            let [output, gradient] = run(x.clone(), true);
            let masks = ALONE.masks(0.3, shape[0]);
            let factors = masks.iter().flat_map(|mask| (0..shape[1] * shape[2]).map(|at| mask.factor(at)));
            assert!(gradient.iter().copied().eq(factors), "{shape:?}");
            let values = x.clone().into_data().try_into_vec_as::<f32>().expect("f32");
            assert!(output.iter().copied().eq(values.iter().zip(&gradient).map(|(x, factor)| x * factor)));
            for level in Level::available() {
                let _held = level.hold();
                assert_eq!(run(x.clone(), false), [output.clone(), gradient.clone()], "{shape:?} at {level}");
            }
            for dtype in [DType::F64, DType::BF16, DType::F16] {
                let [other, _] = run(x.clone().cast(dtype), true);
                assert!(other.iter().zip(&output).all(|(x, y)| (*x == 0.0) == (*y == 0.0)), "{dtype:?}");
            }
        }
    }

    /// Returns the output, and the gradients of `residual` and `x`.
    fn step(
        prob: f64,
        [residual, x]: [Tensor<3>; 2],
        operator: impl Fn(Tensor<3>, Tensor<3>, f64) -> Tensor<3>,
    ) -> [Vec<f32>; 3] {
        let [residual, x] = [residual, x].map(|tensor| tensor.detach().require_grad());
        let output = operator(residual.clone(), x.clone(), prob);
        let gradients = (output.clone() * random(output.dims(), 5, &output.device())).sum().backward();
        let gradient = |tensor: &Tensor<3>| tensor.grad(&gradients).expect("it is tracked");
        [output, gradient(&residual), gradient(&x)]
            .map(|tensor| tensor.into_data().try_into_vec_as().expect("f32"))
    }

    #[test]
    fn the_gradient_passes_the_same_mask_on_every_simd_level() {
        let device = Device::flex().autodiff();
        for shape in [[1, 1, 1], [3, 5, 7], [2, 0, 4], [4, 33, 40], [3, 200, 256]] {
            let inputs = [
                random(shape, 1, &device),
                random([shape[2], shape[1], shape[0]], 2, &device).swap_dims(0, 2),
            ];
            let [residual, x] =
                inputs.clone().map(|tensor| tensor.into_data().try_into_vec_as::<f32>().expect("f32"));
            let weights = numbers(x.len(), 5);
            for prob in [0.0, 0.3, 0.999] {
                let mut found = Vec::new();
                for level in Level::available() {
                    let _held = level.hold();
                    device.seed(7);
                    let fused = step(prob, inputs.clone(), add_dropped);
                    device.seed(7);
                    let apart = |residual, x, prob| {
                        // With a second reference, the operator does not write to the memory of its inputs.
                        let (_residual, copy) = (Tensor::clone(&residual), Tensor::clone(&x));
                        residual + dropout(copy, prob)
                    };
                    assert_eq!(fused, step(prob, inputs.clone(), apart), "{shape:?}, {prob} at {level}");
                    found.push(fused);
                }
                assert!(found.iter().all(|other| *other == found[0]), "levels differ");
                let [output, of_residual, of_x] = &found[0];
                assert_eq!(of_residual, &weights);
                let scale = (1.0 / (1.0 - prob)) as f32;
                for at in 0..x.len() {
                    let factor = if of_x[at] == 0.0 { 0.0 } else { scale };
                    assert_eq!(of_x[at], weights[at] * factor);
                    assert_eq!(output[at], x[at] * factor + residual[at]);
                }
            }
        }
    }

    #[test]
    fn a_tensor_is_its_own_residual() {
        let device = Device::flex().autodiff();
        let x = random([2, 3, 40], 1, &device);
        let [output, none, of_x] = step(0.5, [x.clone(), x.clone()], |residual, x, prob| {
            add_dropped(x.clone(), x, prob) + residual * 0.0
        });
        let (x, weights) = (x.into_data().try_into_vec_as::<f32>().expect("f32"), numbers(240, 5));
        assert!(none.iter().all(|gradient| *gradient == 0.0));
        for at in 0..240 {
            let factor = if output[at] == x[at] { 1.0 } else { 3.0 };
            assert_eq!(output[at], x[at] * factor);
            assert_eq!(of_x[at], weights[at] * factor);
        }
    }
}
