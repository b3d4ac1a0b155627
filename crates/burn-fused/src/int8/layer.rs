//! Layers of an integer model, as plain data.

use std::ops::Range;

use super::requantize::fixed_point;
use super::{Int8Error, QParams, Scheme};
use crate::kernels::quantization::expect_len;
use crate::kernels::quantization::quantize_weights;

/// A layer of an integer model.
#[derive(Debug, Clone, PartialEq)]
pub enum Layer {
    /// Convolution, optionally with ReLU.
    Conv(Conv),
    /// Maximum of each window.
    MaxPool(MaxPool),
    /// Mean of each window.
    AveragePool(AveragePool),
    /// Linear layer, optionally with ReLU; it flattens its input.
    Linear(Linear),
}

/// A convolution from `[inputs, height, width]` to
/// `[outputs, (height + 2 padding - kernel) / stride + 1, …]`. A padding pixel stands for the real number 0:
/// its byte is the input's zero point.
#[derive(Debug, Clone, PartialEq)]
pub struct Conv {
    /// Input channels.
    pub inputs: usize,
    /// Output channels.
    pub outputs: usize,
    /// Height and width of the kernel.
    pub kernel: [usize; 2],
    /// Vertical and horizontal stride.
    pub stride: [usize; 2],
    /// Rows added above and below, and columns added to the left and to the right.
    pub padding: [usize; 2],
    /// Weights `[outputs, inputs, kernel height, kernel width]`, and biases.
    pub weights: Weights,
    /// Whether ReLU follows.
    pub relu: bool,
    /// Scale and zero point of the output, after ReLU.
    pub output: QParams,
}

/// Max pooling. There is no padding, and partial windows are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxPool {
    /// Height and width of a window.
    pub kernel: [usize; 2],
    /// Vertical and horizontal stride.
    pub stride: [usize; 2],
}

/// Average pooling with one window for each pixel of the output, as in PyTorch's `AdaptiveAvgPool2d`. The
/// windows cover the input. They overlap if the output's size does not divide the input's size. An average
/// that ends in .5 is rounded up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AveragePool {
    /// Height and width of the output, at most the height and width of the input.
    pub output: [usize; 2],
}

impl AveragePool {
    /// Returns the rows (axis 0) or columns (axis 1) that are averaged for row or column `at` of the output.
    /// `size` is the number of rows or columns of the input.
    pub fn window(self, axis: usize, size: usize, at: usize) -> Range<usize> {
        let outputs = self.output[axis];
        at * size / outputs..((at + 1) * size).div_ceil(outputs)
    }
}

/// A linear layer from `[inputs]` to `[outputs]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Linear {
    /// Number of input features. The input `[channels, height, width]` is flattened in this order.
    pub inputs: usize,
    /// Output features.
    pub outputs: usize,
    /// Weights `[outputs, inputs]`, as in PyTorch, and biases.
    pub weights: Weights,
    /// Whether ReLU follows.
    pub relu: bool,
    /// Scale and zero point of the output, after ReLU.
    pub output: QParams,
}

/// Quantized weights and biases, and ratios of scales as fixed-point numbers ([`fixed_point`]).
#[derive(Debug, Clone, PartialEq)]
pub struct Weights {
    /// Quantized weights, each -127 to 127. The first axis is that of outputs.
    pub values: Vec<i8>,
    /// Weight scale of each output, or one weight scale for all outputs.
    pub scales: Vec<f32>,
    /// Bias of each output, as a multiple of input scale · weight scale.
    pub bias: Vec<i32>,
    /// For each weight scale, the multiplier of the ratio input scale · weight scale / output scale.
    pub multipliers: Vec<i32>,
    /// For each weight scale, the shift of this ratio in bits.
    pub shifts: Vec<u8>,
}

impl Weights {
    /// Quantizes real weights, whose first axis is that of outputs, and real biases, one for each output.
    /// `scales` are weight scales of [`Scheme::Symmetric`], one for each output or one for all. `input` and
    /// `output` are the scales and zero points of the layer's input and output. Biases are rounded to
    /// multiples of input scale · weight scale, half to even.
    ///
    /// # Errors
    /// If there are no weights or no biases, lengths do not match, a weight or a bias is not finite, a scale
    /// or a zero point is invalid, or a bias or a ratio overflows.
    pub fn quantize(
        weights: &[f32],
        bias: &[f32],
        scales: &[f32],
        input: QParams,
        output: QParams,
    ) -> Result<Self, Int8Error> {
        let outputs = bias.len();
        if outputs == 0 || weights.is_empty() {
            return Err(Int8Error::NoValues);
        }
        if !weights.len().is_multiple_of(outputs) {
            let expected = weights.len().next_multiple_of(outputs);
            return Err(Int8Error::Length { what: "weights", got: weights.len(), expected });
        }
        if scales.len() != 1 {
            expect_len("weight scales", scales.len(), outputs)?;
        }
        if !weights.iter().chain(bias).all(|value| value.is_finite()) {
            return Err(Int8Error::NonFinite);
        }
        input.check(Scheme::Affine)?;
        output.check(Scheme::Affine)?;
        let ratios = ratios(scales, input, output)?;
        let fixed = ratios.into_iter().map(fixed_point).collect::<Result<Vec<_>, _>>()?;
        let mut steps = Vec::with_capacity(outputs);
        for (output, &bias) in bias.iter().enumerate() {
            let scale = f64::from(scales[output % scales.len()]) * f64::from(input.scale);
            let rounded = (f64::from(bias) / scale).round_ties_even();
            if rounded.abs() > f64::from(i32::MAX) {
                return Err(Int8Error::Accumulator { output });
            }
            steps.push(rounded as i32);
        }
        Ok(Self {
            values: quantize_weights(weights, scales),
            scales: scales.to_vec(),
            bias: steps,
            multipliers: fixed.iter().map(|&(multiplier, _)| multiplier).collect(),
            shifts: fixed.iter().map(|&(_, shift)| shift).collect(),
        })
    }

