//! [`Wire`]: a buffer that collectives send, with values of one type, and sums of such buffers.
//!
//! For a sum in rank order, each buffer is cut into one chunk per rank. Each rank receives its chunk of all
//! ranks' buffers (all-to-all), sums these chunks in rank order, and sends the sum to all ranks (all-gather).
//! The bits of the sum are therefore the same for every topology and every all-reduce algorithm. If a buffer
//! cannot be cut into equal chunks, it is padded with zeros.

use std::fmt;
use std::ops::{AddAssign, Range};

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// A buffer of a collective, in the type in which it is sent.
#[derive(Debug, Clone, PartialEq)]
pub enum Wire {
    /// 4 bytes per element.
    F32(Vec<f32>),
    /// 8 bytes per element.
    F64(Vec<f64>),
    /// 2 bytes per element, summed in f32.
    Bf16(Vec<bf16>),
    /// 2 bytes per element, summed in f32.
    F16(Vec<f16>),
    /// Bytes, which can be gathered and broadcast but not summed.
    Bytes(Vec<u8>),
}

/// The type of a buffer's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variants of Wire with these names say it")]
pub enum Element {
    F32,
    F64,
    Bf16,
    F16,
    Byte,
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Byte => "bytes",
        })
    }
}

impl Element {
    /// Bytes per value.
    pub fn width(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F64 => 8,
            Self::Bf16 | Self::F16 => 2,
            Self::Byte => 1,
        }
    }
}

/// Expands the expression `$result` for the vector of each type.
macro_rules! each {
    ($wire:expr, $vector:ident => $result:expr) => {
        match $wire {
            Self::F32($vector) => $result,
            Self::F64($vector) => $result,
            Self::Bf16($vector) => $result,
            Self::F16($vector) => $result,
            Self::Bytes($vector) => $result,
        }
    };
}

impl Wire {
    /// Returns `length` zeros of type `element`.
    pub(crate) fn zeros(element: Element, length: usize) -> Self {
        match element {
            Element::F32 => Self::F32(vec![0.0; length]),
            Element::F64 => Self::F64(vec![0.0; length]),
            Element::Bf16 => Self::Bf16(vec![bf16::ZERO; length]),
            Element::F16 => Self::F16(vec![f16::ZERO; length]),
            Element::Byte => Self::Bytes(vec![0; length]),
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        each!(self, v => v.len())
    }

    /// Returns whether the buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The type of its values.
    pub fn element(&self) -> Element {
        match self {
            Self::F32(_) => Element::F32,
            Self::F64(_) => Element::F64,
            Self::Bf16(_) => Element::Bf16,
            Self::F16(_) => Element::F16,
            Self::Bytes(_) => Element::Byte,
        }
    }

    /// The buffer's bytes as sent.
    pub fn bytes(&self) -> &[u8] {
        each!(self, v => bytemuck::cast_slice(v))
    }

    /// The buffer's bytes as sent, mutable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        each!(self, v => bytemuck::cast_slice_mut(v))
    }

    /// Number of elements for which the buffer has memory.
    pub(crate) fn capacity(&self) -> usize {
        each!(self, v => v.capacity())
    }

    /// Returns `length` zeros of the same type.
    pub fn zeros_like(&self, length: usize) -> Self {
        Self::zeros(self.element(), length)
    }

    /// Converts `values` into this buffer, which has a 16-bit type and the same length.
    pub(crate) fn narrow(&mut self, values: &[f32]) {
        match self {
            Self::Bf16(narrow) => narrow.convert_from_f32_slice(values),
            Self::F16(narrow) => narrow.convert_from_f32_slice(values),
            _ => unreachable!("only bf16 and f16 are converted"),
        }
    }

    /// Converts this buffer, which has a 16-bit type, into `values`, which has the same length.
    pub(crate) fn widen(&self, values: &mut [f32]) {
        match self {
            Self::Bf16(narrow) => narrow.convert_to_f32_slice(values),
            Self::F16(narrow) => narrow.convert_to_f32_slice(values),
            _ => unreachable!("only bf16 and f16 are converted"),
        }
    }

    /// Changes the number of elements; new elements are zero.
    pub fn resize(&mut self, length: usize) {
        each!(self, v => v.resize(length, Default::default()));
    }

    /// Overwrites this buffer with the sum of several buffers of this buffer's length. `chunks` contains
    /// these buffers, one after the other, and they are added in this order. 16-bit types are summed in f32
    /// and rounded once.
    ///
    /// # Panics
    /// If types differ or are bytes, or `chunks` is shorter than this buffer.
    pub fn sum_of_chunks(&mut self, chunks: &Self) {
        if !self.is_empty() {
            let first = self.bytes().len();
            self.bytes_mut().copy_from_slice(&chunks.bytes()[..first]);
            self.add_from(chunks, self.len());
        }
    }

    /// Returns the sum of several buffers of `length` elements, which are in `chunks`, one after the other.
    /// They are added as [`sum_of_chunks`](Self::sum_of_chunks) adds them.
    pub(crate) fn sum_of(chunks: &Self, length: usize) -> Self {
        let mut sum = match chunks {
            Self::F32(values) => Self::F32(values[..length].to_vec()),
            Self::F64(values) => Self::F64(values[..length].to_vec()),
            Self::Bf16(values) => Self::Bf16(values[..length].to_vec()),
            Self::F16(values) => Self::F16(values[..length].to_vec()),
            Self::Bytes(values) => Self::Bytes(values[..length].to_vec()),
        };
        if length > 0 {
            sum.add_from(chunks, length);
        }
        sum
    }

