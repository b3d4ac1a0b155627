//! Compares int8 models with their float networks.

use burn::tensor::{Device, Tensor, TensorData};

use super::*;
use crate::model::{ActivationKind, Dimensions, ModelKind, Network, NetworkOptions};
use run_record::Method;

fn of_sizes(kind: ModelKind, options: &NetworkOptions, input: [usize; 3], classes: usize) -> Network {
    Network::with_options(kind, options, Dimensions { input, classes }, 5, &Device::flex())
}

fn network(kind: ModelKind, options: &NetworkOptions) -> Network {
    Network::with_options(kind, options, kind.dimensions(), 5, &Device::flex())
}

#[test]
fn layers_are_grouped_by_the_layer_with_weights() {
    let both =
        NetworkOptions { batch_norm: true, dropout: crate::values::Below1(0.5), ..NetworkOptions::default() };
    let parts = |kind, options: &NetworkOptions| {
        let network = network(kind, options);
        let describe = |group: &Group<'_>| {
            let Group { name, norm, relu, pool, dropout, .. } = group;
            let has = [norm.is_some(), *relu, pool.is_some(), dropout.is_some()];
            format!("{name} {}", has.map(|has| if has { '1' } else { '0' }).iter().collect::<String>())
        };
        groups(&network).unwrap().iter().map(describe).collect::<Vec<_>>().join(", ")
    };
    let plain = NetworkOptions::default();
    assert_eq!(parts(ModelKind::Convnet, &plain), "conv1 0110, conv2 0110, linear 0000");
    assert_eq!(parts(ModelKind::Convnet, &both), "conv1 1110, conv2 1111, linear 0000");
    assert_eq!(parts(ModelKind::Mlp, &both), "layer1 1101, layer2 0000");
    let vgg = "block1.0 0100, block1.2 0110, block2.0 0100, block2.2 0110, block3.0 0100, block3.2 0110, \
               block4.0 0100, block4.2 0100, block4.4 0000";
    assert_eq!(parts(ModelKind::Vgg, &plain), vgg);
}

#[test]
fn other_activations_are_rejected_by_the_layers_name() {
    for (activation, name) in
        [(ActivationKind::Tanh, "tanh"), (ActivationKind::Sigmoid, "sigmoid"), (ActivationKind::Gelu, "gelu")]
    {
        let options = NetworkOptions { activation, ..NetworkOptions::default() };
        let message = groups(&network(ModelKind::Convnet, &options)).unwrap_err().to_string();
        assert!(message.starts_with("layer activation1 ") && message.contains(name), "{message}");
    }
}

/// Returns ranges for a test on `images`. They are computed here, without the program's observers of ranges.
fn calibrated(network: &Network, images: &Tensor<4>) -> Ranges {
    let range = |values: Vec<f32>| Some(burn_fused::int8::min_max(&values).unwrap());
    let data = |x: &Tensor<4>| x.to_data().try_into_vec::<f32>().unwrap();
    let mut ranges = Ranges::for_groups(groups(network).unwrap().len());
    ranges.input = range(data(images));
    // The same wide range for all outputs before the last is enough, because the test compares errors with
    // the size of the scores.
    let scores = network.forward(images.clone()).into_data().try_into_vec::<f32>().unwrap();
    let last = ranges.groups.len() - 1;
    for group in &mut ranges.groups[..last] {
        group.output = Some([0.0, 6.0]);
    }
    ranges.groups[last].output = range(scores);
    ranges
}

#[test]
fn integer_models_score_as_the_networks_do() {
    let norm = NetworkOptions { batch_norm: true, ..NetworkOptions::default() };
    let plain = NetworkOptions::default();
    for (kind, options, input, classes) in [
        (ModelKind::Convnet, plain, [1, 28, 28], 10),
        (ModelKind::Convnet, norm, [1, 28, 28], 10),
        (ModelKind::Convnet, plain, [1, 4, 4], 2),
        (ModelKind::Convnet, plain, [3, 5, 7], 10),
        (ModelKind::Convnet, norm, [2, 29, 31], 300),
        (ModelKind::Mlp, norm, [1, 1, 512], 20),
        (ModelKind::Mlp, norm, [1, 1, 7], 300),
        (ModelKind::Mlp, norm, [3, 4, 5], 1),
        (ModelKind::Vgg, norm, [3, 32, 32], 10),
        (ModelKind::Vgg, norm, [1, 9, 17], 10),
        (ModelKind::Vgg, norm, [1, 75, 17], 10),
    ] {
        let network = of_sizes(kind, &options, input, classes);
        let [channels, height, width] = input;
        let values: Vec<f32> =
            (0..4 * channels * height * width).map(|i| ((i * 7919) % 997) as f32 / 400.0 - 1.0).collect();
        let images = TensorData::new(values.clone(), [4, channels, height, width]);
        let images = Tensor::<4>::from_data(images, &Device::flex());
        let expected = network.forward(images.clone()).into_data().try_into_vec::<f32>().unwrap();
        let ranges = calibrated(&network, &images);
        for scheme in [WeightScheme::Channel, WeightScheme::Tensor] {
            let mut model = Quantized::of_ranges(&network, Method::Qat, &ranges, scheme).unwrap();
            let mut scores = Vec::new();
            model.infer(&values, &mut scores);
            let off = scores.iter().zip(&expected).fold(0.0f32, |max, (a, b)| max.max((a - b).abs()));
            let largest = expected.iter().fold(0.0f32, |max, x| max.max(x.abs()));
            assert_eq!(scores.len(), expected.len());
            assert!(off < 0.2 * largest, "{kind} {input:?} {scheme}: {off} of {largest}");
        }
    }
}

