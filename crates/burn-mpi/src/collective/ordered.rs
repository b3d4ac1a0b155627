//! Sums in rank order, over buffers cut into one chunk per rank.
//!
//! Each rank receives its chunk of all ranks' buffers (all-to-all), sums them in rank order and
//! sends the sum to all (all-gather). The bits of the sum depend on neither topology nor
//! algorithm. A length that the number of ranks does not divide is padded with zeros.

use std::ops::Range;

use super::Wire;
use super::sum::Sum;

/// The elements of a buffer of `length` that belong to `rank` of `ranks` in a
/// [reduce-scatter](crate::Operation::ReduceScatter) and an
/// [all-gather](crate::Operation::AllGather).
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

impl Wire {
    /// Sums `chunks` in order into this buffer; all have its length. 16-bit types are summed in
    /// f32 and rounded once.
    ///
    /// # Panics
    /// If types differ or are bytes, or `chunks` is shorter than this buffer.
    pub fn sum_of_chunks(&mut self, chunks: &Self) {
        if self.is_empty() {
            return;
        }
        match (self, chunks) {
            (Self::F32(sum), Self::F32(all)) => sum_of(sum, all),
            (Self::F64(sum), Self::F64(all)) => sum_of(sum, all),
            (Self::Bf16(sum), Self::Bf16(all)) => sum_of(sum, all),
            (Self::F16(sum), Self::F16(all)) => sum_of(sum, all),
            _ => panic!("a sum and its terms have one type, and bytes have no sum"),
        }
    }
}

fn sum_of<T: Sum>(sum: &mut [T], all: &[T]) {
    let (first, rest) = all.split_at(sum.len());
    sum.copy_from_slice(first);
    T::add_to(sum, rest);
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    #[test]
    fn chunks_are_summed_in_order_and_rounded_once() {
        let mut sum = Wire::F32(vec![0.0; 2]);
        sum.sum_of_chunks(&Wire::F32(vec![1e8, 1.0, -1e8, 2.0, 1.0, 3.0]));
        assert_eq!(sum, Wire::F32(vec![1.0, 6.0]));

        // 256 + 1 + 1 in bf16, which has 8 bits of mantissa: rounding after
        // each addition would stay at 256.
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
