//! Differences of gradients.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

/// The norm of the difference between two gradients, relative to the norm of the second gradient, over all
/// parameters.
pub fn difference<M: Module>(
    net: &M,
    found: &GradientsParams,
    expected: &GradientsParams,
) -> Result<f32, String> {
    struct Compare<'a> {
        found: &'a GradientsParams,
        expected: &'a GradientsParams,
        /// Sums of squares: of the difference, and of the expected gradient.
        squares: Result<[f32; 2], String>,
    }
    impl ModuleVisitor for Compare<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let (found, expected) = (self.found.get::<D>(param.id), self.expected.get::<D>(param.id));
            let (Some(found), Some(expected)) = (found, expected) else {
                self.squares = Err(format!("a parameter of shape {:?} has no gradient", param.val().dims()));
                return;
            };
            let square = |x: Tensor<D>| x.powi_scalar(2).sum().into_scalar::<f32>();
            if let Ok([apart, all]) = &mut self.squares {
                *apart += square(found - expected.clone());
                *all += square(expected);
            }
        }
    }
    let mut compare = Compare { found, expected, squares: Ok([0.0; 2]) };
    net.visit(&mut compare);
    let [apart, all] = compare.squares?;
    Ok((apart / all).sqrt())
}
