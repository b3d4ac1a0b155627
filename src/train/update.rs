//! Weight update from averaged gradients: penalties, clipping, optimizer.
//!
//! Every rank does the same computation on the same bits, so weights stay equal
//! without communication.

use std::ops::Range;

use super::RunConfig;
use super::optimizer::{Optimizer, Rate};
use super::precision::Scale;
use burn_fused::simd::{Kernel, Lanes, Level};
use burn_mpi::{CommError, GradientSync, ParamLayout};

/// Mutable gradients by parameter.
pub trait AveragedGradients {
    /// The gradient of parameter `param`, by its index in visit order.
    ///
    /// # Errors
    /// If a parameter has no gradient; it is named.
    fn gradient_mut(&mut self, param: usize) -> Result<&mut [f32], CommError>;
}

impl AveragedGradients for GradientSync {
    fn gradient_mut(&mut self, param: usize) -> Result<&mut [f32], CommError> {
        Self::gradient_mut(self, param)
    }
}

/// The updater. The order is that of a PyTorch program which adds `l1 * sum
/// |w|` and `l2 * sum w^2` over all its parameters to the loss, then calls
/// `clip_grad_norm_`, then its optimizer.
#[derive(Debug, Clone)]
pub struct Updater {
    /// The optimizer.
    pub optimizer: Optimizer,
    l1: f32,
    l2: f32,
    clip_norm: Option<f64>,
}

impl Updater {
    /// The updater of a run with `length` parameters, buffers included.
    pub fn new(options: &RunConfig, length: usize) -> Self {
        let recipe = &options.recipe;
        let momentum = options.base_rate().momentum > 0.0;
        Self {
            optimizer: Optimizer::new(recipe.optimizer, options.recipe.weight_decay, momentum, length),
            l1: recipe.l1 as f32,
            l2: recipe.l2 as f32,
            clip_norm: recipe.clip_norm,
        }
    }

    /// The parameters to update: indices in visit order, and offsets in the
    /// flat buffer.
    pub fn places(layout: &ParamLayout) -> Vec<(usize, Range<usize>)> {
        let specs = layout.specs().iter().enumerate().filter(|(_, spec)| spec.trainable);
        specs.map(|(index, spec)| (index, spec.range.clone())).collect()
    }

    /// Updates `params` at `places` by `gradients`, which are overwritten.
    ///
    /// # Errors
    /// If a parameter has no gradient; it is named. `params` must not be used
    /// then.
    pub fn update(
        &mut self,
        places: &[(usize, Range<usize>)],
        params: &mut [f32],
        gradients: &mut impl AveragedGradients,
        rate: Rate,
    ) -> Result<(), CommError> {
        if self.l1 > 0.0 || self.l2 > 0.0 {
            for (param, range) in places {
                let (weights, grads) = (&params[range.clone()], gradients.gradient_mut(*param)?);
                Level::current().run(Penalise { weights, grads, l1: self.l1, l2: self.l2 });
            }
        }
        if let Some(most) = self.clip_norm {
            // Summed in a fixed order, so that ranks get the same bits.
            let mut squares = 0.0;
            for (param, _) in places {
                squares += Level::current().run(SquareSum { values: gradients.gradient_mut(*param)? });
            }
            let norm = f64::sqrt(squares);
            let factor = most / (norm + 1e-6);
            if factor < 1.0 {
                for (param, _) in places {
                    let (values, factor) = (gradients.gradient_mut(*param)?, factor as f32);
                    Level::current().run(Scale { values, factor });
                }
            }
        }
        self.optimizer.begin();
        for (param, range) in places {
            let (params, grads) = (&mut params[range.clone()], gradients.gradient_mut(*param)?);
            self.optimizer.apply(rate, range.start, params, grads);
        }
        Ok(())
    }
}

struct Penalise<'a> {
    weights: &'a [f32],
    grads: &'a mut [f32],
    l1: f32,
    l2: f32,
}

