//! Checks the modules against Burn's.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::Module;
use burn::nn::attention as burns;
use burn::tensor::{Bool, Device, Tensor, TensorData};

use super::*;
use crate::kernels::simd::Level;
use crate::ops::testing::{Part, assert_close, autodiff_devices, fixed, numbers, random, results};

/// Returns a mask that is true with probability `share`.
fn mask<const D: usize>(shape: [usize; D], share: f32, seed: u64) -> Tensor<D, Bool> {
    let values = numbers(shape.iter().product(), seed).into_iter().map(|x| x < 2.0 * share - 1.0);
    Tensor::from_data(TensorData::new(values.collect::<Vec<_>>(), shape), &Device::flex())
}

/// Returns a mask that hides the tokens after the first `lengths[i]` tokens of sample `i`.
fn padding(lengths: &[usize], length: usize) -> Tensor<2, Bool> {
    let hidden = |own: &usize| (0..length).map(|key| key >= *own).collect::<Vec<_>>();
    let values: Vec<bool> = lengths.iter().flat_map(hidden).collect();
    Tensor::from_data(TensorData::new(values, [lengths.len(), length]), &Device::flex())
}

#[derive(Debug, Clone, Default)]
struct Masks {
    pad: Option<Tensor<2, Bool>>,
    attn: Option<Tensor<3, Bool>>,
}

/// Creates an input of Burn's module or of ours. `x` has queries, keys and values. If `x` has fewer than
/// three tensors, its last tensor stands for the missing ones.
macro_rules! input {
    ($attention:ident, $x:expr, $masks:expr) => {{
        let (x, masks) = ($x, $masks);
        let at = |n: usize| x[n.min(x.len() - 1)].clone();
        let mut input = $attention::MhaInput::new(at(0), at(1), at(2));
        if let Some(mask) = &masks.pad {
            input = input.mask_pad(mask.clone());
        }
        if let Some(mask) = &masks.attn {
            input = input.mask_attn(mask.clone());
        }
        input
    }};
}

/// Returns the output, and the gradients. The output is the context, followed by the weights if `both` is
/// set.
fn burns_results(burns: &burns::MultiHeadAttention, x: &[Tensor<3>], masks: &Masks, both: bool) -> Vec<Part> {
    results(burns, x, |layer, x| {
        let found = layer.forward(input!(burns, x, masks));
        outputs(found.context, found.weights, both)
    })
}

fn our_results(ours: &MultiHeadAttention, x: &[Tensor<3>], masks: &Masks, both: bool) -> Vec<Part> {
    use crate::nn::attention;
    results(ours, x, |layer, x| {
        let found = layer.forward(input!(attention, x, masks));
        outputs(found.context, found.weights, both)
    })
}

fn outputs(context: Tensor<3>, weights: Tensor<4>, both: bool) -> Tensor<1> {
    if both {
        Tensor::cat(vec![context.flatten(0, 2), weights.flatten(0, 3)], 0)
    } else {
        context.flatten(0, 2)
    }
}

fn config(d_model: usize, heads: usize) -> MultiHeadAttentionConfig {
    // The layers have no key bias: softmax does not depend on it, and quiet softmax depends on it little, so
    // the gradient of a key bias would be mostly rounding errors.
    MultiHeadAttentionConfig::new(d_model, heads).with_dropout(0.0).with_key_bias(false)
}