    /// Total size of all fields in bytes.
    pub fn bytes(&self) -> usize {
        self.values.len() + 4 * self.scales.len() + 4 * self.bias.len() + 5 * self.shifts.len()
    }

    /// Returns, for each output, the bias minus the input's zero point times the sum of the output's weights.
    /// Returns an error if a field is invalid or a sum may overflow 32 bits.
    pub(super) fn checked_bias(
        &self,
        Geometry { inputs, outputs, kernel, output, .. }: Geometry,
        input: QParams,
    ) -> Result<Vec<i32>, Int8Error> {
        let inputs = kernel.iter().fold(inputs, |inputs, &size| inputs.saturating_mul(size));
        output.check(Scheme::Affine)?;
        expect_len("weights", self.values.len(), outputs.saturating_mul(inputs))?;
        expect_len("biases", self.bias.len(), outputs)?;
        let expected = if self.scales.len() == 1 { 1 } else { outputs };
        expect_len("weight scales", self.scales.len(), expected)?;
        expect_len("multipliers", self.multipliers.len(), expected)?;
        expect_len("shifts", self.shifts.len(), expected)?;
        for (of, &ratio) in ratios(&self.scales, input, output)?.iter().enumerate() {
            let (multiplier, shift) = (self.multipliers[of], self.shifts[of]);
            if fixed_point(ratio)? != (multiplier, shift) {
                return Err(Int8Error::Multiplier { output: of, multiplier, shift });
            }
        }
        let folded = self.values.chunks_exact(inputs).zip(&self.bias).enumerate();
        let folded = folded.map(|(output, (weights, &bias))| {
            let sum = |keep: fn(i64) -> i64| weights.iter().map(|&w| keep(w.into())).sum::<i64>();
            let folded = i64::from(bias) - i64::from(input.zero_point) * sum(|w| w);
            // In any order of addition, every partial sum is between these two ends.
            let ends = [folded + 255 * sum(|w| w.min(0)), folded + 255 * sum(|w| w.max(0))];
            if ends.iter().all(|&end| i32::try_from(end).is_ok()) {
                Ok(folded as i32)
            } else {
                Err(Int8Error::Accumulator { output })
            }
        });
        folded.collect()
    }
}

/// Returns input scale · weight scale / output scale for each weight scale, in f64.
fn ratios(scales: &[f32], input: QParams, output: QParams) -> Result<Vec<f64>, Int8Error> {
    let ratio = |&scale: &f32| {
        QParams { scale, zero_point: 0 }.check(Scheme::Symmetric)?;
        Ok(f64::from(input.scale) * f64::from(scale) / f64::from(output.scale))
    };
    scales.iter().map(ratio).collect()
}

/// Sizes of a convolution or a linear layer, scale and zero point of its output, and whether ReLU follows. A
/// linear layer counts as a convolution with a kernel that covers its input.
#[derive(Debug, Clone, Copy)]
pub(super) struct Geometry {
    pub inputs: usize,
    pub outputs: usize,
    pub kernel: [usize; 2],
    pub stride: [usize; 2],
    pub output: QParams,
    pub relu: bool,
}

/// Sizes of a map, which is the memory of a layer's input or output. A map consists of words of four
/// channels, and is padded as the next layer requires.
#[derive(Debug, Clone, Copy)]
pub(super) struct Map {
    /// Channels, height and width without the border.
    pub shape: [usize; 3],
    /// Rows of padding above and below, and columns of padding to the left and to the right.
    pub border: [usize; 2],
    /// The byte of the padding: the zero point.
    pub zero: u8,
}

impl Map {
    /// Number of words in a pixel.
    pub fn groups(self) -> usize {
        self.shape[0].div_ceil(4)
    }

    /// Number of pixels in a row, with its border.
    pub fn row(self) -> usize {
        self.shape[2] + 2 * self.border[1]
    }

