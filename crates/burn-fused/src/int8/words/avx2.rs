//! The instructions of integer kernels, for AVX2.

use std::arch::x86_64::*;

use super::{LANES, Task, Words};

/// Shuffle mask of 128 bits that transposes 4x4 bytes.
#[inline(always)]
pub(super) fn interleaving() -> __m128i {
    // SAFETY: any 16 bytes are a valid vector.
    unsafe { std::mem::transmute([0u8, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15]) }
}

/// The instructions of AVX2. A value exists only on a machine that supports them. A vector of 16 words is two
/// registers of 8 words.
#[derive(Debug, Clone, Copy)]
pub(in crate::int8) struct Avx2(());

impl Avx2 {
    pub fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(()))
    }

    pub fn run<T: Task>(self, task: T) {
        #[target_feature(enable = "avx2")]
        fn run<T: Task>(avx2: Avx2, task: T) {
            task.run(avx2);
        }
        // SAFETY: `detect` found these instructions.
        unsafe { run(self, task) }
    }
}

/// Evaluates an expression for each half of a vector. It is a macro because a closure would be compiled
/// without AVX2.
macro_rules! halves {
    ($h:ident => $half:expr) => {{
        // SAFETY: an `Avx2` exists only if `detect` found the instructions. The expressions compute with
        // values, and use no pointers.
        unsafe {
            [
                {
                    let $h = 0usize;
                    $half
                },
                {
                    let $h = 1usize;
                    $half
                },
            ]
        }
    }};
}

impl Words for Avx2 {
    type Word = [__m256i; 2];

    #[inline(always)]
    fn splat(self, value: i32) -> Self::Word {
        halves!(_half => _mm256_set1_epi32(value))
    }

    #[inline(always)]
    fn dot(self, sum: Self::Word, bytes: Self::Word, weights: Self::Word) -> Self::Word {
        // vpmaddubsw would saturate: the sum of two products of 255 · 127 exceeds 16 bits. Bytes are
        // therefore widened first, even and odd bytes separately.
        halves!(h => {
            let low = _mm256_set1_epi16(0xff);
            let even = _mm256_madd_epi16(
                _mm256_and_si256(bytes[h], low),
                _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(weights[h])),
            );
            let odd =
                _mm256_madd_epi16(_mm256_srli_epi16::<8>(bytes[h]), _mm256_srai_epi16::<8>(weights[h]));
            _mm256_add_epi32(sum[h], _mm256_add_epi32(even, odd))
        })
    }

    #[inline(always)]
    fn max(self, a: Self::Word, b: Self::Word) -> Self::Word {
        halves!(h => _mm256_max_epi32(a[h], b[h]))
    }

    #[inline(always)]
    fn min(self, a: Self::Word, b: Self::Word) -> Self::Word {
        halves!(h => _mm256_min_epi32(a[h], b[h]))
    }

    #[inline(always)]
    fn shift_left(self, a: Self::Word, count: Self::Word) -> Self::Word {
        halves!(h => _mm256_sllv_epi32(a[h], count[h]))
    }

    #[inline(always)]
    fn scale(
        self,
        sum: Self::Word,
        multiplier: Self::Word,
        addend: Self::Word,
        right: Self::Word,
    ) -> Self::Word {
        halves!(h => {
            let even = _mm256_mul_epi32(sum[h], multiplier[h]);
            let odd =
                _mm256_mul_epi32(_mm256_srli_epi64::<32>(sum[h]), _mm256_srli_epi64::<32>(multiplier[h]));
            let high = _mm256_blend_epi32::<0b1010_1010>(_mm256_srli_epi64::<32>(even), odd);
            _mm256_srav_epi32(_mm256_add_epi32(high, addend[h]), right[h])
        })
    }

    #[inline(always)]
    fn pack(self, [a, b, c, d]: [Self::Word; 4]) -> Self::Word {
        halves!(h => {
            let bytes =
                _mm256_packus_epi16(_mm256_packs_epi32(a[h], b[h]), _mm256_packs_epi32(c[h], d[h]));
            _mm256_shuffle_epi8(bytes, _mm256_broadcastsi128_si256(interleaving()))
        })
    }

    #[inline(always)]
    fn store_bytes(self, word: Self::Word, bytes: &mut [u8; LANES]) {
        // SAFETY: an `Avx2` exists only if `detect` found the instructions, and `bytes` is valid for 16
        // bytes.
        unsafe {
            let shorts = _mm256_packs_epi32(word[0], word[1]);
            let ordered = _mm256_permute4x64_epi64::<0b11_01_10_00>(shorts);
            let (low, high) = (_mm256_castsi256_si128(ordered), _mm256_extracti128_si256::<1>(ordered));
            _mm_storeu_si128(bytes.as_mut_ptr().cast(), _mm_packus_epi16(low, high));
        }
    }
}
