//! Checks that the gradients in the ranks' `TrainOutput` are averaged, for steps of every kind.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::{Device, Tensor, TensorData};
use burn::train::TrainOutput;

use super::{backward, run_step};
use crate::threads::{Options, run};
use crate::{Backend, CommError, GradientSync, PowerSgd, SyncOptions, Transport, WireType, World, connect};

#[derive(Module, Debug)]
struct Net {
    trunk: [Linear; 2],
    heads: [Linear; 2],
}

impl Net {
    /// Makes the same network on every rank, without random numbers.
    fn new() -> Self {
        let device = Device::default().autodiff();
        let layer = |inputs: usize, outputs: usize| {
            let values =
                (0..inputs * outputs).map(|at| (at * 7 % 11) as f32 / 11.0 - 0.4).collect::<Vec<_>>();
            let weight = Tensor::from_data(TensorData::new(values, [inputs, outputs]), &device);
            Linear { weight: Param::from_tensor(weight), ..LinearConfig::new(inputs, outputs).init(&device) }
        };
        Self { trunk: [layer(3, 8), layer(8, 8)], heads: [layer(8, 2), layer(8, 2)] }.no_bias()
    }

    /// Removes the biases, which are random.
    fn no_bias(mut self) -> Self {
        self.trunk.iter_mut().chain(&mut self.heads).for_each(|layer| layer.bias = None);
        self
    }

    fn loss(&self, head: usize, x: Tensor<2>) -> Tensor<1> {
        let hidden = self.trunk.iter().fold(x, |x, layer| layer.forward(x).tanh());
        self.heads[head].forward(hidden).powi_scalar(2).mean()
    }
}

/// What a step does with its gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
enum StepKind {
    /// Burn's backward.
    Plain,
    /// One loss, whose gradients are sent during backward.
    One,
    /// Two losses in two calls of `burn_mpi::backward`. An accumulator adds their gradients.
    Two,
    /// Two losses in two calls: Burn's backward for the first loss, and `burn_mpi::backward` for the second.
    /// An accumulator adds their gradients.
    PlainThenOne,
    /// Two losses. The output has the gradients of the second loss only.
    SecondOnly,
    /// Multiplies all gradients by a factor.
    Scaled,
    /// Multiplies the gradients of one layer by a factor.
    ClippedTrunk,
    /// Leaves out the gradient of one layer.
    Frozen,
    /// Returns no gradients at all.
    Nothing,
    /// Returns gradients that the program made itself.
    Own,
}

const KINDS: [StepKind; 10] = [
    StepKind::Plain,
    StepKind::One,
    StepKind::Two,
    StepKind::PlainThenOne,
    StepKind::SecondOnly,
    StepKind::Scaled,
    StepKind::ClippedTrunk,
    StepKind::Frozen,
    StepKind::Nothing,
    StepKind::Own,
];

/// The step of a program, as it is written for one process.
fn step(net: &Net, kind: StepKind, x: Tensor<2>) -> TrainOutput<()> {
    let loss = |head| net.loss(head, x.clone());
    let by_id = |gradients| GradientsParams::from_grads(gradients, net);
    let both = |first, second| {
        let mut accumulator = GradientsAccumulator::new();
        accumulator.accumulate(net, by_id(first));
        accumulator.accumulate(net, by_id(second));
        accumulator.grads()
    };
    let scaled = |mut gradients: GradientsParams, layer: &Linear, factor: f32| {
        if let Some(gradient) = gradients.remove::<2>(layer.weight.id) {
            gradients.register(layer.weight.id, gradient * factor);
        }
        gradients
    };
    let grads = match kind {
        StepKind::Plain => by_id(loss(0).backward()),
        StepKind::One => by_id(backward(&loss(0))),
        StepKind::Two => both(backward(&loss(0)), backward(&loss(1))),
        StepKind::PlainThenOne => both(loss(0).backward(), backward(&loss(1))),
        StepKind::SecondOnly => {
            backward(&loss(0));
            by_id(backward(&loss(1)))
        }
        StepKind::Scaled => {
            let layers = net.trunk.iter().chain(&net.heads);
            layers.fold(by_id(backward(&(loss(0) + loss(1)))), |all, layer| scaled(all, layer, 0.25))
        }
        StepKind::ClippedTrunk => scaled(by_id(backward(&loss(1))), &net.trunk[1], 1e-3),
        StepKind::Frozen => {
            let mut gradients = by_id(backward(&loss(0)));
            gradients.remove::<2>(net.trunk[0].weight.id);
            gradients
        }
        StepKind::Nothing => {
            backward(&loss(0));
            GradientsParams::new()
        }
        StepKind::Own => {
            let mut gradients = GradientsParams::new();
            let ones = Tensor::<2>::ones(net.heads[1].weight.dims(), &Device::default());
            gradients.register(net.heads[1].weight.id, ones);
            gradients
        }
    };
    TrainOutput { grads, item: () }
}

