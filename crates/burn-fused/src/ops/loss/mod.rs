//! Cross entropy and accuracy of class scores in one pass.
//!
//! On flex, the loss is one operator, which computes the gradient together with the loss. Other backends run
//! Burn's operators.

mod indices;

use burn::backend::flex::FlexTensor;
use burn::tensor::activation::log_softmax;
use burn::tensor::{DType, Int, Tensor, TensorData};

use crate::kernels::loss::read::Read;
use crate::ops::extension::{Backward, on_flex, unsupported_tensors};
use crate::ops::flex_tensor::tensor;
use crate::ops::shapes::{expect, refuse};

pub use crate::kernels::loss::read::argmax;
pub(crate) use indices::{IndexLoss, cross_entropy_of_indices};

/// Loss and accuracy of class scores.
#[derive(Debug)]
pub struct Score {
    /// Mean cross entropy `[1]`; call `backward` on it.
    pub loss: Tensor<1>,
    /// The value of the loss, in nats.
    pub value: f64,
    /// Number of samples whose highest score is the score of their class. Of equal scores, the first counts
    /// as the highest, as in PyTorch.
    pub correct: usize,
}

/// Returns the mean cross entropy of `scores` (logits) `[batch, classes]` against the classes of the samples.
/// Without samples, the loss is NaN, as in Burn and PyTorch.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use burn_fused::loss::cross_entropy;
///
/// let device = Device::flex().autodiff();
/// let scores = Tensor::<2>::from_data([[0.0, 0.0], [2.0, -2.0]], &device).require_grad();
/// let score = cross_entropy(scores.clone(), &[1, 0]);
/// assert_eq!(score.correct, 1);
/// assert!((score.value - (2f64.ln() + (-4f64).exp().ln_1p()) / 2.0).abs() < 1e-6);
/// assert!(scores.grad(&score.loss.backward()).is_some());
/// ```
///
/// # Panics
/// If a label is not below `classes`, if the numbers of labels and rows differ, or if the scores cannot be
/// read as f32.
#[track_caller]
pub fn cross_entropy(scores: Tensor<2>, labels: &[u16]) -> Score {
    smoothed_cross_entropy(scores, labels, 0.0)
}

/// Does the same as [`cross_entropy`], with label smoothing: a share `smoothing` (0 to 1) of each label is
/// distributed uniformly over all classes (Szegedy et al., 2016), as in PyTorch's `CrossEntropyLoss`.
///
/// ```
/// # use burn::tensor::{Device, Tensor};
/// use burn_fused::loss::smoothed_cross_entropy;
///
/// # let device = Device::flex().autodiff();
/// let scores = Tensor::<2>::from_data([[8.0, 0.0, 0.0, 0.0]], &device);
/// // A tenth of the label is spread over all four classes.
/// let score = smoothed_cross_entropy(scores, &[0], 0.1);
/// assert!((score.value - 0.601).abs() < 1e-3);
/// ```
///
/// # Panics
/// In the same cases as [`cross_entropy`], or if `smoothing` is not between 0 and 1.
#[track_caller]
pub fn smoothed_cross_entropy(scores: Tensor<2>, labels: &[u16], smoothing: f64) -> Score {
    weighted_cross_entropy(scores, labels, smoothing, None)
}

