//! Checks names, operators and shapes in ONNX files. tests/pytorch/onnx_check.py compares results with other
//! runtimes.

use burn::module::Module;
use burn::tensor::Device;
use prost::Message;

use super::proto::{DataType, GraphProto, ModelProto};
use super::*;
use crate::model::{ActivationKind, Dimensions, ModelKind, Network, NetworkOptions};
use crate::quant::{Quantized, Ranges, WeightScheme};

fn graph(file: &OnnxFile) -> GraphProto {
    let model = ModelProto::decode(&file.bytes()[..]).expect("a protobuf message");
    assert_eq!((model.ir_version, model.opset_import.len()), (file.ir_version, 1));
    assert_eq!((model.opset_import[0].domain.as_str(), model.opset_import[0].version), ("", file.opset));
    model.graph.expect("a graph")
}

/// Returns the sizes of the first input and the first output, without the batch.
fn sizes(graph: &GraphProto) -> [Vec<i64>; 2] {
    [&graph.input[0], &graph.output[0]].map(|value| {
        let kind = value.kind.as_ref().and_then(|kind| kind.tensor_type.as_ref());
        let shape = kind.and_then(|kind| kind.shape.as_ref()).expect("a shape");
        shape.dim[1..].iter().map(|dim| dim.dim_value.expect("a size")).collect()
    })
}

/// Returns the operators in order. Checks that each input is known before its operator, from `input` to
/// `logits`.
fn operators(graph: &GraphProto) -> Vec<&str> {
    let dynamic: Vec<_> = graph
        .input
        .iter()
        .chain(&graph.output)
        .map(|value| {
            let shape = value.kind.as_ref().and_then(|kind| kind.tensor_type.as_ref()?.shape.as_ref());
            shape.expect("a shape").dim[0].dim_param.as_deref()
        })
        .collect();
    assert_eq!(dynamic, [Some("batch"), Some("batch")]);
    let mut known: Vec<&str> = vec!["input"];
    known.extend(graph.initializer.iter().map(|constant| constant.name.as_str()));
    for node in &graph.node {
        assert!(node.input.iter().all(|name| known.contains(&name.as_str())), "{node:?}");
        known.extend(node.output.iter().map(String::as_str));
    }
    assert_eq!(known.last(), Some(&"logits"));
    known.sort_unstable();
    let names = known.len();
    known.dedup();
    assert_eq!(known.len(), names, "two values have the same name");
    graph.node.iter().map(|node| node.op_type.as_str()).collect()
}

fn network(kind: ModelKind, options: &NetworkOptions) -> Network {
    Network::with_options(kind, options, kind.dimensions(), 3, &Device::flex().autodiff()).valid()
}

#[test]
fn float_networks_have_a_node_for_each_layer_but_dropout() {
    let options = NetworkOptions {
        activation: ActivationKind::Gelu,
        batch_norm: true,
        dropout: crate::values::Below1(0.5),
        ..NetworkOptions::default()
    };
    let file = float_network(&network(ModelKind::Convnet, &options));
    let graph = graph(&file);
    let block = ["Conv", "BatchNormalization", "Gelu", "MaxPool"];
    assert_eq!(operators(&graph), [&block[..], &block, &["Flatten", "Gemm"]].concat());
    let weight = graph.initializer.iter().find(|constant| constant.name == "linear.weight").unwrap();
    assert_eq!((weight.data_type, &weight.dims[..]), (DataType::Float as i32, &[10, 392][..]));
    assert_eq!(weight.raw_data.len(), 4 * 3920);
    for activation in [ActivationKind::Tanh, ActivationKind::Sigmoid, ActivationKind::Relu] {
        let options = NetworkOptions { activation, ..NetworkOptions::default() };
        let file = float_network(&network(ModelKind::Mlp, &options));
        let name = format!("{activation}");
        let found = operators(&super::tests::graph(&file)).join(" ").to_lowercase();
        assert_eq!(found, format!("flatten gemm batchnormalization {name} gemm"));
    }
}

#[test]
fn the_opset_is_the_lowest_that_the_network_needs() {
    for (kind, activation, batch_norm, expected) in [
        (ModelKind::Convnet, ActivationKind::Relu, false, [7, 4]),
        (ModelKind::Vgg, ActivationKind::Sigmoid, true, [9, 4]),
        (ModelKind::Mlp, ActivationKind::Tanh, false, [9, 4]),
        (ModelKind::Convnet, ActivationKind::Gelu, false, [20, 9]),
    ] {
        let options = NetworkOptions { activation, batch_norm, ..NetworkOptions::default() };
        let OnnxFile { opset, ir_version, .. } = float_network(&network(kind, &options));
        assert_eq!([opset, ir_version], expected, "{kind} {activation}");
    }
}

