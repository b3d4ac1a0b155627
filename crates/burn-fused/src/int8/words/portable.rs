//! The instructions of integer kernels, in portable code.

use super::{LANES, Words};

/// Plain loops, which the compiler vectorises for the target.
#[derive(Debug, Clone, Copy)]
pub(in crate::int8) struct Portable;

#[inline(always)]
fn each(mut f: impl FnMut(usize) -> i32) -> [i32; LANES] {
    let mut word = [0; LANES];
    for (i, lane) in word.iter_mut().enumerate() {
        *lane = f(i);
    }
    word
}

impl Words for Portable {
    type Word = [i32; LANES];

    #[inline(always)]
    fn splat(self, value: i32) -> Self::Word {
        [value; LANES]
    }

    #[inline(always)]
    fn dot(self, sum: Self::Word, bytes: Self::Word, weights: Self::Word) -> Self::Word {
        each(|i| {
            let byte = |n: u32| (bytes[i] >> (8 * n)) & 0xff;
            let weight = |n: u32| (weights[i] << (24 - 8 * n)) >> 24;
            let products = [0, 1, 2, 3].map(|n| byte(n) * weight(n));
            sum[i].wrapping_add(products[0] + products[1] + products[2] + products[3])
        })
    }

    #[inline(always)]
    fn max(self, a: Self::Word, b: Self::Word) -> Self::Word {
        each(|i| a[i].max(b[i]))
    }

    #[inline(always)]
    fn min(self, a: Self::Word, b: Self::Word) -> Self::Word {
        each(|i| a[i].min(b[i]))
    }

    #[inline(always)]
    fn shift_left(self, a: Self::Word, count: Self::Word) -> Self::Word {
        each(|i| a[i] << (count[i] & 31))
    }

    #[inline(always)]
    fn scale(
        self,
        sum: Self::Word,
        multiplier: Self::Word,
        addend: Self::Word,
        right: Self::Word,
    ) -> Self::Word {
        each(|i| {
            let high = ((i64::from(sum[i]) * i64::from(multiplier[i])) >> 32) as i32;
            high.wrapping_add(addend[i]) >> (right[i] & 31)
        })
    }

    #[inline(always)]
    fn pack(self, channels: [Self::Word; 4]) -> Self::Word {
        each(|i| i32::from_ne_bytes(channels.map(|channel| channel[i].clamp(0, 255) as u8)))
    }

    #[inline(always)]
    fn store_bytes(self, word: Self::Word, bytes: &mut [u8; LANES]) {
        *bytes = word.map(|lane| lane.clamp(0, 255) as u8);
    }
}
