//! Dynamic quantization: weights are int8, and the scale and zero point of each layer's
//! input follow from the batch's range.
//!
//! For each layer and batch: the range of the real input gives scale and zero point; the
//! input is quantized to u8; i8 weights times u8 inputs are summed in 32 bits; and sum ·
//! (input scale · weight scale) + bias is the real output, to which ReLU and pooling are
//! applied. PyTorch's dynamic quantization covers linear and recurrent layers, but not
//! convolutions; here convolutions are quantized too.

use burn::nn::pool::MaxPool2dConfig;
use burn::tensor::module::adaptive_avg_pool2d;
use burn::tensor::{Device, Tensor, TensorData};
use burn_fused::int8::{QParams, Scheme, min_max, quantize};
use burn_fused::simd::{Kernel, Lanes, Level};

use super::QuantError;
use super::int8_file::{Bias, Int8File, LayerValues, StoredLayer};
use super::layers::values_of;
use super::quantized::NO_WEIGHTS;

/// Checks that sizes are consistent and that no sum overflows.
pub(super) fn check(file: &Int8File) -> Result<(), QuantError> {
    let mut size = file.input_shape;
    for layer in &file.layers {
        size = layer.output_size(size)?;
        let Some((name, values)) = layer.product() else { continue };
        // The largest sum of products of an i8 and the distance of a u8 to its zero point.
        let most = values.shape[1..].iter().fold(127 * 255, |most: usize, &size| most.saturating_mul(size));
        if most > i32::MAX as usize {
            return Err(QuantError::layer(name, "its sums overflow 32 bits"));
        }
    }
    Ok(())
}

/// Class scores `[batch, outputs]` of `samples` `[batch, channels, height, width]`, in
/// a network that [`check`] accepts.
///
/// # Errors
/// If the input of a layer contains NaN or infinite values; the layer is named.
///
/// # Panics
/// If the length is not that of samples.
pub(super) fn infer(file: &Int8File, samples: &[f32]) -> Result<Vec<f32>, QuantError> {
    let mut size = file.input_shape;
    let mut values = samples.to_vec();
    let batch = values.len() / size.iter().product::<usize>();
    assert_eq!(values.len(), batch * size.iter().product::<usize>(), "length of samples");
    if batch == 0 {
        return Ok(values);
    }
    for layer in &file.layers {
        let output = layer.output_size(size)?;
        values = match *layer {
            StoredLayer::MaxPool { kernel, stride } => {
                let images = TensorData::new(values, [batch, size[0], size[1], size[2]]);
                let images = Tensor::<4>::from_data(images, &Device::flex());
                values_of(MaxPool2dConfig::new(kernel).with_strides(stride).init().forward(images))
            }
            StoredLayer::AveragePool { output } => {
                let images = TensorData::new(values, [batch, size[0], size[1], size[2]]);
                let images = Tensor::<4>::from_data(images, &Device::flex());
                values_of(adaptive_avg_pool2d(images, output))
            }
            StoredLayer::Conv { ref name, stride, padding, relu, values: ref weights } => {
                let kernel = [weights.shape[2], weights.shape[3]];
                product(name, relu, weights, &values, Windows { size, kernel, stride, padding, output })?
            }
            StoredLayer::Linear { ref name, relu, values: ref weights } => {
                let size = [size.iter().product(), 1, 1];
                let windows = Windows { size, kernel: [1; 2], stride: [1; 2], padding: [0; 2], output };
                product(name, relu, weights, &values, windows)?
            }
        };
        size = output;
    }
    Ok(values)
}

impl StoredLayer {
    /// Channels, height and width of its output.
    ///
    /// # Errors
    /// If it does not take images of `size`.
    pub fn output_size(&self, size: [usize; 3]) -> Result<[usize; 3], QuantError> {
        Ok(self.layer(NO_WEIGHTS, QParams { scale: 1.0, zero_point: 0 }).output_shape(size)?)
    }
}

/// The windows of a convolution that move over images of this size (channels, height, width). A linear layer's
/// is one pixel, of which each feature is a channel.
#[derive(Clone, Copy)]
struct Windows {
    size: [usize; 3],
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    output: [usize; 3],
}

impl Windows {
    /// Differences of an image's bytes from the zero point, window after window, with zeros for its padding.
    fn unfold(self, bytes: &[u8], zero: i32, out: &mut Vec<i32>) {
        let Self { size: [channels, height, width], kernel, stride, padding, output: [_, rows, columns] } =
            self;
        out.clear();
        for at in 0..rows * columns {
            let corner = [at / columns * stride[0], at % columns * stride[1]];
            for channel in 0..channels {
                for within in 0..kernel[0] * kernel[1] {
                    let y = (corner[0] + within / kernel[1]).checked_sub(padding[0]).filter(|&y| y < height);
                    let x = (corner[1] + within % kernel[1]).checked_sub(padding[1]).filter(|&x| x < width);
                    out.push(
                        y.zip(x)
                            .map_or(0, |(y, x)| i32::from(bytes[(channel * height + y) * width + x]) - zero),
                    );
                }
            }
        }
    }
}

fn product(
    name: &str,
    relu: bool,
    LayerValues { weights, scales, bias, .. }: &LayerValues,
    values: &[f32],
    windows: Windows,
) -> Result<Vec<f32>, QuantError> {
    let failed = |error| QuantError::values(&format!("the input of {name}"), error);
    let parameters =
        min_max(values).and_then(|[min, max]| Scheme::Affine.parameters(min, max)).map_err(failed)?;
    let mut bytes = vec![0u8; values.len()];
    quantize(values, parameters, &mut bytes);
    let Bias::Float(bias) = bias else { unreachable!("a dynamic network has real biases") };
    let (mut unfolded, mut sums) = (Vec::new(), vec![0i32; windows.output.iter().product()]);
    let mut real = Vec::new();
    for bytes in bytes.chunks_exact(windows.size.iter().product()) {
        windows.unfold(bytes, parameters.zero_point, &mut unfolded);
        Level::current().run(Sums { weights, windows: &unfolded, outputs: bias.len(), sums: &mut sums });
        for (output, sums) in sums.chunks_exact(sums.len() / bias.len()).enumerate() {
            let step = parameters.scale * scales[if scales.len() == 1 { 0 } else { output }];
            let values = sums.iter().map(|&sum| sum as f32 * step + bias[output]);
            real.extend(values.map(|value| if relu { value.max(0.0) } else { value }));
        }
    }
    Ok(real)
}

/// Sums of products of each output's weights with each window.
struct Sums<'a> {
    weights: &'a [i8],
    windows: &'a [i32],
    outputs: usize,
    sums: &'a mut [i32],
}

impl Kernel for Sums<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        let length = self.weights.len() / self.outputs;
        let mut sums = self.sums.iter_mut();
        for weights in self.weights.chunks_exact(length) {
            for (window, sum) in self.windows.chunks_exact(length).zip(&mut sums) {
                *sum = weights.iter().zip(window).map(|(&weight, &x)| i32::from(weight) * x).sum();
            }
        }
    }
}
