//! Products with AMX tiles: the processor's matrix unit, at up to eight times the rate of
//! AVX-512 BF16's products.
//!
//! A tile has 16 rows of 64 bytes. One instruction, `tdpbf16ps`, multiplies a tile of 16 x 32
//! values of bf16 by one of 32 x 16, stored as 16 rows of pairs of neighbouring values, and adds to
//! 16 x 16 sums in f32 (Intel's Architecture Instruction Set Extensions Programming Reference,
//! chapter 3). Rust's functions for it are not stable, so it is written as `asm!`.

#[cfg(all(test, target_os = "linux"))]
pub(crate) mod testing;
mod tiles;

#[cfg(target_os = "linux")]
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::OnceLock;

use super::{Bits, Matrix};

pub(crate) use tiles::{BLOCK, Operands, TILE, Tiles, WORDS};

/// Pairs of values in a row of a tile.
const PAIRS: usize = 16;

/// Whether the processor has the instructions, and Linux permits them to this process, which has to ask
/// (its documentation, arch/x86/xstate.rst). It refuses where it does not save the tiles. Asked once.
#[cfg(target_os = "linux")]
pub(super) fn is_available() -> bool {
    /// Bits of leaf 7's EDX: AMX-BF16 and AMX-TILE.
    const AMX: u32 = 1 << 22 | 1 << 24;
    /// `ARCH_REQ_XCOMP_PERM`, and the number of the tiles' data among the processor's states.
    const REQUEST: libc::c_int = 0x1023;
    const TILE_DATA: libc::c_ulong = 18;
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        __cpuid(0).eax >= 7
            && __cpuid_count(7, 0).edx & AMX == AMX
            // SAFETY: changes nothing but the permissions of this process.
            && unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) } == 0
    })
}

/// How other systems permit them is not known here.
#[cfg(not(target_os = "linux"))]
pub(super) fn is_available() -> bool {
    false
}

/// Whether the instructions are available or, in tests, emulated.
fn is_usable() -> bool {
    #[cfg(all(test, target_os = "linux"))]
    let emulated = testing::is_running();
    #[cfg(not(all(test, target_os = "linux")))]
    let emulated = false;
    emulated || is_available()
}

/// The tiles of this thread, until they are dropped; none without the instructions.
pub(crate) fn tiles() -> Option<Tiles> {
    // SAFETY: the instructions are available or emulated.
    is_usable().then(|| unsafe { Tiles::configure() })
}

/// `a` times `b`, not empty; none without the instructions.
pub(super) fn multiply(a: Bits<'_>, b: Bits<'_>) -> Option<Vec<f32>> {
    // SAFETY: the instructions are available or emulated, or this is not called.
    is_usable().then(|| product(a, b, || unsafe { adder() }))
}

/// Adds products with the tiles of this thread.
///
/// # Safety
/// The instructions exist and are permitted, or are emulated.
unsafe fn adder() -> impl Fn(Operands<'_>) {
    // SAFETY: as of this function.
    let tiles = unsafe { Tiles::configure() };
    move |operands| tiles.add_products(operands)
}

/// `a` times `b` by blocks, whose products are added by what `begin` returns. It is called when
/// everything is packed and allocated: an allocator may be any code.
pub(super) fn product<A: Fn(Operands<'_>)>(a: Bits<'_>, b: Bits<'_>, begin: impl FnOnce() -> A) -> Vec<f32> {
    let (inner, columns) = (a.columns.div_ceil(2 * PAIRS), b.columns);
    let left = pack(a, inner, [PAIRS, 1]);
    let right = pack(b.transpose(), inner, [1, TILE]);
    let steps: Vec<usize> = (0..inner).map(|step| 4 * WORDS * step).collect();
    let words = 2 * inner * WORDS;
    let mut product = vec![0.0; a.rows * columns];
    let add = begin();
    for (column, right) in (0..columns).step_by(BLOCK).zip(right.chunks_exact(words)) {
        for (row, left) in (0..a.rows).step_by(BLOCK).zip(left.chunks_exact(words)) {
            let add = |sums: &mut [f32], width: usize| {
                add(Operands {
                    left: bytemuck::cast_slice(left),
                    left_strides: [2 * PAIRS, 2 * WORDS],
                    steps: &steps,
                    right,
                    right_stride: 2 * WORDS,
                    sums,
                    sums_strides: [width, TILE * width, TILE],
                });
            };
            let sums = &mut product[row * columns + column..];
            let size = [BLOCK.min(a.rows - row), BLOCK.min(columns - column)];
            if size == [BLOCK, BLOCK] {
                add(sums, columns);
                continue;
            }
            let mut block = [0.0; BLOCK * BLOCK];
            add(&mut block, BLOCK);
            for (sums, block) in sums.chunks_mut(columns).zip(block.chunks_exact(BLOCK)).take(size[0]) {
                sums[..size[1]].copy_from_slice(&block[..size[1]]);
            }
        }
    }
    product
}

