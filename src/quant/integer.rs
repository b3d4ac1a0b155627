//! Integer models from a network and its ranges.

use burn_fused::int8::{Conv, Layer, Linear, MaxPool, Model, QParams, Scheme, Weights, min_max_by_channel};

use super::fold::Folded;
use super::groups::padding;
use super::ranges::parameters;
use super::{Group, GroupRanges, Product, QuantError, Ranges, WeightScheme, groups};
use crate::model::Network;

/// The integer model of `network`: batch norm folded into the weights by its running
/// statistics, weights quantized by `scheme`, activations by `ranges`. If ranges of
/// weights were never observed, those of the current weights are used.
///
/// # Errors
/// If a layer cannot be quantized; if ranges were never observed, belong to a
/// different network, or are too wide; if weights are not finite.
pub fn integer_model(network: &Network, ranges: &Ranges, scheme: WeightScheme) -> Result<Model, QuantError> {
    let groups = groups(network)?;
    if ranges.groups.len() != groups.len() {
        return Err(QuantError::OtherNetwork { found: ranges.groups.len(), expected: groups.len() });
    }
    let input = ranges.input_parameters()?;
    let mut layers = Vec::new();
    let mut before = input;
    for (group, ranges) in groups.iter().zip(&ranges.groups) {
        let of = format!("the output of {}", group.name);
        let output = parameters(ranges.output, &of)?;
        layers.push(group.integer_layer(ranges, scheme, before, output)?);
        layers.extend(
            group.pool.map(|pool| Layer::MaxPool(MaxPool { kernel: pool.kernel_size, stride: pool.stride })),
        );
        before = output;
    }
    Ok(Model::new(network.input_shape(), input, layers)?)
}

impl Group<'_> {
    fn integer_layer(
        &self,
        ranges: &GroupRanges,
        scheme: WeightScheme,
        input: QParams,
        output: QParams,
    ) -> Result<Layer, QuantError> {
        let outputs = self.product.outputs();
        let folded = self.folded();
        let weights = self
            .scales(&folded, ranges, scheme)
            .and_then(|scales| Weights::quantize(&folded.weights, &folded.bias, &scales, input, output))
            .map_err(|error| QuantError::values(&self.name, error))?;
        Ok(match self.product {
            Product::Conv(conv) => Layer::Conv(Conv {
                inputs: conv.weight.dims()[1],
                outputs,
                kernel: conv.kernel_size,
                stride: conv.stride,
                padding: padding(&conv.padding).map_err(|reason| QuantError::layer(&self.name, reason))?,
                weights,
                relu: self.relu,
                output,
            }),
            Product::Linear(linear) => Layer::Linear(Linear {
                inputs: linear.weight.dims()[0],
                outputs,
                weights,
                relu: self.relu,
                output,
            }),
        })
    }

    /// The weights' scales.
    fn scales(
        &self,
        folded: &Folded,
        ranges: &GroupRanges,
        scheme: WeightScheme,
    ) -> Result<Vec<f32>, burn_fused::int8::Int8Error> {
        let found = match &ranges.weights {
            Some(ranges) => ranges.clone(),
            None => min_max_by_channel(&folded.weights, scheme.scales(self.product.outputs()))?,
        };
        let scale = |&[min, max]: &[f32; 2]| Scheme::Symmetric.parameters(min, max).map(|p| p.scale);
        found.iter().map(scale).collect()
    }
}
