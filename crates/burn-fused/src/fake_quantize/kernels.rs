//! Kernels of fake quantization.

use std::mem::MaybeUninit;

use crate::int8::{QParams, Scheme, Step};
use crate::memory::uninit::Uninit;
use crate::simd::{Kernel, Lanes, Level};

/// Values checked at once for clipped ones.
const CHUNK: usize = 64;

/// Parameters of a tensor, as kernels need them.
#[derive(Debug, Clone)]
pub(crate) struct Steps {
    /// One for all, or one for each index of a dimension.
    steps: Vec<Step>,
    /// The dimension, and the number of contiguous values of one of its indices.
    axis: usize,
    inner: usize,
}

impl Steps {
    /// The parameters of a tensor of this shape.
    ///
    /// # Panics
    /// As [`fake_quantize`](super::fake_quantize).
    pub fn new(scheme: Scheme, parameters: &[QParams], shape: &[usize], axis: usize) -> Self {
        let fits = parameters.len() == 1 || shape.get(axis) == Some(&parameters.len());
        assert!(fits, "{} parameters for dimension {axis} of {shape:?}", parameters.len());
        assert!(
            u32::try_from(shape.iter().product::<usize>()).is_ok(),
            "values of {shape:?} have 32-bit indices"
        );
        let step = |&parameters: &QParams| Step::new(scheme, parameters);
        let inner = if parameters.len() == 1 { 1 } else { shape[axis + 1..].iter().product() };
        Self { steps: parameters.iter().map(step).collect(), axis, inner }
    }

    /// The shape of constants of `dimensions` dimensions, for broadcasting.
    pub fn broadcast(&self, dimensions: usize) -> Vec<usize> {
        let mut shape = vec![1; dimensions];
        if self.steps.len() != 1 {
            shape[self.axis] = self.steps.len();
        }
        shape
    }

    /// One number of each step.
    pub fn each(&self, number: fn(&Step) -> f32) -> Vec<f32> {
        self.steps.iter().map(number).collect()
    }
}

/// The fake-quantized values, and the indices of clipped ones.
pub(super) fn forward(level: Level, values: &[f32], steps: &Steps) -> (Vec<f32>, Vec<u32>) {
    let mut output = Uninit::new(values.len());
    let mut clipped = Vec::new();
    // Without values, there may be no steps, and no length of a part.
    if !values.is_empty() {
        level.run(Forward { values, steps, output: output.values(), clipped: &mut clipped });
    }
    // SAFETY: the kernel has written each value, if there is one.
    (unsafe { output.assume_init() }, clipped)
}

struct Forward<'a> {
    values: &'a [f32],
    steps: &'a Steps,
    output: &'a mut [MaybeUninit<f32>],
    clipped: &'a mut Vec<u32>,
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        let Self { values, steps: Steps { steps, inner, .. }, output, clipped } = self;
        match (&steps[..], *inner) {
            ([step], _) => part(values, output, 0, clipped, *step),
            (steps, 1) => columns(values, output, clipped, steps),
            (steps, inner) => {
                let parts = values.chunks(inner).zip(output.chunks_mut(inner)).zip(steps.iter().cycle());
                for (at, ((values, output), step)) in parts.enumerate() {
                    part(values, output, at * inner, clipped, *step);
                }
            }
        }
    }
}

/// Values with the same step. `first` is the index of the first in the tensor.
#[inline(always)]
fn part(values: &[f32], output: &mut [MaybeUninit<f32>], first: usize, clipped: &mut Vec<u32>, step: Step) {
    let pairs = values.chunks(CHUNK).zip(output.chunks_mut(CHUNK));
    for (chunk, (values, output)) in pairs.enumerate() {
        let mut all = true;
        for (slot, &value) in output.iter_mut().zip(values) {
            let (quantized, passes) = step.apply(value);
            slot.write(quantized);
            all &= passes;
        }
        if !all {
            let mut outside = [0u8; CHUNK];
            for (flag, &value) in outside.iter_mut().zip(values) {
                *flag = u8::from(!step.apply(value).1);
            }
            list(&outside, first + chunk * CHUNK, clipped);
        }
    }
}

/// Rows in which each value has a separate step.
#[inline(always)]
fn columns(values: &[f32], output: &mut [MaybeUninit<f32>], clipped: &mut Vec<u32>, steps: &[Step]) {
    // As many whole rows as make long loops, with the steps in arrays.
    let period = steps.len() * CHUNK.div_ceil(steps.len());
    let cycle = |of: fn(&Step) -> f32| steps.iter().map(of).cycle().take(period).collect::<Vec<f32>>();
    let (scales, inverses) = (cycle(|step| step.scale), cycle(|step| step.inverse));
    let (lows, highs) = (cycle(|step| step.low), cycle(|step| step.high));
    let mut outside = vec![0u8; period];
    let pairs = values.chunks(period).zip(output.chunks_mut(period));
    for (block, (values, output)) in pairs.enumerate() {
        let len = values.len();
        let (scales, inverses, lows, highs) = (&scales[..len], &inverses[..len], &lows[..len], &highs[..len]);
        let (output, outside) = (&mut output[..len], &mut outside[..len]);
        let mut any = 0;
        for i in 0..len {
            let step = Step { scale: scales[i], inverse: inverses[i], low: lows[i], high: highs[i] };
            let (quantized, passes) = step.apply(values[i]);
            output[i].write(quantized);
            outside[i] = u8::from(!passes);
            any |= outside[i];
        }
        if any != 0 {
            list(outside, block * period, clipped);
        }
    }
}

/// Adds the indices of flags to `clipped`.
fn list(flags: &[u8], first: usize, clipped: &mut Vec<u32>) {
    for (at, eight) in flags.chunks(8).enumerate() {
        if eight.iter().any(|&flag| flag != 0) {
            let set = eight.iter().enumerate().filter(|(_, flag)| **flag != 0);
            clipped.extend(set.map(|(i, _)| (first + 8 * at + i) as u32));
        }
    }
}
