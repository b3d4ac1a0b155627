//! Compares calibrated int8 models, written to files and read back, with their float networks.

use std::path::Path;

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};

use super::*;
use crate::layout::stored as stored_layout;
use crate::model::{ModelKind, Network, NetworkOptions};
use run_record::Method;
use run_record::checkpoint::weights_file;

const KINDS: [ModelKind; 3] = [ModelKind::Convnet, ModelKind::Vgg, ModelKind::Mlp];
const SCHEMES: [WeightScheme; 2] = [WeightScheme::Channel, WeightScheme::Tensor];

fn network(kind: ModelKind) -> Network {
    let options =
        NetworkOptions { batch_norm: true, dropout: crate::values::Below1(0.5), ..NetworkOptions::default() };
    Network::with_options(kind, &options, kind.dimensions(), 5, &Device::flex().autodiff()).valid()
}

fn samples(kind: ModelKind, count: usize) -> Vec<f32> {
    let size: usize = kind.dimensions().input.iter().product();
    (0..count * size).map(|i| ((i * 7919) % 997) as f32 / 400.0 - 1.0).collect()
}

fn tensor(kind: ModelKind, values: &[f32]) -> Tensor<4> {
    let [channels, height, width] = kind.dimensions().input;
    let batch = values.len() / (channels * height * width);
    Tensor::from_data(TensorData::new(values.to_vec(), [batch, channels, height, width]), &Device::flex())
}

/// Returns the ranges observed over these batches of samples.
fn observed(network: &Network, kind: ModelKind, batches: &[&[f32]]) -> Result<Ranges, QuantError> {
    let groups = groups(network).unwrap();
    let mut ranges = Ranges::for_groups(groups.len());
    batches.iter().try_for_each(|batch| ranges.observe(&groups, tensor(kind, batch)))?;
    Ok(ranges)
}

fn calibrated(network: &Network, kind: ModelKind, scheme: WeightScheme) -> Quantized {
    let ranges = observed(network, kind, &[&samples(kind, 4)]).unwrap();
    Quantized::of_ranges(network, Method::Ptq, &ranges, scheme).unwrap()
}

#[test]
fn quantized_networks_are_read_back_small_and_close_to_the_float_ones() {
    for kind in KINDS {
        let network = network(kind);
        let values = samples(kind, 3);
        let float = network.forward(tensor(kind, &values)).into_data().try_into_vec::<f32>().unwrap();
        let width = float.iter().fold(0.0f32, |most, score| most.max(score.abs()));
        let layout = network.parameters();
        let float_bytes = weights_file(&stored_layout(&layout), &layout.read(&network)).unwrap().len();
        for scheme in SCHEMES {
            let mut quantized = calibrated(&network, kind, scheme);
            let file = Path::new("int8.safetensors");
            let bytes = quantized.file.encode(file).unwrap();
            assert!(float_bytes * 10 >= 28 * bytes.len(), "{kind}: {float_bytes} and {}", bytes.len());
            let stored = Int8File::decode(file, &bytes).unwrap();
            assert_eq!((stored.network.as_str(), stored.method), (kind.to_string().as_str(), Method::Ptq));
            let mut read = Quantized::new(stored).unwrap();
            let (mut scores, mut again) = (Vec::new(), Vec::new());
            quantized.infer(&values, &mut scores);
            read.infer(&values, &mut again);
            assert_eq!(scores, again, "{kind}");
            let apart = scores.iter().zip(&float).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
            assert!(apart < 0.05 * width && apart > 0.0, "{kind}: {apart} of {width}");
        }
    }
}

#[test]
fn ranges_cover_every_batch_whatever_their_order() {
    let kind = ModelKind::Convnet;
    let network = network(kind);
    let (low, high) = (samples(kind, 2), samples(kind, 2).iter().map(|x| 3.0 - x).collect::<Vec<_>>());
    let observed = |batches: [&[f32]; 2]| observed(&network, kind, &batches).unwrap();
    let ranges = observed([&low, &high]);
    assert_eq!(ranges, observed([&high, &low]));
    let [min, max] = ranges.input.unwrap();
    assert_eq!((min, max), (-1.0, 4.0));
    assert!(ranges.groups.iter().all(|group| group.output.is_some()));
    // After ReLU no value is below 0.
    assert!(ranges.groups[0].output.unwrap()[0] >= 0.0);
}

#[test]
fn values_that_are_not_finite_are_named_with_their_layer() {
    let kind = ModelKind::Convnet;
    let network = network(kind);
    let mut values = samples(kind, 1);
    values[5] = f32::NAN;
    let error = observed(&network, kind, &[&values]).unwrap_err().to_string();
    assert!(error.starts_with("the input: "), "{error}");
    let never = observed(&network, kind, &[]).unwrap();
    let model = |ranges| Quantized::of_ranges(&network, Method::Ptq, ranges, WeightScheme::Channel);
    let error = model(&never).unwrap_err().to_string();
    assert!(error.contains("calibrated") && error.contains("the range of the input"), "{error}");
    let mut wide = never.clone();
    wide.input = Some([f32::MIN, f32::MAX]);
    let error = model(&wide).unwrap_err().to_string();
    assert!(error.starts_with("the input: the scale is out of range"), "{error}");
}
