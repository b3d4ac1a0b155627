//! The modules are compared with Burn's.

use burn::nn::attention as burns;
use burn::tensor::{Bool, Device, Tensor, TensorData};

use super::*;
use crate::nn::testing::{Part, assert_close, numbers, random, results};
use crate::simd::Level;

/// A mask that is true with this probability.
fn mask<const D: usize>(shape: [usize; D], share: f32, seed: u64) -> Tensor<D, Bool> {
    let values = numbers(shape.iter().product(), seed).into_iter().map(|x| x < 2.0 * share - 1.0);
    Tensor::from_data(TensorData::new(values.collect::<Vec<_>>(), shape), &Device::flex())
}

/// Tokens after the number of each of the batch are hidden.
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

/// An input of Burn's or ours, of queries, keys and values.
macro_rules! input {
    ($attention:ident, $x:expr, $masks:expr) => {{
        let (x, masks) = ($x, $masks);
        let mut input = match x.len() {
            1 => $attention::MhaInput::self_attn(x[0].clone()),
            2 => $attention::MhaInput::new(x[0].clone(), x[1].clone(), x[1].clone()),
            _ => $attention::MhaInput::new(x[0].clone(), x[1].clone(), x[2].clone()),
        };
        if let Some(mask) = &masks.pad {
            input = input.mask_pad(mask.clone());
        }
        if let Some(mask) = &masks.attn {
            input = input.mask_attn(mask.clone());
        }
        input
    }};
}

/// Outputs and gradients, of the context alone, or of it and the weights.
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
    match both {
        true => Tensor::cat(vec![context.flatten(0, 2), weights.flatten(0, 3)], 0),
        false => context.flatten(0, 2),
    }
}

fn config(d_model: usize, heads: usize) -> MultiHeadAttentionConfig {
    // Softmax does not depend on a bias of keys, quiet softmax little: its gradient is rounding for the most part.
    MultiHeadAttentionConfig::new(d_model, heads).with_dropout(0.0).with_key_bias(false)
}

#[test]
fn outputs_and_gradients_are_those_of_burns_module() {
    let device = Device::flex().autodiff();
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
            let ours = config.init(&device);
            let burns = burns::MultiHeadAttention::from(ours.clone());
            let tokens = |length, seed| random([batch, length, heads * width], seed, &device) * 3.0;
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
    // More keys than a block of backward has.
    let (batch, length) = (3, 270);
    let ours = config(6, 2).init(&device);
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
            // Scores near that of masked keys, which then have a weight.
            let near = MultiHeadAttention { min_float: -1.0, ..ours.clone() };
            let burns_near = burns::MultiHeadAttention { min_float: -1.0, ..burns.clone() };
            let expected = burns_results(&burns_near, &x, &masks, both);
            assert_close(&our_results(&near, &x, &masks, both), &expected, &context);
            // What is hidden is not finite.
            for value in [f32::NAN, f32::INFINITY] {
                let bad = [x[0].clone().slice_fill([0..1, 260..261, 3..4], value)];
                let expected = burns_results(&burns, &bad, &masks, both);
                assert_close(&our_results(&ours, &bad, &masks, both), &expected, &context);
            }
        }
    }
}
