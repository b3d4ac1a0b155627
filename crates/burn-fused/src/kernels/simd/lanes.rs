//! The instructions of a SIMD level: those of `pulp`, a matrix transposition, and the inner loop of matrix
//! products, rows of scalars by a panel of vectors.

#[cfg(target_arch = "x86_64")]
use bytemuck::cast;
use pulp::Simd;

/// Maximum number of f32 lanes of a vector.
pub(crate) const MAX_LANES: usize = 16;

/// The instructions of one SIMD level, on vectors of f32: those of `pulp`'s [`Simd`],
/// and the ones here. The trait is sealed.
///
/// ```
/// use burn_fused::simd::{Kernel, Lanes, Level};
///
/// /// `x * x + 1`, by hand.
/// struct SquarePlusOne(f32);
///
/// impl Kernel for SquarePlusOne {
///     type Output = f32;
///
///     #[inline(always)]
///     fn run<S: Lanes>(self, simd: S) -> f32 {
///         let (x, one) = (simd.splat_f32s(self.0), simd.splat_f32s(1.0));
///         simd.reduce_max_f32s(simd.fma(x, x, one))
///     }
/// }
///
/// for level in Level::available() {
///     assert_eq!(level.run(SquarePlusOne(3.0)), 10.0);
/// }
/// ```
pub trait Lanes: Simd {
    /// `a * b + c` in each lane, rounded once if the SIMD level has fused
    /// multiply-add, and twice otherwise.
    #[inline(always)]
    fn fma(self, a: Self::f32s, b: Self::f32s, c: Self::f32s) -> Self::f32s {
        self.mul_add_e_f32s(a, b, c)
    }

    /// Transposes a square of as many vectors as each has lanes.
    ///
    /// # Panics
    /// If there are fewer vectors.
    #[inline(always)]
    fn transpose(self, rows: &mut [Self::f32s]) {
        let values: &mut [f32] = bytemuck::cast_slice_mut(rows);
        for row in 0..Self::F32_LANES {
            for column in 0..row {
                values.swap(row * Self::F32_LANES + column, column * Self::F32_LANES + row);
            }
        }
    }

    /// Stores the upper 16 bits of each lane: the value in bf16, where it is exact.
    ///
    /// # Panics
    /// If `target` is not as long as the vector.
    #[inline(always)]
    fn upper_halves(self, vector: Self::f32s, target: &mut [u16]) {
        let values: &[u32] = bytemuck::cast_slice(std::slice::from_ref(&vector));
        assert_eq!(values.len(), target.len());
        for (half, &value) in target.iter_mut().zip(values) {
            *half = (value >> 16) as u16;
        }
    }
}

impl Lanes for pulp::Scalar128b {
    #[inline(always)]
    fn fma(self, a: Self::f32s, b: Self::f32s, c: Self::f32s) -> Self::f32s {
        // Without fused multiply-add, rounding once is a slow function call.
        self.add_f32s(self.mul_f32s(a, b), c)
    }
}

#[cfg(target_arch = "aarch64")]
impl Lanes for pulp::aarch64::Neon {}