#[test]
fn layers_whose_sums_would_overflow_are_rejected_by_name() {
    let wide = of_sizes(ModelKind::Mlp, &NetworkOptions::default(), [3, 150, 150], 2);
    let message = groups(&wide).unwrap_err().to_string();
    assert!(
        message.contains("layer1") && ["67500", "65536"].iter().all(|fact| message.contains(fact)),
        "{message}"
    );
}

#[test]
fn a_network_that_was_never_calibrated_has_no_integer_model() {
    let network = network(ModelKind::Convnet, &NetworkOptions::default());
    let mut ranges = Ranges::for_groups(3);
    let message = |ranges: &Ranges| {
        let made = Quantized::of_ranges(&network, Method::Qat, ranges, WeightScheme::Channel);
        made.unwrap_err().to_string()
    };
    let names = |message: &str, layer: &str| {
        message.contains("calibrated") && message.contains(&format!("the range of {layer} "))
    };
    assert!(names(&message(&ranges), "the input"), "{}", message(&ranges));
    ranges.input = Some([0.0, 1.0]);
    assert!(names(&message(&ranges), "the output of conv1"), "{}", message(&ranges));
    ranges.groups.iter_mut().for_each(|group| group.output = Some([0.0, 1e30]));
    let message = message(&ranges);
    assert!(message.starts_with("conv1: the scale is out of range"), "{message}");
}

/// Returns noise images, different for each `seed`.
fn noise(network: &Network, seed: usize, device: &Device) -> Tensor<4> {
    let [channels, height, width] = network.input_shape();
    let len = 6 * channels * height * width;
    let values: Vec<f32> = (0..len).map(|i| (((i + seed) * 7919) % 997) as f32 / 300.0 - 1.0).collect();
    Tensor::from_data(TensorData::new(values, [6, channels, height, width]), device)
}

#[test]
fn folded_batch_norms_compute_what_the_network_does() {
    use burn::module::Module;

    let options = NetworkOptions { batch_norm: true, ..NetworkOptions::default() };
    for (kind, input) in [
        (ModelKind::Convnet, [1, 28, 28]),
        (ModelKind::Convnet, [3, 5, 7]),
        (ModelKind::Mlp, [1, 1, 512]),
        (ModelKind::Mlp, [3, 4, 5]),
    ] {
        let training = Device::flex().autodiff();
        let dimensions = Dimensions { input, classes: 10 };
        let network = Network::with_options(kind, &options, dimensions, 5, &training);
        // Gives the batch norms running statistics other than the initial ones.
        (0..20).for_each(|seed| drop(network.forward(noise(&network, seed, &training))));
        let network = network.valid();
        let images = noise(&network, 77, &Device::flex());
        let groups = groups(&network).unwrap();
        let (mut x, mut features) = (images.clone(), None);
        for group in &groups {
            match group.product {
                Product::Conv(_) => x = group.images(x, None, true),
                Product::Linear(_) => {
                    let input = features.take().unwrap_or_else(|| x.clone().flatten(1, 3));
                    features = Some(group.features(input, None, true));
                }
            }
        }
        let expected = network.forward(images);
        let off = (features.unwrap() - expected.clone()).abs().max().into_scalar::<f32>();
        let largest = expected.abs().max().into_scalar::<f32>();
        assert!(largest > 0.0 && off <= 1e-5 * largest, "{kind}: {off} of {largest}");
    }
}

#[test]
fn a_rank_without_samples_observes_its_weights() {
    let options = NetworkOptions { batch_norm: true, ..NetworkOptions::default() };
    let network = network(ModelKind::Convnet, &options);
    let mut alone = Quantizer::new(&network, Quantization::default()).unwrap();
    let mut working = alone.clone();
    working.begin_step();
    working.fake_quantized(&network, noise(&network, 1, &Device::flex()), None);
    let carried = working.averaged_mut(&network).to_vec();
    // Two ends of each range: the input, 3 outputs, and weights of 4 and 8 channels.
    assert_eq!(carried.len(), 2 * (1 + 3 + 4 + 8));
    working.adopt_averages();
    alone.begin_step();
    alone.averaged_mut(&network).copy_from_slice(&carried);
    alone.adopt_averages();
    assert_eq!(alone.ranges(), working.ranges());
    assert!(alone.ranges().groups.iter().all(|group| group.weights.is_some() && group.output.is_some()));
    assert!(alone.integer_model(&network).is_ok());
}
