//! SIMD levels: the instruction sets that operators are compiled for.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

use serde::{Deserialize, Serialize};

use super::Lanes;

/// A set of vector instructions. One level computes the same bits on every machine that supports it; two
/// levels may round differently. Products in bf16 also depend on
/// [`Bf16Products`](crate::precision::Bf16Products).
///
/// Levels are ordered from narrow to wide: `Portable < Neon < Avx2 < Avx512`.
///
/// ```
/// use burn_fused::simd::Level;
///
/// let mine = Level::current();
/// assert!(Level::available().any(|level| level == mine));
/// // Processes that train together agree on what all of them have.
/// let shared = Level::shared(&[mine, Level::Portable]);
/// shared.use_level();
/// assert_eq!(Level::current(), Level::Portable);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Level {
    /// The instructions that every machine of the target has: 4 lanes.
    Portable = 1,
    /// NEON of aarch64: 4 lanes, fused multiply-add.
    Neon = 2,
    /// AVX2 of x86-64: 8 lanes, fused multiply-add.
    Avx2 = 3,
    /// AVX-512 of x86-64: 16 lanes, fused multiply-add.
    Avx512 = 4,
}

/// A loop that is written once for all SIMD levels.
///
/// [`Level::run`] is compiled once for each level. `run` and all functions that it calls in its loops must be
/// `#[inline(always)]`, because only inlined code is compiled with the level's instructions. With these
/// instructions, the compiler vectorises scalar loops over slices.
pub(crate) trait Kernel {
    /// What `run` returns.
    type Output;
    /// Runs the loop with the instructions of `simd`.
    fn run<S: Lanes>(self, simd: S) -> Self::Output;
}

/// Defines a [`Kernel`] as a function `fn name<S>(simd: S, arguments) -> output`. Callers pass a [`Level`] in
/// the place of `simd`. The function may have one constant parameter, `<S, const N: usize>`, if an argument's
/// type contains it. For more than six arguments, implement [`Kernel`] for a struct instead: its fields name
/// the arguments.
macro_rules! kernel {
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident<$lanes:ident $(, const $size:ident: usize)?>(
            $simd:ident: $_:ident $(, $argument:ident: $type:ty)* $(,)?
        ) $(-> $output:ty)? $body:block
    ) => {
        $(#[$meta])*
        #[inline(always)]
        #[allow(unused_parens, reason = "without an output, it is ()")]
        $vis fn $name$(<const $size: usize>)?(
            level: $crate::kernels::simd::Level,
            $($argument: $type),*
        ) $(-> $output)? {
            struct Arguments<T>(T);

            impl$(<const $size: usize>)? $crate::kernels::simd::Kernel for Arguments<($($type,)*)> {
                type Output = ($($output)?);

                #[inline(always)]
                fn run<$lanes: $crate::kernels::simd::Lanes>(self, $simd: $lanes) -> Self::Output {
                    let Self(($($argument,)*)) = self;
                    $body
                }
            }

            level.run(Arguments(($($argument,)*)))
        }
    };
}
pub(crate) use kernel;

/// The level in use. The value is 0 until a level is detected or selected.
static CURRENT: AtomicU8 = AtomicU8::new(0);

impl Level {
    /// All levels, widest first.
    pub const ALL: [Self; 4] = [Self::Avx512, Self::Avx2, Self::Neon, Self::Portable];

    /// The name of the level in options and files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// The levels that this machine supports, widest first.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|level| level.is_available())
    }

    /// The level that operators use: the widest of the machine, unless [`use_level`](Self::use_level)
    /// selected another.
    pub fn current() -> Self {
        #[cfg(test)]
        if let Some(level) = super::held::held() {
            return level;
        }
        let current = CURRENT.load(Ordering::Relaxed);
        Self::ALL.into_iter().find(|&level| level as u8 == current).unwrap_or_else(Self::detect)
    }

    /// Selects the widest level of the machine. Cold, so that this code stays out of operators, which inline
    /// [`current`](Self::current).
    #[cold]
    fn detect() -> Self {
        let widest = Self::available().next().unwrap_or(Self::Portable);
        CURRENT.store(widest as u8, Ordering::Relaxed);
        widest
    }

    /// Makes all later operators of this process use `self`, or [`Portable`](Self::Portable) if the machine
    /// does not support it.
    pub fn use_level(self) {
        let level = if self.is_available() { self } else { Self::Portable };
        CURRENT.store(level as u8, Ordering::Relaxed);
    }

    /// Returns the widest level that all machines support. `widest` has the widest level of each machine.
    pub fn shared(widest: &[Self]) -> Self {
        // On x86, a wider level includes the narrower ones. NEON shares only the portable level with x86.
        let arm = widest.contains(&Self::Neon);
        let mixed = arm && widest.iter().any(|&level| level != Self::Neon);
        if mixed { Self::Portable } else { widest.iter().copied().min().unwrap_or(Self::Portable) }
    }

    fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => pulp::x86::V3::try_new().is_some(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => pulp::x86::V4::try_new().is_some(),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => pulp::aarch64::Neon::try_new().is_some(),
            _ => false,
        }
    }

    /// Returns the number of f32 values in a vector of this level.
    pub(crate) fn lanes(self) -> usize {
        struct Count;
        impl Kernel for Count {
            type Output = usize;

            #[inline(always)]
            fn run<S: Lanes>(self, _simd: S) -> usize {
                S::F32_LANES
            }
        }
        self.run(Count)
    }

    /// Runs `kernel` with this level's instructions. If the machine does not support them, runs it with the
    /// instructions of [`Portable`](Self::Portable).
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 if let Some(simd) = pulp::x86::V4::try_new() => {
                simd.vectorize(Call { kernel, simd })
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 if let Some(simd) = pulp::x86::V3::try_new() => simd.vectorize(Call { kernel, simd }),
            #[cfg(target_arch = "aarch64")]
            Self::Neon if let Some(simd) = pulp::aarch64::Neon::try_new() => {
                simd.vectorize(Call { kernel, simd })
            }
            _ => kernel.run(pulp::Scalar128b),
        }
    }
}

/// A kernel and the instructions of a level. pulp calls it in a function that enables these instructions.
struct Call<K, S> {
    kernel: K,
    simd: S,
}

impl<K: Kernel, S: Lanes> pulp::NullaryFnOnce for Call<K, S> {
    type Output = K::Output;

    #[inline(always)]
    fn call(self) -> K::Output {
        self.kernel.run(self.simd)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shared_level_is_the_widest_that_all_machines_support() {
        use Level::{Avx2, Avx512, Neon, Portable};
        assert_eq!(Level::shared(&[Avx512, Avx2, Avx512]), Avx2);
        assert_eq!(Level::shared(&[Avx512, Portable]), Portable);
        assert_eq!(Level::shared(&[Neon, Neon]), Neon);
        assert_eq!(Level::shared(&[Neon, Avx512]), Portable);
        assert!(Level::available().any(|level| level == Portable));
    }

    #[cfg(target_arch = "aarch64")]
    #[test]
    fn neon_is_the_level_of_aarch64() {
        assert_eq!(Level::available().next(), Some(Level::Neon));
    }
}