impl Kernel for Penalise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        let Self { l1, l2, .. } = self;
        for (grad, &weight) in self.grads.iter_mut().zip(self.weights) {
            // The derivative of |w| at 0 is 0, as in PyTorch.
            let sign = if weight > 0.0 { l1 } else { 0.0 } - if weight < 0.0 { l1 } else { 0.0 };
            *grad += sign + 2.0 * l2 * weight;
        }
    }
}

struct SquareSum<'a> {
    values: &'a [f32],
}

impl Kernel for SquareSum<'_> {
    type Output = f64;

    /// Sixteen partial sums, at every SIMD level.
    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) -> f64 {
        let mut sums = [0.0f64; 16];
        let (whole, rest) = self.values.as_chunks::<16>();
        for chunk in whole {
            for (sum, &value) in sums.iter_mut().zip(chunk) {
                *sum += f64::from(value) * f64::from(value);
            }
        }
        for (sum, &value) in sums.iter_mut().zip(rest) {
            *sum += f64::from(value) * f64::from(value);
        }
        sums.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::Rule;

    struct Given(Vec<Vec<f32>>);

    impl AveragedGradients for Given {
        fn gradient_mut(&mut self, param: usize) -> Result<&mut [f32], CommError> {
            Ok(&mut self.0[param])
        }
    }

    /// Weights after a plain gradient descent step of size 1: the decrease is
    /// the gradient that the optimizer received.
    fn taken(l1: f32, l2: f32, clip_norm: Option<f64>, weights: [f32; 4], gradients: [f32; 4]) -> [f32; 4] {
        let optimizer = Optimizer::new(Rule::Sgd, 0.0, false, 4);
        let mut updater = Updater { optimizer, l1, l2, clip_norm };
        let mut params = weights;
        let mut given = Given(vec![gradients[..1].to_vec(), vec![9.0; 3], gradients[1..].to_vec()]);
        // Parameter 1 is a buffer, which gets no gradient.
        let places = [(0, 0..1), (2, 1..4)];
        updater.update(&places, &mut params, &mut given, Rate { lr: 1.0, momentum: 0.0 }).unwrap();
        assert_eq!(given.0[1], [9.0; 3], "untouched");
        std::array::from_fn(|at| weights[at] - params[at])
    }

    #[test]
    fn penalties_are_the_slopes_of_what_they_add_to_the_loss() {
        let weights = [2.0, -4.0, 0.0, 8.0];
        assert_eq!(taken(0.5, 0.0, None, weights, [0.0; 4]), [0.5, -0.5, 0.0, 0.5]);
        assert_eq!(taken(0.0, 0.25, None, weights, [1.0; 4]), [2.0, -1.0, 1.0, 5.0]);
    }

    #[test]
    fn gradients_are_clipped_by_the_norm_over_all_parameters() {
        let gradients = [3.0, 0.0, 4.0, 0.0];
        assert_eq!(taken(0.0, 0.0, Some(5.1), [0.0; 4], gradients), gradients, "below the norm");
        let clipped = taken(0.0, 0.0, Some(1.0), [0.0; 4], gradients);
        for (found, expected) in clipped.into_iter().zip([0.6, 0.0, 0.8, 0.0]) {
            assert!((found - expected).abs() < 1e-6, "{clipped:?}");
        }
        // Penalties are included: without them the norm is 0.
        let clipped = taken(1.0, 0.0, Some(1.0), [1.0; 4], [0.0; 4]);
        assert!(clipped.iter().all(|x| (x - 0.5).abs() < 1e-6), "{clipped:?}");
    }

    #[test]
    fn sums_of_squares_are_the_same_bits_with_any_instructions() {
        let values: Vec<f32> = (0..1003).map(|i| ((i * 7919) % 1000) as f32 / 300.0 - 1.7).collect();
        let sums: Vec<f64> =
            Level::available().map(|level| level.run(SquareSum { values: &values })).collect();
        assert!(sums.iter().all(|sum| sum.to_bits() == sums[0].to_bits()), "{sums:?}");
        let plain: f64 = values.iter().map(|&x| f64::from(x).powi(2)).sum();
        assert!((sums[0] - plain).abs() < 1e-9 * plain, "{} for {plain}", sums[0]);
    }
}
