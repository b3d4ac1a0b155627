//! What a network has to say of itself.

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::{BatchPlace, NamedLayer, NetworkOptions};

/// What a training step can train: from an input to an output, of any types.
pub trait Model: Module {
    /// A batch, as a tensor or several.
    type Input;
    /// What a loss compares with targets.
    type Output;

    /// The output for a batch. With a `place`, the batch is one of a training,
    /// where dropout has an effect; without, it is one of a test.
    fn apply(&self, input: Self::Input, place: Option<&BatchPlace>) -> Self::Output;

    /// The output in a test.
    fn forward(&self, input: Self::Input) -> Self::Output {
        self.apply(input, None)
    }

    /// The output in training.
    fn forward_training(&self, input: Self::Input, place: &BatchPlace) -> Self::Output {
        self.apply(input, Some(place))
    }
}

/// A network that `--model` names: class scores `[batch, classes]` of samples
/// `[batch, channels, height, width]`.
pub trait Architecture: Model<Input = Tensor<4>, Output = Tensor<2>> + Sized {
    /// Channels, height and width of a sample.
    const INPUT_SHAPE: [usize; 3];
    /// Classes of the data set that it was made for.
    const CLASSES: usize;

    /// A network whose weights are drawn from the device's random numbers.
    fn init(options: &NetworkOptions, classes: usize, device: &Device) -> Self;

    /// Sets whether convolutions, ReLUs and poolings are one operator each, as
    /// they are at first, or Burn's own, one by one.
    fn set_fused(&mut self, on: bool);

    /// The layers, in the order of forward.
    fn layers(&self) -> Vec<NamedLayer<'_>>;
}
