//! A module's float parameters as one flat buffer of f32.
//!
//! Burn's ids of parameters are random per process. Across ranks and in files, a parameter is therefore
//! identified by its PyTorch name, and by its index in visit order: the order in which Burn visits a module's
//! parameters.
//!
//! Optimizers, checkpoints and hashes use the flat buffer. It keeps Burn's order of dimensions: a linear
//! weight is `[inputs, outputs]`, in PyTorch `[outputs, inputs]`. A weight with `LinearLayout::Col` is also
//! `[inputs, outputs]` in a module: Burn transposes it only in its own records.

use std::collections::HashMap;
use std::ops::Range;

use burn::module::Module;
use burn::tensor::{DType, TensorData};

use crate::tensors;
use crate::tied::tie_parameters;

/// One float parameter of a module, or one float buffer: values without gradients, such as batch norm's
/// running statistics.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParamSpec {
    /// PyTorch's name, such as `conv1.weight`.
    pub name: String,
    /// Shape in Burn's order of dimensions.
    pub shape: Vec<usize>,
    /// Range of its values in the flat buffer.
    pub range: Range<usize>,
    /// Type of the parameter in the module. In the flat buffer it is f32.
    pub dtype: DType,
    /// Whether PyTorch stores the parameter transposed. It does so for the weight of Burn's `Linear`. Burn
    /// identifies a type by its name, so a user-defined struct that is also called `Linear` is treated as
    /// Burn's.
    pub transposed: bool,
    /// Whether the parameter gets gradients. Batch norm's running statistics do not, and the gradient of a
    /// tied parameter belongs to its first field.
    pub trainable: bool,
    /// The index of the first field with the same parameter, if the parameter is in several fields that get
    /// gradients.
    pub tied_to: Option<usize>,
}

impl ParamSpec {
    /// Returns one line to compare across ranks, such as `out.weight [64, 1] F32`.
    pub(crate) fn describe(&self) -> String {
        let gradient = match self.tied_to {
            Some(first) => format!(" tied to parameter {first}"),
            None if self.dtype.is_float() && !self.trainable => " without gradient".to_owned(),
            None => String::new(),
        };
        format!("{} {:?} {:?}{gradient}", self.name, self.shape, self.dtype)
    }

    /// Returns whether these are values of a module that get no gradients, such as running statistics.
    fn is_buffer(&self) -> bool {
        !self.trainable && self.tied_to.is_none()
    }

    /// Returns the shape in PyTorch's order of dimensions.
    pub fn torch_shape(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        if self.transposed {
            shape.reverse();
        }
        shape
    }

    /// Converts values from Burn's order of dimensions to PyTorch's.
    pub fn to_torch(&self, values: &[f32]) -> Vec<f32> {
        if self.transposed { transpose(values, self.shape[0], self.shape[1]) } else { values.to_vec() }
    }

    /// Converts values from PyTorch's order of dimensions to Burn's.
    pub fn from_torch(&self, values: &[f32]) -> Vec<f32> {
        if self.transposed { transpose(values, self.shape[1], self.shape[0]) } else { values.to_vec() }
    }
}

/// The float parameters and buffers of a module in visit order. Integers, booleans and quantized tensors are
/// not included.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::tensor::Device;
/// use burn_mpi::ParamLayout;
///
/// let linear = LinearConfig::new(4, 3).init(&Device::flex());
/// let layout = ParamLayout::of_module(&linear);
/// let weight = &layout.specs()[0];
/// assert_eq!((weight.name.as_str(), &weight.shape[..]), ("weight", &[4, 3][..]));
/// assert_eq!(weight.torch_shape(), [3, 4]);
///
/// // Read, changed and written back.
/// let mut flat = layout.read(&linear);
/// assert_eq!(flat.len(), 4 * 3 + 3);
/// flat.iter_mut().for_each(|value| *value *= 2.0);
/// let doubled = layout.write(linear, &flat);
/// assert_eq!(layout.read(&doubled), flat);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamLayout {
    pub(crate) specs: Vec<ParamSpec>,
    /// The fields that are modules, each with the type that contains it, to compare across ranks.
    pub(crate) fields: Vec<String>,
    /// Why Burn's optimizers cannot train the module: a parameter comes after a frozen clone of itself.
    pub(crate) shadowed: Option<String>,
}

impl ParamLayout {
    /// Reads the layout of `module`. Initialises parameters that have not been used yet.
    pub fn of_module<M: Module>(module: &M) -> Self {
        let (mut specs, mut seen) = (Vec::<ParamSpec>::new(), HashMap::new());
        let (mut frozen, mut shadowed) = (HashMap::new(), None);
        let fields = tensors::visit(module, &mut |id, mut spec, _| {
            if !spec.dtype.is_float() {
                return;
            }
            if spec.trainable {
                let first = *seen.entry(id).or_insert(specs.len());
                if first < specs.len() {
                    (spec.tied_to, spec.trainable) = (Some(first), false);
                } else if let Some(&clone) = frozen.get(&id) {
                    let clone: &ParamSpec = &specs[clone];
                    shadowed.get_or_insert_with(|| shadow(&clone.name, &spec.name));
                }
            } else {
                frozen.insert(id, specs.len());
            }
            specs.push(spec);
        });
        Self { specs, fields, shadowed }
    }

