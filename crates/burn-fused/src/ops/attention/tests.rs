//! Checks the operator of attention against attention that is composed of Burn's operators.

use burn::tensor::TensorData;

use super::*;
use crate::ops::testing::{Part, assert_close, numbers, random};

/// Returns the context, the weights, and the gradients of queries, keys and values.
fn parts(x: [Tensor<3>; 3], run: impl Fn([Tensor<3>; 3]) -> (Tensor<3>, Tensor<4>)) -> Vec<Part> {
    let x = x.map(|x| x.detach().require_grad());
    let (context, weights) = run(x.clone());
    let device = context.device();
    let loss = (context.clone() * random(context.dims(), 7, &device)).sum()
        + (weights.clone() * random(weights.dims(), 8, &device)).sum();
    let gradients = loss.backward();
    let values = |data: TensorData| data.try_into_vec_as().expect("floats");
    let mut parts = vec![
        ("context".into(), values(context.into_data())),
        ("weights".into(), values(weights.into_data())),
    ];
    for x in x {
        parts.push(("gradient".into(), values(x.grad(&gradients).expect("it is tracked").into_data())));
    }
    parts
}

fn mask(shape: [usize; 3], share: f32) -> Tensor<3, Bool> {
    let hidden = numbers(shape.iter().product(), 11).into_iter().map(|x| x < 2.0 * share - 1.0);
    Tensor::from_data(TensorData::new(hidden.collect::<Vec<_>>(), shape), &Device::flex())
}

/// Calls `run` in a pool of `threads` threads.
fn on_threads<T: Send>(threads: usize, run: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads").install(run)
}

#[test]
fn dropout_and_shared_heads_are_as_composed() {
    let device = Device::flex().autodiff();
    for (prob, [batch, queries, keys], [heads, kv_heads, width]) in [
        (0.5, [1, 9, 11], [1, 1, 3]),
        (0.2, [2, 40, 21], [4, 2, 8]),
        (0.0, [1, 17, 33], [6, 2, 5]),
        (0.1, [1, 33, 280], [2, 1, 16]),
    ] {
        let masks = vec![mask([batch, 1, keys], 0.2), mask([1, queries, keys], 0.4)];
        let attention = Attention {
            heads,
            kv_heads,
            scale: 0.3,
            min_float: -1e4,
            quiet_softmax: false,
            dropout: prob,
            masks,
        };
        let x = [(queries, heads), (keys, kv_heads), (keys, kv_heads)]
            .map(|(length, heads)| random([batch, length, heads * width], length as u64, &device));
        for threads in [1, 3] {
            let found = on_threads(threads, || {
                parts(x.clone(), |x| {
                    let (context, weights) = attention.run(x, true);
                    (context, weights.expect("they are wanted"))
                })
            });
            // The dropout factors that the operator drew, read from its weights. A masked key has a weight of
            // 0 with any factor.
            let factor = |weight: &f32| if *weight == 0.0 { 0.0 } else { (1.0 / (1.0 - prob)) as f32 };
            let factors: Vec<f32> = found[1].1.iter().map(factor).collect();
            assert!(factors.contains(&0.0) && factors.iter().any(|&factor| factor > 0.0));
            let factors = TensorData::new(factors, [batch, heads, queries, keys]);
            let factors = Tensor::<4>::from_data(factors, &device);
            let expected = parts(x.clone(), |x| {
                let composed = Attention { dropout: 0.0, masks: attention.masks.clone(), ..attention };
                let weights = composed.composed(x.clone()).1 * factors.clone();
                let v: Tensor<5> = x[2].clone().reshape([batch, keys, kv_heads, 1, width]);
                let v = v.repeat_dim(3, heads / kv_heads).reshape([batch, keys, heads, width]);
                let context: Tensor<4> = weights.clone().matmul(v.swap_dims(1, 2)).swap_dims(1, 2);
                (context.flatten(2, 3), weights)
            });
            let context = format!("{heads} heads of {kv_heads}, dropout {prob}, {threads} threads");
            assert_close(&found, &expected, &context);
        }
    }
}

#[test]
fn one_key_has_no_gradient_of_queries_and_keys() {
    let device = Device::flex().autodiff();
    for prob in [0.0, 0.1] {
        let attention = Attention {
            heads: 2,
            kv_heads: 2,
            scale: 0.3,
            min_float: -1e4,
            quiet_softmax: false,
            dropout: prob,
            masks: Vec::new(),
        };
        let x = [5, 1, 1].map(|length| random([3, length, 2 * 127], length as u64, &device));
        let found = parts(x, |x| {
            let (context, weights) = attention.run(x, true);
            (context, weights.expect("they are wanted"))
        });
        // With one key, the gradients of queries and keys are exactly 0, as with Burn's operators. If they
        // were rounding errors, an optimizer that divides by a gradient's size would move parameters by them.
        assert!(found[2].1.iter().chain(&found[3].1).all(|&gradient| gradient == 0.0), "dropout {prob}");
        assert!(found[4].1.iter().any(|&gradient| gradient != 0.0));
    }
}

#[test]
fn another_type_is_composed() {
    let device = Device::flex().autodiff();
    for quiet_softmax in [false, true] {
        let masks = vec![mask([2, 7, 9], 0.4)];
        let attention = Attention {
            heads: 4,
            kv_heads: 2,
            scale: 0.5,
            min_float: -1e4,
            quiet_softmax,
            dropout: 0.0,
            masks,
        };
        let x = [(7, 4), (9, 2), (9, 2)].map(|(length, heads)| random([2, length, heads * 3], 1, &device));
        let run = |x| {
            let (context, weights) = attention.run(x, true);
            (context, weights.expect("they are wanted"))
        };
        let expected = parts(x.clone().map(|x| x.cast(DType::F64)), |x| {
            let (context, weights) = run(x);
            assert_eq!(context.dtype(), DType::F64);
            (context.cast(DType::F32), weights.cast(DType::F32))
        });
        assert_close(&parts(x, run), &expected, "f64");
    }
}

#[test]
fn weights_that_are_not_wanted_are_not_computed() {
    let device = Device::flex();
    let (scale, min_float) = (0.5, -1e4);
    let attention = Attention {
        heads: 2,
        kv_heads: 2,
        scale,
        min_float,
        quiet_softmax: false,
        dropout: 0.0,
        masks: vec![],
    };
    let x = [1, 2, 3].map(|seed| random([1, 4, 6], seed, &device));
    let [(context, weights), (same, none)] = [true, false].map(|wants| attention.run(x.clone(), wants));
    assert_eq!(context.into_data(), same.into_data());
    assert_eq!((weights.map(|weights| weights.dims()), none.is_none()), (Some([1, 2, 4, 4]), true));
}
