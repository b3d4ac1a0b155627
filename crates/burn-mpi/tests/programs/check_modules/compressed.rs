//! Checks compressed gradients: all ranks have the same bits, and what a step does not deliver is in the error
//! memories. Ranks differ in samples, in the parameters that they use, and in late gradients.

use std::error::Error;
use std::ops::Range;

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};
use burn_mpi::{
    Backend, CommError, GradientSync, MicroBatch, MissingGradient, PowerSgd, Reduction, SyncOptions,
    Transport, WireType, World, connect,
};

/// A loss is a sum of parameters times numbers, so these numbers are its gradients.
#[derive(Module, Debug)]
pub struct Net {
    wide: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
    kernel: Param<Tensor<4>>,
    small: Param<Tensor<2>>,
    tall: Param<Tensor<2>>,
}

const PARAMS: usize = 5;
/// Lengths of the parameters, and whether PowerSGD of rank 2 compresses them.
const LENGTHS: [(usize, bool); PARAMS] = [(480, true), (20, false), (288, true), (15, false), (240, true)];

impl Net {
    pub fn new() -> Self {
        fn zeros<const D: usize>(shape: [usize; D]) -> Param<Tensor<D>> {
            Param::from_tensor(Tensor::zeros(shape, &Device::flex().autodiff()))
        }
        Self {
            wide: zeros([24, 20]),
            bias: zeros([20]),
            kernel: zeros([8, 4, 3, 3]),
            small: zeros([5, 3]),
            tall: zeros([40, 6]),
        }
    }

    fn loss(&self, part: &Part, call: usize) -> Tensor<1> {
        fn product<const D: usize>(param: &Param<Tensor<D>>, numbers: Vec<f32>) -> Tensor<1> {
            let value = param.val();
            let numbers = Tensor::from_data(TensorData::new(numbers, value.dims()), &value.device());
            (value * numbers).sum()
        }
        let uses = (0..PARAMS).flat_map(|param| (0..part.uses[param]).map(move |again| (param, again)));
        let terms = uses.map(|(param, again)| {
            let numbers = part.numbers(param, call, again);
            match param {
                0 => product(&self.wide, numbers),
                1 => product(&self.bias, numbers),
                2 => product(&self.kernel, numbers),
                3 => product(&self.small, numbers),
                _ => product(&self.tall, numbers),
            }
        });
        terms.reduce(|sum, term| sum + term).expect("a rank uses at least one parameter")
    }
}

/// One rank's part of a step.
struct Part {
    seed: u64,
    /// Samples of each call of backward. The second call comes too late.
    samples: Vec<usize>,
    /// How often the rank uses each parameter.
    uses: [usize; PARAMS],
}

fn mixed(seed: u64, at: usize) -> u64 {
    let mix = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (at as u64 + 1).wrapping_mul(0xD134_2543_DE82_EF95);
    (mix ^ (mix >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 20
}

impl Part {
    fn draw(seed: u64, step: usize, rank: usize) -> Self {
        let of_step = mixed(seed, step);
        let seed = mixed(of_step, rank);
        let draw = |at: usize, below: u64| mixed(seed, 1000 + at) % below;
        let is_odd = mixed(of_step, 77).is_multiple_of(2);
        // In odd steps, a rank may use a parameter not at all or twice, and no rank uses one of them.
        let uses = |param: usize| match draw(param, 6) {
            _ if is_odd && param as u64 == mixed(of_step, 78) % 5 => 0,
            0 if is_odd => 0,
            1 if is_odd => 2,
            _ => 1,
        };
        let mut uses: [usize; PARAMS] = std::array::from_fn(uses);
        uses[1] = uses[1].max(usize::from(uses == [0; PARAMS]));
        let mut samples = vec![draw(8, 4) as usize];
        if is_odd && draw(9, 3) == 0 {
            samples.push(2);
        }
        Self { seed, samples, uses }
    }

    fn numbers(&self, param: usize, call: usize, again: usize) -> Vec<f32> {
        let seed = mixed(self.seed, param + 10 * call + 100 * again);
        (0..LENGTHS[param].0).map(|at| (mixed(seed, at) % 2001) as f32 / 1000.0 - 1.0).collect()
    }

    fn own(&self) -> usize {
        self.samples.iter().sum()
    }

    /// Adds the gradient of `param`, times the rank's share of the step, to `sum`.
    fn add(&self, param: usize, total: usize, sum: &mut [f64]) {
        for (call, &samples) in self.samples.iter().enumerate().filter(|(_, samples)| **samples > 0) {
            for again in 0..self.uses[param] {
                let numbers = self.numbers(param, call, again);
                let weight = samples as f64 / total as f64;
                sum.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += weight * f64::from(number));
            }
        }
    }

    fn has_gradient(&self, param: usize) -> bool {
        self.own() > 0 && self.uses[param] > 0
    }
}

/// Averaged gradients of a step, by parameter; `None` if no rank has a gradient of it.
pub type Averages = Vec<Option<Vec<f32>>>;

/// Steps of one rank.
pub struct Steps<'a> {
    pub world: &'a World,
    pub sync: GradientSync,
    net: Net,
    seed: u64,
}

