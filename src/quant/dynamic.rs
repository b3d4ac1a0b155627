//! Dynamic quantization: weights are int8, and the scale and zero point of each layer's
//! input follow from the batch's range.
//!
//! For each layer and batch: the range of the real input gives scale and zero point; the
//! input is quantized to u8; i8 weights times u8 inputs are summed in 32 bits; and sum ·
//! (input scale · weight scale) + bias is the real output, to which ReLU and pooling are
//! applied. PyTorch's dynamic quantization covers linear and recurrent layers, but not
//! convolutions; here convolutions are quantized too.

use burn_fused::int8::{Scheme, min_max, min_max_by_channel, quantize, quantize_weights};
use burn_fused::simd::Level;

use super::dynamic_kernels::{Product2d, Sums, max_pool, windows};
use super::{Product, QuantError, WeightScheme, groups, padding};
use crate::model::Network;

/// A network of which only the weights are quantized.
#[derive(Debug, Clone, PartialEq)]
pub struct DynamicModel {
    /// Channels, height and width of a sample.
    pub input_shape: [usize; 3],
    /// The layers in order.
    pub layers: Vec<DynamicLayer>,
}

/// A layer with weights, and the pooling that follows.
#[derive(Debug, Clone, PartialEq)]
pub struct DynamicLayer {
    /// PyTorch's name.
    pub name: String,
    /// Stride and padding of a convolution; `None` for a linear layer.
    pub windows: Option<Windows>,
    /// `[outputs, inputs, kernel height, kernel width]`, the kernel 1x1 in a linear layer.
    pub shape: [usize; 4],
    /// -127 to 127 each, outputs first.
    pub weights: Vec<i8>,
    /// Scale of each output's weights, or one for all.
    pub scales: Vec<f32>,
    /// One for each output.
    pub bias: Vec<f32>,
    /// Whether ReLU follows.
    pub relu: bool,
    /// Kernel and stride of the pooling that follows.
    pub pool: Option<[[usize; 2]; 2]>,
}

/// Stride and padding of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// Vertical and horizontal.
    pub stride: [usize; 2],
    /// Rows above and below, columns to the left and to the right.
    pub padding: [usize; 2],
}

impl DynamicModel {
    /// The model of `network`: batch norm folded into the weights by its running
    /// statistics, and weights quantized by `scheme`.
    ///
    /// # Errors
    /// If a layer cannot be quantized, or weights are not finite or too large.
    pub fn of(network: &Network, scheme: WeightScheme) -> Result<Self, QuantError> {
        let layers = groups(network)?.into_iter().map(|group| {
            let folded = group.folded();
            let outputs = group.product.outputs();
            let failed = |error| QuantError::values(&group.name, error);
            if !folded.bias.iter().all(|value| value.is_finite()) {
                return Err(failed(burn_fused::int8::Int8Error::NonFinite));
            }
            let ranges = min_max_by_channel(&folded.weights, scheme.scales(outputs)).map_err(failed)?;
            let scale = |&[min, max]: &[f32; 2]| Scheme::Symmetric.parameters(min, max).map(|p| p.scale);
            let scales = ranges.iter().map(scale).collect::<Result<Vec<f32>, _>>().map_err(failed)?;
            let (shape, windows) = match group.product {
                Product::Conv(conv) => {
                    let refused = |reason| QuantError::layer(&group.name, reason);
                    let padding = padding(&conv.padding).map_err(refused)?;
                    (conv.weight.dims(), Some(Windows { stride: conv.stride, padding }))
                }
                Product::Linear(linear) => ([outputs, linear.weight.dims()[0], 1, 1], None),
            };
            Ok(DynamicLayer {
                weights: quantize_weights(&folded.weights, &scales),
                bias: folded.bias,
                relu: group.relu,
                pool: group.pool.map(|pool| [pool.kernel_size, pool.stride]),
                name: group.name,
                windows,
                shape,
                scales,
            })
        });
        let model = Self { input_shape: network.input_shape(), layers: layers.collect::<Result<_, _>>()? };
        model.check().map_err(|(layer, reason)| QuantError::layer(&layer, reason))?;
        Ok(model)
    }

    /// Checks that sizes are consistent and that no sum overflows; returns the number of
    /// outputs. The error contains a layer's name and the reason.
    ///
    /// # Errors
    /// If a layer does not fit; the first is named.
    pub fn check(&self) -> Result<usize, (String, String)> {
        let mut size = self.input_shape;
        for layer in &self.layers {
            size = layer.output_size(size).map_err(|reason| (layer.name.clone(), reason))?;
        }
        match self.layers.is_empty() {
            true => Err(("input".into(), "no layer has weights".into())),
            false => Ok(size.iter().product()),
        }
    }