#[cfg(target_arch = "x86_64")]
impl Lanes for pulp::x86::V3 {
    #[inline(always)]
    fn transpose(self, rows: &mut [Self::f32s]) {
        let avx = self.avx;
        let row = |i: usize| cast(rows[i]);
        // Interleave pairs of rows, then pairs of pairs, then halves.
        let mut pairs = [avx._mm256_setzero_ps(); 8];
        for i in 0..4 {
            pairs[2 * i] = avx._mm256_unpacklo_ps(row(2 * i), row(2 * i + 1));
            pairs[2 * i + 1] = avx._mm256_unpackhi_ps(row(2 * i), row(2 * i + 1));
        }
        let mut fours = [avx._mm256_setzero_ps(); 8];
        for half in 0..2 {
            for i in 0..2 {
                let (a, b) = (pairs[4 * half + i], pairs[4 * half + 2 + i]);
                fours[4 * half + 2 * i] = avx._mm256_shuffle_ps::<0b01_00_01_00>(a, b);
                fours[4 * half + 2 * i + 1] = avx._mm256_shuffle_ps::<0b11_10_11_10>(a, b);
            }
        }
        for i in 0..4 {
            rows[i] = cast(avx._mm256_permute2f128_ps::<0x20>(fours[i], fours[4 + i]));
            rows[4 + i] = cast(avx._mm256_permute2f128_ps::<0x31>(fours[i], fours[4 + i]));
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for pulp::x86::V4 {
    #[inline(always)]
    fn transpose(self, rows: &mut [Self::f32s]) {
        let avx = self.avx512f;
        let row = |i: usize| cast(rows[i]);
        let zero = avx._mm512_setzero_ps();
        let mut pairs = [zero; 16];
        for i in 0..8 {
            pairs[2 * i] = avx._mm512_unpacklo_ps(row(2 * i), row(2 * i + 1));
            pairs[2 * i + 1] = avx._mm512_unpackhi_ps(row(2 * i), row(2 * i + 1));
        }
        // fours[4 q + c]: column c of every quarter, rows 4 q to 4 q + 3.
        let mut fours = [zero; 16];
        for q in 0..4 {
            for i in 0..2 {
                let (a, b) = (pairs[4 * q + i], pairs[4 * q + 2 + i]);
                fours[4 * q + 2 * i] = avx._mm512_shuffle_ps::<0b01_00_01_00>(a, b);
                fours[4 * q + 2 * i + 1] = avx._mm512_shuffle_ps::<0b11_10_11_10>(a, b);
            }
        }
        for c in 0..4 {
            let [a, b, d, e] = [fours[c], fours[4 + c], fours[8 + c], fours[12 + c]];
            let ab02 = avx._mm512_shuffle_f32x4::<0b10_00_10_00>(a, b);
            let ab13 = avx._mm512_shuffle_f32x4::<0b11_01_11_01>(a, b);
            let de02 = avx._mm512_shuffle_f32x4::<0b10_00_10_00>(d, e);
            let de13 = avx._mm512_shuffle_f32x4::<0b11_01_11_01>(d, e);
            rows[c] = cast(avx._mm512_shuffle_f32x4::<0b10_00_10_00>(ab02, de02));
            rows[4 + c] = cast(avx._mm512_shuffle_f32x4::<0b10_00_10_00>(ab13, de13));
            rows[8 + c] = cast(avx._mm512_shuffle_f32x4::<0b11_01_11_01>(ab02, de02));
            rows[12 + c] = cast(avx._mm512_shuffle_f32x4::<0b11_01_11_01>(ab13, de13));
        }
    }
}

/// Loads at most as many values as a vector has lanes; the other lanes are zero.
#[inline(always)]
pub(crate) fn load<S: Simd>(simd: S, values: &[f32]) -> S::f32s {
    if values.len() == S::F32_LANES {
        bytemuck::pod_read_unaligned(bytemuck::cast_slice(values))
    } else {
        simd.partial_load_f32s(values)
    }
}

/// Asks for the cache line of a value that is read soon; it may be beyond the values.
#[inline(always)]
pub(crate) fn prefetch(value: *const f32) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing into the program, of any address, and every x86-64 has the instruction.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(value.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// Stores the columns of the first square of a matrix, as many as a vector has lanes, each passed through `map`. What is
/// beyond the matrix's rows and columns is zero. Values and target are given with the distance of rows and vectors in
/// them. With the widest vectors, the processor is asked for the rows behind whole ones.
///
/// # Panics
/// If there are fewer values, or the target ends before.
#[inline(always)]
pub(crate) fn transpose<S: Lanes>(
    simd: S,
    (values, step): (&[f32], usize),
    [rows, columns]: [usize; 2],
    (target, target_step): (&mut [f32], usize),
    map: impl Fn(S::f32s) -> S::f32s,
) {
    let lanes = S::F32_LANES;
    assert!(target.len() >= (lanes - 1) * target_step + lanes);
    // An array of its own in each case, so that it stays in registers in the first.
    if rows >= lanes && columns >= lanes {
        assert!(values.len() >= (lanes - 1) * step + lanes);
        let mut square = [simd.splat_f32s(0.0); MAX_LANES];
        for (row, vector) in square[..lanes].iter_mut().enumerate() {
            let values = values.as_ptr().wrapping_add(row * step);
            if lanes == MAX_LANES {
                // A vector is a cache line.
                prefetch(values.wrapping_add(lanes * step));
            }
            // SAFETY: the assertion above is of the last row; all bits are valid in vectors, and the read needs no
            // alignment.
            *vector = unsafe { values.cast::<S::f32s>().read_unaligned() };
        }
        simd.transpose(&mut square[..lanes]);
        for (row, &vector) in square[..lanes].iter().enumerate() {
            let target = target.as_mut_ptr().wrapping_add(row * target_step);
            // SAFETY: the first assertion is of the last vector; the write needs no alignment.
            unsafe { target.cast::<S::f32s>().write_unaligned(map(vector)) };
        }
        return;
    }
    let mut square = [simd.splat_f32s(0.0); MAX_LANES];
    for (row, vector) in square[..lanes.min(rows)].iter_mut().enumerate() {
        // Without columns, a row may begin behind the values.
        let row = values.get(row * step..).unwrap_or_default();
        *vector = load(simd, &row[..lanes.min(columns)]);
    }
    simd.transpose(&mut square[..lanes]);
    for (row, &vector) in square[..lanes].iter().enumerate() {
        store(simd, &mut target[row * target_step..][..lanes], map(vector));
    }
}

/// Stores the first `target.len()` values of a vector.
#[inline(always)]
pub(crate) fn store<S: Simd>(simd: S, target: &mut [f32], vector: S::f32s) {
    if target.len() >= S::F32_LANES {
        target[..S::F32_LANES].copy_from_slice(bytemuck::cast_slice(&[vector]))
    } else {
        simd.partial_store_f32s(target, vector)
    }
}

/// Where the scalars of a product are: of a term and a row, at
/// `first + term * term_step + row * row_step`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scalars<'a> {
    pub values: &'a [f32],
    pub first: usize,
    pub term_step: usize,
    pub row_step: usize,
}

/// Terms between two comparisons with their number.
const UNROLLED: usize = 4;

/// Adds to `R` rows of `N` vectors the products of each term: its scalar of the row, and
/// its `N` vectors, which are `step` values after those of the term before.
///
/// # Panics
/// If there are fewer scalars or vectors than `terms` need, or neither the terms nor the rows of scalars are one behind
/// the other.
#[inline(always)]
pub(crate) fn add_products<S: Lanes, const R: usize, const N: usize>(
    simd: S,
    terms: usize,
    scalars: Scalars<'_>,
    (vectors, step): (&[f32], usize),
    mut sums: [[S::f32s; N]; R],
) -> [[S::f32s; N]; R] {
    let Scalars { values, first, term_step, row_step } = scalars;
    assert!(terms == 0 || vectors.len() >= (terms - 1) * step + N * S::F32_LANES);
    assert!(terms == 0 || values.len() > first + (terms - 1) * term_step + (R - 1) * row_step);
    assert!(term_step == 1 || row_step == 1);
    let vectors = (vectors.as_ptr(), step);
    // SAFETY: the assertions above are of the last term's last vector and row, and steps are unsigned; without terms,
    // nothing is read.
    unsafe {
        let scalars = values.as_ptr().wrapping_add(first);
        // Where a step is known, addresses are a part of the instructions.
        match term_step {
            1 => add_terms(simd, terms, (scalars, 1, row_step), vectors, &mut sums),
            _ => add_terms(simd, terms, (scalars, term_step, 1), vectors, &mut sums),
        }
    }
    sums
}

/// # Safety
/// The scalars of all terms and rows, and the vectors of all terms, can be read.
#[inline(always)]
unsafe fn add_terms<S: Lanes, const R: usize, const N: usize>(
    simd: S,
    terms: usize,
    (scalars, term_step, row_step): (*const f32, usize, usize),
    (vectors, step): (*const f32, usize),
    sums: &mut [[S::f32s; N]; R],
) {
    // Some at a time, because counting takes as long as a few products.
    let whole = terms / UNROLLED * UNROLLED;
    for from in (0..whole).step_by(UNROLLED) {
        for term in from..from + UNROLLED {
            // SAFETY: as of this function.
            unsafe {
                add_term(simd, scalars.add(term * term_step), row_step, vectors.add(term * step), sums)
            };
        }
    }
    for term in whole..terms {
        // SAFETY: as above.
        unsafe { add_term(simd, scalars.add(term * term_step), row_step, vectors.add(term * step), sums) };
    }
}

/// # Safety
/// The scalar of each row and the first `N` vectors can be read.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the index names a register")]
unsafe fn add_term<S: Lanes, const R: usize, const N: usize>(
    simd: S,
    scalars: *const f32,
    row_step: usize,
    vectors: *const f32,
    sums: &mut [[S::f32s; N]; R],
) {
    let mut panel = [simd.splat_f32s(0.0); N];
    for n in 0..N {
        // SAFETY: as of this function; all bits are valid in vectors, and the read needs no alignment.
        panel[n] = unsafe { vectors.add(n * S::F32_LANES).cast::<S::f32s>().read_unaligned() };
    }
    for r in 0..R {
        // SAFETY: as of this function.
        let scalar = simd.splat_f32s(unsafe { *scalars.add(r * row_step) });
        for n in 0..N {
            sums[r][n] = simd.fma(scalar, panel[n], sums[r][n]);
        }
    }
}
