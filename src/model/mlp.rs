//! MLP: the small network for feature vectors, and for flattened images. It has 17,140 parameters with 512
//! features and 20 classes.

use burn::tensor::Device;

use super::Hidden;
use super::layers::{linear, norm};
use super::{Dimensions, Layer, NetworkOptions};

/// Default width of the hidden layer.
pub const HIDDEN: usize = 32;

/// Returns the layers for `[batch, c, h, w]`: flatten · Linear(c·h·w→32) · BatchNorm1d(32) · ReLU ·
/// Linear(32→classes). Options can replace the width 32 and the ReLU. If they add dropout, it precedes the
/// last layer.
pub(super) fn layers(
    options: &NetworkOptions,
    dimensions: Dimensions,
    device: &Device,
) -> Vec<(String, Layer)> {
    let (hidden, features) = (options.hidden.map_or(HIDDEN, Hidden::get), dimensions.input.iter().product());
    let mut layers = vec![
        ("flatten".into(), Layer::Flatten(features)),
        ("layer1".into(), linear(features, hidden, device)),
        ("bn1".into(), norm(hidden, device)),
        ("activation".into(), Layer::Activation(options.activation_layer())),
    ];
    layers.extend(options.dropout_layer().map(|layer| ("dropout".into(), Layer::Dropout(layer))));
    layers.push(("layer2".into(), linear(hidden, dimensions.classes, device)));
    layers
}
