//! Static post-training quantization: ranges from batches of training samples.

use burn::tensor::Tensor;
use burn_fused::int8::min_max;

use super::{Group, Product, QuantError, Range, Ranges, groups};
use crate::model::Network;

/// Minimum and maximum of the input and of each group's output over all batches, as
/// PyTorch's `MinMaxObserver`. The order of batches has no effect. An output is observed after its pooling, which
/// is monotonic.
pub struct Calibration<'a> {
    groups: Vec<Group<'a>>,
    ranges: Ranges,
}

impl<'a> Calibration<'a> {
    /// A calibration of `network` without batches so far. Its device must be one
    /// without autodiff, so that batch norms use their running statistics.
    ///
    /// # Errors
    /// If a layer cannot be quantized.
    pub fn new(network: &'a Network) -> Result<Self, QuantError> {
        let groups = groups(network)?;
        let ranges = Ranges::of(groups.len());
        Ok(Self { groups, ranges })
    }

    /// Runs `samples` `[batch, channels, height, width]` through the float network.
    ///
    /// # Errors
    /// If values are NaN or infinite, with the layer where they appear.
    pub fn observe(&mut self, samples: Tensor<4>) -> Result<(), QuantError> {
        extend(&mut self.ranges.input, "the input", samples.clone())?;
        let mut images = samples;
        let mut features: Option<Tensor<2>> = None;
        for (group, ranges) in self.groups.iter().zip(&mut self.ranges.groups) {
            match group.product {
                Product::Conv(_) => {
                    images = group.images(images, None, false);
                    extend(&mut ranges.output, &group.name, images.clone())?;
                }
                Product::Linear(_) => {
                    let x = features.take().unwrap_or_else(|| images.clone().flatten(1, 3));
                    let x = group.features(x, None, false);
                    extend(&mut ranges.output, &group.name, x.clone())?;
                    features = Some(x);
                }
            }
        }
        Ok(())
    }

    /// The observed ranges.
    pub fn into_ranges(self) -> Ranges {
        self.ranges
    }
}

/// Extends a range by the values of a batch.
fn extend<const D: usize>(range: &mut Option<Range>, of: &str, values: Tensor<D>) -> Result<(), QuantError> {
    let data = values.into_data();
    let values = data.as_slice::<f32>().unwrap_or_else(|_| unreachable!("activations are f32"));
    let [min, max] = min_max(values).map_err(|error| QuantError::values(of, error))?;
    *range = Some(match *range {
        Some([low, high]) => [low.min(min), high.max(max)],
        None => [min, max],
    });
    Ok(())
}
