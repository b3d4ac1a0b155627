//! Speed of the machine: a large matrix product on the compute backend and the threads
//! of the run.

use std::time::Instant;

use burn::tensor::{Device, Distribution, Tensor};

use run_report::allreduce::median_of;

/// Rows and columns of both factors: 4 MB each in f32, so that the overheads of a call
/// and of a kernel's edges are negligible.
pub const SIDE: usize = 1024;

/// Times a product of two f32 matrices of `SIDE` x `SIDE`.
pub struct Product {
    factors: [Tensor<2>; 2],
    seconds: Vec<f64>,
}

impl Product {
    /// Draws the factors, and multiplies them once as a warm-up.
    pub fn new(device: &Device) -> Self {
        let draw = || Tensor::random([SIDE, SIDE], Distribution::Uniform(-1.0, 1.0), device);
        let mut product = Self { factors: [draw(), draw()], seconds: Vec::new() };
        product.measure(1);
        product.seconds.clear();
        product
    }

    /// Multiplies `times` times.
    pub fn measure(&mut self, times: usize) {
        for _ in 0..times {
            let [a, b] = self.factors.clone();
            let began = Instant::now();
            let product = a.matmul(b);
            // Reading an element waits for the result on asynchronous backends.
            let corner = product.slice([0..1, 0..1]).into_scalar::<f32>();
            self.seconds.push(began.elapsed().as_secs_f64());
            debug_assert!(corner.is_finite());
        }
    }

    /// Floating-point operations per second, median of all products.
    pub fn flop_per_second(&self) -> f64 {
        let flop = 2.0 * (SIDE as f64).powi(3);
        median_of(self.seconds.clone()).map_or(0.0, |seconds| flop / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_speed_of_a_product_is_plausible() {
        let mut product = Product::new(&Device::flex());
        product.measure(1);
        let speed = product.flop_per_second();
        // No machine is too slow, and no unit is wrong by a thousand.
        assert!(speed > 0.0 && speed < 1e14, "{speed}");
    }
}
