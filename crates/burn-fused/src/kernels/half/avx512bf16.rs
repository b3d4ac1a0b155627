//! Matrix products with the instructions of AVX-512 BF16, on operands that are packed as for AMX tiles.

use std::arch::x86_64::{
    __m512bh, __m512i, _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_set1_epi32, _mm512_setzero_ps,
    _mm512_storeu_ps,
};
use std::mem::transmute;

use super::Bits;
use super::amx::{BLOCK, Operands, TILE, WORDS, product};

/// Number of rows that are computed together, with their sums in registers. Each row takes two registers, and
/// the right matrix takes two, so 18 of 32 registers are in use.
const ROWS: usize = 8;

/// Whether the processor has the instructions.
pub(crate) fn is_available() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16")
}

/// Adds `a` times `b` to `sums`, row by row. The matrices must not be empty. Returns false, and adds nothing,
/// if the processor lacks the instructions.
pub(crate) fn multiply(a: Bits<'_>, b: Bits<'_>, sums: &mut [f32]) -> bool {
    // SAFETY: the closure is called only if `is_available()`, which checks both target features.
    let add = || |operands: Operands<'_>| unsafe { add_products(operands) };
    is_available().then(|| product(a, b, sums, add)).is_some()
}

/// Adds the products of 32 rows and 32 columns to the sums.
#[target_feature(enable = "avx512f,avx512bf16")]
fn add_products(operands: Operands<'_>) {
    let Operands { left, left_strides, steps, right, right_stride, sums, sums_strides } = operands;
    for first in (0..BLOCK).step_by(ROWS) {
        let place = |[near, far]: [usize; 2]| first % TILE * near + first / TILE * far;
        let [row, rows, columns] = sums_strides;
        let start = place([row, rows]);
        let mut found = [[_mm512_setzero_ps(); 2]; ROWS];
        for (at, found) in found.as_flattened_mut().iter_mut().enumerate() {
            let sums = &sums[start + at / 2 * row + at % 2 * columns..][..TILE];
            // SAFETY: the slice has the 16 values of a vector; the load needs no alignment.
            *found = unsafe { _mm512_loadu_ps(sums.as_ptr()) };
        }
        for (&step, tiles) in steps.iter().zip(right.chunks(right_stride)) {
            let left = &left[step + place(left_strides)..];
            let left: [&[[u16; 2]; TILE]; ROWS] = std::array::from_fn(|row| {
                let (pairs, _) = left[row * left_strides[0]..].as_chunks();
                pairs.first_chunk().expect("a row's values")
            });
            let (tiles, _) = tiles[..2 * WORDS].as_chunks::<TILE>();
            for pair in 0..TILE {
                // SAFETY: an array of 16 words and a vector have 64 bytes each, and all bits are valid in
                // both.
                let right =
                    [pair, TILE + pair].map(|row| unsafe { transmute::<[u32; TILE], __m512bh>(tiles[row]) });
                for (sums, left) in found.iter_mut().zip(left) {
                    let word = u32::from(left[pair][0]) | u32::from(left[pair][1]) << 16;
                    let left = _mm512_set1_epi32(word.cast_signed());
                    // SAFETY: both types are vectors of 64 bytes, and all bits are valid in both.
                    let left = unsafe { transmute::<__m512i, __m512bh>(left) };
                    sums[0] = _mm512_dpbf16_ps(sums[0], left, right[0]);
                    sums[1] = _mm512_dpbf16_ps(sums[1], left, right[1]);
                }
            }
        }
        for (at, &found) in found.as_flattened().iter().enumerate() {
            let sums = &mut sums[start + at / 2 * row + at % 2 * columns..][..TILE];
            // SAFETY: the slice has the 16 values of a vector; the store needs no alignment.
            unsafe { _mm512_storeu_ps(sums.as_mut_ptr(), found) };
        }
    }
}
