//! Checks the names of operators in profiles.

use burn::tensor::{Device, Tensor};

use crate::model::{ModelKind, Network, NetworkOptions};
use crate::spans::{self, Phase, SpanRecorder};

fn names(kind: ModelKind, fused: bool, norms: bool) -> Vec<String> {
    let options = NetworkOptions {
        batch_norm: norms,
        dropout: crate::values::Below1(0.5),
        ..NetworkOptions::default()
    };
    let network = Network::with_options(kind, &options, kind.dimensions(), 1, &Device::flex()).fused(fused);
    let [channels, height, width] = kind.dimensions().input;
    let samples = Tensor::<4>::ones([2, channels, height, width], &Device::flex());
    SpanRecorder::new(None).start();
    let recorded = spans::forward(|| network.forward(samples.clone()));
    let recorder = SpanRecorder::stop().unwrap();
    recorded.into_data().assert_eq(&network.forward(samples).into_data(), true);
    let forward = recorder.operators().filter(|(_, phase)| *phase == Phase::Forward);
    forward.map(|(operator, _)| operator.name()).collect()
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
