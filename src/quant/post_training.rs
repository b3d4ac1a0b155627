//! Post-training quantization: int8 models of a float network, after its training or after each
//! epoch of it.

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
/// Samples that go through the network at once.
const BATCH: usize = 128;

/// Options of post-training quantization.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PostTraining {
    /// Scales of weights.
    pub scheme: WeightScheme,
    /// Number of the first training samples from which ranges of activations follow.
    pub calibration: usize,
}

/// Makes int8 models of float networks. It holds the calibration samples, which are the same on
/// every rank, so that every rank derives the same model.
#[derive(Debug)]
pub struct PostQuantizer {
    scheme: WeightScheme,
    images: Vec<u8>,
    sample_bytes: usize,
    normalizer: Normalizer,
}

impl PostTraining {
    /// Reads the calibration samples. `trained` limits them to the samples of the training.
    ///
    /// # Errors
    /// If they cannot be read.
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

    /// The int8 model of `network`, which is on a device without autodiff.
    ///
    /// # Errors
    /// If a layer cannot be quantized, or values are NaN or infinite.
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
    /// Extends the ranges of the input and of each group's output by those of `samples` `[batch, channels, height,
    /// width]` in the float network, as PyTorch's `MinMaxObserver`. The order of batches has no effect. The network is
    /// on a device without autodiff, so that batch norms use their running statistics. An output is observed after its
    /// pooling, which is monotonic.
    ///
    /// # Errors
    /// If values are NaN or infinite, with the layer where they appear.
    pub(super) fn observe(&mut self, groups: &[Group<'_>], samples: Tensor<4>) -> Result<(), QuantError> {
        extend(&mut self.input, "the input", samples.clone())?;
        let mut images = samples;
        let (mut features, mut last): (Option<Tensor<2>>, Option<&Group<'_>>) = (None, None);
        for (group, ranges) in groups.iter().zip(&mut self.groups) {
            match group.product {
                Product::Conv(_) => {
                    images = group.images(images, None, false);
                    // Means are within the range of what they are of.
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

/// Extends a range by the values of a batch.
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
