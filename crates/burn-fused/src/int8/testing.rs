//! Computes the scores of integer models by plain loops, as a reference for tests.

use super::{Layer, Model, Weights};

/// Returns the scores of `images`, computed in 64 bits by the formulas in the documentation of
/// [`int8`](super).
pub(super) fn reference(model: &Model, images: &[f32]) -> Vec<u8> {
    let size: usize = model.input_shape().iter().product();
    images.chunks_exact(size).flat_map(|image| of_image(model, image)).collect()
}

fn of_image(model: &Model, image: &[f32]) -> Vec<u8> {
    let parameters = model.input();
    let quantized = |&x: &f32| {
        let q = (x * (1.0 / parameters.scale)).round_ties_even() as i64 + i64::from(parameters.zero_point);
        q.clamp(0, 255)
    };
    let mut map: Vec<i64> = image.iter().map(quantized).collect();
    let mut shape = model.input_shape();
    let mut zero = i64::from(parameters.zero_point);
    for layer in model.layers() {
        let [outputs, height, width] = layer.output_shape(shape).unwrap();
        let [inputs, rows, columns] = shape;
        let mut result = Vec::new();
        for output in 0..outputs {
            for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
                // A pixel of the window, or the zero point if the pixel is padding.
                let pixel = |c: usize, [dy, dx]: [usize; 2], stride: [usize; 2], padding: [usize; 2]| {
                    let y = (y * stride[0] + dy).wrapping_sub(padding[0]);
                    let x = (x * stride[1] + dx).wrapping_sub(padding[1]);
                    if y < rows && x < columns { map[(c * rows + y) * columns + x] } else { zero }
                };
                let finish = |sum: i64, weights: &Weights, zero: i32, relu: bool| {
                    let n = if weights.shifts.len() == 1 { 0 } else { output };
                    let lowest = if relu { zero as u8 } else { 0 };
                    let sum = sum + i64::from(weights.bias[output]);
                    i64::from(plainly(sum, weights.multipliers[n], weights.shifts[n], zero as u8, lowest))
                };
                result.push(match layer {
                    Layer::Conv(conv) => {
                        let [height, width] = conv.kernel;
                        let mut sum = 0;
                        for (i, &weight) in conv
                            .weights
                            .values
                            .chunks(inputs * height * width)
                            .nth(output)
                            .unwrap()
                            .iter()
                            .enumerate()
                        {
                            let at = [i / width % height, i % width];
                            let value = pixel(i / (height * width), at, conv.stride, conv.padding);
                            sum += i64::from(weight) * (value - zero);
                        }
                        finish(sum, &conv.weights, conv.output.zero_point, conv.relu)
                    }
                    Layer::MaxPool(pool) => {
                        let window =
                            (0..pool.kernel[0]).flat_map(|dy| (0..pool.kernel[1]).map(move |dx| [dy, dx]));
                        window.map(|at| pixel(output, at, pool.stride, [0; 2])).max().unwrap()
                    }
                    Layer::AveragePool(pool) => {
                        // The ends of a window, by PyTorch's formula for adaptive pooling, in floats.
                        let ends = |axis: usize, at: usize, size: usize| {
                            let step = size as f64 / pool.output[axis] as f64;
                            ((at as f64 * step).floor() as usize, ((at + 1) as f64 * step).ceil() as usize)
                        };
                        let ((top, bottom), (left, right)) = (ends(0, y, shape[1]), ends(1, x, shape[2]));
                        let values = (top..bottom).flat_map(|y| (left..right).map(move |x| (y, x)));
                        let values = values.map(|(y, x)| map[(output * shape[1] + y) * shape[2] + x]);
                        let count = ((bottom - top) * (right - left)) as f64;
                        (values.sum::<i64>() as f64 / count + 0.5).floor() as i64
                    }
                    Layer::Linear(linear) => {
                        let weights = linear.weights.values[output * linear.inputs..].iter();
                        let sum = weights.zip(&map).map(|(&w, value)| i64::from(w) * (value - zero)).sum();
                        finish(sum, &linear.weights, linear.output.zero_point, linear.relu)
                    }
                });
            }
        }
        (map, shape) = (result, [outputs, height, width]);
        zero = match layer {
            Layer::Conv(conv) => conv.output.zero_point.into(),
            Layer::Linear(linear) => linear.output.zero_point.into(),
            Layer::MaxPool(_) | Layer::AveragePool(_) => zero,
        };
    }
    map.into_iter().map(|value| value as u8).collect()
}

/// Requantizes a sum in 64 bits, by the formula in the documentation of [`int8`](super).
fn plainly(accumulator: i64, multiplier: i32, shift: u8, zero_point: u8, lowest: u8) -> u8 {
    let scaled = (accumulator * i64::from(multiplier) + (1 << (shift - 1))) >> shift;
    (i64::from(zero_point) + scaled).clamp(i64::from(lowest), 255) as u8
}
