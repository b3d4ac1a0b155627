//! Masks of attention: which keys are hidden from which queries.

use std::ops::Range;

use burn::backend::Flex;
use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::{Bool, Tensor};

use super::{Block, Sizes};
use crate::kernels::simd::{Level, kernel};

/// The masks of an attention, each `[batch, queries, keys]`. A key is hidden if at least one mask hides it. A
/// mask in which the keys of a row are adjacent in memory is read in place, even if it is broadcast over
/// batch or queries. Other masks are copied.
#[derive(Debug, Clone, Default)]
pub struct Masks(Vec<Mask>);

#[derive(Debug, Clone)]
struct Mask {
    /// One byte for each value; not 0 if the mask hides the key.
    values: FlexTensor,
    first: usize,
    /// Distances in bytes from one sample to the next, and from one query to the next; 0 for an axis of size
    /// 1.
    steps: [usize; 2],
}

impl Mask {
    /// Reads a mask `[batch, queries, keys]`, in which batch and queries may also have size 1. Returns `None`
    /// if the mask does not fit `sizes` or is not on flex.
    fn from_tensor(mask: Tensor<3, Bool>, sizes: &Sizes) -> Option<Self> {
        let mask = mask.without_autodiff().try_into_primitive::<Flex>().ok()?;
        let shape = mask.shape();
        let fits = |axis: usize, size| shape[axis] == size || shape[axis] == 1;
        if !fits(0, sizes.batch) || !fits(1, sizes.queries) || shape[2] != sizes.keys {
            return None;
        }
        let as_stored = mask.layout().strides().iter().all(|&step| step >= 0);
        let mask = if as_stored && mask.layout().strides()[2] == 1 { mask } else { mask.to_contiguous() };
        let layout = mask.layout();
        let step = |axis: usize| if shape[axis] == 1 { 0 } else { layout.strides()[axis] as usize };
        let (first, steps) = (layout.start_offset(), [step(0), step(1)]);
        Some(Self { values: mask, first, steps })
    }

    #[inline(always)]
    fn row(&self, block: &Block, row: usize) -> &[u8] {
        let at = self.first + block.batch * self.steps[0] + (block.first + row) * self.steps[1];
        &self.values.bytes()[at..]
    }
}

/// Number of keys in a chunk. [`Masks::seen`] leaves out whole chunks.
const CHUNK: usize = 16;

impl Masks {
    /// Reads the masks. Returns `None` if one does not fit `sizes` or is not on flex.
    pub fn from_tensors(masks: &[Tensor<3, Bool>], sizes: &Sizes) -> Option<Self> {
        masks.iter().map(|mask| Mask::from_tensor(mask.clone(), sizes)).collect::<Option<_>>().map(Self)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sets the values of a row of the block to `value` where a key is hidden.
    #[inline(always)]
    pub fn fill(&self, block: &Block, row: usize, values: &mut [f32], value: f32) {
        for mask in &self.0 {
            let hidden = &mask.row(block, row)[block.keys.start..][..values.len()];
            for (x, &hidden) in values.iter_mut().zip(hidden) {
                *x = if hidden == 0 { *x } else { value };
            }
        }
    }

    /// Returns the range from the first to the last key that at least one row of the block sees, rounded to
    /// whole chunks. Returns all keys if masks hide every key from every row.
    pub fn seen(&self, block: &Block, level: Level) -> Range<usize> {
        let keys = block.keys.end;
        let mut hidden = vec![true; keys.div_ceil(CHUNK)];
        for row in 0..block.rows {
            let rows: Vec<&[u8]> = self.0.iter().map(|mask| &mask.row(block, row)[..keys]).collect();
            clear_shown(level, &rows, &mut hidden);
        }
        let seen = |hidden: &bool| !hidden;
        match (hidden.iter().position(seen), hidden.iter().rposition(seen)) {
            (Some(first), Some(last)) => first * CHUNK..keys.min((last + 1) * CHUNK),
            _ => 0..keys,
        }
    }
}

kernel! {
    /// Sets `hidden` to false for each chunk with a key that no mask hides. `rows` has one row of each mask,
    /// all of the same query.
    fn clear_shown<S>(_simd: S, rows: &[&[u8]], hidden: &mut [bool]) {
        for (chunk, hidden) in hidden.iter_mut().enumerate().filter(|(_, hidden)| **hidden) {
            let mut keys = [0; CHUNK];
            for row in rows {
                let row = &row[chunk * CHUNK..];
                keys.iter_mut().zip(row).for_each(|(all, one)| *all |= one);
            }
            let count = CHUNK.min(rows[0].len() - chunk * CHUNK);
            *hidden = keys[..count].iter().fold(true, |all, key| all & (*key != 0));
        }
    }
}
