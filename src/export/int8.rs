//! Static int8 models as ONNX in QDQ form.
//!
//! Constants are the model's integers. Dequantized weights and activations are the
//! inputs of a float operator, whose output is quantized with the output's scale and
//! zero point. onnxruntime fuses each such group into one integer operator; its
//! requantization rounds half to even where ours rounds up, so a value may differ by
//! one step.

use burn_fused::int8::{Layer, Model, QParams, Weights};

use super::graph::{Attribute, Graph};
use super::proto::DataType;
use super::windows;

/// The ONNX file of `model`, a quantized `network`; `names` are PyTorch's names of its
/// layers with weights, in order.
///
/// # Panics
/// If there are fewer names than layers with weights.
pub fn int8_network(model: &Model, network: &str, names: &[String]) -> Vec<u8> {
    let mut graph = Graph::new();
    let mut names = names.iter();
    let mut input = model.input();
    let mut flat = false;
    requantize(&mut graph, "input", input);
    for (i, layer) in model.layers().iter().enumerate() {
        let (weights, shape, relu, output) = match layer {
            Layer::MaxPool(pool) => {
                graph.then(&format!("pool{i}"), "MaxPool", &[], windows(pool.kernel, pool.stride, [0; 4]));
                continue;
            }
            Layer::Conv(conv) => {
                let shape = vec![conv.outputs, conv.inputs, conv.kernel[0], conv.kernel[1]];
                (&conv.weights, shape, conv.relu, conv.output)
            }
            Layer::Linear(linear) => {
                (&linear.weights, vec![linear.outputs, linear.inputs], linear.relu, linear.output)
            }
        };
        let name = names.next().expect("a name for each layer with weights");
        if matches!(layer, Layer::Linear(_)) && !flat {
            graph.then("flatten", "Flatten", &[], vec![("axis", Attribute::Int(1))]);
            flat = true;
        }
        let [weight, bias] = constants(&mut graph, name, &shape, weights, input);
        let (op, attributes) = match layer {
            Layer::Conv(conv) => {
                let [rows, columns] = conv.padding;
                ("Conv", windows(conv.kernel, conv.stride, [rows, columns, rows, columns]))
            }
            _ => ("Gemm", vec![("transB", Attribute::Int(1))]),
        };
        graph.then(name, op, &[&weight, &bias], attributes);
        if relu {
            graph.then(&format!("{name}.relu"), "Relu", &[], Vec::new());
        }
        requantize(&mut graph, name, output);
        input = output;
    }
    graph.into_file(network, model.input_shape(), model.outputs())
}

/// Quantizes and dequantizes the last value.
fn requantize(graph: &mut Graph, name: &str, parameters: QParams) {
    let (scale, zero) = (format!("{name}.scale"), format!("{name}.zero_point"));
    graph.floats(&scale, &[], &[parameters.scale]);
    graph.constant(&zero, DataType::U8, &[], vec![parameters.zero_point as u8]);
    graph.then(&format!("{name}.quantize"), "QuantizeLinear", &[&scale, &zero], Vec::new());
    graph.then(&format!("{name}.dequantize"), "DequantizeLinear", &[&scale, &zero], Vec::new());
}

/// Adds the integers of a layer; returns the names of the dequantized weights and
/// biases.
fn constants(
    graph: &mut Graph,
    name: &str,
    shape: &[usize],
    weights: &Weights,
    input: QParams,
) -> [String; 2] {
    let scales = &weights.scales;
    // A scalar, or a vector along the outputs.
    let scale_shape: Vec<usize> = if scales.len() == 1 { Vec::new() } else { vec![scales.len()] };
    let steps: Vec<f32> = scales.iter().map(|&scale| input.scale * scale).collect();
    let values = weights.values.iter().map(|value| value.cast_unsigned()).collect();
    let bias = weights.bias.iter().flat_map(|step| step.to_le_bytes()).collect();
    let zeros = |width: usize| vec![0u8; width * scales.len()];
    let parts = [
        ("weight", DataType::I8, shape.to_vec(), values, scales, zeros(1)),
        ("bias", DataType::I32, vec![weights.bias.len()], bias, &steps, zeros(4)),
    ];
    parts.map(|(part, kind, shape, bytes, scales, zeros)| {
        let [quantized, scale, zero] =
            ["quantized", "scale", "zero_point"].map(|what| format!("{name}.{part}_{what}"));
        graph.constant(&quantized, kind, &shape, bytes);
        graph.floats(&scale, &scale_shape, scales);
        graph.constant(&zero, kind, &scale_shape, zeros);
        let inputs = [quantized.as_str(), &scale, &zero].into_iter();
        let axis = vec![("axis", Attribute::Int(0))];
        graph.node(&format!("{name}.{part}"), "DequantizeLinear", inputs, axis)
    })
}
