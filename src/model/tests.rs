//! Compares names, shapes and counts of parameters with PyTorch's.

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};

use super::{ActivationKind, BatchPlace, ModelKind, Network, NetworkOptions, ParamLayout};

const PLAIN: NetworkOptions = NetworkOptions {
    activation: ActivationKind::Relu,
    batch_norm: false,
    dropout: crate::values::Below1(0.0),
    hidden: None,
};
const NORM: NetworkOptions = NetworkOptions { batch_norm: true, ..PLAIN };
const DROPOUT: NetworkOptions = NetworkOptions { dropout: crate::values::Below1(0.5), ..PLAIN };
const BOTH: NetworkOptions = NetworkOptions { batch_norm: true, ..DROPOUT };

fn network(kind: ModelKind, options: &NetworkOptions) -> Network {
    Network::with_options(kind, options, kind.dimensions(), 1, &Device::flex().autodiff())
}

fn layout(kind: ModelKind, options: &NetworkOptions) -> ParamLayout {
    network(kind, options).parameters()
}

/// Returns the names of the layers with weights, and the shapes that the weights have in PyTorch.
fn weights(kind: ModelKind, options: &NetworkOptions) -> Vec<String> {
    let layout = layout(kind, options);
    let weights = layout.specs().iter().filter_map(|spec| {
        let layer = spec.name.strip_suffix(".weight")?;
        Some(format!("{layer} {:?}", spec.torch_shape()))
    });
    weights.collect()
}

#[test]
fn options_change_the_numbers_of_parameters_as_in_pytorch() {
    // Counts of trainable parameters, and of all values in a state dict without num_batches_tracked. Both are
    // PyTorch's sum(p.numel() for p in ...).
    for (kind, options, trainable, all) in [
        (ModelKind::Convnet, PLAIN, 4_266, 4_266),
        (ModelKind::Convnet, DROPOUT, 4_266, 4_266),
        (ModelKind::Convnet, NORM, 4_290, 4_314),
        (ModelKind::Vgg, PLAIN, 2_625_962, 2_625_962),
        (ModelKind::Vgg, DROPOUT, 2_625_962, 2_625_962),
        (ModelKind::Vgg, NORM, 2_627_946, 2_629_930),
        (ModelKind::Vgg, BOTH, 2_627_946, 2_629_930),
        (ModelKind::Mlp, PLAIN, 17_140, 17_204),
        (ModelKind::Mlp, BOTH, 17_140, 17_204),
        (ModelKind::Mlp, NetworkOptions { hidden: Some(crate::model::Hidden(64)), ..PLAIN }, 34_260, 34_388),
    ] {
        let layout = layout(kind, &options);
        assert_eq!((layout.trainable(), layout.len()), (trainable, all), "{kind} {options:?}");
    }
}

#[test]
fn layers_without_bounds_are_counted_before_they_are_made() {
    let wide = NetworkOptions { hidden: Some(crate::model::Hidden(64)), ..PLAIN };
    for (kind, options, expected) in [
        (ModelKind::Convnet, PLAIN, 36 + 392 * 10),
        (ModelKind::Vgg, PLAIN, 9 * 3 * 32 + 32 * 10),
        (ModelKind::Mlp, PLAIN, 512 * 32 + 32 * 20),
        (ModelKind::Mlp, wide, 512 * 64 + 64 * 20),
    ] {
        assert_eq!(kind.unbounded_weights(&options, kind.dimensions()), expected, "{kind}");
    }
}

#[test]
fn the_vggs_layers_are_numbered_as_pytorchs() {
    let plain = weights(ModelKind::Vgg, &PLAIN);
    let convs = [
        "block1.0 [32, 3, 3, 3]",
        "block1.2 [64, 32, 3, 3]",
        "block2.0 [128, 64, 3, 3]",
        "block2.2 [256, 128, 3, 3]",
        "block3.0 [256, 256, 3, 3]",
        "block3.2 [256, 256, 3, 3]",
    ];
    assert_eq!(plain[..6], convs);
    assert_eq!(plain[6..], ["block4.0 [256, 4096]", "block4.2 [32, 256]", "block4.4 [10, 32]"]);
    let dropped = weights(ModelKind::Vgg, &DROPOUT);
    assert_eq!(dropped[..6], convs);
    assert_eq!(dropped[6..], ["block4.0 [256, 4096]", "block4.3 [32, 256]", "block4.5 [10, 32]"]);
    let normed = weights(ModelKind::Vgg, &NORM);
    let block = ["block2.0 [128, 64, 3, 3]", "block2.1 [128]", "block2.3 [256, 128, 3, 3]", "block2.4 [256]"];
    assert_eq!(normed[4..8], block);
}

#[test]
fn the_others_layers_have_pytorchs_names() {
    let convnet = weights(ModelKind::Convnet, &BOTH);
    let expected = ["conv1 [4, 1, 3, 3]", "bn1 [4]", "conv2 [8, 4, 3, 3]", "bn2 [8]", "linear [10, 392]"];
    assert_eq!(convnet, expected);
    let layout = layout(ModelKind::Mlp, &PLAIN);
    let names: Vec<_> = layout.specs().iter().map(|spec| spec.name.as_str()).collect();
    let norm = ["bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var"];
    assert_eq!(names[..2], ["layer1.weight", "layer1.bias"]);
    assert_eq!(names[2..6], norm);
    assert_eq!(names[6..], ["layer2.weight", "layer2.bias"]);
}

#[test]
fn dropout_is_for_training_and_falls_in_every_network() {
    let place = BatchPlace { seed: 1, step: 0, first: 0, stride: 1 };
    for kind in [ModelKind::Convnet, ModelKind::Vgg, ModelKind::Mlp] {
        let [channels, height, width] = kind.dimensions().input;
        let plain = network(kind, &PLAIN);
        let weights = layout(kind, &PLAIN).read(&plain);
        let dropping = layout(kind, &DROPOUT).write(network(kind, &DROPOUT), &weights);
        let values = (0..2 * channels * height * width).map(|i| ((i * 7919) % 997) as f32 / 400.0 - 1.0);
        let values = TensorData::new(values.collect::<Vec<_>>(), [2, channels, height, width]);
        let images = |device| Tensor::<4>::from_data(values.clone(), device);
        let scores = |network: &Network, device, place: Option<&BatchPlace>| {
            network.apply(images(device), place).into_data()
        };
        let (cpu, training) = (Device::flex(), Device::flex().autodiff());
        let expected = scores(&plain.valid(), &cpu, None);
        assert_eq!(scores(&dropping.valid(), &cpu, Some(&place)), expected, "{kind}");
        let expected = scores(&plain, &training, Some(&place));
        assert_eq!(scores(&dropping, &training, None), expected, "{kind}");
        assert_ne!(scores(&dropping, &training, Some(&place)), expected, "{kind}");
    }
}