#[test]
fn outputs_and_gradients_are_those_of_burns_module() {
    let [device, checkpointing] = autodiff_devices();
    for (seed, [batch, queries, keys, heads, width]) in [
        [1, 1, 1, 1, 1],
        [2, 3, 5, 1, 7],
        [1, 7, 7, 2, 16],
        [3, 33, 17, 3, 5],
        [2, 70, 50, 2, 20],
        [1, 12, 290, 1, 3],
        [1, 33, 31, 2, 33],
    ]
    .into_iter()
    .enumerate()
    {
        let seed = seed as u64 + 1;
        for (bias, quiet, both) in [(true, false, false), (false, true, true)] {
            let config = config(heads * width, heads).with_query_bias(bias).with_quiet_softmax(quiet);
            let config = config.with_value_bias(bias).with_output_bias(bias);
            let device = if quiet { &checkpointing } else { &device };
            let ours = fixed(config.init(device));
            let burns = burns::MultiHeadAttention::from(ours.clone());
            let tokens = |length, seed| random([batch, length, heads * width], seed, device) * 3.0;
            let x = [tokens(queries, seed), tokens(keys, seed + 50), tokens(keys, seed + 99)];
            let masks = [
                (None, None),
                (Some(mask([batch, keys], 0.3, seed)), None),
                (None, Some(mask([batch, queries, keys], 0.6, seed))),
                (Some(mask([batch, keys], 0.2, seed)), Some(mask([batch, queries, keys], 0.3, seed))),
                (Some(mask([batch, keys], 1.0, seed)), Some(mask([1, queries, keys], 0.3, seed))),
            ];
            for (which, (pad, attn)) in masks.into_iter().enumerate() {
                let masks = Masks { pad, attn };
                let expected = burns_results(&burns, &x, &masks, both);
                for level in Level::available() {
                    let _held = level.hold();
                    let context = format!(
                        "{batch} x {queries} of {keys}, {heads} heads of {width}, bias {bias}, quiet {quiet}, \
                         masks {which}, weights {both} at {level}"
                    );
                    assert_close(&our_results(&ours, &x, &masks, both), &expected, &context);
                }
            }
        }
    }
}

#[test]
fn self_attention_with_hidden_blocks_of_keys() {
    let device = Device::flex().autodiff();
    // There are more keys than a block of the backward pass has.
    let (batch, length) = (3, 270);
    let ours = fixed(config(6, 2).init(&device));
    let burns = burns::MultiHeadAttention::from(ours.clone());
    let x = [random([batch, length, 6], 1, &device)];
    let causal = generate_autoregressive_mask(batch, length, &Device::flex());
    let window = Tensor::<2, Bool>::tril_mask([length, length], 0, &Device::flex())
        .bool_or(Tensor::<2, Bool>::triu_mask([length, length], -20, &Device::flex()));
    let window: Tensor<3, Bool> = window.unsqueeze_dim(0);
    let pad = padding(&[7, 270, 0], length);
    for (which, (pad, attn)) in [
        (None, Some(causal.clone())),
        (Some(pad.clone()), None),
        (Some(pad), Some(causal.clone())),
        (None, Some(window)),
        (None, Some(causal.swap_dims(1, 2))),
    ]
    .into_iter()
    .enumerate()
    {
        let masks = Masks { pad, attn };
        for both in [false, true] {
            let context = format!("masks {which}, weights {both}");
            let expected = burns_results(&burns, &x, &masks, both);
            assert_close(&our_results(&ours, &x, &masks, both), &expected, &context);
            // In this layer, the score of masked keys is near the other scores, so masked keys have a weight
            // above 0, and the operator must not leave them out.
            let near = MultiHeadAttention { min_float: -1.0, ..ours.clone() };
            let burns_near = burns::MultiHeadAttention { min_float: -1.0, ..burns.clone() };
            let expected = burns_results(&burns_near, &x, &masks, both);
            assert_close(&our_results(&near, &x, &masks, both), &expected, &context);
            // The hidden tokens have values that are not finite.
            for value in [f32::NAN, f32::INFINITY] {
                let bad = [x[0].clone().slice_fill([0..1, 260..261, 3..4], value)];
                let expected = burns_results(&burns, &bad, &masks, both);
                assert_close(&our_results(&ours, &bad, &masks, both), &expected, &context);
            }
        }
    }
}

