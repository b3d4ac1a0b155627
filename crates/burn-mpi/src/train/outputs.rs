//! Sends the outputs of all ranks' steps to rank 0, which computes the metrics.

use burn::tensor::kind::Basic;
use burn::tensor::{Device, Tensor, TensorData};
use burn::train::{
    ClassificationOutput, ItemLazy, MultiLabelClassificationOutput, RegressionOutput, SequenceOutput,
};

use crate::{CommError, World};

/// An output of a step that can be sent to rank 0, so that rank 0 computes metrics over the samples of all
/// ranks.
///
/// burn-train's outputs implement this trait. To implement it for another output, return the output's tensors
/// from `into_parts`, and make the output from them in `from_parts`:
///
/// ```
/// use burn::backend::ExecutionError;
/// use burn::tensor::{Device, Int, Tensor, TensorData};
/// use burn::train::ItemLazy;
/// use burn_mpi::RankOutput;
///
/// #[derive(Clone)]
/// struct Scored {
///     loss: Tensor<1>,         // the mean loss of the batch
///     scores: Tensor<2>,       // [samples, classes]
///     targets: Tensor<1, Int>, // [samples]
/// }
///
/// impl ItemLazy for Scored {
///     fn sync(self) -> Result<Self, ExecutionError> {
///         Ok(self)
///     }
/// }
///
/// impl RankOutput for Scored {
///     fn into_parts(self, samples: usize) -> Vec<TensorData> {
///         let loss = Self::mean_of_samples(self.loss, samples);
///         vec![loss, self.scores.into_data(), self.targets.into_data()]
///     }
///
///     fn from_parts(parts: Vec<TensorData>, device: &Device) -> Option<Self> {
///         let [loss, scores, targets] = parts.try_into().ok()?;
///         Some(Self {
///             loss: Tensor::from_data(loss, device),
///             scores: Tensor::from_data(scores, device),
///             targets: Tensor::from_data(targets, device),
///         })
///     }
/// }
/// ```
pub trait RankOutput: ItemLazy {
    /// Returns the tensors of an output over `samples` samples. The first dimension of each tensor is the
    /// sample. A mean is repeated for each sample ([`mean_of_samples`](Self::mean_of_samples)), so that
    /// metrics weight ranks by samples.
    fn into_parts(self, samples: usize) -> Vec<TensorData>;

    /// Returns the output with these tensors on `device`, or `None` if there are too few or too many of them.
    fn from_parts(parts: Vec<TensorData>, device: &Device) -> Option<Self>;

    /// Repeats a mean over `samples` samples once for each sample.
    fn mean_of_samples(mean: Tensor<1>, samples: usize) -> TensorData {
        mean.mean().expand([samples.max(1)]).into_data()
    }
}

/// Implements [`RankOutput`] for outputs of a loss, the model's output, and the targets.
macro_rules! of_three {
    ($($output:ident),+) => {$(
        impl RankOutput for $output {
            fn into_parts(self, samples: usize) -> Vec<TensorData> {
                let loss = Self::mean_of_samples(self.loss, samples);
                vec![loss, self.output.into_data(), self.targets.into_data()]
            }

            fn from_parts(parts: Vec<TensorData>, device: &Device) -> Option<Self> {
                let [loss, output, targets] = parts.try_into().ok()?;
                Some(Self::new(tensor(loss, device), tensor(output, device), tensor(targets, device)))
            }
        }
    )+};
}

of_three!(ClassificationOutput, MultiLabelClassificationOutput, RegressionOutput);

impl RankOutput for SequenceOutput {
    fn into_parts(self, samples: usize) -> Vec<TensorData> {
        let loss = Self::mean_of_samples(self.loss, samples);
        let mut parts = vec![loss, self.logits.into_data(), self.targets.into_data()];
        parts.extend(self.predictions.map(Tensor::into_data));
        parts
    }

    fn from_parts(mut parts: Vec<TensorData>, device: &Device) -> Option<Self> {
        let predictions = (parts.len() == 4).then(|| parts.pop()).flatten();
        let [loss, logits, targets] = parts.try_into().ok()?;
        let predictions = predictions.map(|data| tensor(data, device));
        Some(Self::new(tensor(loss, device), tensor(logits, device), predictions, tensor(targets, device)))
    }
}

fn tensor<const D: usize, K: Basic>(data: TensorData, device: &Device) -> Tensor<D, K> {
    Tensor::from_data(data, device)
}

