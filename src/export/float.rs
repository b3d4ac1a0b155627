//! Export of float networks as ONNX: one node for each layer, with PyTorch's names. Dropout has no node, and
//! average pooling has two.

use super::graph::{Attribute, Graph, OnnxFile};
use super::{average, windows};
use crate::model::{ActivationKind, Layer, Network};
use crate::quant::padding;

/// Makes the ONNX file of `network`. Omits dropout. Constants have PyTorch's names and orders of dimensions.
///
/// # Panics
/// If a convolution is grouped, dilated or without bias, if a pooling is dilated or in ceil mode, or if the
/// padding of a convolution or a pooling is not symmetric. No network of this program has such a layer.
pub fn float_network(network: &Network) -> OnnxFile {
    let layout = network.parameters();
    let flat = layout.read(network);
    let mut graph = Graph::new();
    for spec in layout.specs() {
        graph.floats(&spec.name, &spec.torch_shape(), &spec.to_torch(&flat[spec.range.clone()]));
    }
    let mut shape = network.input_shape().to_vec();
    for named in network.layers() {
        let before = std::mem::take(&mut shape);
        shape = named.layer.cost(&before).0;
        let name = named.name;
        let parameter = |part: &str| format!("{name}.{part}");
        match named.layer {
            Layer::Conv(conv) => {
                let is_plain = conv.groups == 1 && conv.dilation == [1, 1] && conv.bias.is_some();
                let padding = padding(&conv.padding).filter(|_| is_plain).expect("a plain convolution");
                let (weight, bias) = (parameter("weight"), parameter("bias"));
                graph.then(name, "Conv", &[&weight, &bias], windows(conv.kernel_size, conv.stride, padding));
            }
            Layer::Norm(norm) => {
                let values = ["weight", "bias", "running_mean", "running_var"].map(parameter);
                let epsilon = vec![("epsilon", Attribute::Float(norm.epsilon as f32))];
                graph.then(name, "BatchNormalization", &values.each_ref().map(String::as_str), epsilon);
            }
            Layer::Activation(activation) => {
                graph.then(name, operator(ActivationKind::from_layer(activation)), &[], Vec::new());
            }
            Layer::Pool(pool) => {
                let is_plain = pool.dilation == [1, 1] && !pool.ceil_mode;
                let padding = padding(&pool.padding).filter(|_| is_plain).expect("a plain pooling");
                graph.then(name, "MaxPool", &[], windows(pool.kernel_size, pool.stride, padding));
            }
            Layer::AveragePool(pool) => average(&mut graph, name, [before[1], before[2]], pool.output_size),
            Layer::Flatten(_) => graph.then(name, "Flatten", &[], vec![("axis", Attribute::Int(1))]),
            Layer::Dropout(_) => {}
            Layer::Linear(_) => {
                let (weight, bias) = (parameter("weight"), parameter("bias"));
                graph.then(name, "Gemm", &[&weight, &bias], vec![("transB", Attribute::Int(1))]);
            }
        }
    }
    graph.into_file(&network.kind().to_string(), network.dimensions())
}

/// Returns the name of the ONNX operator that computes `activation`. ONNX's Gelu computes the exact formula
/// by default, as PyTorch does.
fn operator(activation: ActivationKind) -> &'static str {
    match activation {
        ActivationKind::Relu => "Relu",
        ActivationKind::Tanh => "Tanh",
        ActivationKind::Sigmoid => "Sigmoid",
        ActivationKind::Gelu => "Gelu",
    }
}
