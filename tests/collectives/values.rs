//! The buffers of the ranks, and the expected results.

use burn_mpi::Wire;
use half::{bf16, f16};

/// Number of types of [`wire`] that can be summed. The type after them is bytes.
pub const SUMMED: usize = 4;
pub const BYTES: usize = SUMMED;

/// Few world sizes divide these lengths, and some lengths are smaller than the world size.
pub const LENGTHS: [usize; 17] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 31, 33, 1001, 4250, 65_537, 1_000_003];

/// Makes a buffer of the type `kind`.
pub fn wire(kind: usize, length: usize, value: impl Fn(usize) -> f32) -> Wire {
    let values = (0..length).map(value);
    match kind {
        0 => Wire::F32(values.collect()),
        1 => Wire::F64(values.map(f64::from).collect()),
        2 => Wire::Bf16(values.map(bf16::from_f32).collect()),
        3 => Wire::F16(values.map(f16::from_f32).collect()),
        _ => Wire::Bytes(values.map(|value| value as u8).collect()),
    }
}

/// Returns a small integer. Every type sums these without rounding.
pub fn value(rank: usize, index: usize) -> f32 {
    ((rank * 7 + index * 3) % 9) as f32
}

/// Returns the sum of all ranks' [`value`]s.
pub fn sum(ranks: usize, index: usize) -> f32 {
    (0..ranks).map(|rank| value(rank, index)).sum()
}

/// Returns a value. The sum of these depends on the order of addition.
pub fn awkward(rank: usize, index: usize) -> f32 {
    ((rank * 31 + index * 17) as f32 * 0.37).sin() * 10f32.powi((index % 7) as i32 - 3)
}

/// Sums all ranks' [`awkward`] values in rank order: in the type itself, or, if the type is narrower than
/// f32, in f32 with one rounding at the end.
pub fn awkward_sum(kind: usize, length: usize, ranks: usize) -> Wire {
    let in_order = |index: usize, sent: fn(f32) -> f32| {
        (0..ranks).map(|rank| sent(awkward(rank, index))).reduce(|sum, term| sum + term).unwrap_or(0.0)
    };
    match kind {
        0 => Wire::F32((0..length).map(|i| in_order(i, |x| x)).collect()),
        1 => {
            let sum = |i: usize| (0..ranks).map(|rank| f64::from(awkward(rank, i))).reduce(|a, b| a + b);
            Wire::F64((0..length).map(|i| sum(i).unwrap_or(0.0)).collect())
        }
        2 => wire(2, length, |i| in_order(i, |x| bf16::from_f32(x).to_f32())),
        _ => wire(3, length, |i| in_order(i, |x| f16::from_f32(x).to_f32())),
    }
}