#[test]
fn modules_are_used_as_burns_can_be() {
    let device = Device::flex().autodiff();
    let ours = fixed(config(12, 3).init(&device));
    let burns = burns::MultiHeadAttention::from(ours.clone());
    let none = Masks::default();
    let assert_same =
        |ours: &MultiHeadAttention, burns: &burns::MultiHeadAttention, x: &[Tensor<3>], context| {
            assert_close(&our_results(ours, x, &none, true), &burns_results(burns, x, &none, true), context);
        };
    let x = [random([2, 5, 12], 1, &device)];
    assert_same(&ours, &burns, &[random([2, 12, 5], 1, &device).swap_dims(1, 2)], "swapped axes");
    assert_same(&ours, &burns, &[random([4, 9, 12], 1, &device).slice([1..3, 2..7])], "a slice");
    let empty = [random([2, 0, 12], 1, &device), x[0].clone()];
    assert_close(
        &our_results(&ours, &empty, &none, false),
        &burns_results(&burns, &empty, &none, false),
        "no queries",
    );
    assert_same(&ours.clone().no_grad(), &burns.clone().no_grad(), &x, "frozen");
    let tied = MultiHeadAttention { key: ours.query.clone(), ..ours.clone() };
    assert_same(&tied, &tied.clone().into(), &x, "tied");
    let partly = MultiHeadAttention { query: ours.query.clone().no_grad(), ..ours.clone() };
    assert_same(&partly, &partly.clone().into(), &x, "partly frozen");
    let twice = |context: Tensor<3>, again: Tensor<3>| context + again * 2.0;
    let found = results(&ours, &x, |layer, x| {
        let forward = |x| layer.forward(MhaInput::self_attn(x)).context;
        twice(forward(x[0].clone()), forward(forward(x[0].clone())))
    });
    let expected = results(&burns, &x, |layer, x| {
        let forward = |x| layer.forward(burns::MhaInput::self_attn(x)).context;
        twice(forward(x[0].clone()), forward(forward(x[0].clone())))
    });
    assert_close(&found, &expected, "twice");
}

#[test]
fn panics_are_burns() {
    let device = Device::flex();
    let ours = fixed(config(6, 2).init(&device));
    let burns = burns::MultiHeadAttention::from(ours.clone());
    let zeros = |shape: [usize; 3]| Tensor::<3>::zeros(shape, &device);
    let hidden = |shape: [usize; 3]| Some(mask(shape, 0.5, 1));
    for (q, k, v, attn) in [
        ([2, 3, 5], [2, 4, 6], [2, 4, 6], None),
        ([2, 3, 6], [1, 4, 6], [1, 4, 6], None),
        ([2, 3, 6], [2, 4, 6], [2, 5, 6], None),
        ([2, 3, 6], [2, 4, 6], [2, 4, 6], hidden([2, 3, 5])),
        ([2, 3, 6], [2, 4, 6], [2, 4, 6], hidden([3, 3, 4])),
    ] {
        let (x, masks) = ([q, k, v].map(zeros), Masks { pad: None, attn });
        let message = |panicked: Result<_, Box<dyn std::any::Any + Send>>| {
            let panicked = panicked.expect_err("it panics");
            panicked.downcast_ref::<String>().cloned().unwrap_or_default()
        };
        let of_burns = catch_unwind(AssertUnwindSafe(|| {
            burns.forward(input!(burns, &x, &masks));
        }));
        let of_ours = catch_unwind(AssertUnwindSafe(|| {
            use crate::nn::attention;
            ours.forward(input!(attention, &x, &masks));
        }));
        assert_eq!(message(of_ours), message(of_burns));
    }
}

#[test]
fn multi_head_attention_is_cached_shown_configured_and_recorded_as_burns() {
    let device = Device::flex();
    let config = MultiHeadAttentionConfig::new(8, 2);
    let of_burns = burns::MultiHeadAttentionConfig::from(config.clone());
    assert_eq!(config.to_string(), of_burns.to_string());
    let burns = fixed(of_burns.init(&device));
    let ours = config.init(&device).load_record(burns.clone().into_record());
    assert_eq!(ours.to_string(), burns.to_string());
    for cross in [false, true] {
        let (mut of_ours, mut of_burns) = if cross {
            (MhaCache::autoregressive_cross_attention(), burns::MhaCache::autoregressive_cross_attention())
        } else {
            (MhaCache::autoregressive(), burns::MhaCache::autoregressive())
        };
        for length in [2, 3, 4] {
            let x = random::<3>([2, 4, 8], 1, &device).narrow(1, 0, length);
            let memory = if cross { random([2, 5, 8], 2, &device) } else { x.clone() };
            let x = [x, memory];
            use crate::nn::attention;
            let found = ours.forward_cache(input!(attention, &x, &Masks::default()), &mut of_ours);
            let expected = burns.forward_cache(input!(burns, &x, &Masks::default()), &mut of_burns);
            let part = |context, weights| {
                let values = outputs(context, weights, true).into_data().try_into_vec().expect("f32");
                [("output".into(), values)]
            };
            let context = format!("{length} tokens, cross-attention {cross}");
            assert_close(
                &part(found.context, found.weights),
                &part(expected.context, expected.weights),
                &context,
            );
        }
    }
}

