//! Fake quantization of slices, and the minimum and maximum of matrix columns.
//!
//! Fake quantization quantizes a value and dequantizes it at once, so that training sees the rounding of
//! integers.

use super::{Grid, Int8Error, QParams, Scheme};
use crate::kernels::simd::kernel;

/// Number of values in a chunk. Only chunks with a clipped value are searched for the indices of clipped
/// values.
const CHUNK: usize = 64;

/// The quantization grids of a tensor.
#[derive(Debug, Clone)]
pub(crate) struct Grids {
    /// One grid for all values, or one for each index of dimension `axis`.
    pub each: Vec<Grid>,
    /// The dimension that has one grid for each index.
    pub axis: usize,
    /// Number of contiguous values with the same grid.
    inner: usize,
}

impl Grids {
    /// Makes the grids of a tensor of this shape.
    ///
    /// # Panics
    /// If the length of `parameters` is neither 1 nor the size of dimension `axis`, if a parameter is
    /// invalid, or if the shape has 2^32 values or more.
    pub fn new(scheme: Scheme, parameters: &[QParams], shape: &[usize], axis: usize) -> Self {
        let fits = parameters.len() == 1 || shape.get(axis) == Some(&parameters.len());
        assert!(
            fits,
            "{} quantization parameters do not fit dimension {axis} of {shape:?}: one, or one for each index, is \
             required",
            parameters.len()
        );
        assert!(
            u32::try_from(shape.iter().product::<usize>()).is_ok(),
            "a tensor of shape {shape:?} has 2^32 values or more"
        );
        let grid = |&parameters: &QParams| Grid::new(scheme, parameters);
        let inner = if parameters.len() == 1 { shape } else { &shape[axis + 1..] }.iter().product();
        Self { each: parameters.iter().map(grid).collect(), axis, inner }
    }
}

kernel! {
    /// Writes the fake-quantized values to `output`, and appends the indices of clipped values to `clipped`.
    pub(crate) fn quantize_parts<S>(
        _simd: S,
        values: &[f32],
        grids: &Grids,
        output: &mut [f32],
        clipped: &mut Vec<u32>,
    ) {
        let Grids { each, inner, .. } = grids;
        if *inner == 1 {
            // Neighbouring values have different grids. For each field of a grid, an array has this field of
            // all grids, repeated until the array has at least `CHUNK` elements. The inner loop is then long.
            let period = each.len() * CHUNK.div_ceil(each.len());
            let cycle =
                |number: fn(&Grid) -> f32| each.iter().map(number).cycle().take(period).collect::<Vec<f32>>();
            let (scales, inverses) = (cycle(|grid| grid.scale), cycle(|grid| grid.inverse));
            let (lows, highs) = (cycle(|grid| grid.low), cycle(|grid| grid.high));
            let numbers = scales.iter().zip(&inverses).zip(lows.iter().zip(&highs));
            let grids = numbers.map(|((&scale, &inverse), (&low, &high))| Grid { scale, inverse, low, high });
            let blocks = values.chunks(period).zip(output.chunks_mut(period));
            for (block, (values, output)) in blocks.enumerate() {
                part(values, output, block * period, clipped, grids.clone());
            }
            return;
        }
        let parts = values.chunks(*inner).zip(output.chunks_mut(*inner)).zip(each.iter().cycle());
        for (at, ((values, output), grid)) in parts.enumerate() {
            let chunks = values.chunks(CHUNK).zip(output.chunks_mut(CHUNK));
            for (chunk, (values, output)) in chunks.enumerate() {
                part(values, output, at * inner + chunk * CHUNK, clipped, std::iter::repeat(*grid));
            }
        }
    }
}

/// Fake-quantizes `values`, each with its own grid of `grids`. `first` is the index of the first value in the
/// tensor.
#[inline(always)]
fn part(
    values: &[f32],
    output: &mut [f32],
    first: usize,
    clipped: &mut Vec<u32>,
    grids: impl Iterator<Item = Grid> + Clone,
) {
    let mut all = true;
    for ((slot, &value), grid) in output.iter_mut().zip(values).zip(grids.clone()) {
        let (quantized, passes) = grid.apply(value);
        *slot = quantized;
        all &= passes;
    }
    if !all {
        let outside =
            values.iter().zip(grids).enumerate().filter(|(_, (value, grid))| !grid.apply(**value).1);
        clipped.extend(outside.map(|(at, _)| (first + at) as u32));
    }
}

kernel! {
    /// Returns the minimum and maximum of each column of a matrix with `columns` columns, or an error if a
    /// value is NaN or infinite.
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
