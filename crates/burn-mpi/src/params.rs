//! A module's parameters as one flat buffer of f32.
//!
//! Across ranks and in files a parameter is known by its place in the module's
//! visit order and by its PyTorch name; Burn's own ids are random per process.
//! The optimizer, broadcasts, checkpoints and hashes all work on the flat
//! buffer, which has Burn's layouts: a linear weight is `[inputs, outputs]`.

use std::collections::HashMap;
use std::ops::Range;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{DType, Tensor, TensorData};
use sha2::{Digest, Sha256};

/// One parameter (or buffer) of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamSpec {
    /// PyTorch's name, as `conv1.weight`.
    pub name: String,
    /// Shape in Burn's layout.
    pub shape: Vec<usize>,
    /// Where its values lie in the flat buffer.
    pub range: Range<usize>,
    /// Whether PyTorch keeps it transposed: a linear layer's weight.
    pub transposed: bool,
    /// Whether it gets gradients; batch norm's running statistics do not.
    pub trainable: bool,
}

impl ParamSpec {
    /// Shape in PyTorch's layout.
    pub fn torch_shape(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        if self.transposed {
            shape.reverse();
        }
        shape
    }

    /// Values in PyTorch's layout, from Burn's.
    pub fn to_torch(&self, values: &[f32]) -> Vec<f32> {
        match self.transposed {
            true => transpose(values, self.shape[0], self.shape[1]),
            false => values.to_vec(),
        }
    }

    /// Values in Burn's layout, from PyTorch's.
    pub fn from_torch(&self, values: &[f32]) -> Vec<f32> {
        match self.transposed {
            true => transpose(values, self.shape[1], self.shape[0]),
            false => values.to_vec(),
        }
    }
}

/// The parameters of a module in visit order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamLayout {
    specs: Vec<ParamSpec>,
    /// Why it cannot be trained data-parallel, if so.
    unsupported: Option<String>,
}

impl ParamLayout {
    /// The layout of `module`. Draws parameters that have not been used yet.
    pub fn of<M: Module>(module: &M) -> Self {
        let mut visitor = LayoutVisitor::default();
        module.visit(&mut visitor);
        Self { specs: visitor.specs, unsupported: visitor.unsupported }
    }

    /// A layout of these parameters.
    #[cfg(test)]
    pub(crate) fn from_specs(specs: Vec<ParamSpec>) -> Self {
        Self { specs, unsupported: None }
    }

    /// What keeps a module of this layout from being trained data-parallel:
    /// parameters that are not f32, or tied to each other.
    pub fn unsupported(&self) -> Option<&str> {
        self.unsupported.as_deref()
    }

    /// The parameters, in visit order.
    pub fn specs(&self) -> &[ParamSpec] {
        &self.specs
    }

    /// Length of the flat buffer: parameters and buffers.
    pub fn len(&self) -> usize {
        self.specs.last().map_or(0, |spec| spec.range.end)
    }

    /// Whether the module has no parameter.
    pub fn is_empty(&self) -> bool {
        self.specs.is_empty()
    }

    /// Number of trainable values, as PyTorch counts parameters.
    pub fn trainable(&self) -> usize {
        let trainable = self.specs.iter().filter(|spec| spec.trainable);
        trainable.map(|spec| spec.range.len()).sum()
    }

    /// Values of all parameters of `module`.
    pub fn read<M: Module>(&self, module: &M) -> Vec<f32> {
        let mut visitor = ReadVisitor(Vec::with_capacity(self.len()));
        module.visit(&mut visitor);
        visitor.0
    }

    /// The module with the values of `flat`; ids and gradient settings stay.
    pub fn write<M: Module>(&self, module: M, flat: &[f32]) -> M {
        module.map(&mut WriteMapper { layout: self, flat, next: 0, trainable: true, buffers: true })
    }

    /// The module with the trainable values of `flat`; batch norm's running
    /// statistics, which the module updates itself, stay.
    pub fn write_trainable<M: Module>(&self, module: M, flat: &[f32]) -> M {
        module.map(&mut WriteMapper { layout: self, flat, next: 0, trainable: true, buffers: false })
    }

