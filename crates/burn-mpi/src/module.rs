//! Broadcast and comparison of whole modules between ranks.

use burn::module::Module;
use burn::tensor::{Bytes, TensorData};
use sha2::{Digest, Sha256};

use crate::calling::calling;
use crate::tensors::{self, is_float};
use crate::{CommError, ParamLayout, ParamSpec, World};

/// `module` with rank 0's parameters and buffers: floats, integers and booleans, of any
/// type, bit by bit. All ranks must call it.
///
/// ```no_run
/// # use burn::nn::LinearConfig;
/// # use burn::tensor::Device;
/// # use burn_mpi::{CommError, World, broadcast_module, check_equal_weights};
/// # fn example(world: &World) -> Result<(), CommError> {
/// // Each rank draws weights of its own; then all have those of rank 0.
/// let model = LinearConfig::new(4, 1).init(&Device::flex().autodiff());
/// let model = broadcast_module(world, model)?;
/// check_equal_weights(world, &model)
/// # }
/// ```
///
/// # Errors
/// On all ranks: [`CommError::Diverged`] names the first parameter whose name, shape,
/// type or `require_grad` differs; [`CommError::Elsewhere`] names parameters that are
/// tied to each other. Otherwise if the transport fails.
pub fn broadcast_module<M: Module>(world: &World, module: M) -> Result<M, CommError> {
    let _calling = calling("broadcast_module");
    settle_buffers(&module);
    let tensors = tensors::read(&module);
    compare(world, tensors.iter().map(|(spec, _)| spec.describe()).collect())?;
    agree_on_module(world, ParamLayout::of(&module).tied)?;
    let mut bytes = Vec::new();
    if world.is_root() {
        tensors.iter().for_each(|(_, data)| bytes.extend_from_slice(data.as_bytes()));
    }
    let bytes = world.broadcast_bytes(bytes)?;
    let mut rest = &bytes[..];
    Ok(tensors::write(module, &mut |dtype, shape, _| {
        let (own, after) = rest.split_at(shape.iter().product::<usize>() * dtype.size());
        rest = after;
        Some(TensorData::from_bytes(Bytes::from_bytes_vec(own.to_vec()), shape.to_vec(), dtype))
    }))
}

/// Checks that all ranks have a module of this layout, and that it can be trained
/// data-parallel.
///
/// # Errors
/// [`CommError::Diverged`] names the first parameter that differs;
/// [`CommError::Elsewhere`] names one that is not f32 or tied to another, and its rank.
pub(crate) fn check_trainable(world: &World, layout: &ParamLayout) -> Result<(), CommError> {
    let _calling = calling("the start of gradient averaging");
    compare(world, layout.specs().iter().map(|spec| spec.describe()).collect())?;
    agree_on_module(world, layout.unsupported())
}

/// Tied parameters may exist on one rank only: shapes do not show them.
fn agree_on_module(world: &World, unsupported: Option<String>) -> Result<(), CommError> {
    world.agree(unsupported.map_or(Ok(()), |reason| Err(CommError::Module(reason))))
}

/// Checks that all ranks have the same tensors, one description each.
fn compare(world: &World, mine: Vec<String>) -> Result<(), CommError> {
    let ranks: Vec<Vec<String>> = world.gather(&mine)?;
    for (rank, theirs) in ranks.iter().enumerate() {
        let params = theirs.len().max(ranks[0].len());
        if let Some(param) = (0..params).find(|&param| theirs.get(param) != ranks[0].get(param)) {
            let [found, expected] = [theirs, &ranks[0]]
                .map(|ranks| ranks.get(param).map_or_else(|| "none".to_owned(), Clone::clone));
            return Err(world.diverged(format!("parameter {param} of the module"), rank, found, expected));
        }
    }
    Ok(())
}

/// `module` with the mean over ranks of the floats that get no gradients. Integers and
/// booleans, which have no mean, are unchanged.
///
/// # Errors
/// If the transport fails.
pub(crate) fn average_buffers<M: Module>(world: &World, module: M) -> Result<M, CommError> {
    settle_buffers(&module);
    let mut sums: Vec<f64> = Vec::new();
    tensors::visit(&module, &mut |_, spec, data| {
        if is_float(spec.dtype) && !spec.trainable {
            sums.extend(data().iter::<f64>());
        }
    });
    if sums.is_empty() {
        return Ok(module);
    }
    world.sum_f64(&mut sums)?;
    let mut means = sums.into_iter().map(|sum| sum / world.size() as f64);
    Ok(tensors::write(module, &mut |dtype, shape, trainable| {
        if trainable || !is_float(dtype) {
            return None;
        }
        let values: Vec<f64> = means.by_ref().take(shape.iter().product()).collect();
        Some(TensorData::new(values, shape.to_vec()).convert_dtype(dtype))
    }))
}

/// Checks that `module` has the same bits on every rank: floats, integers and booleans.
/// All ranks must call it.
///
/// # Errors
/// [`CommError::Diverged`] names the first parameter that differs, or else the first
/// buffer, and the first rank whose value differs from rank 0's.
pub fn check_equal_weights<M: Module>(world: &World, module: &M) -> Result<(), CommError> {
    check_equal(world, module, true)
}

/// The same for what gets gradients alone: buffers differ until they are averaged.
#[cfg(feature = "train")]
pub(crate) fn check_equal_parameters<M: Module>(world: &World, module: &M) -> Result<(), CommError> {
    check_equal(world, module, false)
}

fn check_equal<M: Module>(world: &World, module: &M, with_buffers: bool) -> Result<(), CommError> {
    let _calling = calling("check_equal_weights");
    settle_buffers(module);
    let tensors = tensors::read(module);
    compare(world, tensors.iter().map(|(spec, _)| spec.describe()).collect())?;
    let digests: Vec<String> = tensors.iter().map(|(_, data)| digest(data.as_bytes())).collect();
    let ranks: Vec<Vec<String>> = world.gather(&digests)?;
    let differs = |param: &usize| ranks.iter().position(|digests| digests[*param] != ranks[0][*param]);
    let (parameters, buffers): (Vec<usize>, Vec<usize>) =
        (0..tensors.len()).partition(|&param| tensors[param].0.trainable);
    for param in parameters.into_iter().chain(buffers.into_iter().filter(|_| with_buffers)) {
        if let Some(rank) = differs(&param) {
            let [found, expected] = [rank, 0].map(|rank| format!("digest {}", ranks[rank][param]));
            return Err(world.diverged(name_of(&tensors[param].0), rank, found, expected));
        }
    }
    Ok(())
}

/// Applies pending updates of Burn's running statistics to `module`: they defer the
/// last one, and would overwrite values written to them. Converting a module for
/// inference applies them.
fn settle_buffers<M: Module>(module: &M) {
    let _ = module.valid();
}

/// A prefix of the bytes' SHA-256.
fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes)[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn name_of(spec: &ParamSpec) -> String {
    let ParamSpec { name, dtype, trainable, .. } = spec;
    match is_float(*dtype) {
        true if *trainable => format!("the parameter {name}"),
        true => format!("the buffer {name} (GradientSync::average_buffers makes buffers equal)"),
        false if dtype.is_bool() => format!("the boolean parameter {name}"),
        false => format!("the integer parameter {name}"),
    }
}
