//! MLP: the small network for feature vectors, and for images as such; 17,140
//! parameters with 512 features and 20 classes.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::Device;

use super::batch_norm::BatchNorm;
use super::dropout::Dropout;
use super::{Architecture, Dimensions, Layer, Made, NamedLayer, NetworkOptions};

/// Default width of the hidden layer.
pub const HIDDEN: usize = 32;

/// Linear(c·h·w→32) · BatchNorm1d(32) · ReLU · Linear(32→classes), for `[batch, c,
/// h, w]`; 32 may be another width and ReLU another activation. Dropout, if any,
/// precedes the last layer.
#[derive(Module, Debug)]
pub struct Mlp {
    layer1: Linear,
    bn1: BatchNorm,
    dropout: Option<Dropout>,
    layer2: Linear,
    #[module(skip)]
    pub(super) made: Made,
}

impl Mlp {
    /// A network with weights drawn from the device's random number generator.
    pub(super) fn init(options: &NetworkOptions, dimensions: Dimensions, device: &Device) -> Self {
        let hidden = options.hidden.unwrap_or(HIDDEN);
        Self {
            layer1: LinearConfig::new(dimensions.input.iter().product(), hidden).init(device),
            bn1: BatchNorm::init(hidden, device),
            dropout: Dropout::new(options.dropout),
            layer2: LinearConfig::new(hidden, dimensions.classes).init(device),
            made: Made::of(options, dimensions),
        }
    }
}

impl Architecture for Mlp {
    fn made(&self) -> &Made {
        &self.made
    }

    fn layers(&self) -> Vec<NamedLayer<'_>> {
        let mut layers = vec![
            Layer::Flatten.named("flatten"),
            Layer::Linear(&self.layer1).named("layer1"),
            Layer::Norm(&self.bn1).named("bn1"),
            Layer::Activation(self.made.activation).named("activation"),
        ];
        layers.extend(self.dropout.as_ref().map(|layer| Layer::Dropout(layer).named("dropout")));
        layers.push(Layer::Linear(&self.layer2).named("layer2"));
        layers
    }
}
