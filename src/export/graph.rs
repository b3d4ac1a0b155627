//! Builder of sequential ONNX graphs, from `input` `[batch, channels, height, width]` to `logits`
//! `[batch, classes]`.
//!
//! The file gets the lowest versions of operator set and file format that its operators need, so that old
//! runtimes can read it.

use super::proto::{
    AttributeProto, DataType, DimensionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
};
use crate::model::Dimensions;

/// An ONNX file and its versions.
pub struct OnnxFile {
    pub(super) model: ModelProto,
    /// Lowest version of the operator set that contains all operators of the file.
    pub opset: i64,
    /// Version of the file format.
    pub ir_version: i64,
}

/// Returns the first operator set that has `op` in the form that this program writes. The versions are from
/// onnx/docs/Changelog.md.
fn first_opset(op: &str, attributes: &[(&str, Attribute)]) -> i64 {
    match op {
        "Gelu" => 20,
        // A scale for each channel needs version 13.
        "DequantizeLinear" if !attributes.is_empty() => 13,
        "QuantizeLinear" | "DequantizeLinear" => 10,
        "BatchNormalization" => 9,
        // Gemm accepts a bias of one dimension since version 7. The other operators are older.
        _ => 7,
    }
}

/// Returns the version of the file format in the first ONNX release with this operator set. The version is at
/// least 4, the first in which constants do not have to be inputs of the graph.
fn ir_version(opset: i64) -> i64 {
    match opset {
        ..=9 => 4,
        10 => 5,
        11..=13 => 7,
        _ => 9,
    }
}

const INPUT: &str = "input";
const OUTPUT: &str = "logits";

/// A graph to which operators are appended.
pub struct Graph {
    nodes: Vec<NodeProto>,
    constants: Vec<TensorProto>,
    opset: i64,
    /// Name of the output of the last operator.
    last: String,
}

/// An attribute of an operator.
pub enum Attribute {
    Float(f32),
    Int(i64),
    Ints(Vec<i64>),
}

impl Graph {
    pub fn new() -> Self {
        Self { nodes: Vec::new(), constants: Vec::new(), opset: first_opset("", &[]), last: INPUT.to_owned() }
    }

    /// Appends an operator. Its inputs are the output of the last operator and the `constants`.
    pub fn then(&mut self, name: &str, op: &str, constants: &[&str], attributes: Vec<(&str, Attribute)>) {
        let last = std::mem::take(&mut self.last);
        let inputs = std::iter::once(last.as_str()).chain(constants.iter().copied());
        self.last = self.node(name, op, inputs, attributes);
    }

    /// Appends a matrix product of the last operator's output and `constant`. The constant is the right
    /// factor if `on_right`, otherwise the left factor.
    pub fn product(&mut self, name: &str, constant: &str, on_right: bool) {
        let last = std::mem::take(&mut self.last);
        let inputs = if on_right { [&*last, constant] } else { [constant, &*last] };
        self.last = self.node(name, "MatMul", inputs.into_iter(), Vec::new());
    }

    /// Adds an operator with these `inputs`, and returns the name of its output.
    pub fn node<'a>(
        &mut self,
        name: &str,
        op: &str,
        inputs: impl Iterator<Item = &'a str>,
        attributes: Vec<(&str, Attribute)>,
    ) -> String {
        let output = format!("{name}.output");
        self.opset = self.opset.max(first_opset(op, &attributes));
        self.nodes.push(NodeProto {
            input: inputs.map(String::from).collect(),
            output: vec![output.clone()],
            name: name.to_owned(),
            op_type: op.to_owned(),
            attribute: attributes.into_iter().map(|(name, value)| attribute(name, value)).collect(),
        });
        output
    }

    /// Adds a constant.
    pub fn constant(&mut self, name: &str, kind: DataType, shape: &[usize], bytes: Vec<u8>) {
        self.constants.push(TensorProto {
            dims: shape.iter().map(|&size| size as i64).collect(),
            data_type: kind as i32,
            name: name.to_owned(),
            raw_data: bytes,
        });
    }

    /// Adds a constant of floats. An empty shape makes a scalar.
    pub fn floats(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(name, DataType::Float, shape, bytes);
    }

    /// Completes the file of a network with these dimensions.
    pub fn into_file(mut self, name: &str, dimensions: Dimensions) -> OnnxFile {
        if let Some(node) = self.nodes.last_mut() {
            node.output = vec![OUTPUT.to_owned()];
        }
        let graph = GraphProto {
            node: self.nodes,
            name: name.to_owned(),
            initializer: self.constants,
            input: vec![value(INPUT, &dimensions.input)],
            output: vec![value(OUTPUT, &[dimensions.classes])],
        };
        let (opset, ir_version) = (self.opset, ir_version(self.opset));
        let model = ModelProto {
            ir_version,
            producer_name: env!("CARGO_PKG_NAME").to_owned(),
            producer_version: env!("CARGO_PKG_VERSION").to_owned(),
            graph: Some(graph),
            opset_import: vec![OperatorSetIdProto { domain: String::new(), version: opset }],
            metadata_props: Vec::new(),
        };
        OnnxFile { model, opset, ir_version }
    }
}

fn attribute(name: &str, value: Attribute) -> AttributeProto {
    let new = AttributeProto { name: name.to_owned(), ..AttributeProto::default() };
    match value {
        Attribute::Float(f) => AttributeProto { f: Some(f), kind: 1, ..new },
        Attribute::Int(i) => AttributeProto { i: Some(i), kind: 2, ..new },
        Attribute::Ints(ints) => AttributeProto { ints, kind: 7, ..new },
    }
}

/// Describes a float tensor. Its first dimension is the batch size, which is variable; the others are
/// `shape`.
fn value(name: &str, shape: &[usize]) -> ValueInfoProto {
    let batch = DimensionProto { dim_param: Some("batch".to_owned()), ..DimensionProto::default() };
    let sizes = shape
        .iter()
        .map(|&size| DimensionProto { dim_value: Some(size as i64), ..DimensionProto::default() });
    let dim = std::iter::once(batch).chain(sizes).collect();
    let tensor_type =
        TensorTypeProto { elem_type: DataType::Float as i32, shape: Some(TensorShapeProto { dim }) };
    let kind = Some(TypeProto { tensor_type: Some(tensor_type) });
    ValueInfoProto { name: name.to_owned(), kind }
}
