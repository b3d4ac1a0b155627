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
    match values.len() == S::F32_LANES {
        true => bytemuck::pod_read_unaligned(bytemuck::cast_slice(values)),
        false => simd.partial_load_f32s(values),
    }
}

/// Stores the first `target.len()` values of a vector.
#[inline(always)]
pub(crate) fn store<S: Simd>(simd: S, target: &mut [f32], vector: S::f32s) {
    match target.len() >= S::F32_LANES {
        true => target[..S::F32_LANES].copy_from_slice(bytemuck::cast_slice(&[vector])),
        false => simd.partial_store_f32s(target, vector),
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

/// Adds to `R` rows of `N` vectors the products of each term: its scalar of the row, and
/// its `N` vectors, which are `step` values after those of the term before.
///
/// # Panics
/// If there are fewer scalars or vectors than `terms` need.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the index names a register")]
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
    // Two at a time: counting takes as long as a few products.
    for term in (0..terms / 2).map(|pair| 2 * pair) {
        // SAFETY: the assertions above are of the last term's last vector and row, and steps are unsigned.
        unsafe { add_term(simd, scalars, vectors, step, term, &mut sums) };
        // SAFETY: as above.
        unsafe { add_term(simd, scalars, vectors, step, term + 1, &mut sums) };
    }
    if terms % 2 == 1 {
        // SAFETY: as above.
        unsafe { add_term(simd, scalars, vectors, step, terms - 1, &mut sums) };
    }
    sums
}

/// # Safety
/// The term's scalar of each row and its vectors are in their slices.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the index names a register")]
unsafe fn add_term<S: Lanes, const R: usize, const N: usize>(
    simd: S,
    Scalars { values, first, term_step, row_step }: Scalars<'_>,
    vectors: &[f32],
    step: usize,
    term: usize,
    sums: &mut [[S::f32s; N]; R],
) {
    let mut panel = [simd.splat_f32s(0.0); N];
    for n in 0..N {
        // SAFETY: as of this function; all bits are valid in vectors, and the read needs no alignment.
        panel[n] = unsafe {
            vectors.as_ptr().add(term * step + n * S::F32_LANES).cast::<S::f32s>().read_unaligned()
        };
    }
    for r in 0..R {
        // SAFETY: as of this function.
        let scalar = unsafe { *values.get_unchecked(first + term * term_step + r * row_step) };
        let scalar = simd.splat_f32s(scalar);
        for n in 0..N {
            sums[r][n] = simd.fma(scalar, panel[n], sums[r][n]);
        }
    }
}
