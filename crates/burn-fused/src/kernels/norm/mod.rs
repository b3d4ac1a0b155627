//! Batch normalisation with its epilogue, and [layer normalisation](layer_norm).
//!
//! Batch normalisation has two implementations. The first computes images, channel by channel. The second
//! computes batches with a single value for each sample and channel, row by row.

pub(crate) mod layer_norm;
mod planes;
mod rows;

use crate::kernels::epilogue::Epilogue;
use crate::kernels::simd::{Level, kernel};
use crate::runtime::memory::Buffer;

/// Sizes of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchShape {
    pub batch: usize,
    pub channels: usize,
    pub height: usize,
    /// Product of all dimensions from the fourth on.
    pub width: usize,
}

impl BatchShape {
    /// Makes the sizes from the dimensions of a tensor, `[batch, channels, ...]`. Returns `None` if there are
    /// fewer than two dimensions, or if the output after `epilogue` is empty.
    pub fn from_dims(dims: &[usize], epilogue: Epilogue) -> Option<Self> {
        let [batch, channels, pixels @ ..] = dims else { return None };
        let height = pixels.first().copied().unwrap_or(1);
        let width = pixels.iter().skip(1).product();
        let shape = Self { batch: *batch, channels: *channels, height, width };
        (shape.output_len(epilogue) > 0).then_some(shape)
    }

    pub fn pixels(self) -> usize {
        self.height * self.width
    }

    pub fn len(self) -> usize {
        self.batch * self.channels * self.pixels()
    }

    /// Number of values in a channel.
    pub fn values(self) -> usize {
        self.batch * self.pixels()
    }

    /// Index of the first value of channel `channel` in image `image`.
    pub fn plane(self, image: usize, channel: usize) -> usize {
        (image * self.channels + channel) * self.pixels()
    }

    /// Returns the dimensions of the output for an input of dimensions `input`.
    pub fn output_dims(self, input: &[usize], epilogue: Epilogue) -> Vec<usize> {
        let mut dims = input.to_vec();
        if epilogue == Epilogue::ReluPool {
            dims[2..].copy_from_slice(&epilogue.size([self.height, self.width]));
        }
        dims
    }

    pub fn output_len(self, epilogue: Epilogue) -> usize {
        self.batch * self.channels * epilogue.size([self.height, self.width]).iter().product::<usize>()
    }
}

/// The inputs of forward, which backward reads as well.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Input<'a> {
    pub shape: BatchShape,
    pub epilogue: Epilogue,
    /// The values, `[batch, channels, height, width]`.
    pub x: &'a [f32],
    /// Scale and shift of each channel.
    pub parameters: [&'a [f32]; 2],
}

/// Statistics of the channels.
#[derive(Debug, Clone, Default)]
pub(crate) struct Moments {
    pub mean: Vec<f32>,
    pub variance: Vec<f32>,
    /// `1 / sqrt(variance + epsilon)`.
    pub inverse: Vec<f32>,
}

impl Moments {
    pub fn push(&mut self, mean: f32, variance: f64, epsilon: f64) {
        self.mean.push(mean);
        self.variance.push(variance as f32);
        self.inverse.push((1.0 / (variance + epsilon).sqrt()) as f32);
    }

    /// Appends the statistics of further channels.
    fn append(&mut self, other: Self) {
        self.mean.extend(other.mean);
        self.variance.extend(other.variance);
        self.inverse.extend(other.inverse);
    }

    /// Returns the statistics of at most `count` channels, from channel `first` on.
    fn part(&self, first: usize, count: usize) -> Self {
        let end = self.mean.len().min(first + count);
        let part = |values: &[f32]| values[first..end].to_vec();
        Self { mean: part(&self.mean), variance: part(&self.variance), inverse: part(&self.inverse) }
    }
}

/// Normalises with the statistics of the batch. Returns the output, the statistics, and the argmax of
/// pooling. The argmax is empty unless `backward` is set and the epilogue pools.
pub(crate) fn normalised(
    level: Level,
    input: Input<'_>,
    epsilon: f64,
    backward: bool,
) -> (Buffer, Moments, Vec<u8>) {
    match input.shape.pixels() {
        1 => rows_forward(level, input, epsilon),
        _ => planes::forward(level, input, epsilon, backward),
    }
}

/// Returns the output for the given statistics.
pub(crate) fn inferred(level: Level, input: Input<'_>, moments: &Moments) -> Buffer {
    match input.shape.pixels() {
        1 => rows_inference(level, input, moments),
        _ => planes::inference(level, input, moments),
    }
}

/// Returns the gradients of the input, the scales and the shifts. `gradient` is the gradient of the output.
pub(crate) fn gradients(
    level: Level,
    input: Input<'_>,
    moments: &Moments,
    argmax: &[u8],
    gradient: &[f32],
) -> (Buffer, [Vec<f32>; 2]) {
    match input.shape.pixels() {
        1 => rows_backward(level, input, moments, gradient),
        _ => planes::backward(level, input, moments, argmax, gradient),
    }
}

kernel! {
    fn rows_forward<S>(_simd: S, input: Input<'_>, epsilon: f64) -> (Buffer, Moments, Vec<u8>) {
        rows::forward(input, epsilon)
    }
}

kernel! {
    fn rows_inference<S>(_simd: S, input: Input<'_>, moments: &Moments) -> Buffer {
        rows::inference(input, moments)
    }
}

kernel! {
    fn rows_backward<S>(
        _simd: S,
        input: Input<'_>,
        moments: &Moments,
        gradient: &[f32],
    ) -> (Buffer, [Vec<f32>; 2]) {
        rows::backward(input, moments, gradient)
    }
}

/// Normalisation, scale and shift of a channel. Backward computes the results again, with the same bits, to
/// find those that ReLU passed.
#[derive(Debug, Clone, Copy)]
struct Affine {
    mean: f32,
    factor: f32,
    shift: f32,
}

impl Affine {
    #[inline(always)]
    fn new(input: &Input<'_>, channel: usize, mean: f32, inverse: f32) -> Self {
        let [scale, shift] = input.parameters.map(|values| values[channel]);
        Self { mean, factor: scale * inverse, shift }
    }

    #[inline(always)]
    fn apply(self, x: f32) -> f32 {
        (x - self.mean) * self.factor + self.shift
    }
}

/// Computes the gradient of a channel's values from the gradient of the channel's output before the epilogue.
/// Subtracts the parts that flow through the mean and the variance.
#[derive(Debug, Clone, Copy)]
struct AffineBackward {
    mean: f32,
    factor: f32,
    /// `level` and `slope` are the results of [`level_and_slope`].
    level: f32,
    slope: f32,
}

/// Returns the level and the slope of a channel. [`AffineBackward`] subtracts `level + slope * distance` from
/// each gradient, where `distance` is the distance of the corresponding value from the mean. The level is the
/// mean gradient. `gradients` is the sum of the gradients, and `distances` is the sum of the products
/// `gradient * distance`.
#[inline(always)]
pub(crate) fn level_and_slope(inverse: f32, gradients: f64, distances: f64, values: usize) -> [f32; 2] {
    let (values, inverse) = (values as f64, f64::from(inverse));
    [(gradients / values) as f32, (distances / values * inverse * inverse) as f32]
}

impl AffineBackward {
    #[inline(always)]
    fn apply(self, x: f32, gradient: f32) -> f32 {
        self.factor * (gradient - self.level - (x - self.mean) * self.slope)
    }
}
