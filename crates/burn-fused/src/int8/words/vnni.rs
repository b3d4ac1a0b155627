//! AVX-512 VNNI instructions.

use std::arch::x86_64::*;

use super::{Block, LANES, Task, Words};

/// AVX-512 with VNNI, on a machine that supports it.
#[derive(Debug, Clone, Copy)]
pub(in crate::int8) struct Vnni(());

impl Vnni {
    pub fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni");
        has.then_some(Self(()))
    }

    pub fn run<T: Task>(self, task: T) {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
        fn run<T: Task>(vnni: Vnni, task: T) {
            task.run(vnni);
        }
        // SAFETY: `detect` found these instructions.
        unsafe { run(self, task) }
    }
}

// SAFETY of all blocks below: a `Vnni` exists only if `detect` found the
// instructions, and references are valid for the bytes of their type.
impl Words for Vnni {
    type Word = __m512i;

    #[inline(always)]
    fn splat(self, value: i32) -> __m512i {
        // SAFETY: above.
        unsafe { _mm512_set1_epi32(value) }
    }

    #[inline(always)]
    fn load(self, block: &Block) -> __m512i {
        // SAFETY: above; a block is aligned.
        unsafe { _mm512_load_si512(std::ptr::from_ref(block).cast()) }
    }

    #[inline(always)]
    fn load_i32(self, values: &[i32; LANES]) -> __m512i {
        // SAFETY: above.
        unsafe { _mm512_loadu_si512(values.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store(self, word: __m512i, block: &mut Block) {
        // SAFETY: above; a block is aligned.
        unsafe { _mm512_store_si512(std::ptr::from_mut(block).cast(), word) }
    }

    #[inline(always)]
    fn dot(self, sum: __m512i, bytes: __m512i, weights: __m512i) -> __m512i {
        // SAFETY: above.
        unsafe { _mm512_dpbusd_epi32(sum, bytes, weights) }
    }

    #[inline(always)]
    fn max(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: above.
        unsafe { _mm512_max_epi32(a, b) }
    }

    #[inline(always)]
    fn min(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: above.
        unsafe { _mm512_min_epi32(a, b) }
    }

    #[inline(always)]
    fn max_bytes(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: above.
        unsafe { _mm512_max_epu8(a, b) }
    }

    #[inline(always)]
    fn shift_left(self, a: __m512i, count: __m512i) -> __m512i {
        // SAFETY: above.
        unsafe { _mm512_sllv_epi32(a, count) }
    }

    #[inline(always)]
    fn scale(self, sum: __m512i, multiplier: __m512i, addend: __m512i, right: __m512i) -> __m512i {
        // SAFETY: above.
        unsafe {
            let even = _mm512_mul_epi32(sum, multiplier);
            let odd = _mm512_mul_epi32(_mm512_srli_epi64::<32>(sum), _mm512_srli_epi64::<32>(multiplier));
            // High halves: those of the odd lanes are already in position.
            let high = _mm512_mask_shuffle_epi32::<0b11_11_01_01>(odd, 0x5555, even);
            _mm512_srav_epi32(_mm512_add_epi32(high, addend), right)
        }
    }

    #[inline(always)]
    fn pack(self, [a, b, c, d]: [__m512i; 4]) -> __m512i {
        // SAFETY: above.
        unsafe {
            let bytes = _mm512_packus_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
            // In each 128 bits: four bytes of a, of b, of c, of d.
            _mm512_shuffle_epi8(bytes, _mm512_broadcast_i32x4(super::avx2::interleaving()))
        }
    }

    #[inline(always)]
    fn store_bytes(self, word: __m512i, bytes: &mut [u8; LANES]) {
        // SAFETY: above.
        unsafe {
            let positive = _mm512_max_epi32(word, _mm512_setzero_si512());
            _mm_storeu_si128(bytes.as_mut_ptr().cast(), _mm512_cvtusepi32_epi8(positive));
        }
    }

    #[inline(always)]
    fn funnel(self, low: __m512i, high: __m512i, skip: usize) -> __m512i {
        // SAFETY: above.
        unsafe {
            match skip {
                0 => low,
                1 => _mm512_or_si512(_mm512_srli_epi32::<8>(low), _mm512_slli_epi32::<24>(high)),
                2 => _mm512_or_si512(_mm512_srli_epi32::<16>(low), _mm512_slli_epi32::<16>(high)),
                _ => _mm512_or_si512(_mm512_srli_epi32::<24>(low), _mm512_slli_epi32::<8>(high)),
            }
        }
    }

    #[inline(always)]
    fn select(self, mask: __m512i, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: above.
        unsafe { _mm512_ternarylogic_epi32::<0xca>(mask, a, b) }
    }

    #[inline(always)]
    fn transpose(self, rows: &mut [__m512i; LANES]) {
        // SAFETY: above.
        unsafe {
            // Pairs of rows, then fours, then quarters of the vectors.
            let mut pairs = *rows;
            for i in 0..8 {
                pairs[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
                pairs[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
            }
            let mut fours = *rows;
            for q in 0..4 {
                for i in 0..2 {
                    let (a, b) = (pairs[4 * q + i], pairs[4 * q + 2 + i]);
                    fours[4 * q + 2 * i] = _mm512_unpacklo_epi64(a, b);
                    fours[4 * q + 2 * i + 1] = _mm512_unpackhi_epi64(a, b);
                }
            }
            for c in 0..4 {
                let [a, b, d, e] = [fours[c], fours[4 + c], fours[8 + c], fours[12 + c]];
                let ab02 = _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b);
                let ab13 = _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b);
                let de02 = _mm512_shuffle_i32x4::<0b10_00_10_00>(d, e);
                let de13 = _mm512_shuffle_i32x4::<0b11_01_11_01>(d, e);
                rows[c] = _mm512_shuffle_i32x4::<0b10_00_10_00>(ab02, de02);
                rows[4 + c] = _mm512_shuffle_i32x4::<0b10_00_10_00>(ab13, de13);
                rows[8 + c] = _mm512_shuffle_i32x4::<0b11_01_11_01>(ab02, de02);
                rows[12 + c] = _mm512_shuffle_i32x4::<0b11_01_11_01>(ab13, de13);
            }
        }
    }
}
