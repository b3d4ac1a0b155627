//! The instructions of a SIMD level: the trait `Simd` of the crate pulp, with a few additions.
//!
//! The functions below the trait are the loops that most kernels share: loads and stores of partial vectors,
//! the transposition of a square of values, and the inner loop of matrix products (rows of scalars times a
//! panel of vectors).

#[cfg(target_arch = "x86_64")]
use bytemuck::cast;
use pulp::Simd;

/// Maximum number of f32 lanes of a vector.
pub(crate) const MAX_LANES: usize = 16;

/// The instructions of one SIMD level, on vectors of f32: pulp's [`Simd`] and the methods below.
pub(crate) trait Lanes: Simd {
    /// `a * b + c` in each lane, rounded once if the SIMD level has fused multiply-add, and twice otherwise.
    #[inline(always)]
    fn fma(self, a: Self::f32s, b: Self::f32s, c: Self::f32s) -> Self::f32s {
        self.mul_add_e_f32s(a, b, c)
    }

    /// Transposes the square of the first `F32_LANES` vectors of `rows`.
    ///
    /// # Panics
    /// If `rows` has fewer than `F32_LANES` vectors.
    #[inline(always)]
    fn transpose(self, rows: &mut [Self::f32s]) {
        let values: &mut [f32] = bytemuck::cast_slice_mut(rows);
        for row in 0..Self::F32_LANES {
            for column in 0..row {
                values.swap(row * Self::F32_LANES + column, column * Self::F32_LANES + row);
            }
        }
    }

    /// Stores the upper 16 bits of each lane in `target`. For a value that is exact in bf16, these are its
    /// bits.
    ///
    /// # Panics
    /// If the length of `target` is not the number of lanes.
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
        // Without an instruction for it, a fused multiply-add is a slow function call.
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
        // Pairs of rows are interleaved, then pairs of pairs, then halves.
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
        // `fours[4 q + c]` has column c of every quarter, in rows 4 q to 4 q + 3.
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

/// Loads `values` into the first lanes of a vector. The other lanes are zero. `values` has at most one value
/// for each lane.
#[inline(always)]
pub(crate) fn load<S: Simd>(simd: S, values: &[f32]) -> S::f32s {
    if values.len() == S::F32_LANES {
        bytemuck::pod_read_unaligned(bytemuck::cast_slice(values))
    } else {
        simd.partial_load_f32s(values)
    }
}

/// Prefetches the cache line of a value that is read soon. The pointer may be out of bounds. Does nothing on
/// processors other than x86-64.
#[inline(always)]
pub(crate) fn prefetch(value: *const f32) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch may take any address, does not fault, and changes no value; every x86-64
        // processor has the instruction.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(value.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// Transposes the first square of a matrix. The square has one row and one column for each lane of a vector.
/// Each column of the square becomes a vector, which is passed through `map` and stored in `target`. Elements
/// beyond the matrix's rows and columns count as zero.
///
/// `step` is the distance between rows in `values`, and `target_step` is the distance between vectors in
/// `target`. If a vector fills a cache line, as the widest vectors do, and the square is inside the matrix,
/// the rows below the square are prefetched.
///
/// # Panics
/// If `values` lacks an element of the square, or if `target` is too short.
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
    // Squares inside the matrix have a separate array, so that this array stays in registers.
    if rows >= lanes && columns >= lanes {
        assert!(values.len() >= (lanes - 1) * step + lanes);
        let mut square = [simd.splat_f32s(0.0); MAX_LANES];
        for (row, vector) in square[..lanes].iter_mut().enumerate() {
            let values = values.as_ptr().wrapping_add(row * step);
            if lanes == MAX_LANES {
                // One vector covers one cache line.
                prefetch(values.wrapping_add(lanes * step));
            }
            // SAFETY: the assertion above checks the end of the last row, and the other rows end before it.
            // All bits are valid in vectors, and the read needs no alignment.
            *vector = unsafe { values.cast::<S::f32s>().read_unaligned() };
        }
        simd.transpose(&mut square[..lanes]);
        for (row, &vector) in square[..lanes].iter().enumerate() {
            let target = target.as_mut_ptr().wrapping_add(row * target_step);
            // SAFETY: the assertion at the top checks the end of the last vector, and the other vectors end
            // before it. The write needs no alignment.
            unsafe { target.cast::<S::f32s>().write_unaligned(map(vector)) };
        }
        return;
    }
    let mut square = [simd.splat_f32s(0.0); MAX_LANES];
    for (row, vector) in square[..lanes.min(rows)].iter_mut().enumerate() {
        // If there are no columns, a row may begin beyond the end of `values`.
        let row = values.get(row * step..).unwrap_or_default();
        *vector = load(simd, &row[..lanes.min(columns)]);
    }
    simd.transpose(&mut square[..lanes]);
    for (row, &vector) in square[..lanes].iter().enumerate() {
        store(simd, &mut target[row * target_step..][..lanes], map(vector));
    }
}

/// Stores the values of a vector in `target`, as many as `target` has room for.
#[inline(always)]
pub(crate) fn store<S: Simd>(simd: S, target: &mut [f32], vector: S::f32s) {
    if target.len() >= S::F32_LANES {
        target[..S::F32_LANES].copy_from_slice(bytemuck::cast_slice(&[vector]))
    } else {
        simd.partial_store_f32s(target, vector)
    }
}

/// The scalars of a matrix product: the values of its first factor, which are read one by one. The scalar of
/// a term and a row is at `first + term * term_step + row * row_step`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scalars<'a> {
    pub values: &'a [f32],
    pub first: usize,
    pub term_step: usize,
    pub row_step: usize,
}

/// Number of terms in one pass of the unrolled loop.
const UNROLLED: usize = 4;

/// For each term, multiplies the scalar of each of `R` rows by the term's `N` vectors and adds the products
/// to `sums`. The vectors of a term start `step` values after the vectors of the previous term.
///
/// # Panics
/// If there are too few scalars or vectors for `terms`, or if `term_step` and `row_step` both differ from 1.
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
    // SAFETY: the assertions above check the last term's last vector, and the scalar of the last term and
    // row. Steps are unsigned, so everything else comes before. Without terms, nothing is read. One of the
    // steps is 1, as asserted, so the constant 1 below replaces an equal value.
    unsafe {
        let scalars = values.as_ptr().wrapping_add(first);
        // A constant step becomes a part of the instructions' addresses.
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
    // The loop is unrolled, because counting takes as long as a few products.
    let whole = terms / UNROLLED * UNROLLED;
    for from in (0..whole).step_by(UNROLLED) {
        for term in from..from + UNROLLED {
            // SAFETY: the caller guarantees that the scalars and vectors of all terms can be read.
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
        // SAFETY: the caller guarantees that `N` vectors can be read. All bits are valid in vectors, and the
        // read needs no alignment.
        panel[n] = unsafe { vectors.add(n * S::F32_LANES).cast::<S::f32s>().read_unaligned() };
    }
    for r in 0..R {
        // SAFETY: the caller guarantees that the scalar of each row can be read.
        let scalar = simd.splat_f32s(unsafe { *scalars.add(r * row_step) });
        for n in 0..N {
            sums[r][n] = simd.fma(scalar, panel[n], sums[r][n]);
        }
    }
}
