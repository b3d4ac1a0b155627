//! Checks the modules against Burn's.

use burn::nn::transformer as burns;
use burn::tensor::{Bool, Device, Tensor};

use super::*;
use crate::nn::activation::ActivationConfig;
use crate::nn::attention::generate_autoregressive_mask;
use crate::ops::testing::{assert_close, fixed, random, results};

fn pad(batch: usize, length: usize) -> Tensor<2, Bool> {
    random([batch, length], 3, &Device::flex()).greater_elem(0.6)
}

#[test]
fn an_encoder_is_burns() {
    let device = Device::flex().autodiff();
    for (norm_first, quiet) in [(false, false), (true, false), (false, true)] {
        let config = TransformerEncoderConfig::new(24, 40, 3, 2).with_dropout(0.0);
        let config = config.with_norm_first(norm_first).with_quiet_softmax(quiet);
        let burns = fixed(burns::TransformerEncoderConfig::from(config).init(&device));
        let ours = TransformerEncoder::from(burns.clone());
        let x = [random([3, 37, 24], 1, &device)];
        let (causal, pad) = (generate_autoregressive_mask(3, 37, &device), pad(3, 37));
        let mut expected = results(&burns, &x, |layer, x| {
            let input = burns::TransformerEncoderInput::new(x[0].clone());
            layer.forward(input.mask_pad(pad.clone()).mask_attn(causal.clone()))
        });
        let mut found = results(&ours, &x, |layer, x| {
            let input = TransformerEncoderInput::new(x[0].clone());
            layer.forward(input.mask_pad(pad.clone()).mask_attn(causal.clone()))
        });
        without_key_bias(&mut expected);
        without_key_bias(&mut found);
        assert_close(&found, &expected, &format!("norm first {norm_first}, quiet {quiet}"));
    }
}

/// Drops the gradients of key biases, which are mostly rounding errors.
fn without_key_bias(parts: &mut Vec<(String, Vec<f32>)>) {
    parts.retain(|(name, _)| !name.ends_with("key.bias"));
}

#[test]
fn a_decoder_is_burns() {
    let device = Device::flex().autodiff();
    for norm_first in [false, true] {
        let config =
            TransformerDecoderConfig::new(24, 40, 3, 2).with_dropout(0.0).with_norm_first(norm_first);
        let burns = fixed(burns::TransformerDecoderConfig::from(config).init(&device));
        let ours = TransformerDecoder::from(burns.clone());
        let x = [random([3, 19, 24], 1, &device), random([3, 37, 24], 2, &device)];
        let (causal, pad) = (generate_autoregressive_mask(3, 19, &device), pad(3, 37));
        let mut expected = results(&burns, &x, |layer, x| {
            let input = burns::TransformerDecoderInput::new(x[0].clone(), x[1].clone());
            layer.forward(input.memory_mask_pad(pad.clone()).target_mask_attn(causal.clone()))
        });
        let mut found = results(&ours, &x, |layer, x| {
            let input = TransformerDecoderInput::new(x[0].clone(), x[1].clone());
            layer.forward(input.memory_mask_pad(pad.clone()).target_mask_attn(causal.clone()))
        });
        without_key_bias(&mut expected);
        without_key_bias(&mut found);
        assert_close(&found, &expected, &format!("norm first {norm_first}"));
    }
}

