//! Checks 16-bit operators against f64 references on rounded values, and against the f32 operators.

mod convolutions;

use burn::module::Param;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor, TensorData, bf16, f16};

use super::{Half, multiply};
use crate::kernels::epilogue::Epilogue;
use crate::kernels::matrix::Matrix;
use crate::kernels::simd::Level;
use crate::ops::linear::linear;
use crate::ops::norm::batch_norm;
use crate::ops::testing::numbers;

const HALVES: [Half; 2] = [Half::Bf16, Half::F16];

fn rounded(half: Half, values: &[f32]) -> Vec<f32> {
    half.rounded(Level::Portable, values)
}

/// Returns the largest difference, divided by the largest expected magnitude.
fn apart(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    assert!(found.iter().all(|x| x.is_finite()));
    let largest = expected.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    let off = found.iter().zip(expected).map(|(x, y)| (f64::from(*x) - y).abs());
    assert!(largest > 0.0);
    off.fold(0.0, f64::max) / largest
}

/// Returns whether two values are the same bits, or both NaN: the payloads of NaN may differ.
fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

#[test]
fn conversions_match_those_of_the_half_crate() {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    let mut values = numbers(5000, 1);
    values.extend(all.iter().map(|&upper| f32::from_bits((u32::from(upper) << 16) + u32::from(upper))));
    for level in Level::available() {
        let mut wide = vec![0.0; all.len()];
        Half::Bf16.widen(level, &all, &mut wide);
        assert!(all.iter().zip(&wide).all(|(&bits, &x)| same(bf16::from_bits(bits).to_f32(), x)));
        Half::F16.widen(level, &all, &mut wide);
        assert!(all.iter().zip(&wide).all(|(&bits, &x)| same(f16::from_bits(bits).to_f32(), x)));
        let narrow = Half::Bf16.rounded(level, &values);
        assert!(values.iter().zip(&narrow).all(|(&x, &found)| same(bf16::from_f32(x).to_f32(), found)));
        let narrow = Half::F16.rounded(level, &values);
        assert!(values.iter().zip(&narrow).all(|(&x, &found)| same(f16::from_f32(x).to_f32(), found)));
    }
}

#[test]
fn products_match_an_f64_reference() {
    for [rows, inner, columns] in [[1, 1, 1], [8, 2, 32], [9, 7, 33], [33, 392, 10], [70, 31, 65]] {
        let (left, right) = (numbers(rows * inner, 1), numbers(inner * columns, 2));
        for (half, level) in HALVES.into_iter().flat_map(|half| Level::available().map(move |at| (half, at)))
        {
            let [a, b] = [&left, &right].map(|values| rounded(half, values));
            let expected: Vec<f64> = (0..rows * columns)
                .map(|at| {
                    let (row, column) = (at / columns, at % columns);
                    let products = (0..inner)
                        .map(|k| f64::from(a[row * inner + k]) * f64::from(b[k * columns + column]));
                    products.sum()
                })
                .collect();
            let swapped = |values: &[f32], width: usize| -> Vec<f32> {
                (0..width).flat_map(|column| values.iter().skip(column).step_by(width).copied()).collect()
            };
            let [a_turned, b_turned] =
                [swapped(&a, inner), swapped(&b, columns)].map(|values| half.narrowed(level, &values));
            let [a, b] = [a, b].map(|values| half.narrowed(level, &values));
            let of_left = [Matrix::new(&a, [rows, inner]), Matrix::new(&a_turned, [inner, rows]).transpose()];
            let of_right =
                [Matrix::new(&b, [inner, columns]), Matrix::new(&b_turned, [columns, inner]).transpose()];
            for (left, right) in of_left.into_iter().flat_map(|left| of_right.map(|right| (left, right))) {
                let off = apart(&multiply(level, half, left, right), &expected);
                assert!(off < 1e-6, "{half:?} at {level}, {rows} x {inner} x {columns}: {off}");
            }
        }
    }
}

/// Returns gradients of both signs that are exact in all types.
fn shares(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i % 7) as f32 / 4.0 - 0.5).collect()
}

/// Largest relative error of rounding one value: half of the last of 8 or 11 significant bits.
fn rounding(half: Half) -> f64 {
    match half {
        Half::Bf16 => 2f64.powi(-8),
        Half::F16 => 2f64.powi(-11),
    }
}