/// Does the same as [`smoothed_cross_entropy`], with class weights: each sample's loss is multiplied by the
/// weight of its class. The mean is over the number of samples, so that the means of several processes can be
/// averaged. PyTorch instead divides by the sum of the batch's weights. Without `weights`, all weights are 1.
///
/// # Panics
/// In the same cases as [`smoothed_cross_entropy`], or if the numbers of weights and classes differ.
#[track_caller]
pub fn weighted_cross_entropy(
    scores: Tensor<2>,
    labels: &[u16],
    smoothing: f64,
    weights: Option<&[f32]>,
) -> Score {
    let [batch, classes] = scores.dims();
    if let Some(weights) = weights {
        expect("cross_entropy", "There must be a weight for each class.", weights.len(), classes);
    }
    let rule = "Number of labels and rows of scores must be equal.";
    expect("cross_entropy", rule, labels.len(), batch);
    if let Some(row) = labels.iter().position(|&label| usize::from(label) >= classes) {
        let rule = "Labels must be less than the number of classes.";
        let details = format_args!("got: {} in row {row}, classes: {classes}", labels[row]);
        refuse("cross_entropy", rule, details);
    }
    if !(0.0..=1.0).contains(&smoothing) {
        let rule = "Alpha of Cross-entropy loss with smoothed labels should be in interval [0, 1].";
        refuse("cross_entropy", rule, format_args!("got: {smoothing}"));
    }
    let mut found = None;
    let of_samples =
        weights.map(|weights| labels.iter().map(|&label| weights[usize::from(label)]).collect::<Vec<f32>>());
    let read = |[scores]: [&FlexTensor; 1]| {
        let scores = scores.to_contiguous();
        Read::from_scores(scores.as_slice::<f32>()?, labels, smoothing, of_samples.clone())
    };
    let loss = on_flex([scores.into_dispatch()], read, |_, read, backward| {
        found = Some((read.loss, read.correct));
        let loss = tensor(vec![read.loss as f32], &[1]);
        let known = backward.then(|| tensor(read.gradient(labels), &[batch, classes]));
        (loss, Backward::new(move |upstream, _of_scores| [known.map(|known| scaled(known, &upstream))]))
    });
    match loss {
        Ok(loss) => {
            let (value, correct) = found.expect("forward has run");
            Score { loss: Tensor::from_dispatch(loss), value, correct }
        }
        Err(tensors) => {
            let [scores] = unsupported_tensors("cross_entropy", tensors);
            composed(Tensor::from_dispatch(scores), labels, smoothing, of_samples)
        }
    }
}

/// Computes loss and accuracy with Burn's operators.
fn composed(scores: Tensor<2>, labels: &[u16], smoothing: f64, weights: Option<Vec<f32>>) -> Score {
    let targets: Vec<i64> = labels.iter().map(|&label| i64::from(label)).collect();
    let targets = TensorData::new(targets, [labels.len(), 1]);
    let targets = Tensor::<2, Int>::from_data(targets, &scores.device());
    let logs = log_softmax(scores.clone(), 1);
    let weights = weights.map(|weights| {
        let weights = TensorData::new(weights, [labels.len(), 1]);
        Tensor::<2>::from_data(weights, &scores.device()).cast(scores.dtype())
    });
    let weighted = |logs: Tensor<2>| match &weights {
        Some(weights) => logs * weights.clone(),
        None => logs,
    };
    let own: Tensor<1> = weighted(logs.clone().gather(1, targets)).mean().neg();
    let loss =
        if smoothing > 0.0 { own * (1.0 - smoothing) - weighted(logs).mean() * smoothing } else { own };
    let value = f64::from(loss.clone().into_scalar::<f32>());
    let data = scores.into_data().convert_dtype(DType::F32);
    let correct = match data.as_slice::<f32>() {
        Ok(scores) => {
            // An empty batch has no row.
            let rows = scores.chunks_exact((scores.len() / labels.len().max(1)).max(1)).zip(labels);
            rows.filter(|(row, label)| argmax(row) == usize::from(**label)).count()
        }
        Err(error) => panic!("scores cannot be read as f32: {error:?}"),
    };
    Score { loss, value, correct }
}

