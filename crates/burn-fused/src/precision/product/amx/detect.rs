//! Whether tiles can be used.

#[cfg(target_os = "linux")]
use std::arch::x86_64::{__cpuid, __cpuid_count};

use super::{BLOCK, Matrix, adder, model, product};

/// Whether the processor has the tiles, and Linux permits them to this process, which has to ask (its
/// documentation, arch/x86/xstate.rst). It refuses where it does not save them.
#[cfg(target_os = "linux")]
pub fn is_permitted() -> bool {
    /// Bits of leaf 7's EDX: AMX-BF16 and AMX-TILE.
    const AMX: u32 = 1 << 22 | 1 << 24;
    /// `ARCH_REQ_XCOMP_PERM`, and the number of the tiles' data among the processor's states.
    const REQUEST: libc::c_int = 0x1023;
    const TILE_DATA: libc::c_ulong = 18;
    __cpuid(0).eax >= 7
        && __cpuid_count(7, 0).edx & AMX == AMX
        // SAFETY: changes nothing but the permissions of this process.
        && unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) } == 0
}

/// How other systems permit them is not known here.
#[cfg(not(target_os = "linux"))]
pub fn is_permitted() -> bool {
    false
}

/// Whether a product with tiles is that of the model in software, bit by bit: its values are small
/// integers, whose sums are exact in any order.
///
/// # Safety
/// The instructions exist and are permitted, or are emulated.
pub unsafe fn is_right() -> bool {
    let [rows, inner, columns] = [BLOCK + 3, 45, BLOCK + 1];
    // bf16 is the upper half of an f32.
    let numbers = |count: usize, by: usize| -> Vec<u16> {
        (0..count).map(|at| (((at * by % 17) as f32 - 8.0).to_bits() >> 16) as u16).collect()
    };
    let (left, right) = (numbers(rows * inner, 7), numbers(inner * columns, 5));
    let [a, b] = [Matrix::new(&left, [rows, inner]), Matrix::new(&right, [inner, columns])];
    // SAFETY: as of this function.
    product(a, b, || unsafe { adder() }) == product(a, b, || model)
}