#[test]
fn cross_attention_is_burns() {
    let device = Device::flex().autodiff();
    for (heads, kv_heads, quiet) in [(4, 4, false), (4, 2, true), (3, 1, false)] {
        let config = CrossAttentionConfig::new(10, 14, heads, kv_heads, 5).with_dropout(0.0);
        let config = config.with_quiet_softmax(quiet);
        let of_burns = burns::CrossAttentionConfig::from(config.clone());
        assert_eq!(config.to_string(), of_burns.to_string());
        let burns = fixed(of_burns.init(&device));
        let ours = config.init(&device).load_record(burns.clone().into_record());
        assert_eq!(ours.to_string(), burns.to_string());
        let tokens = random([2, 7, 10], 1, &device);
        let x = [random([2, 20, 14], 2, &device)];
        for mask in [None, Some(padding(&[3, 20], 20))] {
            let mut expected =
                results(&burns, &x, |layer, x| layer.forward(tokens.clone(), x[0].clone(), mask.clone()));
            let mut found =
                results(&ours, &x, |layer, x| layer.forward(tokens.clone(), x[0].clone(), mask.clone()));
            for parts in [&mut expected, &mut found] {
                parts.retain(|(name, _)| !name.ends_with("key.bias"));
            }
            assert_close(&found, &expected, &format!("{heads} heads, {kv_heads} of keys"));
            let (mut of_ours, mut of_burns) = (CrossAttentionCache::new(), burns::CrossAttentionCache::new());
            for context in [x[0].clone(), x[0].clone() * 2.0] {
                let query = tokens.clone();
                let found = ours.forward_cache(query.clone(), context.clone(), mask.clone(), &mut of_ours);
                let expected = burns.forward_cache(query, context, mask.clone(), &mut of_burns);
                let part =
                    |tensor: Tensor<3>| [("output".into(), tensor.into_data().try_into_vec().expect("f32"))];
                assert_close(&part(found), &part(expected), "cached");
            }
        }
    }
}

#[test]
fn a_row_of_scores_with_nan_is_nan_as_in_burn() {
    let device = Device::flex().autodiff();
    for keys in 15..=40 {
        for (quiet, min_float) in [false, true]
            .into_iter()
            .flat_map(|quiet| [f64::NEG_INFINITY, -1e4].map(|min_float| (quiet, min_float)))
        {
            let config = config(8, 2).with_quiet_softmax(quiet).with_min_float(min_float);
            let ours = fixed(config.init(&device));
            let burns = burns::MultiHeadAttention::from(ours.clone());
            // The last keys are masked, so the operator may leave them out.
            let masks = Masks { pad: Some(padding(&[keys / 2], keys)), attn: None };
            let x = [5, keys, keys].map(|length| random([1, length, 8], length as u64, &device));
            for (which, at) in
                [(0, 0), (0, 2), (0, 4), (1, 0), (1, keys / 3), (1, keys - 1), (2, 0), (2, keys - 1)]
            {
                let mut x = x.clone();
                x[which] = x[which].clone().slice_fill([0..1, at..at + 1, 3..4], f32::NAN);
                let expected = burns_results(&burns, &x, &masks, true);
                for level in Level::available() {
                    let _held = level.hold();
                    let context = format!(
                        "{keys} keys, quiet {quiet}, mask {min_float}, NaN in token {at} of input {which} at {level}"
                    );
                    assert_close(&our_results(&ours, &x, &masks, true), &expected, &context);
                }
            }
        }
    }
}
