//! All tensors of a module, of any type: floats, integers and booleans.
//!
//! Gradients and checkpoints need only a module's f32 parameters
//! ([`ParamLayout`](crate::ParamLayout)). Broadcasts and comparisons between ranks
//! include every tensor, byte by byte.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Bool, Bytes, DType, Int, Tensor, TensorData};

use crate::names::ModulePath;

/// One tensor of a module.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TensorSpec {
    pub name: String,
    pub shape: Vec<usize>,
    pub dtype: DType,
    pub kind: Kind,
    /// Whether it gets gradients.
    pub trainable: bool,
}

/// Kind of a tensor in Burn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Float,
    Int,
    Bool,
}

impl TensorSpec {
    /// One line to compare across ranks, such as `out.weight [64, 1] F32`.
    pub fn describe(&self) -> String {
        let Self { name, shape, dtype, kind, trainable } = self;
        let gradient = if *kind == Kind::Float && !trainable { " without gradient" } else { "" };
        format!("{name} {shape:?} {dtype:?}{gradient}")
    }
}

/// The tensors of `module` in visit order, each with its values. Initialises
/// parameters that have not been used yet.
pub(crate) fn read<M: Module>(module: &M) -> Vec<(TensorSpec, TensorData)> {
    let mut reader = Reader::default();
    module.visit(&mut reader);
    reader.tensors
}

/// `module` with these bytes in the tensors that `wanted` selects, concatenated in
/// visit order; types, ids and gradient settings are unchanged.
pub(crate) fn write<M: Module>(module: M, bytes: &[u8], wanted: fn(&TensorSpec) -> bool) -> M {
    module.map(&mut Writer { path: ModulePath::default(), rest: bytes, wanted })
}

#[derive(Default)]
struct Reader {
    path: ModulePath,
    tensors: Vec<(TensorSpec, TensorData)>,
}

impl Reader {
    fn add(&mut self, kind: Kind, trainable: bool, data: TensorData) {
        let spec = TensorSpec {
            name: self.path.name(),
            shape: data.shape().to_vec(),
            dtype: data.dtype(),
            kind,
            trainable,
        };
        self.tensors.push((spec, data));
    }
}

impl ModuleVisitor for Reader {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, container: &str) {
        self.path.exit(container);
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.add(Kind::Float, param.is_require_grad(), param.val().detach().into_data());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.add(Kind::Int, false, param.val().into_data());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.add(Kind::Bool, false, param.val().into_data());
    }
}

struct Writer<'a> {
    path: ModulePath,
    rest: &'a [u8],
    wanted: fn(&TensorSpec) -> bool,
}

impl Writer<'_> {
    /// New values for a tensor, or `None` to keep its values.
    fn take<const D: usize>(
        &mut self,
        kind: Kind,
        dtype: DType,
        shape: [usize; D],
        trainable: bool,
    ) -> Option<TensorData> {
        let spec = TensorSpec { name: self.path.name(), shape: shape.to_vec(), dtype, kind, trainable };
        if !(self.wanted)(&spec) {
            return None;
        }
        let (own, rest) = self.rest.split_at(spec.shape.iter().product::<usize>() * dtype.size());
        self.rest = rest;
        Some(TensorData::from_bytes(Bytes::from_bytes_vec(own.to_vec()), spec.shape, dtype))
    }
}

impl ModuleMapper for Writer<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, container: &str) {
        self.path.exit(container);
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (shape, dtype) = (param.val().dims(), param.val().dtype());
        let Some(data) = self.take(Kind::Float, dtype, shape, param.is_require_grad()) else {
            return param;
        };
        let (id, old, mapper) = param.consume();
        let mut tensor = Tensor::from_data(data, (&old.device(), dtype));
        if old.is_require_grad() {
            tensor = tensor.require_grad();
        }
        Param::from_mapped_value(id, tensor, mapper)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let (shape, dtype) = (param.val().dims(), param.val().dtype());
        let Some(data) = self.take(Kind::Int, dtype, shape, false) else { return param };
        let (id, old, mapper) = param.consume();
        Param::from_mapped_value(id, Tensor::from_data(data, (&old.device(), dtype)), mapper)
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        let (shape, dtype) = (param.val().dims(), param.val().dtype());
        let Some(data) = self.take(Kind::Bool, dtype, shape, false) else { return param };
        let (id, old, mapper) = param.consume();
        Param::from_mapped_value(id, Tensor::from_data(data, (&old.device(), dtype)), mapper)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[derive(Module, Debug)]
    struct Types {
        double: Param<Tensor<1>>,
        half: Param<Tensor<1>>,
        brain: Param<Tensor<1>>,
        count: Param<Tensor<2, Int>>,
        byte: Param<Tensor<1, Int>>,
        mask: Param<Tensor<1, Bool>>,
    }

    fn types(first: f32, device: &Device) -> Types {
        let data = |dtype| TensorData::from([first, -2.5]).convert_dtype(dtype);
        let float = |dtype| Param::from_tensor(Tensor::<1>::from_data(data(dtype), (device, dtype)));
        let plain = burn::module::ParamId::new;
        Types {
            double: float(DType::F64),
            half: float(DType::F16),
            brain: float(DType::BF16),
            count: Param::initialized(plain(), Tensor::from_data([[first as i64, -7]], (device, DType::I64))),
            byte: Param::initialized(
                plain(),
                Tensor::from_data(TensorData::from([first as i8]), (device, DType::I8)),
            ),
            mask: Param::initialized(plain(), Tensor::from_data([first > 2.0, true], device)),
        }
    }

    #[test]
    fn tensors_of_every_type_are_read_and_written_as_they_are() {
        let device = Device::flex().autodiff();
        let (from, to) = (types(3.0, &device), types(1.0, &device));
        let source = read(&from);
        let described: Vec<String> = source.iter().map(|(spec, _)| spec.describe()).collect();
        assert_eq!(described[0], "double [2] F64");
        assert_eq!(described[3..5], ["count [1, 2] I64", "byte [1] I8"]);
        assert_ne!(source, read(&to));
        let bytes: Vec<u8> = source.iter().flat_map(|(_, data)| data.as_bytes().to_vec()).collect();
        let written = write(to, &bytes, |_| true);
        assert_eq!(read(&written), source);
        assert!(written.double.is_require_grad());
        assert_eq!(written.mask.val().into_data(), TensorData::from([true, true]));
    }
}
