//! Calibrated and dynamic models against the float networks, through their files.

use std::path::Path;

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use burn_fused::simd::Level;
use burn_mpi::ParamLayout;

use super::int8_file::{Bias, LayerValues, StoredLayer};
use super::*;
use crate::layout::stored as stored_layout;
use crate::model::{ModelKind, Network, NetworkOptions};
use run_record::Method;
use run_record::checkpoint::weights_file;

const KINDS: [ModelKind; 3] = [ModelKind::Convnet, ModelKind::Vgg, ModelKind::Mlp];
const SCHEMES: [WeightScheme; 2] = [WeightScheme::Channel, WeightScheme::Tensor];

fn network(kind: ModelKind) -> Network {
    let options = NetworkOptions { batch_norm: true, dropout: 0.5, ..NetworkOptions::default() };
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

fn calibrated(network: &Network, kind: ModelKind, scheme: WeightScheme) -> Quantized {
    let mut calibration = Calibration::new(network).unwrap();
    calibration.observe(tensor(kind, &samples(kind, 4))).unwrap();
    Quantized::of_ranges(network, Method::Ptq, &calibration.into_ranges(), scheme).unwrap()
}

#[test]
fn quantized_networks_are_read_back_small_and_close_to_the_float_ones() {
    for kind in KINDS {
        let network = network(kind);
        let values = samples(kind, 3);
        let float = network.forward(tensor(kind, &values)).into_data().try_into_vec::<f32>().unwrap();
        let width = float.iter().fold(0.0f32, |most, score| most.max(score.abs()));
        let layout = ParamLayout::of(&network);
        let float_bytes = weights_file(&stored_layout(&layout), &layout.read(&network)).unwrap().len();
        for scheme in SCHEMES {
            let dynamic = Quantized::dynamic(&network, scheme).unwrap();
            for mut quantized in [calibrated(&network, kind, scheme), dynamic] {
                let method = quantized.file.method;
                let file = Path::new("int8.safetensors");
                let bytes = quantized.file.encode(file).unwrap();
                assert!(float_bytes * 10 >= 28 * bytes.len(), "{kind}: {float_bytes} and {}", bytes.len());
                let stored = Int8File::decode(file, &bytes).unwrap();
                assert_eq!((stored.network.as_str(), stored.method), (kind.to_string().as_str(), method));
                assert_eq!(stored.check_origin(&network), Ok(()), "{kind}, {method:?}");
                let mut read = Quantized::new(stored).unwrap();
                let (mut scores, mut again) = (Vec::new(), Vec::new());
                quantized.infer(&values, &mut scores).unwrap();
                read.infer(&values, &mut again).unwrap();
                assert_eq!(scores, again, "{kind}, {method:?}");
                let apart = scores.iter().zip(&float).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
                assert!(apart < 0.05 * width && apart > 0.0, "{kind}, {method:?}: {apart} of {width}");
            }
        }
    }
}

#[test]
fn ranges_cover_every_batch_whatever_their_order() {
    let kind = ModelKind::Convnet;
    let network = network(kind);
    let (low, high) = (samples(kind, 2), samples(kind, 2).iter().map(|x| 3.0 - x).collect::<Vec<_>>());
    let observed = |batches: [&[f32]; 2]| {
        let mut calibration = Calibration::new(&network).unwrap();
        batches.iter().for_each(|batch| calibration.observe(tensor(kind, batch)).unwrap());
        calibration.into_ranges()
    };
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
    let error = Calibration::new(&network).unwrap().observe(tensor(kind, &values)).unwrap_err().to_string();
    assert!(error.starts_with("the input: "), "{error}");
    let mut dynamic = Quantized::dynamic(&network, WeightScheme::Channel).unwrap();
    let error = dynamic.infer(&values, &mut Vec::new()).unwrap_err().to_string();
    assert!(error.starts_with("the input of conv1: "), "{error}");
    let never = Calibration::new(&network).unwrap().into_ranges();
    let model = |ranges| Quantized::of_ranges(&network, Method::Ptq, ranges, WeightScheme::Channel);
    let error = model(&never).unwrap_err().to_string();
    assert!(error.contains("was never calibrated: the range of the input"), "{error}");
    let mut wide = never.clone();
    wide.input = Some([f32::MIN, f32::MAX]);
    let error = model(&wide).unwrap_err().to_string();
    assert!(error.starts_with("the input: the scale overflows"), "{error}");
}

/// The dynamic formula in 64-bit sums, for one layer of any stride and padding.
#[test]
fn dynamic_layers_follow_their_formula_on_every_level() {
    let windows = |stride, padding| Some((stride, padding));
    for (windows, kernel) in [
        (windows([1, 1], [1, 1]), [3, 3]),
        (windows([2, 3], [0, 1]), [2, 3]),
        (windows([5, 1], [0, 0]), [3, 7]),
        (None, [1, 1]),
    ] {
        let (channels, outputs) = if windows.is_some() { (2, 3) } else { (2 * 5 * 7, 3) };
        let count = outputs * channels * kernel[0] * kernel[1];
        let mut values = LayerValues {
            shape: vec![outputs, channels, kernel[0], kernel[1]],
            weights: (0..count).map(|i| ((i * 91) % 255) as i32 - 127).map(|w| w as i8).collect(),
            scales: vec![0.01, 0.02, 0.005],
            bias: Bias::Float(vec![0.5, -0.25, 0.0]),
        };
        let samples: Vec<f32> = (0..2 * 70).map(|i| ((i * 7919) % 997) as f32 / 400.0 - 1.0).collect();
        let expected = plainly(&values, windows, &samples);
        let (name, relu) = ("layer".to_owned(), false);
        let layer = match windows {
            Some((stride, padding)) => StoredLayer::Conv { name, stride, padding, relu, values },
            None => {
                values.shape.truncate(2);
                StoredLayer::Linear { name, relu, values }
            }
        };
        let network = Quantized::dynamic(&self::network(ModelKind::Convnet), WeightScheme::Channel);
        let file = Int8File { input_shape: [2, 5, 7], layers: vec![layer], ..network.unwrap().file };
        let mut quantized = Quantized::new(file).unwrap();
        for level in Level::available() {
            let _held = level.hold();
            let mut scores = Vec::new();
            quantized.infer(&samples, &mut scores).unwrap();
            assert_eq!(scores, expected, "{level}, {windows:?}");
        }
    }
}

fn plainly(layer: &LayerValues, windows: Option<([usize; 2], [usize; 2])>, values: &[f32]) -> Vec<f32> {
    use burn_fused::int8::{Scheme, min_max, quantize};
    let Bias::Float(bias) = &layer.bias else { unreachable!() };
    let [min, max] = min_max(values).unwrap();
    let parameters = Scheme::Affine.parameters(min, max).unwrap();
    let mut bytes = vec![0; values.len()];
    quantize(values, parameters, &mut bytes);
    let [outputs, inputs, height, width] = layer.shape[..] else { unreachable!() };
    let Some((stride, padding)) = windows else {
        let real = |bytes: &[u8], o: usize| {
            let weights = layer.weights[o * inputs..].iter();
            let sum: i64 = weights
                .zip(bytes)
                .map(|(&w, &q)| i64::from(w) * (i64::from(q) - i64::from(parameters.zero_point)))
                .sum();
            sum as f32 * (parameters.scale * layer.scales[o]) + bias[o]
        };
        return bytes
            .chunks(70)
            .flat_map(|bytes| (0..outputs).map(move |o| (bytes, o)))
            .map(|(b, o)| real(b, o))
            .collect();
    };
    let mut out = Vec::new();
    for image in bytes.chunks(70) {
        for (o, bias) in bias.iter().enumerate() {
            for y in 0..(5 + 2 * padding[0] - height) / stride[0] + 1 {
                for x in 0..(7 + 2 * padding[1] - width) / stride[1] + 1 {
                    let mut sum = 0i64;
                    for c in 0..inputs {
                        for i in 0..height {
                            for j in 0..width {
                                let row = (y * stride[0] + i).wrapping_sub(padding[0]);
                                let column = (x * stride[1] + j).wrapping_sub(padding[1]);
                                if row < 5 && column < 7 {
                                    let q = i64::from(image[(c * 5 + row) * 7 + column]);
                                    let weight = layer.weights[((o * inputs + c) * height + i) * width + j];
                                    sum += i64::from(weight) * (q - i64::from(parameters.zero_point));
                                }
                            }
                        }
                    }
                    out.push(sum as f32 * (parameters.scale * layer.scales[o]) + bias);
                }
            }
        }
    }
    out
}
