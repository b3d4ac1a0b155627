//! Broadcast and comparison of whole modules between ranks.

use std::collections::HashMap;
use std::ops::Range;

use burn::module::Module;
use burn::tensor::{Bytes, DType, TensorData};
use sha2::{Digest, Sha256};

use crate::calling::calling;
use crate::tied::tie_parameters;
use crate::{CommError, ParamLayout, ParamSpec, World, tensors};

/// Returns `module` with rank 0's parameters and buffers: floats, integers, booleans and quantized tensors,
/// of any type, bit by bit. All ranks must call it. Tied parameters are one tensor again, also on rank 0
/// ([`tie_parameters`]). Parameters get rank 0's ids, so that every rank can load an optimizer's record of
/// rank 0. Call it before an optimizer's first step, because an optimizer finds its state by id.
///
/// Needs twice the memory of the module's largest tensor in addition to the module.
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
/// On all ranks: [`SharedError::Diverged`](crate::SharedError::Diverged) names the first parameter whose
/// name, shape, type or `require_grad` differs, or else the first field that differs, such as another variant
/// of an enum. Other errors come from the transport.
pub fn broadcast_module<M: Module>(world: &World, module: M) -> Result<M, CommError> {
    let _calling = calling("broadcast_module");
    flush_running_statistics(&module);
    let (mut described, mut lengths, mut ids) = (Vec::new(), Vec::new(), Vec::new());
    let fields = tensors::visit(&module, &mut |id, spec, data| {
        ids.push(id.val());
        described.push(spec.describe());
        lengths.push(match spec.dtype {
            // Quantized values are packed, and their data includes scales.
            DType::QFloat(_) => data().as_bytes().len(),
            dtype => spec.shape.iter().product::<usize>() * dtype.size(),
        });
    });
    compare(world, described, fields, "")?;
    let ids: Vec<u64> = world.broadcast(&ids)?;
    let mut result = Ok(());
    // After an error of the transport, nothing more is sent.
    let mut send = |mut bytes: Vec<u8>| {
        if result.is_ok() {
            result = world.control().borrow_mut().broadcast(&mut bytes, 0);
        }
        result.is_ok().then_some(bytes)
    };
    if world.is_root() {
        tensors::visit(&module, &mut |_, _, data| drop(send(data().as_bytes().to_vec())));
        return result.map(|()| tie_parameters(module));
    }
    let mut lengths = lengths.into_iter();
    let module = tensors::write_with_ids(module, ids, &mut |dtype, shape, _| {
        let bytes = Bytes::from_bytes_vec(send(vec![0; lengths.next()?])?);
        Some(TensorData::from_bytes(bytes, shape.to_vec(), dtype))
    });
    result.map(|()| tie_parameters(module))
}

/// Checks that all ranks have a module of this layout.
///
/// # Errors
/// [`SharedError::Diverged`](crate::SharedError::Diverged) names the first parameter that differs.
pub(crate) fn check_same(world: &World, layout: &ParamLayout) -> Result<(), CommError> {
    let _calling = calling("the start of gradient averaging");
    compare(world, layout.specs().iter().map(ParamSpec::describe).collect(), layout.fields.clone(), "")
}

/// Checks that all ranks have the same tensors and the same fields. `tensors` has one description for each
/// tensor. An error begins with `when`.
fn compare(world: &World, tensors: Vec<String>, fields: Vec<String>, when: &str) -> Result<(), CommError> {
    let ranks: Vec<(usize, [Vec<String>; 2])> = world.gather_distinct(&[tensors, fields])?;
    for (at, what) in ["parameter", "field"].into_iter().enumerate() {
        let expected = &ranks[0].1[at];
        for (rank, found) in ranks.iter().map(|(rank, parts)| (*rank, &parts[at])) {
            let parts = found.len().max(expected.len());
            if let Some(part) = (0..parts).find(|&part| found.get(part) != expected.get(part)) {
                let [found, expected] =
                    [found, expected].map(|parts| parts.get(part).map_or("none", String::as_str));
                return Err(world.diverged(
                    format!("{when}{what} {part} of the module"),
                    rank,
                    found,
                    expected,
                ));
            }
        }
    }
    Ok(())
}

/// Returns `module` with its float buffers averaged over all ranks. Buffers are values without gradients,
/// such as running statistics of batch norm. Integers and booleans, which have no mean, are unchanged.
///
/// The variance over all ranks is E[x²] − E[x]², and a rank's E[x²] is its variance plus the square of its
/// mean. So a buffer `running_var` beside a buffer `running_mean` is averaged together with it: the variance
/// between the means of the ranks counts.
///
/// # Errors
/// If the transport fails.
pub(crate) fn average_buffers<M: Module>(world: &World, module: M) -> Result<M, CommError> {
    flush_running_statistics(&module);
    let (mut names, mut ranges) = (HashMap::new(), Vec::new());
    let mut values: Vec<f64> = Vec::new();
    tensors::visit(&module, &mut |_, spec, data| {
        if spec.dtype.is_float() && !spec.trainable {
            let start = values.len();
            values.extend(data().iter::<f64>());
            names.insert(spec.name, ranges.len());
            ranges.push(start..values.len());
        }
    });
    if values.is_empty() {
        return Ok(module);
    }
    let variances: Vec<(Range<usize>, Range<usize>)> = names
        .iter()
        .filter_map(|(name, &variance)| {
            let mean = *names.get(&format!("{}running_mean", name.strip_suffix("running_var")?))?;
            let pair = (ranges[variance].clone(), ranges[mean].clone());
            (pair.0.len() == pair.1.len()).then_some(pair)
        })
        .collect();
    for (variance, mean) in variances.iter().cloned() {
        variance.zip(mean).for_each(|(variance, mean)| values[variance] += values[mean] * values[mean]);
    }
    world.sum_f64(&mut values)?;
    values.iter_mut().for_each(|value| *value /= world.size() as f64);
    for (variance, mean) in variances {
        for (variance, mean) in variance.zip(mean) {
            // Rounding may make it negative. A NaN stays.
            let exact = values[variance] - values[mean] * values[mean];
            values[variance] = if exact < 0.0 { 0.0 } else { exact };
        }
    }
    let mut means = values.into_iter();
    Ok(tensors::write(module, &mut |dtype, shape, trainable| {
        if trainable || !dtype.is_float() {
            return None;
        }
        let values: Vec<f64> = means.by_ref().take(shape.iter().product()).collect();
        Some(TensorData::new(values, shape.to_vec()).convert_dtype(dtype))
    }))
}