    /// Class scores `[batch, outputs]` of `samples` `[batch, channels, height, width]`, in
    /// a model that [`check`](Self::check) accepts. They depend on the whole batch.
    ///
    /// # Errors
    /// If the input of a layer contains NaN or infinite values; the layer is named.
    ///
    /// # Panics
    /// If the length is not that of samples, or the model is invalid.
    pub fn infer(&self, samples: &[f32]) -> Result<Vec<f32>, QuantError> {
        let mut size = self.input_shape;
        let mut values = samples.to_vec();
        let batch = values.len() / size.iter().product::<usize>();
        assert_eq!(values.len(), batch * size.iter().product::<usize>(), "length of samples");
        if batch == 0 {
            return Ok(values);
        }
        for layer in &self.layers {
            (values, size) = layer.infer(&values, size, batch)?;
        }
        Ok(values)
    }
}

impl DynamicLayer {
    /// Channels, height and width of a sample as the layer's input.
    fn input_size(&self, size: [usize; 3]) -> [usize; 3] {
        if self.windows.is_some() { size } else { [size.iter().product(), 1, 1] }
    }

    /// Rows and columns of the product, before pooling.
    fn product_size(&self, size: [usize; 3]) -> Option<[usize; 2]> {
        let Windows { stride, padding } = self.windows.unwrap_or(Windows { stride: [1, 1], padding: [0, 0] });
        let of = |i: usize| windows(size[1 + i] + 2 * padding[i], self.shape[2 + i], stride[i]);
        Some([of(0)?, of(1)?])
    }

    fn output_size(&self, size: [usize; 3]) -> Result<[usize; 3], String> {
        let size = self.input_size(size);
        let [outputs, inputs, height, width] = self.shape;
        let fits = format!("weights of {:?} do not fit an input of {size:?}", self.shape);
        let [rows, columns] =
            self.product_size(size).filter(|_| size[0] == inputs && outputs > 0).ok_or(fits)?;
        // The largest sum of products of an i8 and the distance of a u8 to its zero point.
        if (inputs * height * width).checked_mul(127 * 255).is_none_or(|most| most > i32::MAX as usize) {
            return Err("its sums overflow 32 bits".into());
        }
        let Some([kernel, stride]) = self.pool else { return Ok([outputs, rows, columns]) };
        match [windows(rows, kernel[0], stride[0]), windows(columns, kernel[1], stride[1])] {
            [Some(rows), Some(columns)] => Ok([outputs, rows, columns]),
            _ => Err(format!("a pooling of {kernel:?} does not fit {rows} rows of {columns}")),
        }
    }

    fn infer(
        &self,
        values: &[f32],
        size: [usize; 3],
        batch: usize,
    ) -> Result<(Vec<f32>, [usize; 3]), QuantError> {
        let failed = |error| QuantError::values(&format!("the input of {}", self.name), error);
        let parameters =
            min_max(values).and_then(|[min, max]| Scheme::Affine.parameters(min, max)).map_err(failed)?;
        let mut bytes = vec![0u8; values.len()];
        quantize(values, parameters, &mut bytes);
        let size = self.input_size(size);
        let [outputs, ..] = self.shape;
        let [rows, columns] = self.product_size(size).expect("a model that was checked");
        let mut images = vec![0.0; batch * outputs * rows * columns];
        let mut padded = Vec::new();
        let mut sums = vec![0i32; rows * columns];
        for (image, bytes) in bytes.chunks_exact(size.iter().product()).enumerate() {
            let width = self.pad(bytes, parameters.zero_point, size, &mut padded);
            for output in 0..outputs {
                let product = Product2d { layer: self, output, input: &padded, width, columns };
                Level::current().run(Sums { product, sums: &mut sums });
                let scale = self.scales[if self.scales.len() == 1 { 0 } else { output }];
                let step = parameters.scale * scale;
                let at = (image * outputs + output) * rows * columns;
                for (value, &sum) in images[at..at + rows * columns].iter_mut().zip(&sums) {
                    let real = sum as f32 * step + self.bias[output];
                    *value = if self.relu { real.max(0.0) } else { real };
                }
            }
        }
        match self.pool {
            Some(pool) => {
                let (images, [rows, columns]) = max_pool(&images, [rows, columns], pool);
                Ok((images, [outputs, rows, columns]))
            }
            None => Ok((images, [outputs, rows, columns])),
        }
    }

    /// Differences from the zero point, with zeros around each channel; returns the width.
    fn pad(
        &self,
        bytes: &[u8],
        zero: i32,
        [channels, height, width]: [usize; 3],
        out: &mut Vec<i32>,
    ) -> usize {
        let [rows, columns] = self.windows.map_or([0, 0], |windows| windows.padding);
        let wide = width + 2 * columns;
        out.clear();
        out.resize(channels * (height + 2 * rows) * wide, 0);
        for (channel, bytes) in bytes.chunks_exact(height * width).enumerate() {
            for (row, bytes) in bytes.chunks_exact(width).enumerate() {
                let at = (channel * (height + 2 * rows) + rows + row) * wide + columns;
                for (value, &byte) in out[at..at + width].iter_mut().zip(bytes) {
                    *value = i32::from(byte) - zero;
                }
            }
        }
        wide
    }
}
