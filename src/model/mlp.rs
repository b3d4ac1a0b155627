//! MLP: the small network for feature vectors, 17,140 parameters with 512
//! features and 20 classes.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::Device;

use super::batch_norm::BatchNorm;
use super::dropout::Dropout;
use super::{Activation, Architecture, Layer, NamedLayer, NetworkOptions};

/// Features of a sample.
pub(super) const FEATURES: usize = 512;
/// Default width of the hidden layer.
pub const HIDDEN: usize = 32;

/// Linear(512→32) · BatchNorm1d(32) · ReLU · Linear(32→classes), for `[batch,
/// 1, 1, 512]`; 32 may be another width and ReLU another activation. Dropout,
/// if any, precedes the last layer.
#[derive(Module, Debug)]
pub struct Mlp {
    layer1: Linear,
    bn1: BatchNorm,
    dropout: Option<Dropout>,
    layer2: Linear,
    #[module(skip)]
    activation: Activation,
    /// Whether batch norm and linear layers are `burn_fused` operators.
    #[module(skip)]
    pub(super) fused: bool,
}

impl Mlp {
    /// A network with weights drawn from the device's random number generator.
    pub(super) fn init(options: &NetworkOptions, classes: usize, device: &Device) -> Self {
        let hidden = options.hidden.unwrap_or(HIDDEN);
        Self {
            layer1: LinearConfig::new(FEATURES, hidden).init(device),
            bn1: BatchNorm::init(hidden, device),
            dropout: Dropout::new(options.dropout),
            layer2: LinearConfig::new(hidden, classes).init(device),
            activation: options.activation,
            fused: true,
        }
    }
}

impl Architecture for Mlp {
    fn is_fused(&self) -> bool {
        self.fused
    }

    fn layers(&self) -> Vec<NamedLayer<'_>> {
        let mut layers = vec![
            Layer::Flatten.named("flatten"),
            Layer::Linear(&self.layer1).named("layer1"),
            Layer::Norm(&self.bn1).named("bn1"),
            Layer::Activation(self.activation).named("activation"),
        ];
        layers.extend(self.dropout.as_ref().map(|layer| Layer::Dropout(layer).named("dropout")));
        layers.push(Layer::Linear(&self.layer2).named("layer2"));
        layers
    }
}
