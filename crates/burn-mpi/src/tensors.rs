//! Reads and writes all tensors of a module, of any type: floats, integers, booleans and quantized values.
//!
//! Gradients and checkpoints need only a module's float parameters ([`ParamLayout`](crate::ParamLayout)).
//! Broadcasts and comparisons between ranks include every tensor, byte by byte.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId, Parameter};
use burn::tensor::kind::Basic;
use burn::tensor::{Bool, DType, Int, Tensor, TensorData};

use crate::ParamSpec;

/// Receives each tensor: its id, its description, and a function that copies its values. The flat buffer of
/// [`ParamLayout`](crate::ParamLayout) contains floats only, so the description's `range` in it is empty for
/// a tensor of another type.
type Visit<'a> = dyn FnMut(ParamId, ParamSpec, &dyn Fn() -> TensorData) + 'a;

/// Passes the tensors of `module` to `visit`, in the order in which Burn visits them (visit order).
/// Initialises parameters that have not been used yet.
///
/// Returns the fields that are modules, each with the type that contains it, such as `act.Relu of
/// Enum:Activation`. A layer without tensors appears only among these fields.
pub(crate) fn visit<M: Module>(module: &M, visit: &mut Visit<'_>) -> Vec<String> {
    let mut visitor = Visitor { path: Vec::new(), fields: Vec::new(), floats: 0, visit };
    module.visit(&mut visitor);
    visitor.fields
}

/// Returns the new values of a tensor, or `None` to keep its values. The arguments are the tensor's type, its
/// shape, and whether it gets gradients.
type Values<'a> = dyn FnMut(DType, &[usize], bool) -> Option<TensorData> + 'a;

/// Returns `module` with new `values` for its tensors, in visit order. Types, ids and gradient settings are
/// unchanged.
pub(crate) fn write<M: Module>(module: M, values: &mut Values<'_>) -> M {
    module.map(&mut Writer { values, ids: None })
}

/// Returns `module` as [`write`] does. A tensor with new values also has a new id of `ids`, in visit order.
pub(crate) fn write_with_ids<M: Module>(module: M, ids: Vec<u64>, values: &mut Values<'_>) -> M {
    module.map(&mut Writer { values, ids: Some(ids.into_iter()) })
}

/// Returns `module` with new values for its float parameters. `values` returns the values of a parameter, by
/// its index in visit order, or `None` to keep them. A parameter with new values gets gradients.
///
/// Writes into the memory of a parameter if it is in f32 on flex and nothing else refers to its memory. New
/// memory for each parameter would fragment the heap: on four ranks, peaks were 6% higher.
pub(crate) fn overwrite<'a, M: Module>(module: M, values: &'a dyn Fn(usize) -> Option<&'a [f32]>) -> M {
    module.map(&mut Overwriter { values, next: 0 })
}

struct Visitor<'a, 'b> {
    /// The fields from the root to the current one. Each has its name and the type that contains it, such as
    /// `Struct:Linear`.
    path: Vec<(String, String)>,
    fields: Vec<String>,
    /// Number of values in the float tensors so far.
    floats: usize,
    visit: &'a mut Visit<'b>,
}

impl Visitor<'_, '_> {
    /// Joins the names of the fields on the path, such as `conv1.weight`. Omits a field if `through` is false
    /// for the type that contains it.
    fn name(&self, through: impl Fn(&str) -> bool) -> String {
        let fields = self.path.iter().filter(|(_, container)| through(container));
        fields.map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(".")
    }

    fn pass(
        &mut self,
        id: ParamId,
        (shape, dtype): (&[usize], DType),
        trainable: bool,
        data: &dyn Fn() -> TensorData,
    ) {
        let start = self.floats;
        if dtype.is_float() {
            self.floats += shape.iter().product::<usize>();
        }
        // The type of the layer identifies a linear weight; the name of the layer's field does not.
        let is_weight =
            self.path.last().is_some_and(|(name, module)| name == "weight" && module == "Struct:Linear");
        let spec = ParamSpec {
            // An enum's variant is not a layer: PyTorch's names omit it.
            name: self.name(|container| !container.starts_with("Enum:")),
            shape: shape.to_vec(),
            range: start..self.floats,
            dtype,
            transposed: shape.len() == 2 && is_weight,
            trainable,
            tied_to: None,
        };
        (self.visit)(id, spec, data);
    }
}

impl ModuleVisitor for Visitor<'_, '_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.push((name.to_owned(), container.to_owned()));
        self.fields.push(format!("{} of {container}", self.name(|_| true)));
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = match param.val() {
            // Detaching a quantized tensor would dequantize its values.
            quantized if matches!(quantized.dtype(), DType::QFloat(_)) => quantized,
            float => float.detach(),
        };
        let data = || tensor.clone().into_data();
        self.pass(param.id, (&tensor.dims(), tensor.dtype()), param.is_require_grad(), &data);
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let tensor = param.val();
        self.pass(param.id, (&tensor.dims(), tensor.dtype()), false, &|| tensor.clone().into_data());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        let tensor = param.val();
        self.pass(param.id, (&tensor.dims(), tensor.dtype()), false, &|| tensor.clone().into_data());
    }
}