/// Returns on rank 0 the outputs of all ranks that have one in a step: joined to one output if their shapes
/// agree, otherwise one by one in rank order. On other ranks, returns an empty vector.
pub(super) fn on_root<O: RankOutput>(
    world: &World,
    output: Option<O>,
    samples: usize,
    device: &Device,
) -> Result<Vec<O>, CommError> {
    let mine = output.map(|output| output.into_parts(samples));
    for (at, part) in mine.iter().flatten().enumerate() {
        // A model may have several rows for a sample, such as the tokens of a text.
        if samples > 1 && part.shape().first().is_none_or(|rows| *rows == 1) {
            return Err(world.wrong(format!(
                "has an output of {samples} samples, but tensor {at} of RankOutput::into_parts has the shape {:?}: the \
                 first dimension must be the sample, and RankOutput::mean_of_samples repeats a mean",
                part.shape().as_slice()
            )));
        }
    }
    let ranks: Vec<Option<Vec<TensorData>>> = world.gather_on_root(&mine)?;
    const REJECTED: &str = "cannot rebuild the output of a step: RankOutput::from_parts rejected the tensors of \
                            RankOutput::into_parts";
    let unreadable = || world.wrong(REJECTED.into());
    let outputs = joined(ranks.into_iter().flatten().collect()).into_iter();
    outputs.map(|parts| O::from_parts(parts, device).ok_or_else(unreadable)).collect()
}

/// Joins the tensors of all ranks along the first dimension, so that the outputs become one output. Returns
/// `ranks` unchanged if the number of tensors, their types or their other dimensions differ.
fn joined(ranks: Vec<Vec<TensorData>>) -> Vec<Vec<TensorData>> {
    let Some((first, others)) = ranks.split_first() else { return ranks };
    let same = |(a, b): (&TensorData, &TensorData)| {
        a.dtype() == b.dtype() && a.shape().len() == b.shape().len() && a.shape()[1..] == b.shape()[1..]
    };
    let agree = |other: &Vec<TensorData>| other.len() == first.len() && first.iter().zip(other).all(same);
    if !others.iter().all(agree) || first.iter().any(|part| part.shape().is_empty()) {
        return ranks;
    }
    let join = |part: usize| {
        let mut shape = first[part].shape().to_vec();
        shape[0] = ranks.iter().map(|parts| parts[part].shape()[0]).sum();
        let bytes: Vec<u8> = ranks.iter().flat_map(|parts| parts[part].as_bytes()).copied().collect();
        TensorData::from_bytes_vec(bytes, shape, first[part].dtype())
    };
    vec![(0..first.len()).map(join).collect()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::{Options, run};

    fn parts(rows: usize, columns: usize, from: f32) -> Vec<TensorData> {
        let values: Vec<f32> = (0..rows * columns).map(|value| from + value as f32).collect();
        vec![TensorData::new(vec![from; rows], [rows]), TensorData::new(values, [rows, columns])]
    }

    #[test]
    fn parts_are_the_same_on_rank_0() {
        let gathered =
            run(2, &Options::default(), |world| world.gather_on_root(&parts(3, 2, world.rank() as f32)));
        assert_eq!(gathered.unwrap(), [vec![parts(3, 2, 0.0), parts(3, 2, 1.0)], Vec::new()]);
    }

    #[test]
    fn a_tensor_whose_first_dimension_is_not_the_sample_is_named() {
        #[derive(Clone)]
        struct Loss(Tensor<1>);

        impl ItemLazy for Loss {
            fn sync(self) -> Result<Self, burn::backend::ExecutionError> {
                Ok(self)
            }
        }

        impl RankOutput for Loss {
            fn into_parts(self, _samples: usize) -> Vec<TensorData> {
                vec![self.0.into_data()]
            }

            fn from_parts(parts: Vec<TensorData>, device: &Device) -> Option<Self> {
                let [loss] = parts.try_into().ok()?;
                Some(Self(tensor(loss, device)))
            }
        }

        let gathered = |values: usize| {
            run(2, &Options::default(), |world| {
                let device = Device::flex();
                let output = Loss(Tensor::ones([values], &device));
                on_root(world, Some(output), 3, &device).map(|outputs| outputs.len())
            })
        };
        assert_eq!(gathered(6).unwrap(), [1, 0]);
        let line = gathered(1).unwrap_err().to_string();
        assert!(line.contains("an output of 3 samples, but tensor 0") && line.contains("[1]"), "{line}");
    }

    #[test]
    fn outputs_of_equal_shapes_become_one() {
        let whole = joined(vec![parts(2, 2, 0.0), parts(1, 2, 10.0)]);
        let [loss, output] = &whole[0][..] else { panic!("{whole:?}") };
        assert_eq!((whole.len(), loss), (1, &TensorData::new(vec![0.0f32, 0.0, 10.0], [3])));
        assert_eq!(output, &TensorData::new(vec![0.0f32, 1.0, 2.0, 3.0, 10.0, 11.0], [3, 2]));
        let lengths = vec![parts(2, 2, 0.0), parts(2, 3, 0.0)];
        assert_eq!(joined(lengths.clone()), lengths, "sequences of other lengths");
        assert!(joined(Vec::new()).is_empty());
    }
}
