//! Sums of values in the types in which they are sent.

use std::ops::AddAssign;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::Wire;

/// 16-bit elements widened at once: two blocks of f32 fit in the L1 cache.
const BLOCK: usize = 512;

/// A type's addition of buffers into another, which follow each other and have its length. 16-bit types are
/// added in f32 and rounded once.
pub(super) trait Sum: Copy {
    fn add_to(sum: &mut [Self], terms: &[Self]);
}

impl Sum for f32 {
    fn add_to(sum: &mut [Self], terms: &[Self]) {
        add(sum, terms);
    }
}

impl Sum for f64 {
    fn add_to(sum: &mut [Self], terms: &[Self]) {
        add(sum, terms);
    }
}

impl Sum for bf16 {
    fn add_to(sum: &mut [Self], terms: &[Self]) {
        add_wide(sum, terms);
    }
}

impl Sum for f16 {
    fn add_to(sum: &mut [Self], terms: &[Self]) {
        add_wide(sum, terms);
    }
}

fn add<T: AddAssign + Copy>(sum: &mut [T], terms: &[T]) {
    for terms in terms.chunks_exact(sum.len().max(1)) {
        sum.iter_mut().zip(terms).for_each(|(sum, term)| *sum += *term);
    }
}

/// Whole blocks at a time: conversions of a slice are vectorised, those of one value are not.
fn add_wide<T>(sum: &mut [T], terms: &[T])
where
    [T]: HalfFloatSliceExt,
{
    let (mut left, mut right) = ([0f32; BLOCK], [0f32; BLOCK]);
    let length = sum.len().max(1);
    for (block, sum) in sum.chunks_mut(BLOCK).enumerate() {
        let (left, right) = (&mut left[..sum.len()], &mut right[..sum.len()]);
        sum.convert_to_f32_slice(left);
        for terms in terms.chunks_exact(length) {
            terms[block * BLOCK..][..sum.len()].convert_to_f32_slice(right);
            add(left, right);
        }
        sum.convert_from_f32_slice(left);
    }
}

impl Wire {
    /// Adds `terms`, of the same type and length.
    ///
    /// # Panics
    /// If types differ or are bytes.
    pub(crate) fn add(&mut self, terms: &Self) {
        match (self, terms) {
            (Self::F32(sum), Self::F32(terms)) => f32::add_to(sum, terms),
            (Self::F64(sum), Self::F64(terms)) => f64::add_to(sum, terms),
            (Self::Bf16(sum), Self::Bf16(terms)) => bf16::add_to(sum, terms),
            (Self::F16(sum), Self::F16(terms)) => f16::add_to(sum, terms),
            _ => panic!("a sum and its terms have one type, and bytes have no sum"),
        }
    }
}