/// Gradients by the parameter's index.
type Values = BTreeMap<usize, Vec<f32>>;

fn values(net: &Net, gradients: &GradientsParams) -> Values {
    struct Read<'a>(&'a GradientsParams, usize, Values);
    impl ModuleVisitor for Read<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.0.get::<D>(param.id) {
                self.2.insert(self.1, gradient.into_data().iter::<f32>().collect());
            }
            self.1 += 1;
        }
    }
    let mut read = Read(gradients, 0, Values::new());
    net.visit(&mut read);
    read.2
}

/// Returns a rank's kind of step and its number of samples in step `turn`. Both are pseudo-random.
fn drawn(seed: u64, turn: usize, rank: usize) -> (StepKind, usize) {
    let mix = (seed + 1) * 7919 + turn as u64 * 104_729 + rank as u64 * 1_299_709;
    let hash = mix.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
    (KINDS[hash as usize % KINDS.len()], (hash / 64 % 4) as usize)
}

fn samples(turn: usize, rank: usize, own: usize) -> Tensor<2> {
    let values = (0..own * 3).map(|at| ((turn * 5 + rank * 3 + at * 7) % 13) as f32 / 6.0 - 1.0).collect();
    Tensor::from_data(TensorData::new::<f32, _>(values, [own, 3]), &Device::default().autodiff())
}

/// Returns the expected gradients of a step: the sum over ranks of the gradients that the rank computes
/// alone, times its share of the samples.
fn expected(net: &Net, steps: &[(StepKind, usize)], turn: usize) -> Values {
    let total: usize = steps.iter().map(|(_, own)| own).sum();
    let mut sums = Values::new();
    for (rank, &(kind, own)) in steps.iter().enumerate().filter(|(_, step)| step.1 > 0) {
        let weight = own as f32 / total as f32;
        for (param, gradient) in values(net, &step(net, kind, samples(turn, rank, own)).grads) {
            let sum = sums.entry(param).or_insert_with(|| vec![0.0; gradient.len()]);
            sum.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value * weight);
        }
    }
    sums
}