#[test]
fn inference_with_a_cache_is_burns() {
    let device = Device::flex();
    for norm_first in [false, true] {
        let config = TransformerEncoderConfig::new(24, 40, 3, 2).with_norm_first(norm_first);
        let burns = fixed(burns::TransformerEncoderConfig::from(config).init(&device));
        let ours = TransformerEncoder::from(burns.clone());
        let config = TransformerDecoderConfig::new(24, 40, 3, 2).with_norm_first(norm_first);
        let burns_decoder = fixed(burns::TransformerDecoderConfig::from(config).init(&device));
        let our_decoder = TransformerDecoder::from(burns_decoder.clone());
        let (x, memory) = (random::<3>([2, 9, 24], 1, &device), random::<3>([2, 5, 24], 2, &device));
        let (mut burns_cache, mut our_cache) =
            (burns.new_autoregressive_cache(), ours.new_autoregressive_cache());
        let (mut burns_decoders, mut our_decoders) =
            (burns_decoder.new_autoregressive_cache(), our_decoder.new_autoregressive_cache());
        for length in [4, 5, 6, 7, 8, 9] {
            let x = x.clone().narrow(1, 0, length);
            let (pad, causal) = (pad(2, length), generate_autoregressive_mask(2, length, &device));
            let input = burns::TransformerEncoderInput::new(x.clone());
            let input = input.mask_pad(pad.clone()).mask_attn(causal.clone());
            let expected = burns.forward_autoregressive_inference(input, &mut burns_cache);
            let input =
                TransformerEncoderInput::new(x.clone()).mask_pad(pad.clone()).mask_attn(causal.clone());
            let found = ours.forward_autoregressive_inference(input, &mut our_cache);
            assert_same(found, expected, &format!("encoder, {length} tokens, norm first {norm_first}"));
            let input = burns::TransformerDecoderInput::new(x.clone(), memory.clone());
            let input = input.target_mask_pad(pad.clone()).target_mask_attn(causal.clone());
            let expected = burns_decoder.forward_autoregressive_inference(input, &mut burns_decoders);
            let input =
                TransformerDecoderInput::new(x, memory.clone()).target_mask_pad(pad).target_mask_attn(causal);
            let found = our_decoder.forward_autoregressive_inference(input, &mut our_decoders);
            assert_same(found, expected, &format!("decoder, {length} tokens, norm first {norm_first}"));
        }
    }
}

#[track_caller]
fn assert_same(ours: Tensor<3>, burns: Tensor<3>, context: &str) {
    let part = |tensor: Tensor<3>| vec![("output".into(), tensor.into_data().try_into_vec().expect("f32"))];
    assert_close(&part(ours), &part(burns), context);
}

#[test]
fn feed_forward_has_any_activation() {
    let device = Device::flex().autodiff();
    for activation in [
        ActivationConfig::Gelu,
        ActivationConfig::GeluApproximate,
        ActivationConfig::Relu,
        ActivationConfig::Identity,
        ActivationConfig::Tanh,
    ] {
        let name = format!("{activation:?}");
        let config = PositionWiseFeedForwardConfig::new(12, 50).with_dropout(0.0).with_activation(activation);
        let burns = fixed(burns::PositionWiseFeedForwardConfig::from(config).init(&device));
        let ours = PositionWiseFeedForward::from(burns.clone());
        let x = [random([3, 7, 12], 1, &device)];
        let expected = results(&burns, &x, |layer, x| layer.forward(x[0].clone()));
        assert_close(&results(&ours, &x, |layer, x| layer.forward(x[0].clone())), &expected, &name);
    }
}

#[test]
fn they_are_shown_and_configured_as_burns() {
    let device = Device::flex();
    let config = TransformerEncoderConfig::new(8, 12, 2, 3);
    let burns = burns::TransformerEncoderConfig::from(config.clone());
    assert_eq!(config.to_string(), burns.to_string());
    assert_eq!(config.init(&device).to_string(), burns.init(&device).to_string());
    let config = TransformerDecoderConfig::new(8, 12, 2, 3);
    let burns = burns::TransformerDecoderConfig::from(config.clone());
    assert_eq!(config.to_string(), burns.to_string());
    let (ours, burns) = (config.init(&device), burns.init(&device));
    assert_eq!(ours.to_string(), burns.to_string());
    assert_eq!(ours.layers[0].to_string(), burns.layers[0].to_string());
    let config = PositionWiseFeedForwardConfig::new(8, 12);
    let burns = burns::PositionWiseFeedForwardConfig::from(config.clone());
    assert_eq!(config.to_string(), burns.to_string());
    assert_eq!(config.init(&device).to_string(), burns.init(&device).to_string());
}
