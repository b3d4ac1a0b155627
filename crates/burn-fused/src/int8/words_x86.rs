//! The instructions of AVX-512 with VNNI, and of AVX2.

use std::arch::x86_64::*;

use super::words::{Block, LANES, Task, Words};

/// AVX-512 with VNNI, on a machine that has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Vnni(());

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

// SAFETY of all blocks below: a `Vnni` exists only where `detect` found the
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
            // High halves: those of the odd lanes are in their place.
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
            _mm512_shuffle_epi8(bytes, _mm512_broadcast_i32x4(interleaving()))
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

/// For a byte shuffle of 128 bits: the transposition of 4x4 bytes.
#[inline(always)]
fn interleaving() -> __m128i {
    // SAFETY: any 16 bytes are a vector.
    unsafe { std::mem::transmute([0u8, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15]) }
}

/// AVX2, on a machine that has it: a vector is two of 8 words.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx2(());

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

/// The expression for both halves. A closure would be a function without AVX2.
macro_rules! halves {
    ($h:ident => $half:expr) => {{
        // SAFETY: an `Avx2` exists only where `detect` found the instructions, and
        // references are valid for the bytes of their type.
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
    fn load(self, block: &Block) -> Self::Word {
        halves!(h => _mm256_loadu_si256(block.0[8 * h..8 * h + 8].as_ptr().cast()))
    }

    #[inline(always)]
    fn load_i32(self, values: &[i32; LANES]) -> Self::Word {
        halves!(h => _mm256_loadu_si256(values[8 * h..8 * h + 8].as_ptr().cast()))
    }

    #[inline(always)]
    fn store(self, word: Self::Word, block: &mut Block) {
        halves!(h => _mm256_storeu_si256(block.0[8 * h..8 * h + 8].as_mut_ptr().cast(), word[h]));
    }

    #[inline(always)]
    fn dot(self, sum: Self::Word, bytes: Self::Word, weights: Self::Word) -> Self::Word {
        // vpmaddubsw would saturate: two products of 255 · 127 exceed 16 bits. So
        // bytes are widened, those of even places and those of odd.
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
    fn max_bytes(self, a: Self::Word, b: Self::Word) -> Self::Word {
        halves!(h => _mm256_max_epu8(a[h], b[h]))
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
        // SAFETY: as for `halves`.
        unsafe {
            let shorts = _mm256_packs_epi32(word[0], word[1]);
            let ordered = _mm256_permute4x64_epi64::<0b11_01_10_00>(shorts);
            let (low, high) = (_mm256_castsi256_si128(ordered), _mm256_extracti128_si256::<1>(ordered));
            _mm_storeu_si128(bytes.as_mut_ptr().cast(), _mm_packus_epi16(low, high));
        }
    }

    #[inline(always)]
    fn funnel(self, low: Self::Word, high: Self::Word, skip: usize) -> Self::Word {
        if skip == 0 {
            return low;
        }
        halves!(h => {
            let count = 8 * (skip as i32 & 3);
            let (right, left) = (_mm_cvtsi32_si128(count), _mm_cvtsi32_si128(32 - count));
            _mm256_or_si256(_mm256_srl_epi32(low[h], right), _mm256_sll_epi32(high[h], left))
        })
    }

    #[inline(always)]
    fn select(self, mask: Self::Word, a: Self::Word, b: Self::Word) -> Self::Word {
        halves!(h => {
            _mm256_or_si256(_mm256_and_si256(mask[h], a[h]), _mm256_andnot_si256(mask[h], b[h]))
        })
    }

    #[inline(always)]
    fn transpose(self, rows: &mut [Self::Word; LANES]) {
        let words: &mut [[u32; LANES]; LANES] = {
            // SAFETY: both are 16 · 64 bytes without padding, valid for any bits.
            unsafe { &mut *std::ptr::from_mut(rows).cast() }
        };
        for row in 0..LANES {
            for column in 0..row {
                let value = words[row][column];
                words[row][column] = words[column][row];
                words[column][row] = value;
            }
        }
    }
}