fn steps_are_averaged(world: &World, options: SyncOptions, seed: u64, turns: usize) -> Result<(), CommError> {
    let net = Net::new();
    let collective = connect(world, Backend::Mpi, &Transport::default())?;
    let sync = Rc::new(RefCell::new(GradientSync::of_module(world, collective, &net, options)));
    for turn in 0..turns {
        let mut steps: Vec<_> = (0..world.size()).map(|rank| drawn(seed, turn, rank)).collect();
        if seed.is_multiple_of(3) {
            // All ranks take the same kind of step, as in most programs.
            let kind = steps[0].0;
            steps.iter_mut().for_each(|step| *step = (kind, step.1.max(1)));
        }
        let total: usize = steps.iter().map(|(_, own)| own).sum();
        let (kind, own) = steps[world.rank()];
        if own > 0 {
            run_step(&sync, &net, own, total, || step(&net, kind, samples(turn, world.rank(), own)))?;
        }
        let averaged = values(&net, &sync.borrow_mut().finish(&net)?);
        let expected = expected(&net, &steps, turn);
        let case = format!("seed {seed}, step {turn}, ranks take {steps:?}");
        assert_eq!(averaged.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{case}");
        let tolerance = if options.wire == WireType::F32 { 1e-6 } else { 2e-2 };
        for (param, gradient) in &averaged {
            for (value, wanted) in gradient.iter().zip(&expected[param]) {
                assert!(
                    (value - wanted).abs() <= tolerance * wanted.abs().max(0.1),
                    "{case}: {param}: {value}, not {wanted}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn what_the_output_of_a_step_holds_is_averaged() {
    for (ranks, seed) in (1..=4).flat_map(|ranks| (0..60).map(move |seed| (ranks, seed))) {
        // All buckets are small, or all except the first are large. Gradients are sent in 32 or 16 bits.
        let options = SyncOptions {
            bucket_bytes: if seed % 4 == 3 { 1 << 20 } else { 64 },
            first_bucket_bytes: 64,
            overlap: seed % 5 != 4,
            wire: if seed % 7 == 6 { WireType::Bf16 } else { WireType::F32 },
            ..SyncOptions::default()
        };
        let simulated = Options { seed, ..Options::default() };
        run(ranks, &simulated, |world| steps_are_averaged(world, options, seed, 8)).unwrap();
    }
}

/// Makes steps with a compression. The averages of all steps and the error memories of all ranks must add up
/// to the gradients, also if a step replaces gradients that were already sent.
fn what_is_not_delivered_is_remembered(world: &World, seed: u64, turns: usize) -> Result<(), CommError> {
    let net = Net::new();
    let collective = connect(world, Backend::Mpi, &Transport::default())?;
    let compression = Some(PowerSgd { rank: 1, seed });
    let options =
        SyncOptions { bucket_bytes: 300, first_bucket_bytes: 100, compression, ..SyncOptions::default() };
    let sync = Rc::new(RefCell::new(GradientSync::of_module(world, collective, &net, options)));
    // The two layers of the trunk are compressed.
    let mut rest = BTreeMap::from([(0, vec![0.0; 24]), (1, vec![0.0; 64])]);
    let mut remembers = false;
    for turn in 0..turns {
        let steps: Vec<_> = (0..world.size()).map(|rank| drawn(seed, turn, rank)).collect();
        let total: usize = steps.iter().map(|(_, own)| own).sum();
        let (kind, own) = steps[world.rank()];
        if own > 0 {
            run_step(&sync, &net, own, total, || step(&net, kind, samples(turn, world.rank(), own)))?;
        }
        let averaged = values(&net, &sync.borrow_mut().finish(&net)?);
        let expected = expected(&net, &steps, turn);
        let case = format!("seed {seed}, step {turn}, ranks take {steps:?}");
        let own = sync.borrow().compression_state().expect("a compression").own;
        let all = world.gather(&own)?;
        let memory: Vec<f32> = (0..88).map(|at| all.iter().map(|own| own[at]).sum()).collect();
        let (first, second) = memory.split_at(24);
        for (param, memory) in [first, second].into_iter().enumerate() {
            let rest = rest.get_mut(&param).expect("a compressed parameter");
            let none = vec![0.0; rest.len()];
            let [expected, averaged] = [&expected, &averaged].map(|all| all.get(&param).unwrap_or(&none));
            for (((rest, expected), averaged), memory) in
                rest.iter_mut().zip(expected).zip(averaged).zip(memory)
            {
                *rest += expected - averaged;
                assert!((*rest - memory).abs() < 1e-5, "{case}: {param}: {rest}, not {memory}");
            }
        }
        remembers |= memory.iter().any(|value| *value != 0.0);
    }
    assert!(remembers && sync.borrow().report().late_steps > 0, "seed {seed}");
    Ok(())
}

#[test]
fn a_compression_remembers_what_steps_of_every_kind_do_not_deliver() {
    for (ranks, seed) in (2..=4).flat_map(|ranks| (0..30).map(move |seed| (ranks, seed))) {
        let simulated = Options { seed, ..Options::default() };
        run(ranks, &simulated, |world| what_is_not_delivered_is_remembered(world, seed, 12)).unwrap();
    }
}
