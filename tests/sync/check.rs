//! Checks after each step of a test case: the averaged gradients must be near those of plain Burn (the
//! reference), and all ranks must have the same parameters.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use super::network::Network;
use super::reference::Expected;
use burn_mpi::{ParamLayout, ParamSpec, WireType, World, check_equal_weights};

/// Tolerance of a gradient, relative to the step's largest gradient. Sums of f32 in another order differ; the
/// largest difference in 68,000 cases was 4.3e-5.
const TOLERANCE: f64 = 5e-5;

/// Absolute tolerance of a gradient. Values inside the modules are of order 1 to 30. Where gradients cancel
/// (a bias before batch norm, or batch norm of one sample), rounding errors of such values remain. The
/// largest error in 130,000 cases was 9.5e-6, in a sum over 24 samples.
const CANCELLED: f64 = 1.2e-5;

/// Ok, or a description of the difference.
pub type Outcome = Result<(), String>;

/// The largest change that rounding to the wire type makes to a sum over ranks. Returns two bounds: one
/// relative to the sum of the ranks' absolute values, and an absolute one.
///
/// Each rank's value is rounded once to the wire type. Each of the `n - 1` additions rounds the partial sum
/// again, by at most a unit roundoff u. Together this is (1 + u)^n - 1 of the sum of absolute values: Higham,
/// "Accuracy and Stability of Numerical Algorithms" (2002), section 4.2. The bound is relative to the
/// absolute values, because the values may cancel in the sum. Below its smallest normal number, f16 rounds by
/// up to 2^-25 instead.
fn rounding(wire: WireType, world_size: usize) -> (f64, f64) {
    let n = world_size as i32;
    let relative = |precision: i32| (1.0 + 2f64.powi(-precision)).powi(n) - 1.0;
    match wire {
        // A single rank sends nothing.
        _ if world_size == 1 => (0.0, 0.0),
        WireType::F32 => (0.0, 0.0),
        WireType::Bf16 => (relative(8), 0.0),
        WireType::F16 => (relative(11), f64::from(n) * 2f64.powi(-25)),
    }
}

/// What determines the tolerance of a step's averaged gradients.
pub struct Limits {
    pub wire: WireType,
    pub world_size: usize,
    /// True if gradients arrived after the all-reduce of their bucket had started. A part of such a gradient
    /// was rounded before the rest was added, and this part may be larger than the sum. Its magnitude is
    /// assumed to be at most twice the step's largest gradient.
    pub late: bool,
}

/// Compares the averaged gradients with the reference's.
pub fn gradients(
    found: &GradientsParams,
    expected: &[Option<Expected>],
    module: &Network,
    layout: &ParamLayout,
    limits: &Limits,
) -> Outcome {
    let largest =
        expected.iter().flatten().flat_map(|param| &param.sum).fold(0.0, |max: f64, x| max.max(x.abs()));
    let (relative, mut absolute) = rounding(limits.wire, limits.world_size);
    if limits.late {
        absolute += 2.0 * relative * largest;
    }
    let mut found = Found { gradients: found, all: Vec::new() };
    module.visit(&mut found);
    for ((found, expected), spec) in found.all.iter().zip(expected).zip(layout.specs()) {
        match (found, expected) {
            (None, None) => {}
            (Some(_), _) if !spec.trainable => {
                return Err(format!("{}: has a gradient, but is not trainable", spec.name));
            }
            // No rank used it.
            (Some(found), None) => {
                if let Some(value) = found.iter().find(|value| **value != 0.0) {
                    return Err(format!("{}: no rank used it, and its gradient has {value:e}", spec.name));
                }
            }
            (None, Some(_)) => return Err(format!("{}: its gradient is missing", spec.name)),
            (Some(found), Some(expected)) => {
                let limit =
                    |i: usize| TOLERANCE * largest + CANCELLED + relative * expected.size[i] + absolute;
                close(spec, found, &expected.sum, limit, largest)?;
            }
        }
    }
    Ok(())
}

fn close(
    spec: &ParamSpec,
    found: &[f32],
    expected: &[f64],
    limit: impl Fn(usize) -> f64,
    largest: f64,
) -> Outcome {
    if found.len() != expected.len() {
        return Err(format!("{}: {} values, and not {}", spec.name, found.len(), expected.len()));
    }
    for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let off = (f64::from(found) - expected).abs();
        if off.is_nan() || off > limit(index) {
            return Err(format!(
                "{}[{index}] is {found:e}, plain Burn's is {expected:e}: off by {off:.2e}, allowed {:.2e}; \
                 the step's largest is {largest:.2e}",
                spec.name,
                limit(index)
            ));
        }
    }
    Ok(())
}

struct Found<'a> {
    gradients: &'a GradientsParams,
    all: Vec<Option<Vec<f32>>>,
}

impl ModuleVisitor for Found<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = self.gradients.get::<D>(param.id);
        let values = gradient.map(|g| g.into_data().try_into_vec::<f32>().expect("gradients are f32"));
        self.all.push(values);
    }
}

/// Checks that trainable parameters have the same bits on every rank. Running statistics may differ between
/// ranks until they are averaged.
pub fn equal_parameters(world: &World, layout: &ParamLayout, values: &[f32]) -> Outcome {
    let trainable = layout.specs().iter().filter(|spec| spec.trainable);
    let bits: Vec<u32> =
        trainable.flat_map(|spec| &values[spec.range.clone()]).map(|value| value.to_bits()).collect();
    world.check_equal("the parameters", &format!("{bits:x?}")).map_err(|error| error.to_string())
}

/// Checks that buffers (running statistics) are those of all ranks, with the same bits on all ranks. Checks
/// this directly after averaging, and again after Burn has applied pending updates.
pub fn averaged_buffers(world: &World, layout: &ParamLayout, module: &Network, mean: &[f64]) -> Outcome {
    for (when, values) in [("", layout.read(module)), (", read after valid()", layout.read(&module.valid()))]
    {
        for spec in layout.specs().iter().filter(|spec| !spec.trainable) {
            for index in spec.range.clone() {
                let off = (f64::from(values[index]) - mean[index]).abs();
                if off.is_nan() || off > 1e-6 * mean[index].abs().max(1.0) {
                    return Err(format!(
                        "{}[{}]{when} is {} after averaging, and that of all ranks is {}",
                        spec.name,
                        index - spec.range.start,
                        values[index],
                        mean[index]
                    ));
                }
            }
        }
        check_equal_weights(world, module).map_err(|error| error.to_string())?;
    }
    Ok(())
}