    /// Adds `terms`, of the same type and length.
    ///
    /// # Panics
    /// If types differ or are bytes.
    pub(crate) fn add(&mut self, terms: &Self) {
        self.add_from(terms, 0);
    }

    /// Adds the buffers in `terms[start..]`, which have this buffer's length and follow one after the other.
    fn add_from(&mut self, terms: &Self, start: usize) {
        match (self, terms) {
            (Self::F32(sum), Self::F32(terms)) => f32::ADD(sum, &terms[start..]),
            (Self::F64(sum), Self::F64(terms)) => f64::ADD(sum, &terms[start..]),
            (Self::Bf16(sum), Self::Bf16(terms)) => bf16::ADD(sum, &terms[start..]),
            (Self::F16(sum), Self::F16(terms)) => f16::ADD(sum, &terms[start..]),
            _ => panic!("a sum and its terms must have the same type, and bytes cannot be summed"),
        }
    }
}

/// Number of elements that are added at once. Two blocks of f64 fit in the L1 cache.
const BLOCK: usize = 512;

/// Addition for one element type. `ADD(sum, terms)` adds `terms` to `sum`; `terms` has one or more buffers of
/// the length of `sum`, one after the other. 16-bit types are added in f32 and rounded once.
pub(super) trait Sum: Copy {
    const ADD: fn(&mut [Self], &[Self]);
}

impl Sum for f32 {
    const ADD: fn(&mut [Self], &[Self]) = add;
}

impl Sum for f64 {
    const ADD: fn(&mut [Self], &[Self]) = add;
}

impl Sum for bf16 {
    const ADD: fn(&mut [Self], &[Self]) = add_wide;
}

impl Sum for f16 {
    const ADD: fn(&mut [Self], &[Self]) = add_wide;
}

/// Adds in blocks, so that a block of the sum stays in the L1 cache while all buffers are added to it.
fn add<T: AddAssign + Copy>(sum: &mut [T], terms: &[T]) {
    let length = sum.len().max(1);
    for (block, sum) in sum.chunks_mut(BLOCK).enumerate() {
        for terms in terms.chunks_exact(length) {
            let terms = &terms[block * BLOCK..][..sum.len()];
            sum.iter_mut().zip(terms).for_each(|(sum, term)| *sum += *term);
        }
    }
}

/// Adds 16-bit values in blocks: the conversion of a slice is vectorised, the conversion of a single value is
/// not.
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

/// Returns which elements of a buffer of `length` elements belong to `rank` of `ranks` in a
/// [reduce-scatter](crate::Operation::reduce_scatter) and an [all-gather](crate::Operation::all_gather).
///
/// Chunks are `length / ranks` long, rounded up; the last ranks have fewer elements, or none.
///
/// ```
/// # use burn_mpi::chunk_range;
/// assert_eq!([0, 1, 2, 3].map(|rank| chunk_range(6, 4, rank)), [0..2, 2..4, 4..6, 6..6]);
/// ```
///
/// # Panics
/// If `ranks` is 0.
pub fn chunk_range(length: usize, ranks: usize, rank: usize) -> Range<usize> {
    let chunk = length.div_ceil(ranks);
    let before = |rank: usize| rank.saturating_mul(chunk).min(length);
    before(rank)..before(rank + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    #[test]
    fn chunks_are_summed_in_order_and_rounded_once() {
        let mut sum = Wire::F32(vec![0.0; 2]);
        sum.sum_of_chunks(&Wire::F32(vec![1e8, 1.0, -1e8, 2.0, 1.0, 3.0]));
        assert_eq!(sum, Wire::F32(vec![1.0, 6.0]));

        // 256 + 1 + 1 in bf16, which has 8 bits of mantissa: rounding after each addition would stay at 256.
        let terms = [256.0, 1.0, 1.0].map(bf16::from_f32).to_vec();
        let mut sum = Wire::Bf16(vec![bf16::ZERO]);
        sum.sum_of_chunks(&Wire::Bf16(terms));
        assert_eq!(sum, Wire::Bf16(vec![bf16::from_f32(258.0)]));

        let mut none = Wire::F64(Vec::new());
        none.sum_of_chunks(&Wire::F64(Vec::new()));
        assert!(none.is_empty());
    }

    #[test]
    fn chunks_of_the_largest_length_do_not_wrap() {
        assert_eq!(chunk_range(usize::MAX, 2, 1), usize::MAX.div_ceil(2)..usize::MAX);
    }

    #[test]
    fn chunks_cover_a_buffer_once_whatever_its_length() {
        for ranks in 1..6 {
            for length in 0..20 {
                let covered: Vec<usize> =
                    (0..ranks).flat_map(|rank| chunk_range(length, ranks, rank)).collect();
                assert_eq!(covered, (0..length).collect::<Vec<_>>(), "{length} on {ranks} ranks");
            }
        }
    }
}
