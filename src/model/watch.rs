//! Observation of single layers in a forward pass, for the profiler.
//!
//! Networks are generic over the observer. Training uses [`Unwatched`], whose calls are
//! compiled to the layers themselves: neither a clock nor a branch is left.

use burn::tensor::Tensor;

/// What is computed as one unit: a layer, or several that are fused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operator {
    /// The name of its first layer, or of all if it has several with weights, such as
    /// `block1.0`.
    pub layer: String,
    /// What it computes, such as `conv+relu`.
    pub kind: String,
}

impl Operator {
    /// The operator of `layer`.
    pub fn new(layer: impl Into<String>, kind: impl Into<String>) -> Self {
        Self { layer: layer.into(), kind: kind.into() }
    }

    /// Layer and kind: `block1.0 conv+relu`. The kind is left out if the layer has its name:
    /// `linear`, `layer1 linear`.
    pub fn name(&self) -> String {
        match self.layer == self.kind {
            true => self.kind.clone(),
            false => format!("{} {}", self.layer, self.kind),
        }
    }
}

/// An observer of the operators of a forward pass.
pub trait LayerWatch {
    /// The output of `apply` for `input`. A network calls it for its operators in the same
    /// order in each forward pass, so `operator` is needed in the first alone.
    fn layer<const I: usize, const O: usize>(
        &mut self,
        operator: impl FnOnce() -> Operator,
        input: Tensor<I>,
        apply: impl FnOnce(Tensor<I>) -> Tensor<O>,
    ) -> Tensor<O>;
}

/// Observes nothing.
#[derive(Debug, Clone, Copy)]
pub struct Unwatched;

impl LayerWatch for Unwatched {
    #[inline(always)]
    fn layer<const I: usize, const O: usize>(
        &mut self,
        _operator: impl FnOnce() -> Operator,
        input: Tensor<I>,
        apply: impl FnOnce(Tensor<I>) -> Tensor<O>,
    ) -> Tensor<O> {
        apply(input)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::model::{Model, ModelKind, Network, NetworkOptions};

    struct Names(Vec<String>);

    impl LayerWatch for Names {
        fn layer<const I: usize, const O: usize>(
            &mut self,
            operator: impl FnOnce() -> Operator,
            input: Tensor<I>,
            apply: impl FnOnce(Tensor<I>) -> Tensor<O>,
        ) -> Tensor<O> {
            self.0.push(operator().name());
            apply(input)
        }
    }

    fn names(kind: ModelKind, fused: bool, norms: bool) -> Vec<String> {
        let options = NetworkOptions { batch_norm: norms, dropout: 0.5, ..NetworkOptions::default() };
        let network = Network::with_options(kind, &options, 10, 1, &Device::flex()).fused(fused);
        let [channels, height, width] = kind.input_shape();
        let samples = Tensor::<4>::ones([2, channels, height, width], &Device::flex());
        let mut names = Names(Vec::new());
        let watched = network.apply_watched(samples.clone(), None, &mut names);
        watched.into_data().assert_eq(&network.forward(samples).into_data(), true);
        names.0
    }

    #[test]
    fn operators_have_the_names_of_their_layers() {
        let found = names(ModelKind::Convnet, true, false);
        assert_eq!(found, ["conv1, conv2 2x conv+relu+max pool", "flatten", "dropout", "linear"]);
        let found = names(ModelKind::Convnet, false, false);
        assert_eq!(found[..4], ["conv1 conv", "activation1 relu", "pool1 max pool", "conv2 conv"]);
        let found = names(ModelKind::Convnet, true, true);
        assert_eq!(found[..3], ["conv1 conv", "bn1 batch norm+relu+max pool", "conv2 conv"]);
        let found = names(ModelKind::Mlp, true, false);
        let expected =
            ["flatten", "layer1 linear", "bn1 batch norm", "activation relu", "dropout", "layer2 linear"];
        assert_eq!(found, expected);
        let found = names(ModelKind::Vgg, true, false);
        assert_eq!(found[..3], ["block1.0 conv+relu", "block1.2 conv+relu+max pool", "block2.0 conv+relu"]);
        assert_eq!(found[6..9], ["flatten", "block4.0 linear", "block4.1 relu"]);
        let found = names(ModelKind::Vgg, false, true);
        let expected = ["block1.0 conv", "block1.1 batch norm", "block1.2 relu", "block1.3 conv"];
        assert_eq!(found[..4], expected);
    }
}
