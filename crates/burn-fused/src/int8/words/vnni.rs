//! The instructions of integer kernels, for AVX-512 with VNNI.

use std::arch::x86_64::*;

use pulp::f32x16;
use pulp::x86::V4;

use super::{LANES, Task, Words};
use crate::kernels::simd::Lanes;

/// The instructions of AVX-512 with VNNI. A value exists only on a machine that supports them: a `V4` exists
/// only with AVX-512 F, BW, VL and DQ, and `detect` checks VNNI.
#[derive(Debug, Clone, Copy)]
pub(in crate::int8) struct Vnni(V4);

impl Vnni {
    pub fn detect() -> Option<Self> {
        V4::try_new().filter(|_| is_x86_feature_detected!("avx512vnni")).map(Self)
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

// SAFETY of all blocks below: a `Vnni` exists only if `detect` found the instructions, and references are
// valid for the bytes of their type.
impl Words for Vnni {
    type Word = __m512i;

    #[inline(always)]
    fn splat(self, value: i32) -> __m512i {
        // SAFETY: as said above this `impl`.
        unsafe { _mm512_set1_epi32(value) }
    }

    #[inline(always)]
    fn dot(self, sum: __m512i, bytes: __m512i, weights: __m512i) -> __m512i {
        // SAFETY: as said above this `impl`.
        unsafe { _mm512_dpbusd_epi32(sum, bytes, weights) }
    }

    #[inline(always)]
    fn max(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: as said above this `impl`.
        unsafe { _mm512_max_epi32(a, b) }
    }

    #[inline(always)]
    fn min(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: as said above this `impl`.
        unsafe { _mm512_min_epi32(a, b) }
    }

    #[inline(always)]
    fn shift_left(self, a: __m512i, count: __m512i) -> __m512i {
        // SAFETY: as said above this `impl`.
        unsafe { _mm512_sllv_epi32(a, count) }
    }

    #[inline(always)]
    fn scale(self, sum: __m512i, multiplier: __m512i, addend: __m512i, right: __m512i) -> __m512i {
        // SAFETY: as said above this `impl`.
        unsafe {
            let even = _mm512_mul_epi32(sum, multiplier);
            let odd = _mm512_mul_epi32(_mm512_srli_epi64::<32>(sum), _mm512_srli_epi64::<32>(multiplier));
            // Joins the high halves of the products. Those of `odd` are already in position.
            let high = _mm512_mask_shuffle_epi32::<0b11_11_01_01>(odd, 0x5555, even);
            _mm512_srav_epi32(_mm512_add_epi32(high, addend), right)
        }
    }

    #[inline(always)]
    fn pack(self, [a, b, c, d]: [__m512i; 4]) -> __m512i {
        // SAFETY: as said above this `impl`.
        unsafe {
            let bytes = _mm512_packus_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
            // Each 128 bits of `bytes` have four bytes of `a`, four of `b`, four of `c` and four of `d`.
            _mm512_shuffle_epi8(bytes, _mm512_broadcast_i32x4(super::avx2::interleaving()))
        }
    }

    #[inline(always)]
    fn store_bytes(self, word: __m512i, bytes: &mut [u8; LANES]) {
        // SAFETY: as said above this `impl`.
        unsafe {
            let positive = _mm512_max_epi32(word, _mm512_setzero_si512());
            _mm_storeu_si128(bytes.as_mut_ptr().cast(), _mm512_cvtusepi32_epi8(positive));
        }
    }

    #[inline(always)]
    fn transpose(self, rows: &mut [__m512i; LANES]) {
        let rows: &mut [f32x16; LANES] = bytemuck::cast_mut(rows);
        Lanes::transpose(self.0, rows);
    }
}