/// Returns the gradient of the scores, from the gradient `upstream` of the loss. `gradient` is the gradient
/// of the scores for an `upstream` of 1.
fn scaled(mut gradient: FlexTensor, upstream: &FlexTensor) -> FlexTensor {
    let factor = upstream.as_slice::<f32>().map_or(1.0, |values| values[0]);
    if factor != 1.0 {
        gradient.storage_mut::<f32>().iter_mut().for_each(|x| *x *= factor);
    }
    gradient
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    /// A sample of weight 3 counts as three samples. A sample of weight 0 has no gradient.
    #[test]
    fn weights_are_those_of_repeated_samples() {
        let device = Device::flex().autodiff();
        let rows = [[0.5f32, -1.0, 2.0], [1.5, 0.25, -0.5], [0.0, 3.0, 1.0]];
        let run = |rows: &[[f32; 3]], labels: &[u16], smoothing, weights: Option<&[f32]>| {
            let data = TensorData::new(rows.as_flattened().to_vec(), [rows.len(), 3]);
            let scores = Tensor::<2>::from_data(data, &device).require_grad();
            let score = weighted_cross_entropy(scores.clone(), labels, smoothing, weights);
            let gradient = scores.grad(&score.loss.backward()).unwrap().into_data();
            (score.value * rows.len() as f64, gradient.try_to_vec::<f32>().unwrap())
        };
        for smoothing in [0.0, 0.2] {
            let (loss, gradient) = run(&rows, &[2, 0, 1], smoothing, Some(&[3.0, 0.0, 1.0]));
            let repeated = [rows[0], rows[1], rows[1], rows[1]];
            let (expected, repeated) = run(&repeated, &[2, 0, 0, 0], smoothing, None);
            assert!((loss - expected).abs() < 1e-5, "{loss}, {expected}");
            let near = |a: f32, b: f32| assert!((a - b).abs() < 1e-6, "{gradient:?}, {repeated:?}");
            (0..3).for_each(|i| near(3.0 * gradient[i], 4.0 * repeated[i]));
            (3..6).for_each(|i| near(3.0 * gradient[i], 4.0 * 3.0 * repeated[i]));
            assert_eq!(gradient[6..], [0.0; 3]);
            // The composition of Burn's operators gives the same loss.
            let data = TensorData::new(rows.as_flattened().to_vec(), [3, 3]);
            let composed =
                composed(Tensor::from_data(data, &device), &[2, 0, 1], smoothing, Some(vec![1.0, 3.0, 0.0]));
            assert!((composed.value * 3.0 - loss).abs() < 1e-5, "{}, {loss}", composed.value);
        }
    }

    fn tensor(scores: &[f32], rows: usize, device: &Device) -> Tensor<2> {
        Tensor::from_data(TensorData::new(scores.to_vec(), [rows, scores.len() / rows]), device)
    }

    fn gradient(scores: &Tensor<2>, loss: &Tensor<1>) -> Vec<f32> {
        let gradients = loss.clone().mul_scalar(2.0).backward();
        scores.grad(&gradients).expect("of the scores").into_data().try_into_vec().expect("f32")
    }

    #[test]
    fn the_fused_loss_matches_burns_operators() {
        let device = Device::flex().autodiff();
        let values: Vec<f32> = (0..77 * 10).map(|i| ((i * 7919) % 1000) as f32 / 50.0 - 10.0).collect();
        let labels: Vec<u16> = (0..77).map(|i| (i * 3 % 10) as u16).collect();
        let scores = tensor(&values, 77, &device).require_grad();
        for smoothing in [0.0, 0.1, 0.9] {
            let one = smoothed_cross_entropy(scores.clone(), &labels, smoothing);
            let several = composed(scores.clone(), &labels, smoothing, None);
            assert_eq!(one.correct, several.correct);
            assert!((one.value - several.value).abs() < 1e-5 * several.value, "{one:?} {several:?}");
            let (found, expected) = (gradient(&scores, &one.loss), gradient(&scores, &several.loss));
            let largest = expected.iter().fold(0.0f32, |max, x| max.max(x.abs()));
            for (found, expected) in found.iter().zip(&expected) {
                assert!((found - expected).abs() < 1e-5 * largest, "{smoothing}: {found} for {expected}");
            }
        }
        let one = cross_entropy(scores, &labels);
        let alone = cross_entropy(tensor(&values, 77, &Device::flex()), &labels);
        assert_eq!((alone.value, alone.correct), (one.value, one.correct));
        assert_eq!(alone.loss.into_scalar::<f32>(), one.loss.into_scalar::<f32>());
    }

    #[test]
    fn argmax_is_the_first_of_equal_scores() {
        let scores = [0.1, 0.9, 0.0, 3.0, 3.0, 1.0];
        for (labels, expected) in [([1, 0], 2), ([1, 1], 1)] {
            assert_eq!(cross_entropy(tensor(&scores, 2, &Device::flex()), &labels).correct, expected);
        }
    }

    #[test]
    fn nan_and_positive_infinite_scores_give_a_non_finite_loss() {
        let device = Device::flex();
        for value in [f32::NAN, f32::INFINITY] {
            let loss = cross_entropy(tensor(&[1.0, value, 0.0], 1, &device), &[0]).value;
            assert!(!loss.is_finite(), "{value}: {loss}");
        }
        let loss = cross_entropy(tensor(&[1.0, f32::NEG_INFINITY, 0.0], 1, &device), &[0]).value;
        assert!(loss.is_finite(), "{loss}");
    }
}
