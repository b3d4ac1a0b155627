//! Checks the operator against its definition in f64, and against Burn's layer.

use burn::module::Param;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, TensorData};

use super::*;
use crate::kernels::half::{Bf16Products, Half, bf16_products};
use crate::kernels::simd::Level;
use crate::ops::flex_tensor::{tensor, values};

fn numbers(count: usize, mut state: u64) -> Vec<f32> {
    let next = |_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(next).collect()
}

/// Computes the output, and the gradients of x, weights and bias, in f64.
fn reference([batch, inputs, outputs]: [usize; 3], data: &[Vec<f32>; 4]) -> [Vec<f64>; 4] {
    let [x, weights, bias, gradient] =
        data.each_ref().map(|v| v.iter().map(|&v| f64::from(v)).collect::<Vec<_>>());
    let mut all = [batch * outputs, batch * inputs, inputs * outputs, outputs].map(|count| vec![0.0; count]);
    for (b, o) in (0..batch).flat_map(|b| (0..outputs).map(move |o| (b, o))) {
        let g = gradient[b * outputs + o];
        all[0][b * outputs + o] = bias[o];
        all[3][o] += g;
        for k in 0..inputs {
            all[0][b * outputs + o] += x[b * inputs + k] * weights[k * outputs + o];
            all[1][b * inputs + k] += g * weights[k * outputs + o];
            all[2][k * outputs + o] += g * x[b * inputs + k];
        }
    }
    all
}

/// Computes with `operator` what [`reference`] computes in f64.
fn found(
    [batch, inputs, outputs]: [usize; 3],
    data: &[Vec<f32>; 4],
    operator: fn(Tensor<2>, &Linear) -> Tensor<2>,
) -> [Vec<f32>; 4] {
    let device = Device::flex().autodiff();
    let tensor = |data: &[f32], sizes: [usize; 2]| {
        Tensor::<2>::from_data(TensorData::new(data.to_vec(), sizes), &device)
    };
    let mut layer = LinearConfig::new(inputs, outputs).init(&device);
    layer.weight = Param::from_tensor(tensor(&data[1], [inputs, outputs]));
    let bias = Tensor::<1>::from_data(TensorData::new(data[2].clone(), [outputs]), &device);
    layer.bias = Some(Param::from_tensor(bias));
    let x = tensor(&data[0], [batch, inputs]).require_grad();
    let output = operator(x.clone(), &layer);
    let gradients = (output.clone() * tensor(&data[3], [batch, outputs])).sum().backward();
    let bias = layer.bias.as_ref().expect("set above").val();
    [
        output.into_data(),
        x.grad(&gradients).expect("of x").into_data(),
        layer.weight.val().grad(&gradients).expect("of the weights").into_data(),
        bias.grad(&gradients).expect("of the bias").into_data(),
    ]
    .map(|data| data.try_into_vec().expect("f32"))
}

fn data([batch, inputs, outputs]: [usize; 3]) -> [Vec<f32>; 4] {
    let counts = [batch * inputs, inputs * outputs, outputs, batch * outputs];
    [0, 1, 2, 3].map(|n| numbers(counts[n], n as u64 + 1))
}

#[test]
fn every_simd_level_matches_the_f64_reference() {
    for sizes in [
        [1, 1, 1],
        [7, 5, 3],
        [8, 392, 10],
        [33, 392, 10],
        [257, 17, 16],
        [9, 64, 17],
        [16, 70, 32],
        [5, 9, 40],
        [70, 33, 129],
        [3, 600, 65],
    ] {
        let data = data(sizes);
        let expected = reference(sizes, &data);
        for level in Level::available() {
            let _held = level.hold();
            for (n, found) in found(sizes, &data, linear).iter().enumerate() {
                let largest = expected[n].iter().fold(1e-3, |most: f64, x| most.max(x.abs()));
                assert_eq!(found.len(), expected[n].len());
                for (found, expected) in found.iter().zip(&expected[n]) {
                    let error = (f64::from(*found) - expected).abs() / largest;
                    assert!(error < 1e-5, "{sizes:?} at {level}, part {n}: {found} for {expected}");
                }
            }
        }
    }
}

#[test]
fn large_products_in_bf16_are_those_of_rounded_factors_where_there_are_instructions() {
    for sizes @ [batch, inputs, outputs] in
        [[70, 66, 65], [64, 64, 64], [67, 130, 97], [7, 70, 65], [80, 63, 70]]
    {
        let data = data(sizes);
        for level in Level::available() {
            let _held = level.hold();
            let mut expected = reference(sizes, &data);
            let is_large = sizes.into_iter().all(|size| size >= 64);
            if is_large && bf16_products() != Bf16Products::Widened {
                let [x, weights, bias, gradient] = data.clone();
                let [x, weights, gradient] =
                    [x, weights, gradient].map(|values| Half::Bf16.rounded(level, &values));
                let of_bias = std::mem::take(&mut expected[3]);
                expected = reference(sizes, &[x, weights, bias, gradient]);
                expected[3] = of_bias;
            }
            let shapes = [&[batch, inputs][..], &[inputs, outputs], &[outputs], &[batch, outputs]];
            let [x, weights, bias, gradient] = std::array::from_fn(|n| tensor(data[n].clone(), shapes[n]));
            let wide_sizes = wide::sizes_of([&x, &weights, &bias]).expect("all is f32");
            let how = (ActivationFunction::Identity, MatmulPrecision::Bf16);
            let (output, backward) = wide::forward([x, weights, bias], wide_sizes, how, true);
            let gradients = backward.run(gradient, true).map(|found| found.expect("requested"));
            for (found, expected) in [output].iter().chain(&gradients).zip(&expected) {
                let largest = expected.iter().fold(1e-3, |most: f64, x| most.max(x.abs()));
                assert_eq!(values(found).len(), expected.len());
                for (&found, expected) in values(found).iter().zip(expected) {
                    let error = (f64::from(found) - expected).abs() / largest;
                    assert!(error < 1e-5, "{sizes:?} at {level}: {found} for {expected}");
                }
            }
        }
    }
}

#[test]
fn non_finite_values_propagate_as_in_burn() {
    let sizes = [11, 20, 10];
    let mut data = data(sizes);
    data[0][45] = f32::NAN;
    data[1][33] = f32::INFINITY;
    data[3][72] = f32::NEG_INFINITY;
    let kinds = |parts: [Vec<f32>; 4]| {
        parts.map(|part| part.iter().map(|x| (x.is_nan(), x.is_infinite())).collect::<Vec<_>>())
    };
    let burns = kinds(found(sizes, &data, |x, layer| layer.forward(x)));
    assert!(burns.iter().flatten().any(|&(nan, _)| nan));
    assert_eq!(kinds(found(sizes, &data, linear)), burns);
}
