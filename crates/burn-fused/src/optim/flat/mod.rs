//! Optimizers over flat slices: one pass over a parameter, its gradient and its moments.
//!
//! Use this module in training loops that have weights and gradients as slices, for example in buckets whose
//! gradients an all-reduce has averaged. The optimizers of [`optim`](super) make the same updates on Burn's
//! tensors.
//!
//! The method `rule` of an optimizer's options ([`AdamOptions`], [`SgdOptions`], [`RmspropOptions`]) returns
//! the rule of a step, and [`update`] applies the rule to one parameter. [`LambOptions::update`] updates a
//! parameter by LAMB. Moments start at zero. Before the update, [`add_penalties`] adds the gradients of
//! penalties, and [`square_sum`] and [`scale`] clip gradients by their norm.
//!
//! ```
//! use burn_fused::optim::flat::{self, AdamOptions};
//!
//! let mut weights = vec![0.5; 1000];
//! let [mut first, mut second] = [vec![0.0; 1000], vec![0.0; 1000]];
//! for step in 1..=3 {
//!     // The averaged gradients of this step, in a bucket.
//!     let mut averaged = vec![0.25; 1000];
//!     // The slope of 1e-4 * sum w^2, which is part of the loss.
//!     flat::add_penalties(0.0, 1e-4, &weights, &mut averaged);
//!     // Clip gradients to norm 1.
//!     let norm = flat::square_sum(&averaged).sqrt();
//!     if norm > 1.0 {
//!         flat::scale(&mut averaged, (1.0 / norm) as f32);
//!     }
//!     let adam = AdamOptions { lr: 0.01, ..AdamOptions::default() };
//!     flat::update(adam.rule(step), &mut weights, &averaged, [&mut first, &mut second]);
//! }
//! assert!(weights.iter().all(|weight| (weight - 0.47).abs() < 1e-4));
//! ```
//!
//! The arithmetic is that of `torch.optim`: the constants of a step are computed in f64, everything else
//! element by element in f32. Elements are independent of each other, so a result has the same bits on every
//! SIMD level and on any number of threads.

mod gradients;
mod lamb;
mod rules;
#[cfg(test)]
mod tests;

pub use gradients::{add_penalties, scale, square_sum};
pub use lamb::LambOptions;
pub use rules::{AdamOptions, Decay, RmspropOptions, SgdOptions};

use crate::kernels::simd::{Kernel, Lanes, Level};
use crate::runtime::threads::{each, threads_for};

/// The update rule of a step, for weights with `M` moments.
///
/// [`AdamOptions::rule`], [`SgdOptions::rule`] and [`RmspropOptions::rule`] return rules. A program can also
/// implement its own rule:
///
/// ```
/// use burn_fused::optim::flat::{self, UpdateRule};
///
/// /// Sign descent (Bernstein et al., 2018) with momentum.
/// #[derive(Clone, Copy)]
/// struct Signum {
///     lr: f32,
///     momentum: f32,
/// }
///
/// impl UpdateRule<1> for Signum {
///     #[inline(always)]
///     fn update(self, weight: f32, gradient: f32, [velocity]: [f32; 1]) -> (f32, [f32; 1]) {
///         let velocity = velocity * self.momentum + gradient * (1.0 - self.momentum);
///         (weight - self.lr * velocity.signum(), [velocity])
///     }
/// }
///
/// let (mut weights, mut velocity) = ([1.0, 2.0], [0.0; 2]);
/// flat::update(Signum { lr: 0.5, momentum: 0.9 }, &mut weights, &[3.0, -4.0], [&mut velocity]);
/// assert_eq!(weights, [0.5, 2.5]);
/// ```
pub trait UpdateRule<const M: usize>: Copy + Send + Sync {
    /// Returns one weight and its moments after the step.
    ///
    /// [`update`] compiles its loop for each SIMD level. This method, and all functions that it calls, must
    /// therefore be `#[inline(always)]`.
    fn update(self, weight: f32, gradient: f32, moments: [f32; M]) -> (f32, [f32; M]);

    /// Updates slices of the same length with the instructions of `level`. The default works for every rule.
    fn pass(self, level: Level, weights: &mut [f32], gradients: &[f32], moments: [&mut [f32]; M]) {
        pass(self, level, weights, gradients, moments);
    }
}

#[inline(always)]
fn pass<const M: usize>(
    rule: impl UpdateRule<M>,
    level: Level,
    weights: &mut [f32],
    gradients: &[f32],
    moments: [&mut [f32]; M],
) {
    level.run(Pass { rule, weights, gradients, moments });
}

/// Defines [`UpdateRule::pass`] as a call of `$pass`, a function of this crate, for a rule with `$moments`
/// moments. The default method is generic, so it would be compiled with the settings of the user's crate,
/// perhaps without optimization.
macro_rules! compiled_here {
    ($moments:literal, $pass:path) => {
        #[inline(never)]
        fn pass(self, level: Level, weights: &mut [f32], gradients: &[f32], moments: [&mut [f32]; $moments]) {
            $pass(self, level, weights, gradients, moments);
        }
    };
}
use compiled_here;

/// Updates the weights of one parameter, and their moments, at [`Level::current`].
///
/// With many weights, the threads of operators ([`use_threads`](crate::use_threads)) share the work.
///
/// # Panics
/// If the slices differ in length.
pub fn update<const M: usize>(
    rule: impl UpdateRule<M>,
    weights: &mut [f32],
    gradients: &[f32],
    moments: [&mut [f32]; M],
) {
    let lens = moments.each_ref().map(|moment| moment.len());
    assert!(
        lens.into_iter().chain([gradients.len()]).all(|len| len == weights.len()),
        "{} weights have {} gradients and {lens:?} moments, but the numbers must be equal",
        weights.len(),
        gradients.len()
    );
    share(Level::current(), rule, weights, gradients, moments);
}

/// Number of values in an item for a thread.
const PART: usize = 1 << 14;

/// Updates the weights on the threads of operators.
fn share<const M: usize>(
    level: Level,
    rule: impl UpdateRule<M>,
    weights: &mut [f32],
    gradients: &[f32],
    moments: [&mut [f32]; M],
) {
    let time = weights.len() / 2;
    if threads_for(time) == 1 {
        return rule.pass(level, weights, gradients, moments);
    }
    let mut moments = moments.map(|moment| moment.chunks_mut(PART));
    let parts = weights.chunks_mut(PART).zip(gradients.chunks(PART)).map(|parts| {
        (parts, moments.each_mut().map(|moment| moment.next().expect("as long as the weights")))
    });
    each(time, parts, |((weights, gradients), moments)| rule.pass(level, weights, gradients, moments));
}

struct Pass<'a, R, const M: usize> {
    rule: R,
    weights: &'a mut [f32],
    gradients: &'a [f32],
    moments: [&'a mut [f32]; M],
}

impl<R: UpdateRule<M>, const M: usize> Kernel for Pass<'_, R, M> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        let Self { rule, weights, gradients, moments } = self;
        // The slices have one length, so the loop has no bounds checks and is vectorised.
        let len = weights.len();
        let (gradients, mut moments) = (&gradients[..len], moments.map(|moment| &mut moment[..len]));
        for at in 0..len {
            let mut now = [0.0; M];
            for (now, moment) in now.iter_mut().zip(&moments) {
                *now = moment[at];
            }
            (weights[at], now) = rule.update(weights[at], gradients[at], now);
            for (now, moment) in now.iter().zip(&mut moments) {
                moment[at] = *now;
            }
        }
    }
}