struct Writer<'a, 'b> {
    values: &'a mut Values<'b>,
    ids: Option<std::vec::IntoIter<u64>>,
}

impl Writer<'_, '_> {
    /// Returns the parameter with its new values.
    fn rewrite<const D: usize, K: Basic>(&mut self, param: Param<Tensor<D, K>>) -> Param<Tensor<D, K>>
    where
        Tensor<D, K>: Parameter,
    {
        let (dims, dtype, trainable) = (param.dims(), param.dtype(), param.is_require_grad());
        let new = self.ids.as_mut().and_then(Iterator::next).map(ParamId::from);
        let Some(data) = (self.values)(dtype, &dims, trainable) else { return param };
        let (id, old, mapper) = param.consume();
        let device = old.device();
        // Keeping the old values while the new ones are made would need twice the memory of a large tensor.
        drop(old);
        let tensor: Tensor<D, K> = Tensor::from_data(data, (&device, dtype));
        Param::from_mapped_value(new.unwrap_or(id), tensor.set_require_grad(trainable), mapper)
    }
}

impl ModuleMapper for Writer<'_, '_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.rewrite(param)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        self.rewrite(param)
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        self.rewrite(param)
    }
}

struct Overwriter<'a> {
    values: &'a dyn Fn(usize) -> Option<&'a [f32]>,
    next: usize,
}

impl ModuleMapper for Overwriter<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let index = self.next;
        self.next += 1;
        let Some(values) = (self.values)(index) else { return param };
        let (id, old, mapper) = param.consume();
        let (dims, dtype, device) = (old.dims(), old.dtype(), old.device());
        let new = in_place(old, values).unwrap_or_else(|| {
            Tensor::from_data(TensorData::new(values.to_vec(), dims), (&device, dtype)).set_require_grad(true)
        });
        Param::from_mapped_value(id, new, mapper)
    }
}

/// Returns `tensor` with `values` in its memory, as a leaf that gets gradients; `None` if `tensor` has another
/// type or layout, is on another backend, has no autodiff, or shares its memory.
fn in_place<const D: usize>(tensor: Tensor<D>, values: &[f32]) -> Option<Tensor<D>> {
    let checkpointing = tensor.gradient_checkpointing_strategy()?;
    let mut memory = tensor.inner().try_into_primitive::<Flex>().ok()?;
    let is_whole = size_of_val(memory.as_slice::<f32>()?) == memory.bytes().len();
    memory.try_storage_mut::<f32>().filter(|_| is_whole)?.copy_from_slice(values);
    let leaf = FloatTensor::<Autodiff<Flex>>::new(memory).require_grad();
    let leaf = Tensor::<D>::from_primitive::<Autodiff<Flex>>(leaf);
    Some(leaf.with_gradient_checkpointing_strategy(checkpointing))
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    /// Reads the tensors of `module` in visit order, each with its values.
    fn read<M: Module>(module: &M) -> Vec<(ParamSpec, TensorData)> {
        let mut tensors = Vec::new();
        visit(module, &mut |_, spec, data| tensors.push((spec, data())));
        tensors
    }

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
        let mut values = source.clone().into_iter().map(|(_, data)| data);
        let written = write(to, &mut |_, _, _| values.next());
        assert_eq!(read(&written), source);
        assert!(written.double.is_require_grad());
        assert_eq!(written.mask.val().into_data(), TensorData::from([true, true]));
    }

    #[test]
    fn values_are_written_in_place_unless_another_tensor_has_the_memory() {
        let device = Device::flex().autodiff();
        let address = |model: &burn::nn::Linear| {
            let weight = model.weight.val().inner().try_into_primitive::<Flex>().unwrap();
            weight.as_slice::<f32>().unwrap().as_ptr().addr()
        };
        let values = |scale: f32| [scale, 2.0 * scale, 3.0 * scale];
        let written = |model, scale| {
            let new = values(scale);
            // The bias is the second parameter.
            overwrite(model, &|param| (param == 0).then_some(&new[..]))
        };
        let model = burn::nn::LinearConfig::new(3, 1).init(&device);
        let (before, bias) = (address(&model), model.bias.as_ref().unwrap().val().into_data());
        let model = written(model, 1.0);
        assert_eq!(address(&model), before);
        let kept = model.clone();
        let model = written(model, 7.0);
        assert_ne!(address(&model), before);
        for (model, scale) in [(&kept, 1.0), (&model, 7.0)] {
            assert_eq!(model.weight.val().into_data(), TensorData::new(values(scale).to_vec(), [3, 1]));
            assert_eq!(model.bias.as_ref().unwrap().val().into_data(), bias);
            assert!(model.weight.is_require_grad());
        }

        let mixed = overwrite(types(3.0, &device), &|_| Some(&[0.5, 4.0]));
        for (value, dtype) in [(&mixed.double, DType::F64), (&mixed.brain, DType::BF16)] {
            let expected = TensorData::from([0.5, 4.0]).convert_dtype(dtype);
            assert_eq!(value.val().into_data(), expected);
        }
    }
}
