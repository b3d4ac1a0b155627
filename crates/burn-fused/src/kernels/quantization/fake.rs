//! Fake quantization of slices, and ranges of columns.

use super::{Int8Error, QParams, Scheme, Step};
use crate::kernels::simd::kernel;

/// Values checked at once for clipped ones.
const CHUNK: usize = 64;

/// Parameters of a tensor, as kernels need them.
#[derive(Debug, Clone)]
pub(crate) struct Steps {
    /// One for all, or one for each index of a dimension.
    pub steps: Vec<Step>,
    /// The dimension, and the number of contiguous values of one of its indices.
    pub axis: usize,
    inner: usize,
}

impl Steps {
    /// The parameters of a tensor of this shape.
    ///
    /// # Panics
    /// If the number of parameters is another, or one is invalid.
    pub fn new(scheme: Scheme, parameters: &[QParams], shape: &[usize], axis: usize) -> Self {
        let fits = parameters.len() == 1 || shape.get(axis) == Some(&parameters.len());
        assert!(fits, "{} parameters for dimension {axis} of {shape:?}", parameters.len());
        assert!(
            u32::try_from(shape.iter().product::<usize>()).is_ok(),
            "values of {shape:?} have 32-bit indices"
        );
        let step = |&parameters: &QParams| Step::new(scheme, parameters);
        let inner = if parameters.len() == 1 { shape } else { &shape[axis + 1..] }.iter().product();
        Self { steps: parameters.iter().map(step).collect(), axis, inner }
    }
}

kernel! {
    /// The fake-quantized values, and the indices of clipped ones.
    pub(crate) fn quantize_parts<S>(
        _simd: S,
        values: &[f32],
        steps: &Steps,
        output: &mut [f32],
        clipped: &mut Vec<u32>,
    ) {
        let Steps { steps, inner, .. } = steps;
        if *inner == 1 {
            // As many whole rows as make long loops, with the steps in arrays.
            let period = steps.len() * CHUNK.div_ceil(steps.len());
            let cycle =
                |number: fn(&Step) -> f32| steps.iter().map(number).cycle().take(period).collect::<Vec<f32>>();
            let (scales, inverses) = (cycle(|step| step.scale), cycle(|step| step.inverse));
            let (lows, highs) = (cycle(|step| step.low), cycle(|step| step.high));
            let numbers = scales.iter().zip(&inverses).zip(lows.iter().zip(&highs));
            let steps = numbers.map(|((&scale, &inverse), (&low, &high))| Step { scale, inverse, low, high });
            let blocks = values.chunks(period).zip(output.chunks_mut(period));
            for (block, (values, output)) in blocks.enumerate() {
                part(values, output, block * period, clipped, steps.clone());
            }
            return;
        }
        let parts = values.chunks(*inner).zip(output.chunks_mut(*inner)).zip(steps.iter().cycle());
        for (at, ((values, output), step)) in parts.enumerate() {
            let chunks = values.chunks(CHUNK).zip(output.chunks_mut(CHUNK));
            for (chunk, (values, output)) in chunks.enumerate() {
                part(values, output, at * inner + chunk * CHUNK, clipped, std::iter::repeat(*step));
            }
        }
    }
}

/// Values with a step each.
#[inline(always)]
fn part(
    values: &[f32],
    output: &mut [f32],
    first: usize,
    clipped: &mut Vec<u32>,
    steps: impl Iterator<Item = Step> + Clone,
) {
    let mut all = true;
    for ((slot, &value), step) in output.iter_mut().zip(values).zip(steps.clone()) {
        let (quantized, passes) = step.apply(value);
        *slot = quantized;
        all &= passes;
    }
    if !all {
        let outside =
            values.iter().zip(steps).enumerate().filter(|(_, (value, step))| !step.apply(**value).1);
        clipped.extend(outside.map(|(at, _)| (first + at) as u32));
    }
}

kernel! {
    /// Ranges of the columns of rows of so many values.
    pub(crate) fn column_ranges<S>(_simd: S, values: &[f32], columns: usize) -> Result<Vec<[f32; 2]>, Int8Error> {
        let (mut min, mut max) = (vec![f32::INFINITY; columns], vec![f32::NEG_INFINITY; columns]);
        let mut finite = vec![0.0f32; columns];
        for row in values.chunks_exact(columns) {
            let ends = min.iter_mut().zip(&mut max).zip(&mut finite);
            for (((min, max), finite), &value) in ends.zip(row) {
                *min = if value < *min { value } else { *min };
                *max = if value > *max { value } else { *max };
                *finite += value * 0.0;
            }
        }
        if finite.iter().any(|&zero| zero != 0.0) {
            return Err(Int8Error::NonFinite);
        }
        Ok(min.iter().zip(&max).map(|(min, max)| [min + 0.0, max + 0.0]).collect())
    }
}
