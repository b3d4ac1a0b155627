//! Runs a random test case as a training on the ranks of `world`, and compares it with plain Burn.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Tensor, TensorData};

use super::case::{Case, Optimizer};
use super::check::{self, Outcome};
use super::network::{Network, initial_values};
use super::plan::BatchId;
use super::reference::Reference;
use super::samples::Samples;
use burn_mpi::{
    CommError, GradientSync, MicroBatch, ParamLayout, Signals, WireType, World, broadcast_module,
};
use half::f16;

/// Runs `case`, and compares every step with the reference (plain Burn). Calls `progress` before each step.
pub fn run(world: &World, case: &Case, progress: &dyn Fn()) -> Outcome {
    let mut device = Device::flex().autodiff();
    if case.checkpointing {
        device = device.gradient_checkpointing();
    }
    let module = Network::build(&case.plan, &device);
    let layout = ParamLayout::of_module(&module);
    let initial = |rank| initial_values(&case.plan, layout.specs(), rank);

    let module = layout.write(module, &initial(world.rank()));
    let mut module = broadcast_module(world, module).map_err(|error| format!("broadcast: {error}"))?;
    if layout.read(&module) != initial(0) {
        return Err("the broadcast module does not have rank 0's values".into());
    }
    let mut reference = Reference::new(case, world.size(), &initial(0), &device);
    let mut optimizer = optimizer(case);
    let collective = case.backend.connect(world, &case.transport(), None);
    let collective = collective.map_err(|error| error.to_string())?;
    let mut sync = GradientSync::of_module(world, collective, &module, case.options);

    for number in 0..case.steps.len() {
        progress();
        let at = |what: String| format!("step {number}: {what}");
        let late_before = sync.report().late_steps;
        let gradients = gradients(world, case, number, &mut sync, &module, &device);
        let late = sync.report().late_steps > late_before;
        let gradients = gradients.map_err(|error| at(error.to_string()))?;
        let expected = reference.gradients(case, number);
        let largest =
            expected.iter().flatten().flat_map(|param| &param.size).fold(0.0, |a: f64, b| a.max(*b));
        // The training diverges beyond f16. All ranks see this in the same step, and end the case.
        if case.options.wire == WireType::F16 && largest > f64::from(f16::MAX) {
            return Ok(());
        }
        let limits = check::Limits { wire: case.options.wire, world_size: world.size(), late };
        check::gradients(&gradients, &expected, &module, &layout, &limits).map_err(at)?;

        module = optimizer.step(case.rate, module, gradients);
        let values = layout.read(&module);
        check::equal_parameters(world, &layout, &values).map_err(at)?;
        reference.set_trainable(&values);

        if case.steps[number].average_buffers {
            module = sync.average_buffers(module).map_err(|error| at(error.to_string()))?;
            check::averaged_buffers(world, &layout, &module, &reference.mean_values()).map_err(at)?;
            // The next steps continue from these values.
            reference.set(&layout.read(&module));
        }
    }
    if sync.report().to_string().is_empty() { Err("the report is empty".into()) } else { Ok(()) }
}

fn optimizer(case: &Case) -> ModuleOptimizer {
    match case.optimizer {
        Optimizer::Sgd => SgdConfig::new().init(),
        Optimizer::Momentum => SgdConfig::new().with_momentum(Some(MomentumConfig::new())).init(),
        Optimizer::Adam => AdamConfig::new().init(),
    }
}

/// The averaged gradients of a step. The case says which functions this rank calls.
fn gradients(
    world: &World,
    case: &Case,
    number: usize,
    sync: &mut GradientSync,
    module: &Network,
    device: &Device,
) -> Result<GradientsParams, CommError> {
    let step = &case.steps[number];
    let (part, total) = (&step.ranks[world.rank()], step.total());
    let loss = |micro: usize| {
        let batch = BatchId { step: number, rank: world.rank(), micro };
        let samples = Samples::at(&case.plan, batch, part.chunks[micro].samples, device);
        module.loss(&case.plan, batch, &samples)
    };
    if part.average && !case.options.shard {
        return match part.chunks.first() {
            Some(chunk) => sync.average(&loss(0), module, chunk.samples, total),
            None => sync.average(&Tensor::zeros([1], device), module, 0, total),
        };
    }
    for (micro, chunk) in part.chunks.iter().enumerate() {
        let which = if chunk.last { MicroBatch::Last } else { MicroBatch::More };
        sync.backward(&loss(micro), module, chunk.samples, total, which)?;
    }
    if case.options.shard { sharded(sync, module) } else { sync.finish(module) }
}

/// Ends the step of a sharded `sync`, and returns the whole gradients: gathers the ranks' shares as if they
/// were updated parameters.
fn sharded(sync: &mut GradientSync, module: &Network) -> Result<GradientsParams, CommError> {
    sync.reduce(Signals::default())?;
    // NaN stays where no rank has a gradient.
    let mut flat = vec![f32::NAN; ParamLayout::of_module(module).len()];
    for piece in sync.pieces()? {
        flat[piece.range].copy_from_slice(piece.gradient);
    }
    sync.gather_params(&mut flat)?;
    let mut whole = Whole { rest: &flat, gradients: GradientsParams::new() };
    module.visit(&mut whole);
    Ok(whole.gradients)
}

/// Makes Burn's gradients from the gradients of all parameters and buffers, in visit order.
struct Whole<'a> {
    rest: &'a [f32],
    gradients: GradientsParams,
}

impl ModuleVisitor for Whole<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        let (gradient, rest) = self.rest.split_at(value.dims().iter().product());
        self.rest = rest;
        if gradient.iter().any(|value| !value.is_nan()) {
            let data = TensorData::new(gradient.to_vec(), value.dims());
            self.gradients.register(param.id, Tensor::<D>::from_data(data, &value.device().inner()));
        }
    }
}