    /// Number of pixels in a plane, with its borders.
    pub fn plane(self) -> usize {
        (self.shape[1] + 2 * self.border[0]) * self.row()
    }

    /// Number of words in all pixels.
    pub fn len(self) -> usize {
        self.groups() * self.plane()
    }

    /// Index of the pixel (y, x) of the image in its plane with borders.
    pub fn at(self, y: usize, x: usize) -> usize {
        (y + self.border[0]) * self.row() + x + self.border[1]
    }
}

/// The operation of a layer, as the executor runs it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Operation<'a> {
    Product(Geometry, &'a Weights),
    MaxPool(MaxPool),
    AveragePool(AveragePool),
}

impl Layer {
    /// Returns channels, height and width of the output.
    ///
    /// # Errors
    /// If the input does not fit the layer, if a size is 0 or above 2^20, if input or output have 2^31 values
    /// or more, or if padding is not less than the kernel.
    pub fn output_shape(&self, input: [usize; 3]) -> Result<[usize; 3], Int8Error> {
        let [channels, height, width] = input;
        let (layer, sizes, output) = match self {
            Self::Conv(Conv { inputs, outputs, kernel, stride, padding, .. }) => {
                let sizes =
                    format!("{inputs}->{outputs}, kernel {kernel:?}, stride {stride:?}, padding {padding:?}");
                let size = [0, 1].map(|i| windows(input[1 + i], kernel[i], stride[i], padding[i]));
                let output = (channels == *inputs).then_some([Some(*outputs), size[0], size[1]]);
                ("convolution", sizes, output)
            }
            Self::MaxPool(MaxPool { kernel, stride }) => {
                let size = [0, 1].map(|i| windows(input[1 + i], kernel[i], stride[i], 0));
                let sizes = format!("kernel {kernel:?}, stride {stride:?}");
                ("max pooling", sizes, Some([Some(channels), size[0], size[1]]))
            }
            Self::AveragePool(AveragePool { output }) => {
                let fits = |axis: usize| (1..=input[1 + axis]).contains(&output[axis]);
                let size = [0, 1].map(|axis| fits(axis).then_some(output[axis]));
                ("average pooling", format!("to {output:?}"), Some([Some(channels), size[0], size[1]]))
            }
            Self::Linear(Linear { inputs, outputs, .. }) => {
                let fits = is_sensible(input) && channels * height * width == *inputs;
                let output = fits.then_some([Some(*outputs), Some(1), Some(1)]);
                ("linear layer", format!("{inputs}->{outputs}"), output)
            }
        };
        match output {
            Some([Some(channels), Some(height), Some(width)])
                if is_sensible(input) && is_sensible([channels, height, width]) =>
            {
                Ok([channels, height, width])
            }
            _ => Err(Int8Error::Shape { layer, sizes, input }),
        }
    }

    /// The operation that the layer performs on this input.
    pub(super) fn operation(&self, input: [usize; 3]) -> Operation<'_> {
        match self {
            Self::Conv(conv) => {
                let Conv { inputs, outputs, kernel, stride, relu, output, .. } = *conv;
                let geometry = Geometry { inputs, outputs, kernel, stride, output, relu };
                Operation::Product(geometry, &conv.weights)
            }
            Self::Linear(linear) => {
                let [inputs, height, width] = input;
                let Linear { outputs, relu, output, .. } = *linear;
                let kernel = [height, width];
                let geometry = Geometry { inputs, outputs, kernel, stride: [1; 2], output, relu };
                Operation::Product(geometry, &linear.weights)
            }
            Self::MaxPool(pool) => Operation::MaxPool(*pool),
            Self::AveragePool(pool) => Operation::AveragePool(*pool),
        }
    }

    /// The padding that the layer needs around its input.
    pub(super) fn border(&self) -> [usize; 2] {
        match self {
            Self::Conv(conv) => conv.padding,
            _ => [0; 2],
        }
    }
}

/// Largest number of channels, rows or columns.
const MOST: usize = 1 << 20;

/// Whether all sizes are from 1 to [`MOST`], and their product is below 2^31.
pub(super) fn is_sensible(shape: [usize; 3]) -> bool {
    // Each size is at most 2^20, so the product of three does not overflow 64 bits.
    shape.iter().all(|size| (1..=MOST).contains(size))
        && shape.map(|size| size as u64).iter().product::<u64>() < 1 << 31
}

/// Returns the number of windows of `kernel` pixels in a row of `size` pixels, with `padding` more pixels at
/// each end. Returns `None` if no window fits, if `padding` is not less than `kernel`, or if `size`, `kernel`
/// or `stride` is 0 or above [`MOST`].
fn windows(size: usize, kernel: usize, stride: usize, padding: usize) -> Option<usize> {
    let sensible =
        [size, kernel, stride].iter().all(|number| (1..=MOST).contains(number)) && padding < kernel;
    let padded = if sensible { size + 2 * padding } else { 0 };
    if sensible && padded >= kernel { Some((padded - kernel) / stride + 1) } else { None }
}
