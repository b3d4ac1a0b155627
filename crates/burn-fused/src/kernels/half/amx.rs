//! Matrix products with AMX tiles: the processor's matrix unit, at up to eight times the rate of AVX-512
//! BF16.
//!
//! A tile has 16 rows of 64 bytes. One instruction, `tdpbf16ps`, multiplies a tile of 16 x 32 values of bf16
//! by a tile of 32 x 16 values, and adds the products to 16 x 16 sums in f32. The second tile is stored as 16
//! rows of pairs of neighbouring values (Intel's Architecture Instruction Set Extensions Programming
//! Reference, chapter 3). Rust's functions for these instructions are not stable, so they are written as
//! `asm!`.

#[cfg(all(test, target_os = "linux"))]
pub(crate) mod testing;

use std::arch::asm;
#[cfg(target_os = "linux")]
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;

use super::Bits;
use crate::kernels::matrix::Matrix;
use crate::runtime::threads::{each, threads_for};

/// Number of pairs of values in a row of a tile.
const PAIRS: usize = 16;

/// Whether the processor has the instructions and Linux permits this process to use them. A process has to
/// ask Linux for the permission (its documentation, arch/x86/xstate.rst). Linux refuses if it cannot save the
/// tiles when it switches threads. The process asks only once.
#[cfg(target_os = "linux")]
pub(crate) fn is_available() -> bool {
    /// The bits for AMX-BF16 and AMX-TILE in EDX of CPUID leaf 7.
    const AMX: u32 = 1 << 22 | 1 << 24;
    /// `ARCH_REQ_XCOMP_PERM`.
    const REQUEST: libc::c_int = 0x1023;
    /// The number of the tiles' data among the processor's states.
    const TILE_DATA: libc::c_ulong = 18;
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        __cpuid(0).eax >= 7
            && __cpuid_count(7, 0).edx & AMX == AMX
            // SAFETY: the call passes no pointers, and changes only the permissions of this process.
            && unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) } == 0
    })
}