#[test]
fn the_file_says_how_an_input_is_made_and_what_a_score_is_of() {
    let mut file = float_network(&network(ModelKind::Convnet, &NetworkOptions::default()));
    let mut read = |data: &run_record::DataRecord| -> Vec<(String, String)> {
        file.describe(data);
        let model = ModelProto::decode(&file.bytes()[..]).expect("a protobuf message");
        model.metadata_props.into_iter().map(|entry| (entry.key, entry.value)).collect()
    };
    let pictures = run_record::DataRecord {
        shape: [3, 4, 5],
        class_names: vec!["cat".into(), "a \"b\"".into()],
        element: "u8".into(),
        mean: vec![0.1307, 0.5, 1.0],
        std: vec![0.3081, 0.25, 1.0],
        fit: Some("crop".into()),
        ..Default::default()
    };
    let expected = [
        ("shape", "[3,4,5]"),
        ("class_names", r#"["cat","a \"b\""]"#),
        ("element", r#""u8""#),
        ("mean", "[0.1307,0.5,1.0]"),
        ("std", "[0.3081,0.25,1.0]"),
        ("fit", r#""crop""#),
    ];
    assert_eq!(read(&pictures), expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let rows = run_record::DataRecord { features: vec!["width".into()], ..Default::default() };
    let keys: Vec<String> = read(&rows).into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["shape", "class_names", "element", "features"]);
}

#[test]
fn inputs_and_outputs_have_the_sizes_of_the_network() {
    for (kind, input, classes) in [
        (ModelKind::Convnet, [3, 5, 7], 300),
        (ModelKind::Vgg, [1, 9, 17], 2),
        (ModelKind::Mlp, [3, 4, 5], 1),
    ] {
        let options = NetworkOptions::default();
        let dimensions = Dimensions { input, classes };
        let network = Network::with_options(kind, &options, dimensions, 3, &Device::flex());
        let expected = [input.map(|size| size as i64).to_vec(), vec![classes as i64]];
        assert_eq!(sizes(&graph(&float_network(&network))), expected);
        let mut ranges = Ranges::for_groups(crate::quant::groups(&network).unwrap().len());
        ranges.input = Some([-1.0, 2.0]);
        ranges.groups.iter_mut().for_each(|group| group.output = Some([-1.0, 2.0]));
        let int8 = Quantized::of_ranges(&network, run_record::Method::Ptq, &ranges, WeightScheme::Channel);
        assert_eq!(sizes(&graph(&int8_network(&int8.unwrap().file))), expected);
    }
}

#[test]
fn int8_models_have_pairs_of_quantization_around_every_operator() {
    let network = network(ModelKind::Convnet, &NetworkOptions::default());
    let mut ranges = Ranges::for_groups(3);
    ranges.input = Some([-1.0, 2.0]);
    ranges.groups.iter_mut().for_each(|group| group.output = Some([-1.0, 2.0]));
    let file_of =
        |scheme| Quantized::of_ranges(&network, run_record::Method::Ptq, &ranges, scheme).unwrap().file;
    let quantized = file_of(WeightScheme::Channel);
    let file = int8_network(&quantized);
    assert_eq!((file.opset, file.ir_version), (13, 7));
    let graph = graph(&file);
    let (pair, constants) = (["QuantizeLinear", "DequantizeLinear"], ["DequantizeLinear"; 2]);
    let conv = [&constants[..], &["Conv", "Relu"], &pair, &["MaxPool"]].concat();
    let expected = [&pair[..], &conv, &conv, &["Flatten"], &constants, &["Gemm"], &pair].concat();
    assert_eq!(operators(&graph), expected);
    let constant = |name: &str| graph.initializer.iter().find(|c| c.name == name).expect(name);
    assert_eq!(constant("conv1.weight_scale").dims, [4]);
    let bias = constant("linear.bias_quantized");
    assert_eq!((bias.data_type, bias.dims.as_slice()), (DataType::I32 as i32, &[10][..]));
    let steps = &constant("linear.bias_scale").raw_data;
    let step = f32::from_le_bytes(steps[..4].try_into().unwrap());
    let (_, linear) = quantized.products().last().unwrap();
    assert_eq!(step, quantized.activations[2].scale * linear.scales[0]);
    let file = int8_network(&file_of(WeightScheme::Tensor));
    assert_eq!((file.opset, file.ir_version), (10, 5));
    let by_tensor = super::tests::graph(&file);
    let scale = by_tensor.initializer.iter().find(|c| c.name == "linear.weight_scale").unwrap();
    assert_eq!(scale.dims, [0i64; 0]);
}
