//! Kernels of dynamic models: integer sums of products, and pooling of real
//! values.

use burn_fused::simd::{Kernel, Lanes};

use super::dynamic::DynamicLayer;

/// Windows of `kernel` in `size`.
pub(super) fn windows(size: usize, kernel: usize, stride: usize) -> Option<usize> {
    (kernel > 0 && stride > 0 && size >= kernel).then(|| (size - kernel) / stride + 1)
}

/// One output channel of one image.
#[derive(Clone, Copy)]
pub(super) struct Product2d<'a> {
    pub layer: &'a DynamicLayer,
    pub output: usize,
    pub input: &'a [i32],
    /// Length of a row of the input.
    pub width: usize,
    /// Width of the output.
    pub columns: usize,
}

/// Writes the channel's sums of products.
pub(super) struct Sums<'a> {
    pub product: Product2d<'a>,
    pub sums: &'a mut [i32],
}

impl Kernel for Sums<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        let Product2d { layer, output, input, width, columns } = self.product;
        let [_, inputs, height, kernel_width] = layer.shape;
        let weights = &layer.weights[output * inputs * height * kernel_width..];
        if input.len() == inputs * height * kernel_width && kernel_width == width {
            // A window that covers the input: one long dot product.
            self.sums[0] = weights.iter().zip(input).map(|(&weight, &x)| i32::from(weight) * x).sum();
            return;
        }
        self.sums.fill(0);
        let [down, right] = layer.windows.map_or([1, 1], |windows| windows.stride);
        let plane = input.len() / inputs;
        let mut weights = weights.iter();
        for channel in 0..inputs {
            for y in 0..height {
                for x in 0..kernel_width {
                    let weight = weights.next().map_or(0, |&weight| i32::from(weight));
                    for (row, sums) in self.sums.chunks_exact_mut(columns).enumerate() {
                        let from = channel * plane + (row * down + y) * width + x;
                        if right == 1 {
                            let input = &input[from..from + columns];
                            sums.iter_mut().zip(input).for_each(|(sum, &value)| *sum += weight * value);
                        } else {
                            let input = input[from..].iter().step_by(right);
                            sums.iter_mut().zip(input).for_each(|(sum, &value)| *sum += weight * value);
                        }
                    }
                }
            }
        }
    }
}

/// Maximum of each window of each channel.
pub(super) fn max_pool(
    images: &[f32],
    [rows, columns]: [usize; 2],
    [kernel, stride]: [[usize; 2]; 2],
) -> (Vec<f32>, [usize; 2]) {
    let size = [windows(rows, kernel[0], stride[0]), windows(columns, kernel[1], stride[1])];
    let [height, width] = size.map(|size| size.expect("a model that was checked"));
    let mut pooled = Vec::with_capacity(images.len() / (rows * columns) * height * width);
    for image in images.chunks_exact(rows * columns) {
        for row in 0..height {
            for column in 0..width {
                let window = (0..kernel[0]).flat_map(|y| {
                    let from = (row * stride[0] + y) * columns + column * stride[1];
                    &image[from..from + kernel[1]]
                });
                pooled.push(window.copied().fold(f32::NEG_INFINITY, f32::max));
            }
        }
    }
    (pooled, [height, width])
}
