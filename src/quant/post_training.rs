//! Post-training quantization: makes int8 models of a float network, after its training or after each epoch.
//!
//! The ranges of activations are observed on calibration samples, which are the first training samples.

use burn::tensor::Tensor;
use burn_fused::int8::min_max;

use super::group_layers::flat;
use super::{Group, Product, QuantError, Quantized, Range, Ranges, WeightScheme, groups};
use crate::device::DeviceKind;
use crate::model::{Network, inputs};
use data::{DataError, Normalizer, SampleSource, Shard, Split};
use run_record::Method;

/// Default number of calibration samples.
pub const CALIBRATION: usize = 1024;
/// Number of calibration samples in one pass through the network.
const BATCH: usize = 128;

/// Options of post-training quantization.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PostTraining {
    /// Which weights of a layer share a scale.
    pub scheme: WeightScheme,
    /// Number of calibration samples.
    pub calibration: usize,
}

/// Makes int8 models of float networks. Contains the calibration samples, which are the same on every rank,
/// so every rank makes the same model.
#[derive(Debug)]
pub struct PostQuantizer {
    scheme: WeightScheme,
    images: Vec<u8>,
    sample_bytes: usize,
    normalizer: Normalizer,
}

impl PostTraining {
    /// Reads the calibration samples. `trained` is the number of samples on which the run trains, `None` if
    /// it trains on all. At most `trained` samples are read.
    ///
    /// # Errors
    /// If the samples cannot be read.
    pub fn load(self, source: &SampleSource, trained: Option<usize>) -> Result<PostQuantizer, DataError> {
        let known = trained.unwrap_or(usize::MAX).min(source.len(Split::Train));
        let shard = Shard::first(source, Split::Train, self.calibration.min(known))?;
        let images = shard.read(0, shard.len())?.0.into_owned();
        let description = source.description();
        let (sample_bytes, normalizer) = (description.sample_bytes(), Normalizer::new(description));
        Ok(PostQuantizer { scheme: self.scheme, images, sample_bytes, normalizer })
    }
}

impl PostQuantizer {
    /// Number of calibration samples.
    pub fn samples(&self) -> usize {
        self.images.len() / self.sample_bytes
    }

    /// Makes the int8 model of `network`, which must be on a device without autodiff.
    ///
    /// # Errors
    /// If a layer cannot be quantized, if weights or activations are NaN or infinite, or if a range is too
    /// wide.
    pub fn quantize(&self, network: &Network) -> Result<Quantized, QuantError> {
        let groups = groups(network)?;
        let mut ranges = Ranges::for_groups(groups.len());
        let device = DeviceKind::Flex.device();
        for images in self.images.chunks(BATCH * self.sample_bytes) {
            ranges
                .observe(&groups, inputs(self.normalizer.values(images), self.normalizer.shape(), &device))?;
        }
        Quantized::of_ranges(network, Method::Ptq, &ranges, self.scheme)
    }
}

impl Ranges {
    /// Runs `samples` `[batch, channels, height, width]` through the float network, and extends the ranges of
    /// the input and of each group's output so that they contain all values, as PyTorch's `MinMaxObserver`
    /// does. The order of batches has no effect.
    ///
    /// The network must be on a device without autodiff, so that batch norms use their running statistics.
    /// The output of a group with max pooling is observed after the pooling. Quantization before or after the
    /// pooling gives the same values, because max pooling is monotonic.
    ///
    /// # Errors
    /// If values are NaN or infinite. The error names the layer where they appear.
    pub(super) fn observe(&mut self, groups: &[Group<'_>], samples: Tensor<4>) -> Result<(), QuantError> {
        extend(&mut self.input, "the input", samples.clone())?;
        let mut images = samples;
        let (mut features, mut last): (Option<Tensor<2>>, Option<&Group<'_>>) = (None, None);
        for (group, ranges) in groups.iter().zip(&mut self.groups) {
            match group.product {
                Product::Conv(_) => {
                    images = group.images(images, None, false);
                    // Average pooling needs no range: means are within the range of the averaged values.
                    extend(&mut ranges.output, &group.name, images.clone())?;
                    last = Some(group);
                }
                Product::Linear(_) => {
                    let x = features.take().unwrap_or_else(|| flat(last, images.clone()));
                    let x = group.features(x, None, false);
                    extend(&mut ranges.output, &group.name, x.clone())?;
                    features = Some(x);
                }
            }
        }
        Ok(())
    }
}

/// Extends `range` by the values of a batch.
fn extend<const D: usize>(
    range: &mut Option<Range>,
    layer: &str,
    values: Tensor<D>,
) -> Result<(), QuantError> {
    let data = values.into_data();
    let values = data.as_slice::<f32>().unwrap_or_else(|_| unreachable!("activations are f32"));
    let [min, max] = min_max(values).map_err(|error| QuantError::values(layer, error))?;
    *range = Some(match *range {
        Some([low, high]) => [low.min(min), high.max(max)],
        None => [min, max],
    });
    Ok(())
}