/// Returns false, because this crate knows only how to ask Linux for the permission.
#[cfg(not(target_os = "linux"))]
pub(crate) fn is_available() -> bool {
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

/// Configures the tiles of this thread, until the result is dropped. Returns `None` if the instructions are
/// not usable.
pub(crate) fn tiles() -> Option<Tiles> {
    // SAFETY: the closure is called only if the instructions are available or emulated.
    is_usable().then(|| unsafe { Tiles::configure() })
}

/// Adds `a` times `b` to `sums`, row by row. The matrices must not be empty. Returns false, and adds nothing,
/// if the instructions are not usable.
pub(crate) fn multiply(a: Bits<'_>, b: Bits<'_>, sums: &mut [f32]) -> bool {
    // SAFETY: the closure is called only if the instructions are available or emulated.
    is_usable().then(|| product(a, b, sums, || unsafe { adder() })).is_some()
}

/// Configures the tiles of this thread. Returns a function that adds products with them.
///
/// # Safety
/// The instructions must exist and be permitted, or be emulated.
unsafe fn adder() -> impl Fn(Operands<'_>) {
    // SAFETY: the caller guarantees the same condition.
    let tiles = unsafe { Tiles::configure() };
    move |operands| tiles.add_products(operands)
}

/// Adds `a` times `b` to `product`, block by block, with the function that `begin` returns. Threads share the
/// rows. Each calls `begin`, which may configure its tiles, after everything is packed and allocated: an
/// allocator may be any code, and could use the tiles itself.
pub(crate) fn product<A: Fn(Operands<'_>)>(
    a: Bits<'_>,
    b: Bits<'_>,
    product: &mut [f32],
    begin: impl Fn() -> A + Sync,
) {
    let (inner, columns) = (a.columns.div_ceil(2 * PAIRS), b.columns);
    let mut packed = [(a, [PAIRS, 1]), (b.transpose(), [1, TILE])].map(|matrix| (matrix, Vec::new()));
    each((a.values.len() + b.values.len()) / 4, packed.iter_mut(), |((matrix, strides), packed)| {
        *packed = pack(*matrix, inner, *strides);
    });
    let [(_, left), (_, right)] = packed;
    let steps: Vec<usize> = (0..inner).map(|step| 4 * WORDS * step).collect();
    let words = 2 * inner * WORDS;
    assert_eq!(product.len(), a.rows * columns, "values of a product");
    let time = a.rows * inner * columns / RATE;
    // The cut changes no value: a block is summed as a whole.
    let of_part = a.rows.div_ceil(BLOCK).div_ceil(threads_for(time));
    let parts = product.chunks_mut(of_part * BLOCK * columns).zip(left.chunks(of_part * words));
    each(time, parts, |(product, left)| add_blocks(columns, product, (left, &right), &steps, begin()));
}

/// About how many steps, of 32 products each, a thread computes in a nanosecond.
const RATE: usize = 4;

/// Adds the product of some rows and all columns. `add` adds that of a block.
fn add_blocks(
    columns: usize,
    product: &mut [f32],
    (left, right): (&[u32], &[u32]),
    steps: &[usize],
    add: impl Fn(Operands<'_>),
) {
    let (rows, words) = (product.len() / columns, 2 * steps.len() * WORDS);
    for (column, right) in (0..columns).step_by(BLOCK).zip(right.chunks_exact(words)) {
        for (row, left) in (0..rows).step_by(BLOCK).zip(left.chunks_exact(words)) {
            let add = |sums: &mut [f32], width: usize| {
                add(Operands {
                    left: bytemuck::cast_slice(left),
                    left_strides: [2 * PAIRS, 2 * WORDS],
                    steps,
                    right,
                    right_stride: 2 * WORDS,
                    sums,
                    sums_strides: [width, TILE * width, TILE],
                });
            };
            let sums = &mut product[row * columns + column..];
            let size = [BLOCK.min(rows - row), BLOCK.min(columns - column)];
            if size == [BLOCK, BLOCK] {
                add(sums, columns);
                continue;
            }
            let mut block = [0.0; BLOCK * BLOCK];
            add(&mut block, BLOCK);
            for (sums, block) in sums.chunks_mut(columns).zip(block.chunks_exact(BLOCK)).take(size[0]) {
                sums[..size[1]].iter_mut().zip(block).for_each(|(sum, product)| *sum += product);
            }
        }
    }
}

/// Packs the values of each row as words of two neighbouring values. The words fill tiles,
/// `[rows / 32, steps, 2, 16 x 16]`. A step is 32 values of each row. In a tile, rows are `of_row` words
/// apart, and pairs are `of_pair` words apart. Tiles are filled up with zeros.
fn pack(matrix: Bits<'_>, steps: usize, [of_row, of_pair]: [usize; 2]) -> Vec<u32> {
    let Matrix { values: bits, rows, columns, transposed } = matrix;
    let mut packed = vec![0; rows.div_ceil(BLOCK) * steps * 2 * WORDS];
    let tile = |row: usize, pair: usize| {
        ((row / BLOCK * steps + pair / PAIRS) * 2 + row % BLOCK / TILE) * WORDS
            + row % TILE * of_row
            + pair % PAIRS * of_pair
    };
    let word = |even: u16, odd: u16| u32::from(even) | u32::from(odd) << 16;
    // Both cases read `bits` in order.
    if transposed {
        let none = vec![0; rows];
        for (pair, two) in bits.chunks(2 * rows).enumerate() {
            let (even, odd) = two.split_at(rows);
            let odd = if odd.is_empty() { &none } else { odd };
            for (at, (even, odd)) in even.chunks(TILE).zip(odd.chunks(TILE)).enumerate() {
                let words = packed[tile(at * TILE, pair)..].iter_mut();
                let pairs = even.iter().zip(odd).map(|(&even, &odd)| word(even, odd));
                match of_row {
                    // The words are contiguous, and are written as vectors.
                    1 => words.zip(pairs).for_each(|(packed, pair)| *packed = pair),
                    _ => words.step_by(of_row).zip(pairs).for_each(|(packed, pair)| *packed = pair),
                }
            }
        }
    } else {
        for (row, values) in bits.chunks(columns).enumerate() {
            for (at, values) in values.chunks(2 * PAIRS).enumerate() {
                let words = &mut packed[tile(row, at * PAIRS)..];
                if of_pair == 1 {
                    // Two neighbouring values already are a word: x86 stores the lower half first.
                    bytemuck::cast_slice_mut(words)[..values.len()].copy_from_slice(values);
                    continue;
                }
                let words = words.iter_mut().step_by(of_pair);
                for (packed, two) in words.zip(values.chunks(2)) {
                    *packed = word(two[0], two.get(1).copied().unwrap_or(0));
                }
            }
        }
    }
    packed
}

/// Number of rows in a tile.
pub(crate) const TILE: usize = 16;
/// Number of rows, and of columns, in a block of sums: two tiles by two tiles.
pub(crate) const BLOCK: usize = 2 * TILE;
/// Number of words in a tile.
pub(crate) const WORDS: usize = TILE * TILE;
/// Number of bf16 values in a row of a tile.
const VALUES: usize = 2 * TILE;

thread_local! {
    /// Number of [`Tiles`] that exist on this thread.
    static CONFIGURED: Cell<usize> = const { Cell::new(0) };
}

/// The configured tiles of this thread, until dropped. Do not hold them while code outside this crate runs,
/// for example the callback of [`crate::set_poll`]: that code may use the tiles for something else.
pub(crate) struct Tiles {
    _of_this_thread: PhantomData<*const ()>,
}

/// The addresses of the four tiles of a block's sums, and the distance between their rows in bytes. The
/// layout is fixed because `asm!` reads the fields by their offsets.
#[repr(C)]
struct Corners {
    tiles: [*mut f32; 4],
    row: usize,
}

/// The operands of [`Tiles::add_products`]: 32 rows times 32 columns, in steps of 32 values.
pub(crate) struct Operands<'a> {
    /// Values of the left matrix. In each step, a row has 32 neighbouring values.
    pub left: &'a [u16],
    /// Distance in values from one row to the next, and from row 0 to row 16.
    pub left_strides: [usize; 2],
    /// For each step, the index in `left` of the first value of row 0.
    pub steps: &'a [usize],
    /// The right matrix in packed tiles. A row of a tile has pairs of neighbouring values of 16 columns. Each
    /// step has two tiles: the tile of the first 16 columns, directly followed by the tile of the last 16
    /// columns.
    pub right: &'a [u32],
    /// Distance in words from the tiles of one step to the tiles of the next.
    pub right_stride: usize,
    /// The sums to which the products are added.
    pub sums: &'a mut [f32],
    /// Distance in sums from one row to the next, from row 0 to row 16, and from column 0 to column 16.
    pub sums_strides: [usize; 3],
}

impl Operands<'_> {
    /// Whether everything that the instructions read and write lies in the slices.
    pub fn fit(&self) -> bool {
        let beyond = |start: usize, [row, half]: [usize; 2], values: usize| {
            row.saturating_mul(TILE - 1).saturating_add(half).saturating_add(start).saturating_add(values)
        };
        let last = self.steps.iter().copied().max().unwrap_or(0);
        let [row, rows, columns] = self.sums_strides;
        let right = self.right_stride.saturating_mul(self.steps.len().saturating_sub(1));
        beyond(last, self.left_strides, VALUES) <= self.left.len()
            && right.saturating_add(2 * WORDS) <= self.right.len()
            && beyond(columns, [row, rows], TILE) <= self.sums.len()
    }
}

