//! Which vector instructions the operators use.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

use serde::{Deserialize, Serialize};

use super::lanes::Lanes;

/// A set of vector instructions. Results of one level are the same bits on
/// every machine that has it; those of two levels differ in rounding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Level {
    /// What the compiler makes of plain Rust; on every machine.
    Portable = 1,
    /// aarch64's 4 lanes.
    Neon = 2,
    /// x86's 8 lanes and fused multiply-add.
    Avx2 = 3,
    /// x86's 16 lanes.
    Avx512 = 4,
}

/// Work that is written once for every level.
pub trait Kernel {
    /// What comes of it.
    type Output;
    /// Does it, inlined into a function that may use the level's instructions.
    fn run<S: Lanes>(self, simd: S) -> Self::Output;
}

/// The level in use, or 0 before anybody asked.
static CURRENT: AtomicU8 = AtomicU8::new(0);

impl Level {
    const ALL: [Self; 4] = [Self::Avx512, Self::Avx2, Self::Neon, Self::Portable];

    /// The levels of this machine, the widest first.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|level| level.is_available())
    }

    /// The level that operators use: the machine's widest, unless
    /// [`use_level`](Self::use_level) chose another.
    pub fn current() -> Self {
        #[cfg(test)]
        if let Some(level) = HELD.get() {
            return level;
        }
        let current = CURRENT.load(Ordering::Relaxed);
        Self::ALL.into_iter().find(|&level| level as u8 == current).unwrap_or_else(|| {
            let widest = Self::available().next().unwrap_or(Self::Portable);
            CURRENT.store(widest as u8, Ordering::Relaxed);
            widest
        })
    }

    /// Has all later operators of this process use `self`, or portable code
    /// where the machine lacks it.
    pub fn use_level(self) {
        let level = if self.is_available() { self } else { Self::Portable };
        CURRENT.store(level as u8, Ordering::Relaxed);
    }

    /// Has this test's thread alone use `self`, until what is returned is
    /// dropped. Other tests that run at the same time keep theirs.
    #[cfg(test)]
    pub(crate) fn hold(self) -> Held {
        assert!(self.is_available(), "this machine lacks {self}");
        Held { before: HELD.replace(Some(self)) }
    }

    /// The widest level that machines with these widest levels share.
    pub fn shared(widest: &[Self]) -> Self {
        // x86's levels contain one another; aarch64's is no part of them.
        let arm = widest.contains(&Self::Neon);
        let mixed = arm && widest.iter().any(|&level| level != Self::Neon);
        if mixed { Self::Portable } else { widest.iter().copied().min().unwrap_or(Self::Portable) }
    }

    #[cfg(target_arch = "x86_64")]
    fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            Self::Neon => false,
            Self::Avx2 => pulp::x86::V3::try_new().is_some(),
            Self::Avx512 => pulp::x86::V4::try_new().is_some(),
        }
    }

    #[cfg(target_arch = "aarch64")]
    fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            Self::Neon => pulp::aarch64::Neon::try_new().is_some(),
            Self::Avx2 | Self::Avx512 => false,
        }
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn is_available(self) -> bool {
        self == Self::Portable
    }

    /// Runs `kernel` with this level's instructions, or portably where the
    /// machine lacks them.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[cfg(target_arch = "x86_64")]
        {
            if self == Self::Avx512
                && let Some(simd) = pulp::x86::V4::try_new()
            {
                return simd.vectorize(Call { kernel, simd });
            }
            if self == Self::Avx2
                && let Some(simd) = pulp::x86::V3::try_new()
            {
                return simd.vectorize(Call { kernel, simd });
            }
        }
        #[cfg(target_arch = "aarch64")]
        if self == Self::Neon
            && let Some(simd) = pulp::aarch64::Neon::try_new()
        {
            return simd.vectorize(Call { kernel, simd });
        }
        kernel.run(pulp::Scalar128b)
    }
}

#[cfg(test)]
thread_local! {
    /// The level that a test holds on its thread.
    static HELD: std::cell::Cell<Option<Level>> = const { std::cell::Cell::new(None) };
}

/// The level of [`Level::hold`]; dropping it, also by a panic, restores the
/// level before.
#[cfg(test)]
#[must_use = "the level ends with it"]
pub(crate) struct Held {
    before: Option<Level>,
}

#[cfg(test)]
impl Drop for Held {
    fn drop(&mut self) {
        HELD.set(self.before);
    }
}

/// A kernel and its instructions: what pulp calls where they are enabled.
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
        f.pad(match self {
            Self::Portable => "portable",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_share_the_narrowest_of_their_levels() {
        use Level::{Avx2, Avx512, Neon, Portable};
        assert_eq!(Level::shared(&[Avx512, Avx2, Avx512]), Avx2);
        assert_eq!(Level::shared(&[Avx512, Portable]), Portable);
        assert_eq!(Level::shared(&[Neon, Neon]), Neon);
        assert_eq!(Level::shared(&[Neon, Avx512]), Portable);
        assert!(Level::available().any(|level| level == Portable));
    }

    #[test]
    fn a_test_leaves_the_level_as_it_found_it() {
        let before = Level::current();
        for level in Level::available() {
            let outer = level.hold();
            assert_eq!(Level::current(), level);
            let panicked = std::panic::catch_unwind(|| {
                let _inner = Level::Portable.hold();
                assert_eq!(Level::current(), Level::Portable);
                std::panic::resume_unwind(Box::new("a test that fails"));
            });
            assert!(panicked.is_err());
            assert_eq!(Level::current(), level, "after a panic");
            let elsewhere = std::thread::spawn(Level::current).join().expect("it only asks");
            assert_eq!(elsewhere, before, "another thread");
            drop(outer);
            assert_eq!(Level::current(), before);
        }
    }
}
