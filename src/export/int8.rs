//! Export of int8 models as ONNX in QDQ form: QuantizeLinear and DequantizeLinear surround float operators.
//!
//! Constants are the model's integers. A float operator takes dequantized weights and activations, and its
//! output is quantized with the output's scale and zero point. onnxruntime fuses each such group into one
//! integer operator. When onnxruntime quantizes an output, it rounds half to even. This program rounds half
//! up, so a value may differ by one quantization step.

use burn_fused::int8::QParams;

use super::graph::{Attribute, Graph, OnnxFile};
use super::proto::DataType;
use super::{average, windows};
use crate::model::Dimensions;
use crate::quant::Int8File;
use crate::quant::int8_file::{LayerValues, StoredLayer};

/// Makes the ONNX file of `network`.
///
/// # Panics
/// If scales and zero points are missing, or if a layer's weights have too few dimensions. [`Int8File::read`]
/// rejects such files.
pub fn int8_network(network: &Int8File) -> OnnxFile {
    let mut graph = Graph::new();
    let mut activations = network.activations.iter().copied();
    let mut next = || activations.next().expect("parameters of the input and of each layer with weights");
    let mut input = next();
    let (mut flat, mut classes) = (false, 0);
    requantize(&mut graph, "input", input);
    let mut size = network.input_shape;
    for (i, layer) in network.layers.iter().enumerate() {
        let [_, height, width] = size;
        size = layer.output_size(size).unwrap_or(size);
        let (name, values, relu) = match *layer {
            StoredLayer::MaxPool { kernel, stride } => {
                graph.then(&format!("pool{i}"), "MaxPool", &[], windows(kernel, stride, [0; 2]));
                continue;
            }
            StoredLayer::AveragePool { output } => {
                average(&mut graph, &format!("average{i}"), [height, width], output);
                requantize(&mut graph, &format!("average{i}"), input);
                continue;
            }
            StoredLayer::Conv { ref name, stride, padding, relu, ref values } => {
                let [weight, bias] = constants(&mut graph, name, values, input);
                let kernel = [values.shape[2], values.shape[3]];
                let attributes = windows(kernel, stride, padding);
                graph.then(name, "Conv", &[&weight, &bias], attributes);
                (name, values, relu)
            }
            StoredLayer::Linear { ref name, relu, ref values } => {
                if !std::mem::replace(&mut flat, true) {
                    graph.then("flatten", "Flatten", &[], vec![("axis", Attribute::Int(1))]);
                }
                let [weight, bias] = constants(&mut graph, name, values, input);
                graph.then(name, "Gemm", &[&weight, &bias], vec![("transB", Attribute::Int(1))]);
                (name, values, relu)
            }
        };
        if relu {
            graph.then(&format!("{name}.relu"), "Relu", &[], Vec::new());
        }
        input = next();
        requantize(&mut graph, name, input);
        classes = values.shape[0];
    }
    graph.into_file(&network.network, Dimensions { input: network.input_shape, classes })
}

/// Appends quantization and dequantization of the last operator's output.
fn requantize(graph: &mut Graph, name: &str, parameters: QParams) {
    let (scale, zero) = (format!("{name}.scale"), format!("{name}.zero_point"));
    graph.floats(&scale, &[], &[parameters.scale]);
    graph.constant(&zero, DataType::U8, &[], vec![parameters.zero_point as u8]);
    graph.then(&format!("{name}.quantize"), "QuantizeLinear", &[&scale, &zero], Vec::new());
    graph.then(&format!("{name}.dequantize"), "DequantizeLinear", &[&scale, &zero], Vec::new());
}

/// Adds the integers of a layer as constants. Returns the names of the dequantized weights and biases.
fn constants(graph: &mut Graph, name: &str, values: &LayerValues, input: QParams) -> [String; 2] {
    let LayerValues { shape, weights, scales, bias } = values;
    // Scales are a scalar, or a vector with one value for each output.
    let scale_shape: Vec<usize> = if scales.len() == 1 { Vec::new() } else { vec![scales.len()] };
    let steps: Vec<f32> = scales.iter().map(|&scale| input.scale * scale).collect();
    let bytes = weights.iter().map(|value| value.cast_unsigned()).collect();
    let biases = bias.iter().flat_map(|step| step.to_le_bytes()).collect();
    let zeros = |width: usize| vec![0u8; width * scales.len()];
    let parts = [
        ("weight", DataType::I8, shape.clone(), bytes, scales, zeros(1)),
        ("bias", DataType::I32, vec![bias.len()], biases, &steps, zeros(4)),
    ];
    parts.map(|(part, kind, shape, bytes, scales, zeros)| {
        let [quantized, scale, zero] =
            ["quantized", "scale", "zero_point"].map(|what| format!("{name}.{part}_{what}"));
        graph.constant(&quantized, kind, &shape, bytes);
        graph.floats(&scale, &scale_shape, scales);
        graph.constant(&zero, kind, &scale_shape, zeros);
        let inputs = [quantized.as_str(), &scale, &zero].into_iter();
        let axis = if scale_shape.is_empty() { Vec::new() } else { vec![("axis", Attribute::Int(0))] };
        graph.node(&format!("{name}.{part}"), "DequantizeLinear", inputs, axis)
    })
}
