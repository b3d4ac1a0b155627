//! Traits of models: `Architecture` of a network, and any trainable model.

use burn::module::Module;
use burn::tensor::Device;

use super::{BatchPlace, NamedLayer, NetworkOptions};

/// A model that a training step can train, with inputs and outputs of any type.
pub trait Model: Module {
    /// A batch, as one tensor or several.
    type Input;
    /// The output, which a loss compares with targets.
    type Output;

    /// The output for a batch. With a `place`, the batch is one of a training,
    /// where dropout has an effect; without, it is for evaluation.
    fn apply(&self, input: Self::Input, place: Option<&BatchPlace>) -> Self::Output;

    /// The output in evaluation.
    fn forward(&self, input: Self::Input) -> Self::Output {
        self.apply(input, None)
    }

    /// The output in training.
    fn forward_training(&self, input: Self::Input, place: &BatchPlace) -> Self::Output {
        self.apply(input, Some(place))
    }
}

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