/// Runs a linear layer, and returns its output and the gradients of inputs, weights and biases.
fn run_linear(half: Half, [batch, inputs, outputs]: [usize; 3]) -> [Vec<f32>; 4] {
    let device = Device::flex().autodiff();
    let mut layer: Linear = LinearConfig::new(inputs, outputs).init(&device);
    let weights = TensorData::new(numbers(inputs * outputs, 1), [inputs, outputs]);
    layer.weight = Param::from_tensor(Tensor::from_data(weights, &device));
    let bias = TensorData::new(numbers(outputs, 2), [outputs]);
    layer.bias = Some(Param::from_tensor(Tensor::from_data(bias, &device)));
    let x = TensorData::new(rounded(half, &numbers(batch * inputs, 3)), [batch, inputs]);
    let x = Tensor::<2>::from_data(x, &device).require_grad();
    let output = linear(x.clone().cast(half.dtype()), &layer);
    let shares = TensorData::new(shares(batch * outputs), [batch, outputs]);
    let shares = Tensor::<2>::from_data(shares, &device).cast(half.dtype());
    let gradients = (output.clone() * shares).sum().backward();
    let bias = layer.bias.as_ref().expect("set above").val();
    [
        output.cast(DType::F32).into_data(),
        x.grad(&gradients).expect("of x").into_data(),
        layer.weight.val().grad(&gradients).expect("of the weights").into_data(),
        bias.grad(&gradients).expect("of the biases").into_data(),
    ]
    .map(|data| data.try_into_vec().expect("f32"))
}

#[test]
fn linear_layers_match_an_f64_reference_on_rounded_values() {
    for (half, sizes) in HALVES
        .into_iter()
        .flat_map(|half| [[1, 1, 1], [32, 512, 32], [7, 33, 20], [9, 130, 70]].map(|sizes| (half, sizes)))
    {
        let [batch, inputs, outputs] = sizes;
        let wide = |values: Vec<f32>| values.into_iter().map(f64::from).collect::<Vec<_>>();
        let (x, weights) = (
            wide(rounded(half, &numbers(batch * inputs, 3))),
            wide(rounded(half, &numbers(inputs * outputs, 1))),
        );
        let (bias, shares) = (wide(numbers(outputs, 2)), wide(shares(batch * outputs)));
        let mut expected =
            [batch * outputs, batch * inputs, inputs * outputs, outputs].map(|count| vec![0.0; count]);
        for (row, output) in (0..batch).flat_map(|row| (0..outputs).map(move |output| (row, output))) {
            let g = shares[row * outputs + output];
            expected[0][row * outputs + output] = bias[output];
            expected[3][output] += g;
            for k in 0..inputs {
                let (x, weight) = (x[row * inputs + k], weights[k * outputs + output]);
                expected[0][row * outputs + output] += x * weight;
                expected[1][row * inputs + k] += g * weight;
                expected[2][k * outputs + output] += g * x;
            }
        }
        for level in Level::available() {
            let _held = level.hold();
            let found = run_linear(half, sizes);
            let of_weights = if half == Half::F16 { rounding(half) } else { 0.0 };
            let most = [rounding(half), rounding(half), of_weights, of_weights];
            for (part, most) in most.into_iter().enumerate() {
                let off = apart(&found[part], &expected[part]);
                assert!(off < most + 1e-6, "{half:?} at {level}, {sizes:?}, part {part}: {off}");
            }
        }
    }
}

#[test]
fn batch_norms_of_16_bit_values_have_f32_statistics() {
    let device = Device::flex().autodiff();
    let run = |dtype: DType, epilogue: Epilogue| {
        let values = rounded(Half::Bf16, &numbers(6 * 3 * 8 * 5, 1));
        let x = Tensor::<4>::from_data(TensorData::new(values, [6, 3, 8, 5]), &device).require_grad();
        let [scale, shift] =
            [2, 3].map(|seed| Tensor::<1>::from_data(TensorData::new(numbers(3, seed), [3]), &device));
        let [scale, shift] = [scale, shift].map(Tensor::require_grad);
        let found = batch_norm(x.clone().cast(dtype), scale.clone(), shift.clone(), 1e-5, epilogue);
        assert_eq!((found.output.dtype(), found.mean.dtype()), (dtype, DType::F32));
        let shares = shares(found.output.shape().num_elements());
        let shares = Tensor::<4>::from_data(TensorData::new(shares, found.output.dims()), &device);
        let gradients = (found.output.clone() * shares.cast(dtype)).sum().backward();
        let rounded =
            [found.output.cast(DType::F32).into_data(), x.grad(&gradients).expect("of x").into_data()];
        let exact = [
            found.mean.into_data(),
            found.variance.into_data(),
            scale.grad(&gradients).expect("of the scale").into_data(),
            shift.grad(&gradients).expect("of the shift").into_data(),
        ];
        (rounded.map(|data| data.try_into_vec::<f32>().expect("f32")), exact)
    };
    for (half, epilogue) in HALVES
        .into_iter()
        .flat_map(|half| [Epilogue::Identity, Epilogue::Relu, Epilogue::ReluPool].map(|then| (half, then)))
    {
        let (expected, exact) = run(DType::F32, epilogue);
        let (found, exactly) = run(half.dtype(), epilogue);
        assert_eq!(exactly, exact, "{half:?}, {epilogue:?}");
        assert_eq!(found, expected.map(|values| rounded(half, &values)), "{half:?}, {epilogue:?}");
    }
}