impl Tiles {
    /// Configures eight tiles of 16 rows of 64 bytes.
    ///
    /// # Safety
    /// The instructions must exist and be permitted, or be emulated.
    pub unsafe fn configure() -> Self {
        #[repr(C, align(64))]
        struct Config([u8; 64]);
        // In the configuration of palette 1, bytes 16 and later have the length of each tile's rows in bytes,
        // two bytes for each tile. Bytes 48 and later have the number of rows, one byte for each tile.
        let mut config = Config([0; 64]);
        config.0[0] = 1;
        for tile in 0..8 {
            config.0[16 + 2 * tile] = 64;
            config.0[48 + tile] = TILE as u8;
        }
        // SAFETY: the caller guarantees that the instructions are usable. This one reads the 64 bytes of
        // `config`.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly, preserves_flags)) };
        CONFIGURED.set(CONFIGURED.get() + 1);
        Self { _of_this_thread: PhantomData }
    }

    /// Adds the products of 32 rows and 32 columns to the sums.
    ///
    /// # Panics
    /// If a slice is too short, or there are no steps.
    pub fn add_products(&self, operands: Operands<'_>) {
        assert!(operands.fit() && !operands.steps.is_empty(), "tiles beyond their slices");
        let Operands { left, left_strides, steps, right, right_stride, sums, sums_strides } = operands;
        let [row, rows, columns] = sums_strides;
        let sums = sums.as_mut_ptr();
        let corners = Corners {
            tiles: [0, columns, rows, rows + columns].map(|first| sums.wrapping_add(first)),
            row: 4 * row,
        };
        // This thread's tiles are configured while `self` lives, because all `Tiles` have the same
        // configuration and only the last one releases it. Meanwhile, only code of this crate and copies of
        // memory run, which use no tiles.
        //
        // SAFETY: `Tiles` exist only if the instructions are usable, and are configured (above). Each step
        // reads two tiles of each matrix; the sums are loaded from and stored to four tiles. The assertion
        // has checked that all of these lie in their slices, and that there is a step, so the loop ends.
        unsafe {
            asm!(
                "mov {row}, [{corners} + 32]",
                "mov {at}, [{corners}]",
                "tileloadd tmm0, [{at} + {row}]",
                "mov {at}, [{corners} + 8]",
                "tileloadd tmm1, [{at} + {row}]",
                "mov {at}, [{corners} + 16]",
                "tileloadd tmm2, [{at} + {row}]",
                "mov {at}, [{corners} + 24]",
                "tileloadd tmm3, [{at} + {row}]",
                "2:",
                "mov {at}, [{steps}]",
                "lea {at}, [{left} + 2 * {at}]",
                "tileloadd tmm6, [{right} + {right_row}]",
                "tileloadd tmm4, [{at} + {left_row}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "add {at}, {left_half}",
                "tileloadd tmm5, [{at} + {left_row}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tileloadd tmm7, [{right} + {right_row} + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {right}, {right_step}",
                "add {steps}, 8",
                "cmp {steps}, {end}",
                "jne 2b",
                "mov {at}, [{corners}]",
                "tilestored [{at} + {row}], tmm0",
                "mov {at}, [{corners} + 8]",
                "tilestored [{at} + {row}], tmm1",
                "mov {at}, [{corners} + 16]",
                "tilestored [{at} + {row}], tmm2",
                "mov {at}, [{corners} + 24]",
                "tilestored [{at} + {row}], tmm3",
                corners = in(reg) &corners,
                steps = inout(reg) steps.as_ptr() => _,
                end = in(reg) steps.as_ptr_range().end,
                left = in(reg) left.as_ptr(),
                // These strides are in bytes: a value has two bytes, and a word has four.
                left_row = in(reg) 2 * left_strides[0],
                left_half = in(reg) 2 * left_strides[1],
                right = inout(reg) right.as_ptr() => _,
                right_step = in(reg) 4 * right_stride,
                right_row = in(reg) 64_usize,
                at = out(reg) _,
                row = out(reg) _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        CONFIGURED.set(CONFIGURED.get() - 1);
        if CONFIGURED.get() == 0 {
            // SAFETY: `Tiles` exist only if the instructions are usable, and no other `Tiles` of this thread
            // need the configuration. If the tiles were not released, the system would save 8 KiB of them at
            // each switch of threads.
            unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes in software what [`Tiles::add_products`] computes.
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

    /// Checks the packed layouts on every processor: [`model`] replaces the instructions.
    #[test]
    fn packed_tiles_have_the_products_of_both_layouts() {
        for [rows, inner, columns] in [[1, 1, 1], [16, 32, 16], [33, 65, 47], [70, 31, 65], [199, 40, 33]] {
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
                for threads in [1, 2, 3, 5] {
                    let mut found = vec![0.0; expected.len()];
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
                    pool.install(|| product(a, b, &mut found, || model));
                    assert_eq!(found, expected, "{rows} x {inner} x {columns} on {threads} threads");
                }
            }
        }
    }

    /// Checks the instructions themselves. They are emulated on processors that lack them.
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
        let [mut expected, mut found] = [(); 2].map(|()| vec![0.0; rows * columns]);
        product(a, b, &mut expected, || model);
        // SAFETY: the instructions are permitted or emulated.
        testing::run_where_needed(|| product(a, b, &mut found, || unsafe { adder() }));
        assert_eq!(found, expected);
        // Products are added to the values that are there.
        let twice: Vec<f32> = expected.iter().map(|sum| 2.0 * sum).collect();
        if super::super::avx512bf16::multiply(a, b, &mut found) {
            assert_eq!(found, twice);
        }
    }

    /// Checks operands with gaps between rows and between tiles, and with steps that are not in order.
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
            if in_tiles {
                // SAFETY: the instructions are permitted or emulated.
                testing::run_where_needed(|| unsafe { Tiles::configure() }.add_products(operands))
            } else {
                model(operands)
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
