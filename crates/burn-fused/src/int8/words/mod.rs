//! The instructions that integer kernels need, for each SIMD level. They work on vectors of 16 words of four
//! bytes. All levels compute the same bits.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod portable;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod vnni;

use bytemuck::{Pod, Zeroable};

use crate::kernels::simd::Level;

#[cfg(target_arch = "x86_64")]
use avx2::Avx2;
use portable::Portable;
#[cfg(target_arch = "x86_64")]
use vnni::Vnni;

/// Number of words in a vector, and of images in its lanes.
pub(super) const LANES: usize = 16;

/// Sixteen words in memory.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct Block(pub [u32; LANES]);

impl Block {
    /// Fills all bytes with `byte`.
    pub fn splat(byte: u8) -> Self {
        Self([u32::from_ne_bytes([byte; 4]); LANES])
    }
}

/// The instructions of a SIMD level.
pub(super) trait Words: Copy {
    /// A vector of sixteen words. Each word is an i32, or four bytes in memory order.
    type Word: Pod;

    fn splat(self, value: i32) -> Self::Word;
    #[inline(always)]
    fn load(self, block: &Block) -> Self::Word {
        bytemuck::cast(*block)
    }
    #[inline(always)]
    fn store(self, word: Self::Word, block: &mut Block) {
        *block = bytemuck::cast(word);
    }
    /// Adds to each i32 of `sum` the products of the four u8 of `bytes` with the four i8 of `weights`.
    fn dot(self, sum: Self::Word, bytes: Self::Word, weights: Self::Word) -> Self::Word;
    /// Returns the larger i32 in each lane.
    fn max(self, a: Self::Word, b: Self::Word) -> Self::Word;
    /// Returns the smaller i32 in each lane.
    fn min(self, a: Self::Word, b: Self::Word) -> Self::Word;
    /// Shifts left, with a count for each lane.
    fn shift_left(self, a: Self::Word, count: Self::Word) -> Self::Word;
    /// Computes the scaling of the fixed-point formula: adds `addend` to the high 32 bits of
    /// `sum · multiplier`, and shifts right by `right`. The results are i32 and not clamped yet.
    fn scale(
        self,
        sum: Self::Word,
        multiplier: Self::Word,
        addend: Self::Word,
        right: Self::Word,
    ) -> Self::Word;
    /// Clamps each i32 to u8. The values of `channels[i]` become byte `i` of each word.
    fn pack(self, channels: [Self::Word; 4]) -> Self::Word;
    /// Clamps each i32 to u8, and stores the results in `bytes`.
    fn store_bytes(self, word: Self::Word, bytes: &mut [u8; LANES]);
    /// Transposes 16x16 words.
    #[inline(always)]
    fn transpose(self, rows: &mut [Self::Word; LANES]) {
        let mut before = [Block([0; LANES]); LANES];
        for (block, &row) in before.iter_mut().zip(&*rows) {
            self.store(row, block);
        }
        for (i, row) in rows.iter_mut().enumerate() {
            *row = self.load(&Block(before.map(|block| block.0[i])));
        }
    }
}

/// Work that is compiled for each set of instructions. `run` and the functions that it calls in loops must be
/// `#[inline(always)]`.
pub(super) trait Task {
    fn run<W: Words>(self, words: W);
}

/// Instructions that this machine supports.
#[derive(Debug, Clone, Copy)]
pub(super) enum Instructions {
    #[cfg(target_arch = "x86_64")]
    Vnni(Vnni),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    Portable,
}

impl Instructions {
    /// Returns the instructions of a SIMD level. At AVX-512 on a processor without VNNI, returns the
    /// instructions of AVX2.
    pub fn for_level(level: Level) -> Self {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 if let Some(vnni) = Vnni::detect() => Self::Vnni(vnni),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Avx2 if let Some(avx2) = Avx2::detect() => Self::Avx2(avx2),
            _ => Self::Portable,
        }
    }

    pub fn run<T: Task>(self, task: T) {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Vnni(vnni) => vnni.run(task),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(avx2) => avx2.run(task),
            Self::Portable => task.run(Portable),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Vnni(_) => "avx512-vnni",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
            Self::Portable => "portable",
        }
    }
}
