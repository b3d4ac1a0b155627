//! Products with the instructions of AVX-512 BF16.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_dpbf16_ps, _mm512_set1_epi32, _mm512_setzero_ps, _mm512_storeu_ps,
};
use std::mem::transmute;

use super::{Bits, Matrix};

/// Rows of a tile of the product.
const ROWS: usize = 8;
/// Columns of a tile: two vectors. A tile's 16 sums and a row of the right matrix fill
/// 18 of the 32 registers.
const COLUMNS: usize = 32;

/// Whether the processor has the instructions.
pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16")
}

/// `a` times `b`, not empty; none without the instructions.
pub(super) fn multiply(a: Bits<'_>, b: Bits<'_>) -> Option<Vec<f32>> {
    if !is_available() {
        return None;
    }
    let pairs = a.columns.div_ceil(2);
    let left = pack::<ROWS>(a);
    let right = pack::<COLUMNS>(b.transpose());
    let mut product = vec![0.0; a.rows * b.columns];
    for (panel, right) in right.chunks_exact(pairs).enumerate() {
        let column = panel * COLUMNS;
        let columns = COLUMNS.min(b.columns - column);
        for (block, left) in left.chunks_exact(pairs).enumerate() {
            // SAFETY: the processor has the instructions, as was checked above.
            let tile = unsafe { tile(left, right) };
            let rows = product[block * ROWS * b.columns..].chunks_mut(b.columns);
            for (row, tile) in rows.zip(&tile) {
                row[column..][..columns].copy_from_slice(&tile[..columns]);
            }
        }
    }
    Some(product)
}

/// Pairs of neighbouring values of a row as words, in blocks of `N` rows: `[rows / N,
/// columns / 2, N]`. Zeros fill the last pair and the last block.
fn pack<const N: usize>(matrix: Bits<'_>) -> Vec<[u32; N]> {
    let Matrix { values: bits, rows, columns, transposed } = matrix;
    let pairs = columns.div_ceil(2);
    let mut packed = vec![[0; N]; rows.div_ceil(N) * pairs];
    for (block, packed) in packed.chunks_exact_mut(pairs).enumerate() {
        let first = block * N;
        let count = N.min(rows - first);
        if transposed {
            for (pair, words) in packed.iter_mut().enumerate() {
                let column = |at: usize| &bits[at * rows + first..][..count];
                let high = if 2 * pair + 1 < columns { column(2 * pair + 1) } else { &[] };
                for (word, &low) in words.iter_mut().zip(column(2 * pair)) {
                    *word = u32::from(low);
                }
                for (word, &high) in words.iter_mut().zip(high) {
                    *word |= u32::from(high) << 16;
                }
            }
        } else {
            for (at, row) in bits[first * columns..].chunks_exact(columns).take(count).enumerate() {
                for (words, pair) in packed.iter_mut().zip(row.chunks(2)) {
                    let high = pair.get(1).copied().unwrap_or(0);
                    words[at] = u32::from(pair[0]) | u32::from(high) << 16;
                }
            }
        }
    }
    packed
}

/// A tile of the product from the packed rows of one block and the packed columns of
/// one panel.
#[target_feature(enable = "avx512f,avx512bf16")]
fn tile(left: &[[u32; ROWS]], right: &[[u32; COLUMNS]]) -> [[f32; COLUMNS]; ROWS] {
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    for (left, right) in left.iter().zip(right) {
        let (halves, _) = right.as_chunks::<16>();
        // SAFETY: an array of 16 words and a vector have 64 bytes each, and all bits are
        // valid in both.
        let right = [0, 1].map(|half| unsafe { transmute::<[u32; 16], __m512bh>(halves[half]) });
        for (sums, &word) in sums.iter_mut().zip(left) {
            // SAFETY: two types of vectors of 64 bytes, in both of which all bits are valid.
            let pair = unsafe { transmute::<__m512i, __m512bh>(_mm512_set1_epi32(word.cast_signed())) };
            sums[0] = _mm512_dpbf16_ps(sums[0], pair, right[0]);
            sums[1] = _mm512_dpbf16_ps(sums[1], pair, right[1]);
        }
    }
    let mut tile = [[0.0; COLUMNS]; ROWS];
    for (row, sums) in tile.iter_mut().zip(sums) {
        let (halves, _) = row.as_chunks_mut::<16>();
        for (half, sum) in halves.iter_mut().zip(sums) {
            store(half, sum);
        }
    }
    tile
}

#[target_feature(enable = "avx512f")]
#[inline]
fn store(target: &mut [f32; 16], vector: __m512) {
    // SAFETY: `target` has the 16 values of a vector; the store needs no alignment.
    unsafe { _mm512_storeu_ps(target.as_mut_ptr(), vector) };
}
