//! Checks the parameters of the networks: names, counts, initial values, and reading and writing them as one
//! flat buffer.

use burn::tensor::Device;
use run_record::files::sha256_of_f32;

use super::{ModelKind, Network};

fn convnet() -> Network {
    Network::init(ModelKind::Convnet, ModelKind::Convnet.dimensions(), 123, &Device::flex().autodiff())
}

#[test]
fn the_convnet_has_the_reports_parameters_under_pytorchs_names() {
    let layout = convnet().parameters();
    let names: Vec<_> = layout.specs().iter().map(|s| s.name.as_str()).collect();
    assert_eq!(
        names,
        ["conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias", "linear.weight", "linear.bias"]
    );
    assert_eq!(layout.trainable(), 4266);
    assert_eq!(layout.len(), 4266);
    let linear = &layout.specs()[4];
    assert_eq!((linear.shape.clone(), linear.torch_shape()), (vec![392, 10], vec![10, 392]));
    assert!(!layout.specs()[0].transposed);
}

#[test]
fn the_other_networks_have_pytorchs_parameter_counts() {
    let layout =
        |kind: ModelKind| Network::init(kind, kind.dimensions(), 1, &Device::flex().autodiff()).parameters();
    // Six convolutions and three linear layers, weights and biases.
    let convs = [(3, 32), (32, 64), (64, 128), (128, 256), (256, 256), (256, 256)];
    let linears = [(4096, 256), (256, 32), (32, 10)];
    let expected: usize = convs.iter().map(|(i, o)| 9 * i * o + o).sum::<usize>()
        + linears.iter().map(|(i, o)| i * o + o).sum::<usize>();
    assert_eq!(layout(ModelKind::Vgg).trainable(), expected);
    let mlp = layout(ModelKind::Mlp);
    assert_eq!(mlp.trainable(), 512 * 32 + 32 + 2 * 32 + 32 * 20 + 20);
    assert_eq!(mlp.len(), mlp.trainable() + 2 * 32, "and batch norm's running mean and variance");
}

#[test]
fn a_seed_fixes_every_weight() {
    let layout = convnet().parameters();
    let first = layout.read(&convnet());
    assert_eq!(sha256_of_f32(&first), sha256_of_f32(&layout.read(&convnet())));
    let other =
        Network::init(ModelKind::Convnet, ModelKind::Convnet.dimensions(), 124, &Device::flex().autodiff());
    assert_ne!(sha256_of_f32(&first), sha256_of_f32(&layout.read(&other)));
    let bound = 1.0 / 3.0;
    assert!(first[..36].iter().all(|w| w.abs() <= bound), "fan in 9");
}

#[test]
fn writing_gives_back_what_was_read() {
    let network = convnet();
    let layout = network.parameters();
    let values: Vec<f32> = (0..layout.len()).map(|i| i as f32).collect();
    let network = layout.write(network, &values);
    assert_eq!(layout.read(&network), values);
    assert!(network.parameters().specs().iter().all(|s| s.trainable));
}