/// Checks that `module` has the same bits on every rank: floats, integers, booleans and quantized tensors.
/// All ranks must call it.
///
/// # Errors
/// [`SharedError::Diverged`](crate::SharedError::Diverged) names the first parameter that differs, or else
/// the first buffer, and the first rank whose value differs from rank 0's. Other errors come from the
/// transport.
pub fn check_equal_weights<M: Module>(world: &World, module: &M) -> Result<(), CommError> {
    check_equal(world, module, true, "")
}

/// Start of the error if ranks begin with different weights. They would train different models with averaged
/// gradients.
pub(crate) const AT_START: &str =
    "before the first step (broadcast_module gives all ranks the same weights), ";
/// Start of the error if ranks have different weights after the first step. Buffers may differ: they are not
/// averaged yet.
#[cfg(feature = "train")]
pub(crate) const AFTER_A_STEP: &str =
    "after the first step (ranks need the same optimizer, rate and clipping), ";

/// Checks that the parameters of `module`, and its buffers if `with_buffers`, have the same bits on every
/// rank. An error begins with `when`. All ranks must call this function. It reads all tensors, and sends a
/// digest of 16 bytes for each.
///
/// # Errors
/// [`SharedError::Diverged`](crate::SharedError::Diverged) names the first parameter or buffer that differs.
pub(crate) fn check_equal<M: Module>(
    world: &World,
    module: &M,
    with_buffers: bool,
    when: &str,
) -> Result<(), CommError> {
    if world.size() == 1 {
        return Ok(());
    }
    let _calling = calling(if when.is_empty() { "check_equal_weights" } else { "the comparison of weights" });
    flush_running_statistics(module);
    let (mut specs, mut digests) = (Vec::new(), Vec::new());
    let fields = tensors::visit(module, &mut |_, spec, data| {
        specs.push(spec);
        digests.push(digest(data().as_bytes()));
    });
    compare(world, specs.iter().map(ParamSpec::describe).collect(), fields, when)?;
    let ranks: Vec<(usize, Vec<String>)> = world.gather_distinct(&digests)?;
    let differs = |param: &usize| ranks.iter().find(|(_, digests)| digests[*param] != ranks[0].1[*param]);
    let (parameters, buffers): (Vec<usize>, Vec<usize>) =
        (0..specs.len()).partition(|&param| specs[param].trainable);
    for param in parameters.into_iter().chain(buffers.into_iter().filter(|_| with_buffers)) {
        if let Some((rank, digests)) = differs(&param) {
            let [found, expected] =
                [digests, &ranks[0].1].map(|digests| format!("digest {}", digests[param]));
            return Err(world.diverged(format!("{when}{}", name_of(&specs[param])), *rank, found, expected));
        }
    }
    Ok(())
}

/// Makes `module` apply the pending update of its running statistics. Burn defers the last update, which
/// would later overwrite values that are written to the module here. Converting a module for inference
/// applies the update.
fn flush_running_statistics<M: Module>(module: &M) {
    let _ = module.valid();
}

/// Returns the first 8 bytes of the SHA-256 of `bytes`, in hexadecimal.
pub(crate) fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes)[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn name_of(spec: &ParamSpec) -> String {
    let ParamSpec { name, dtype, trainable, .. } = spec;
    match dtype {
        DType::QFloat(_) => format!("the quantized parameter {name}"),
        dtype if dtype.is_bool() => format!("the boolean parameter {name}"),
        dtype if !dtype.is_float() => format!("the integer parameter {name}"),
        _ if *trainable => format!("the parameter {name}"),
        _ => format!("the buffer {name} (GradientSync::average_buffers makes buffers equal)"),
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Initializer, LinearConfig};
    use burn::tensor::Device;

    use super::*;
    use crate::threads::{Options, run};

    #[test]
    fn ranks_that_begin_with_other_weights_are_told_of_the_broadcast() {
        for broadcasts in [false, true] {
            let check = |world: &World| -> Result<(), CommError> {
                let value = if world.rank() == 1 { 2.0 } else { 1.0 };
                let config = LinearConfig::new(3, 2).with_initializer(Initializer::Constant { value });
                let mut module = config.init(&Device::flex().autodiff());
                if broadcasts {
                    module = broadcast_module(world, module)?;
                }
                check_equal(world, &module, false, AT_START)
            };
            match run(3, &Options::default(), check) {
                Ok(_) => assert!(broadcasts),
                Err(failure) => {
                    assert!(!broadcasts && failure.error.starts_with(AT_START), "{failure}");
                    let facts = ["parameter weight ", "rank 1 on node0 has digest "];
                    assert!(facts.iter().all(|fact| failure.error.contains(fact)), "{failure}");
                }
            }
        }
    }
}
