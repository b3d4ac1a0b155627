//! The message of a fragment: the weighted change of a rank, and a note of each rank.

use crate::{Wire, WireType};

/// What a rank sends beside its change: its samples since the last synchronisation, and a digest of its
/// anchor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Note {
    pub samples: u64,
    pub digest: u64,
}

impl Note {
    /// Number of values of a note in a message: one for each byte, because 16-bit types represent the numbers
    /// 0 to 255 exactly.
    pub const VALUES: usize = 16;

    /// Writes the note of `rank` of `ranks`. The values of the other ranks' notes are 0, so the sum over ranks
    /// has all notes.
    pub fn write(self, rank: usize, ranks: usize, message: &mut Vec<f32>) {
        let start = message.len() + rank * Self::VALUES;
        message.resize(message.len() + ranks * Self::VALUES, 0.0);
        let bytes = self.samples.to_le_bytes().into_iter().chain(self.digest.to_le_bytes());
        message[start..].iter_mut().zip(bytes).for_each(|(value, byte)| *value = f32::from(byte));
    }

    /// Reads the notes of all ranks.
    pub fn read_all(values: &[f32]) -> Vec<Self> {
        values.chunks_exact(Self::VALUES).map(Self::read).collect()
    }

    fn read(values: &[f32]) -> Self {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| values[at + byte] as u8));
        Self { samples: word(0), digest: word(8) }
    }
}

/// Hashes bits of `values`, as FNV-1a does, but four bytes at a time. For each value, the step from one hash
/// to the next is a bijection, so two slices that differ in one value have different digests.
pub(super) fn digest(values: &[f32]) -> u64 {
    values.iter().fold(0xcbf2_9ce4_8422_2325, |hash, value| {
        (hash ^ u64::from(value.to_bits())).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Returns the power of two that brings a sum of weights over `total` samples between 128 and 256. Changes of
/// parameters are small: half precision represents a change of 2e-7 to 256 with all its digits then.
pub(super) fn scale_for(total: u64) -> f32 {
    match total {
        0 => 1.0,
        total => 2f32.powi(8 - (u64::BITS - (total - 1).leading_zeros()) as i32),
    }
}

/// Converts values to the type in which they are sent.
pub(super) fn narrowed(values: Vec<f32>, wire: WireType) -> Wire {
    if wire == WireType::F32 {
        return Wire::F32(values);
    }
    let mut narrow = Wire::zeros(wire.element(), values.len());
    narrow.narrow(&values);
    narrow
}

/// Converts values from the type in which they were sent.
pub(super) fn widened(wire: Wire) -> Vec<f32> {
    match wire {
        Wire::F32(values) => values,
        narrow => {
            let mut values = vec![0.0; narrow.len()];
            narrow.widen(&mut values);
            values
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_of_all_ranks_survive_16_bit_sums() {
        let notes = [
            Note { samples: u64::MAX, digest: 0x0123_4567_89ab_cdef },
            Note { samples: 0, digest: u64::MAX },
            Note { samples: 257, digest: 0 },
        ];
        let mut sum = vec![0.0; 3 * Note::VALUES];
        for (rank, note) in notes.into_iter().enumerate() {
            let mut message = Vec::new();
            note.write(rank, notes.len(), &mut message);
            let rounded = message.into_iter().map(|value| half::bf16::from_f32(value).to_f32());
            sum.iter_mut().zip(rounded).for_each(|(sum, value)| *sum += value);
        }
        assert_eq!(Note::read_all(&sum), notes);
    }

    #[test]
    fn a_digest_changes_with_each_value_and_its_place() {
        let values = [1.0, 2.0, 3.0];
        for (other, differs) in [([1.0, 2.0, 3.0], false), ([1.0, 3.0, 2.0], true), ([-1.0, 2.0, 3.0], true)]
        {
            assert_eq!(digest(&values) != digest(&other), differs, "{other:?}");
        }
        assert_ne!(digest(&[0.0]), digest(&[-0.0]));
    }

    #[test]
    fn weights_are_scaled_into_the_range_of_half_precision() {
        for total in [1, 2, 3, 1000, 64_000, u64::MAX] {
            let sum = total as f32 * scale_for(total);
            assert!((128.0..=256.0).contains(&sum), "{total}: {sum}");
        }
        assert_eq!(scale_for(0), 1.0);
    }
}