/// Pairs of neighbouring values of each row as words, in tiles: `[rows / 32, steps, 2, 16 x 16]`.
/// In a tile, rows are `of_row` words apart and pairs `of_pair`. Zeros fill what is missing.
fn pack(matrix: Bits<'_>, steps: usize, [of_row, of_pair]: [usize; 2]) -> Vec<u32> {
    let Matrix { values: bits, rows, columns, transposed } = matrix;
    let mut packed = vec![0; rows.div_ceil(BLOCK) * steps * 2 * WORDS];
    let tile = |row: usize, pair: usize| {
        ((row / BLOCK * steps + pair / PAIRS) * 2 + row % BLOCK / TILE) * WORDS
            + row % TILE * of_row
            + pair % PAIRS * of_pair
    };
    let word = |even: u16, odd: u16| u32::from(even) | u32::from(odd) << 16;
    // In the order of `bits`.
    if transposed {
        let none = vec![0; rows];
        for (pair, two) in bits.chunks(2 * rows).enumerate() {
            let (even, odd) = two.split_at(rows);
            let odd = if odd.is_empty() { &none } else { odd };
            for (at, (even, odd)) in even.chunks(TILE).zip(odd.chunks(TILE)).enumerate() {
                let words = &mut packed[tile(at * TILE, pair)..];
                if of_row == 1 {
                    // Neighbours, as vectors.
                    for (packed, (&even, &odd)) in words.iter_mut().zip(even.iter().zip(odd)) {
                        *packed = word(even, odd);
                    }
                } else {
                    for (packed, (&even, &odd)) in words.iter_mut().step_by(of_row).zip(even.iter().zip(odd))
                    {
                        *packed = word(even, odd);
                    }
                }
            }
        }
    } else {
        for (row, values) in bits.chunks(columns).enumerate() {
            for (at, values) in values.chunks(2 * PAIRS).enumerate() {
                let words = packed[tile(row, at * PAIRS)..].iter_mut().step_by(of_pair);
                for (packed, two) in words.zip(values.chunks(2)) {
                    *packed = word(two[0], two.get(1).copied().unwrap_or(0));
                }
            }
        }
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What [`Tiles::add_products`] computes, in software.
    fn model(operands: Operands<'_>) {
        let Operands { left, left_strides, steps, right, right_stride, sums, sums_strides } = operands;
        let halves = |word: u32| [word << 16, word & 0xffff_0000].map(f32::from_bits);
        let place = |at: usize, [near, far]: [usize; 2]| at % TILE * near + at / TILE * far;
        let [near, far, columns] = sums_strides;
        for (row, column) in (0..BLOCK * BLOCK).map(|at| (at / BLOCK, at % BLOCK)) {
            let sum = &mut sums[place(row, [near, far]) + place(column, [1, columns])];
            for (step, &first) in steps.iter().enumerate() {
                let values = &left[first + place(row, left_strides)..][..2 * PAIRS];
                let tile = &right[step * right_stride + column / TILE * WORDS..][..WORDS];
                for (pair, values) in values.as_chunks::<2>().0.iter().enumerate() {
                    let [even, odd] = halves(tile[pair * TILE + column % TILE]);
                    let [a, b] = values.map(|bits| f32::from_bits(u32::from(bits) << 16));
                    *sum += a * even + b * odd;
                }
            }
        }
    }

    /// The layout, with the model in the place of the instructions, on any processor.
    #[test]
    fn packed_tiles_have_the_products_of_both_layouts() {
        for [rows, inner, columns] in [[1, 1, 1], [16, 32, 16], [33, 65, 47], [70, 31, 65]] {
            let number = |at: usize| (((at * 11 % 19) as f32 - 9.0).to_bits() >> 16) as u16;
            let left: Vec<u16> = (0..rows * inner).map(number).collect();
            let right: Vec<u16> = (0..inner * columns).map(|at| number(at + 5)).collect();
            let wide = |bits: u16| f32::from_bits(u32::from(bits) << 16);
            let expected: Vec<f32> = (0..rows * columns)
                .map(|at| {
                    let (row, column) = (at / columns, at % columns);
                    (0..inner).map(|k| wide(left[row * inner + k]) * wide(right[k * columns + column])).sum()
                })
                .collect();
            let swapped = |bits: &[u16], height: usize, width: usize| -> Vec<u16> {
                (0..height * width).map(|at| bits[at % height * width + at / height]).collect()
            };
            let (left_t, right_t) = (swapped(&left, rows, inner), swapped(&right, inner, columns));
            let a = Matrix::new(&left, [rows, inner]);
            let b = Matrix::new(&right, [inner, columns]);
            let a_t = Matrix::new(&left_t, [inner, rows]).transpose();
            let b_t = Matrix::new(&right_t, [columns, inner]).transpose();
            for (a, b) in [(a, b), (a_t, b), (a, b_t), (a_t, b_t)] {
                assert_eq!(product(a, b, || model), expected, "{rows} x {inner} x {columns}");
            }
        }
    }

    /// On processors without them, the instructions themselves, emulated.
    #[test]
    #[cfg(target_os = "linux")]
    fn the_instructions_compute_what_the_model_does() {
        let [rows, inner, columns] = [BLOCK + 3, 45, BLOCK + 1];
        // bf16 is the upper half of an f32; sums of small integers are exact in any order.
        let numbers = |count: usize, by: usize| -> Vec<u16> {
            (0..count).map(|at| (((at * by % 17) as f32 - 8.0).to_bits() >> 16) as u16).collect()
        };
        let (left, right) = (numbers(rows * inner, 7), numbers(inner * columns, 5));
        let [a, b] = [Matrix::new(&left, [rows, inner]), Matrix::new(&right, [inner, columns])];
        let expected = product(a, b, || model);
        // SAFETY: the instructions are permitted or emulated.
        assert_eq!(testing::run_where_needed(|| product(a, b, || unsafe { adder() })), expected);
        if let Some(found) = super::super::avx512bf16::multiply(a, b) {
            assert_eq!(found, expected);
        }
    }

    /// Rows and tiles at any distance from one another, and steps in any order.
    #[test]
    #[cfg(target_os = "linux")]
    fn operands_are_where_their_strides_say() {
        let number = |at: usize| (((at * 7 % 15) as f32 - 7.0).to_bits() >> 16) as u16;
        let left: Vec<u16> = (0..4000).map(number).collect();
        let right: Vec<u32> =
            (0..3 * 600).map(|at| u32::from(number(3 * at)) | u32::from(number(5 * at + 1)) << 16).collect();
        let before: Vec<f32> = (0..1400).map(|at| (at % 13) as f32).collect();
        let results = [true, false].map(|in_tiles| {
            let mut sums = before.clone();
            let operands = Operands {
                left: &left,
                left_strides: [70, 1301],
                steps: &[111, 40, 1500],
                right: &right,
                right_stride: 600,
                sums: &mut sums,
                sums_strides: [20, 700, 350],
            };
            match in_tiles {
                // SAFETY: the instructions are permitted or emulated.
                true => testing::run_where_needed(|| unsafe { Tiles::configure() }.add_products(operands)),
                false => model(operands),
            }
            sums
        });
        assert_eq!(results[0], results[1]);
        assert_ne!(results[0], before);
    }

    #[test]
    fn operands_beyond_their_slices_do_not_fit() {
        let fit = |left: usize, right: usize, sums: usize, steps: &[usize], row: usize| {
            let (left, right, mut sums) = (vec![0; left], vec![0; right], vec![0.0; sums]);
            let operands = Operands {
                left: &left,
                left_strides: [row, 512],
                steps,
                right: &right,
                right_stride: 512,
                sums: &mut sums,
                sums_strides: [32, 512, 16],
            };
            operands.fit()
        };
        assert!(fit(1024, 512, 1024, &[0], 32));
        assert!(!fit(1023, 512, 1024, &[0], 32) && !fit(1024, 511, 1024, &[0], 32));
        assert!(!fit(1024, 512, 1023, &[0], 32) && !fit(1024, 512, 1024, &[0], usize::MAX));
        assert!(fit(1029, 1024, 1024, &[5, 0], 32) && !fit(1029, 1023, 1024, &[5, 0], 32));
        assert!(!fit(1028, 1024, 1024, &[5, 0], 32) && !fit(1024, 512, 1024, &[usize::MAX], 32));
    }
}