    /// Returns the layout with the parameters and buffers renamed to `names`, in visit order.
    ///
    /// # Panics
    /// If the number of names differs from the number of parameters and buffers.
    #[must_use]
    pub fn with_names(mut self, names: Vec<String>) -> Self {
        assert_eq!(names.len(), self.specs.len(), "with_names requires one name for each parameter");
        self.specs.iter_mut().zip(names).for_each(|(spec, name)| spec.name = name);
        self
    }

    /// Returns the parameters and buffers, in visit order.
    pub fn specs(&self) -> &[ParamSpec] {
        &self.specs
    }

    /// Returns the length of the flat buffer: the number of values in all parameters and buffers.
    pub fn len(&self) -> usize {
        self.specs.last().map_or(0, |spec| spec.range.end)
    }

    /// Returns whether the module has no float parameter or buffer.
    pub fn is_empty(&self) -> bool {
        self.specs.is_empty()
    }

    /// Returns the number of trainable values, as PyTorch counts parameters.
    pub fn trainable(&self) -> usize {
        let trainable = self.specs.iter().filter(|spec| spec.trainable);
        trainable.map(|spec| spec.range.len()).sum()
    }

    /// Reads the values of all float parameters and buffers of `module`, as f32.
    pub fn read<M: Module>(&self, module: &M) -> Vec<f32> {
        Self::read_if(module, self.len(), &mut |_| true)
    }

    /// Reads the values of the float buffers of `module`, as f32.
    pub fn read_buffers<M: Module>(&self, module: &M) -> Vec<f32> {
        let mut specs = self.specs.iter();
        let mut is_buffer = |_: &ParamSpec| specs.next().is_some_and(ParamSpec::is_buffer);
        Self::read_if(module, 0, &mut is_buffer)
    }

    fn read_if<M: Module>(module: &M, length: usize, wanted: &mut dyn FnMut(&ParamSpec) -> bool) -> Vec<f32> {
        let mut flat = Vec::with_capacity(length);
        tensors::visit(module, &mut |_, spec, data| {
            if spec.dtype.is_float() && wanted(&spec) {
                match data().convert_dtype(DType::F32).as_slice::<f32>() {
                    Ok(values) => flat.extend_from_slice(values),
                    Err(error) => unreachable!("converted to f32: {error:?}"),
                }
            }
        });
        flat
    }

    /// Returns `module` with the values of `flat`. Ids and gradient settings are unchanged.
    ///
    /// # Panics
    /// If `flat` is shorter than [`len`](Self::len), or `module` has more parameters than this layout.
    pub fn write<M: Module>(&self, module: M, flat: &[f32]) -> M {
        let mut specs = self.specs.iter();
        let module = tensors::write(module, &mut |dtype, _, _| {
            if !dtype.is_float() {
                return None;
            }
            let spec = specs.next().expect("the module has this layout");
            Some(TensorData::new(flat[spec.range.clone()].to_vec(), spec.shape.clone()))
        });
        self.tie(module)
    }

    /// Returns `module` with the values of `flat` in its trainable parameters. Values that get no gradients
    /// are unchanged, such as the running statistics of batch norm, which the module updates itself. A
    /// parameter in f32 on flex keeps its memory, if nothing else refers to it.
    ///
    /// # Panics
    /// In the same cases as [`write`](Self::write).
    pub fn write_trainable<M: Module>(&self, module: M, flat: &[f32]) -> M {
        let values = |param: usize| {
            let spec = &self.specs[param];
            spec.trainable.then(|| &flat[spec.range.clone()])
        };
        self.tie(tensors::overwrite(module, &values))
    }

    /// Returns `module` with its tied parameters as one tensor again.
    pub(crate) fn tie<M: Module>(&self, module: M) -> M {
        if self.specs.iter().any(|spec| spec.tied_to.is_some()) { tie_parameters(module) } else { module }
    }

    /// Names the first parameter that f32 cannot represent.
    pub(crate) fn wide(&self) -> Option<String> {
        let wide = self.specs.iter().find(|spec| spec.trainable && spec.dtype == DType::F64);
        wide.map(|spec| format!("{} is F64", spec.name))
    }

    /// Returns the parameters that are tied to an earlier one.
    pub(crate) fn tied(&self) -> Vec<usize> {
        (0..self.specs.len()).filter(|&param| self.specs[param].tied_to.is_some()).collect()
    }

    /// Returns whether the module has float buffers.
    pub fn has_buffers(&self) -> bool {
        self.specs.iter().any(ParamSpec::is_buffer)
    }
}

/// Returns the reason why `name` is not trained by Burn's optimizers.
fn shadow(clone: &str, name: &str) -> String {
    format!(
        "{clone} is a frozen clone of {name}, and comes first: Burn's optimizers would update it instead of {name}; \
         change the order of the fields, or use burn_mpi::ShardedOptimizer"
    )
}

fn transpose(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(values.len());
    for column in 0..columns {
        out.extend((0..rows).map(|row| values[row * columns + column]));
    }
    out
}

#[cfg(test)]
mod tests;