    /// The module with those values of `flat` that get no gradients.
    pub fn write_buffers<M: Module>(&self, module: M, flat: &[f32]) -> M {
        module.map(&mut WriteMapper { layout: self, flat, next: 0, trainable: false, buffers: true })
    }

    /// Whether there are values that get no gradients.
    pub fn has_buffers(&self) -> bool {
        self.specs.iter().any(|spec| !spec.trainable)
    }

    /// One line that describes the layout, to be compared across ranks.
    pub fn describe(&self) -> String {
        let parts: Vec<_> = self.specs.iter().map(|spec| format!("{}{:?}", spec.name, spec.shape)).collect();
        parts.join(" ")
    }
}

/// SHA-256 over `values` as little-endian f32, in hexadecimal.
pub fn sha256(values: &[f32]) -> String {
    let mut hasher = Sha256::new();
    for chunk in values.chunks(4096) {
        let bytes: Vec<u8> = chunk.iter().flat_map(|value| value.to_le_bytes()).collect();
        hasher.update(&bytes);
    }
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[derive(Default)]
struct LayoutVisitor {
    specs: Vec<ParamSpec>,
    path: Vec<String>,
    containers: Vec<String>,
    /// Parameters so far, with their index.
    seen: HashMap<ParamId, usize>,
    unsupported: Option<String>,
}

impl ModuleVisitor for LayoutVisitor {
    fn enter_module(&mut self, name: &str, container: &str) {
        // An enum's variant is no layer: PyTorch's names do not have it.
        if !container.starts_with("Enum:") {
            self.path.push(name.to_owned());
        }
        self.containers.push(container.to_owned());
    }

    fn exit_module(&mut self, _name: &str, container: &str) {
        if !container.starts_with("Enum:") {
            self.path.pop();
        }
        self.containers.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.val();
        let shape = tensor.dims().to_vec();
        let name = self.path.join(".");
        if tensor.dtype() != DType::F32 {
            self.unsupported.get_or_insert(format!("{name} is {:?}, and not F32", tensor.dtype()));
        }
        if let Some(first) = self.seen.insert(param.id, self.specs.len()) {
            self.unsupported.get_or_insert(format!(
                "{name} is tied to {}, and Burn's optimizers update one of the two alone; use one layer twice",
                self.specs[first].name
            ));
        }
        let start = self.specs.last().map_or(0, |spec| spec.range.end);
        let linear = self.containers.last().is_some_and(|c| c.ends_with("Linear"));
        self.specs.push(ParamSpec {
            name,
            range: start..start + shape.iter().product::<usize>(),
            transposed: linear && D == 2,
            trainable: param.is_require_grad(),
            shape,
        });
    }
}

struct ReadVisitor(Vec<f32>);

impl ModuleVisitor for ReadVisitor {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let data = param.val().detach().into_data().convert_dtype(DType::F32);
        match data.as_slice::<f32>() {
            Ok(values) => self.0.extend_from_slice(values),
            Err(error) => panic!("a parameter that is not f32: {error:?}"),
        }
    }
}

struct WriteMapper<'a> {
    layout: &'a ParamLayout,
    flat: &'a [f32],
    next: usize,
    trainable: bool,
    buffers: bool,
}

impl ModuleMapper for WriteMapper<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let spec = &self.layout.specs[self.next];
        self.next += 1;
        let wanted = if spec.trainable { self.trainable } else { self.buffers };
        if !wanted {
            return param;
        }
        let values = self.flat[spec.range.clone()].to_vec();
        let (id, old, mapper) = param.consume();
        let data = TensorData::new(values, spec.shape.clone());
        let mut tensor = Tensor::from_data(data, &old.device());
        if old.is_require_grad() {
            tensor = tensor.require_grad();
        }
        Param::from_mapped_value(id, tensor, mapper)
    }
}

fn transpose(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(values.len());
    for column in 0..columns {
        out.extend((0..rows).map(|row| values[row * columns + column]));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposing_twice_is_nothing() {
        let spec = ParamSpec {
            name: "linear.weight".into(),
            shape: vec![3, 2],
            range: 0..6,
            transposed: true,
            trainable: true,
        };
        let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        assert_eq!(spec.to_torch(&values), [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]);
        assert_eq!(spec.from_torch(&spec.to_torch(&values)), values);
    }
}
