//! What a kind of network is made of.

use burn::module::Module;
use burn::tensor::Device;

use super::{NamedLayer, NetworkOptions};

/// A network that `--model` names, as the sequence of its layers: class scores `[batch, classes]` of samples
/// `[batch, channels, height, width]`.
pub trait Architecture: Module {
    /// Channels, height and width of a sample.
    const INPUT_SHAPE: [usize; 3];
    /// Default number of classes.
    const CLASSES: usize;

    /// A network with weights drawn from the device's random number generator.
    fn init(options: &NetworkOptions, classes: usize, device: &Device) -> Self;

    /// Whether convolution, ReLU and pooling are one fused operator each
    /// (the default) or separate Burn operators.
    fn is_fused(&self) -> bool;

    /// The same, to change it.
    fn fused_mut(&mut self) -> &mut bool;

    /// The layers, in the order of forward.
    fn layers(&self) -> Vec<NamedLayer<'_>>;
}
