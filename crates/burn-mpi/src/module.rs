//! Whole modules between ranks, for programs that bring their own.

use burn::module::Module;

use crate::{CommError, World};
use crate::{ParamLayout, ParamSpec, sha256};

/// `module` with rank 0's parameters and buffers.
///
/// # Errors
/// When the transport fails, or ranks have different modules.
pub fn broadcast_module<M: Module>(world: &World, module: M) -> Result<M, CommError> {
    settle_buffers(&module);
    let layout = ParamLayout::of(&module);
    compare(world, &layout)?;
    let mut values = layout.read(&module);
    world.broadcast_f32(&mut values)?;
    Ok(layout.write(module, &values))
}

/// Checks that all ranks have a module of this layout, and that it can be
/// trained data-parallel.
///
/// # Errors
/// [`CommError::Diverged`] names the first parameter that differs;
/// [`CommError::Elsewhere`] names one that is not f32 or tied to another, and its rank.
pub(crate) fn compare(world: &World, layout: &ParamLayout) -> Result<(), CommError> {
    let describe = |spec: &ParamSpec| {
        let gradient = if spec.trainable { "" } else { " without gradient" };
        format!("{} {:?}{gradient}", spec.name, spec.shape)
    };
    let mine: Vec<String> = layout.specs().iter().map(describe).collect();
    let ranks: Vec<Vec<String>> = world.gather(&mine)?;
    for (rank, theirs) in ranks.iter().enumerate() {
        let params = theirs.len().max(ranks[0].len());
        if let Some(param) = (0..params).find(|&param| theirs.get(param) != ranks[0].get(param)) {
            let [found, expected] = [theirs, &ranks[0]]
                .map(|ranks| ranks.get(param).map_or_else(|| "none".to_owned(), Clone::clone));
            return Err(diverged(world, format!("parameter {param} of the module"), rank, found, expected));
        }
    }
    // One rank alone may have such a parameter: f64 is in no shape.
    world.agree(layout.unsupported().map_or(Ok(()), |reason| Err(CommError::Module(reason.to_owned()))))
}

/// `module` with the mean over ranks of what gets no gradients.
///
/// # Errors
/// When the transport fails.
pub(crate) fn average_buffers<M: Module>(world: &World, module: M) -> Result<M, CommError> {
    settle_buffers(&module);
    let layout = ParamLayout::of(&module);
    let mut values = layout.read(&module);
    mean_of_buffers(world, &layout, &mut values)?;
    Ok(layout.write_buffers(module, &values))
}

/// Overwrites the buffers in a module's `values` with their mean over ranks.
///
/// # Errors
/// When the transport fails.
fn mean_of_buffers(world: &World, layout: &ParamLayout, values: &mut [f32]) -> Result<(), CommError> {
    let ranges = || layout.specs().iter().filter(|spec| !spec.trainable).map(|spec| spec.range.clone());
    let mut sums: Vec<f64> = ranges().flat_map(|range| values[range].to_vec()).map(f64::from).collect();
    if sums.is_empty() {
        return Ok(());
    }
    world.sum_f64(&mut sums)?;
    for (slot, sum) in ranges().flatten().zip(sums) {
        values[slot] = (sum / world.size() as f64) as f32;
    }
    Ok(())
}

/// Checks that `module` has the same bits on every rank.
///
/// # Errors
/// [`CommError::Diverged`] names the first parameter that differs, or else the
/// first buffer, and the first rank with another value than rank 0.
pub fn check_equal_weights<M: Module>(world: &World, module: &M) -> Result<(), CommError> {
    settle_buffers(module);
    let layout = ParamLayout::of(module);
    let values = layout.read(module);
    let digests: Vec<String> =
        layout.specs().iter().map(|spec| sha256(&values[spec.range.clone()])[..16].to_owned()).collect();
    let ranks: Vec<Vec<String>> = world.gather(&digests)?;
    if let Some(rank) = ranks.iter().position(|digests| digests.len() != ranks[0].len()) {
        let [found, expected] = [rank, 0].map(|rank| format!("{} of them", ranks[rank].len()));
        return Err(diverged(world, "the number of parameters".into(), rank, found, expected));
    }
    let differs = |param: &usize| ranks.iter().position(|digests| digests[*param] != ranks[0][*param]);
    let specs = layout.specs();
    let (parameters, buffers): (Vec<usize>, Vec<usize>) =
        (0..specs.len()).partition(|&param| specs[param].trainable);
    for param in parameters.into_iter().chain(buffers) {
        if let Some(rank) = differs(&param) {
            let [found, expected] = [rank, 0].map(|rank| format!("digest {}", ranks[rank][param]));
            return Err(diverged(world, name_of(&specs[param]), rank, found, expected));
        }
    }
    Ok(())
}

/// Puts pending updates of Burn's running statistics into `module`: they keep
/// the last one back, and would overwrite with it what is written to them. Making
/// a module for inference takes them in.
fn settle_buffers<M: Module>(module: &M) {
    let _ = module.valid();
}

fn name_of(spec: &ParamSpec) -> String {
    match spec.trainable {
        true => format!("the parameter {}", spec.name),
        false => format!("the buffer {} (GradientSync::average_buffers makes buffers equal)", spec.name),
    }
}

fn diverged(world: &World, what: String, rank: usize, found: String, expected: String) -> CommError {
    CommError::Diverged { what, rank, host: world.places()[rank].host.clone(), found, expected }
}