impl<'a> Steps<'a> {
    pub fn new(
        world: &'a World,
        backend: Backend,
        options: SyncOptions,
        seed: u64,
    ) -> Result<Self, CommError> {
        let (net, collective) = (Net::new(), connect(world, backend, &Transport::default())?);
        Ok(Self { world, sync: GradientSync::of_module(world, collective, &net, options), net, seed })
    }

    fn parts(&self, step: usize) -> Vec<Part> {
        (0..self.world.size()).map(|rank| Part::draw(self.seed, step, rank)).collect()
    }

    pub fn step(&mut self, step: usize) -> Result<Averages, CommError> {
        let parts = self.parts(step);
        let total = parts.iter().map(Part::own).sum();
        let own = &parts[self.world.rank()];
        for (call, &samples) in own.samples.iter().enumerate().filter(|(_, samples)| **samples > 0) {
            let loss = self.net.loss(own, call);
            self.sync.backward(&loss, &self.net, samples, total, MicroBatch::Last)?;
        }
        self.sync.finish(&self.net)?;
        let gradient = |param| match self.sync.gradient(param) {
            Ok(values) => Ok(Some(values.to_vec())),
            Err(CommError::NoGradient { reason: MissingGradient::Unused, .. }) => Ok(None),
            Err(error) => Err(error),
        };
        (0..PARAMS).map(gradient).collect()
    }

    /// Makes steps, and checks each of them. `tolerance` is relative to the largest number.
    fn check(&mut self, steps: Range<usize>, tolerance: f64) -> Result<(), Box<dyn Error>> {
        let mut rest: Vec<Vec<f64>> = LENGTHS.iter().map(|&(length, _)| vec![0.0; length]).collect();
        for step in steps {
            let averages = self.step(step)?;
            let bits = |values: &Vec<f32>| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            let bits: Vec<_> = averages.iter().map(|values| values.as_ref().map(bits)).collect();
            assert!(self.world.gather(&bits)?.iter().all(|other| *other == bits), "ranks differ");
            // The sum of all ranks' error memories.
            let own = self.sync.compression_state().map_or(Vec::new(), |state| state.own);
            let mut memory: Vec<f64> = own.into_iter().map(f64::from).collect();
            self.world.sum_f64(&mut memory)?;

            let parts = self.parts(step);
            let total = parts.iter().map(Part::own).sum();
            let mut at = 0;
            for (param, (length, is_compressed)) in LENGTHS.into_iter().enumerate() {
                parts.iter().for_each(|part| part.add(param, total, &mut rest[param]));
                let has_gradient = parts.iter().any(|part| part.has_gradient(param));
                assert_eq!(averages[param].is_some(), has_gradient, "step {step}, parameter {param}");
                let found = averages[param].clone().unwrap_or_else(|| vec![0.0; length]);
                rest[param].iter_mut().zip(found).for_each(|(rest, found)| *rest -= f64::from(found));
                let expected = if is_compressed && !memory.is_empty() {
                    at += length;
                    memory[at - length..at].to_vec()
                } else {
                    vec![0.0; length]
                };
                for (rest, expected) in rest[param].iter().zip(expected) {
                    let off = (rest - expected).abs();
                    assert!(off < tolerance, "step {step}, parameter {param}: {rest} and {expected}");
                }
            }
        }
        Ok(())
    }
}

/// PowerSGD of rank 2, in several buckets: matrices alone, matrices with other parameters, and others alone.
pub fn options(wire: WireType, reduction: Reduction) -> SyncOptions {
    let compression = Some(PowerSgd::new(2).with_seed(3));
    let (bucket_bytes, first_bucket_bytes) = (2048, 1024);
    SyncOptions::default()
        .with_wire(wire)
        .with_reduction(reduction)
        .with_compression(compression)
        .with_bucket_bytes(bucket_bytes)
        .with_first_bucket_bytes(first_bucket_bytes)
}

pub fn check(world: &World, backend: Backend) -> Result<(), Box<dyn Error>> {
    let sums = [
        (WireType::F32, Reduction::Native),
        (WireType::F32, Reduction::Ordered),
        (WireType::Bf16, Reduction::Ordered),
        (WireType::F16, Reduction::Native),
    ];
    for (seed, (wire, reduction)) in sums.into_iter().enumerate() {
        // Rounding in 16 bits adds up, because the memories do not have the rounding of sums.
        let tolerance = if wire == WireType::F32 { 1e-4 } else { 0.1 };
        let mut steps = Steps::new(world, backend, options(wire, reduction), seed as u64)?;
        steps.check(0..8, tolerance)?;
        let report = steps.sync.report();
        let is_compressed = report.is_compressed == (world.size() > 1);
        assert!(is_compressed && report.buckets.len() > 2, "{report}");
    }
    Ok(())
}
