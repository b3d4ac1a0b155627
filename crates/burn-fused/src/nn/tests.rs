//! Checks modules of random sizes against Burn's. Modules are used twice in a step, parameters are frozen or
//! shared, and some inputs have no gradient.

use burn::module::{Module, ModuleMapper, Param};
use burn::nn as burns;
use burn::tensor::{Device, Int, Tensor};

use super::attention::{MhaInput, MultiHeadAttention};
use super::conv::Conv2d;
use super::transformer as ours;
use super::{BatchNorm, Embedding, Gru, LayerNorm, Linear, Lstm, RmsNorm};
use crate::ops::linear::{LinearLayer, linear};
use crate::ops::testing::{Part, assert_close, autodiff_devices, fixed, numbers, random, results};

/// Seeds of the random sizes.
const SEEDS: std::ops::Range<u64> = 1..6;

/// Returns random sizes from `least` to 5 times `least`.
fn sizes<const N: usize>(seed: u64, least: [usize; N]) -> [usize; N] {
    let numbers = numbers(N, 7919 * seed);
    std::array::from_fn(|at| least[at] + (2.0 * (numbers[at] + 1.0) * least[at] as f32) as usize)
}

/// Freezes the module's parameter number `n` if bit `n` is set.
struct Freeze(u32);

impl ModuleMapper for Freeze {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let frozen = self.0 & 1 == 1;
        self.0 = self.0.rotate_right(1);
        if frozen { param.set_require_grad(false) } else { param }
    }
}

/// Asserts that a module gives the same results as Burn's module. Each module is used twice in a step.
#[track_caller]
fn compare<B: Module, O: Module + From<B>, const D: usize, const E: usize>(
    burns: B,
    x: Tensor<D>,
    of_burns: impl Fn(&B, Tensor<D>) -> Tensor<E>,
    of_ours: impl Fn(&O, Tensor<D>) -> Tensor<E>,
) {
    let (burns, x) = (fixed(burns), [x]);
    // The cases freeze no parameter, all, or every other one. The last case detaches the input.
    for (detached, bits) in [(false, 0), (false, !0), (false, 0x5555_5555), (false, 0xaaaa_aaaa), (true, 0)] {
        let burns = burns.clone().map(&mut Freeze(bits));
        let input = |x: &Tensor<D>| if detached { x.clone().detach() } else { x.clone() };
        let expected = results(&burns, &x, |layer, x| {
            of_burns(layer, input(&x[0])) + of_burns(layer, input(&x[0]) * 0.5) * 2.0
        });
        let found = results(&O::from(burns), &x, |layer, x| {
            of_ours(layer, input(&x[0])) + of_ours(layer, input(&x[0]) * 0.5) * 2.0
        });
        // Do not compare the gradients of key biases, which are mostly rounding errors.
        let [found, expected] = [found, expected].map(|mut parts: Vec<Part>| {
            parts.retain(|(name, _)| !name.ends_with("key.bias"));
            parts
        });
        let context = format!("{:?}, detached {detached}, frozen {bits:x}", x[0].dims());
        assert_close(&found, &expected, &context);
    }
}

/// Returns the cases: each combination of a device, whether layers have biases, and a seed.
fn cases() -> impl Iterator<Item = (Device, bool, u64)> {
    let devices = autodiff_devices().into_iter().flat_map(|device| [(device.clone(), true), (device, false)]);
    devices.flat_map(|(device, bias)| SEEDS.map(move |seed| (device.clone(), bias, seed)))
}

#[test]
fn linear_layers_and_feed_forward_networks_are_burns() {
    for (device, bias, seed) in cases() {
        let [rows, inputs, outputs] = sizes(seed, [1, 3, 9]);
        let x = random([rows, 2, inputs], seed, &device);
        let layer = burns::LinearConfig::new(inputs, outputs).with_bias(bias).init(&device);
        compare(layer, x.clone(), |layer, x| layer.forward(x), |layer: &Linear, x| layer.forward(x));
        let config = burns::transformer::PositionWiseFeedForwardConfig::new(inputs, outputs);
        let layer = config.with_dropout(0.0).init(&device);
        let of_ours = |layer: &ours::PositionWiseFeedForward, x| layer.forward(x);
        compare(layer, x, |layer, x| layer.forward(x), of_ours);
    }
}

#[test]
fn convolutions_are_burns() {
    for (device, bias, seed) in cases() {
        let [batch, inputs, outputs, height, width] = sizes(seed, [1, 6, 3, 2, 3]);
        let padding = burns::PaddingConfig2d::Explicit(1, 1, 1, 1);
        let config = burns::conv::Conv2dConfig::new([inputs, outputs], [3, 3]).with_padding(padding);
        let x = random([batch, inputs, height, width], seed, &device);
        let layer = config.with_bias(bias).init(&device);
        compare(layer, x, |layer, x| layer.forward(x), |layer: &Conv2d, x| layer.forward(x));
    }
}

#[test]
fn normalisations_are_burns() {
    for (device, bias, seed) in cases() {
        let [batch, channels, height, width] = sizes(seed, [2, 1, 3, 5]);
        let x = random([batch, channels, height, width], seed, &device);
        let layer = burns::BatchNormConfig::new(channels).init(&device);
        compare(layer, x.clone(), |layer, x| layer.forward(x), |layer: &BatchNorm, x| layer.forward(x));
        let layer = burns::LayerNormConfig::new(width).with_bias(bias).init(&device);
        compare(layer, x.clone(), |layer, x| layer.forward(x), |layer: &LayerNorm, x| layer.forward(x));
        let layer = burns::RmsNormConfig::new(width).init(&device);
        compare(layer, x, |layer, x| layer.forward(x), |layer: &RmsNorm, x| layer.forward(x));
    }
}

#[test]
fn recurrent_layers_are_burns() {
    for (device, bias, seed) in cases() {
        let [batch, steps, inputs, hidden] = sizes(seed, [1, 1, 3, 5]);
        let x = random([batch, steps, inputs], seed, &device);
        let layer = burns::LstmConfig::new(inputs, hidden, bias).init(&device);
        let of_ours = |layer: &Lstm, x| layer.forward(x, None).0;
        compare(layer, x.clone(), |layer, x| layer.forward(x, None).0, of_ours);
        let layer = burns::GruConfig::new(inputs, hidden, bias).init(&device);
        compare(layer, x, |layer, x| layer.forward(x, None), |layer: &Gru, x| layer.forward(x, None));
    }
}

#[test]
fn attention_and_transformers_are_burns() {
    for (device, bias, seed) in cases() {
        let [batch, length, heads, width] = sizes(seed, [1, 3, 1, 3]);
        let (d_model, x) = (heads * width, random([batch, length, heads * width], seed, &device));
        let config = burns::attention::MultiHeadAttentionConfig::new(d_model, heads).with_dropout(0.0);
        let config =
            config.with_query_bias(bias).with_key_bias(false).with_value_bias(bias).with_output_bias(bias);
        let of_burns = |layer: &burns::attention::MultiHeadAttention, x| {
            layer.forward(burns::attention::MhaInput::self_attn(x)).context
        };
        let of_ours = |layer: &MultiHeadAttention, x| layer.forward(MhaInput::self_attn(x)).context;
        compare(config.init(&device), x.clone(), of_burns, of_ours);
        if !bias {
            continue;
        }
        let config = burns::transformer::TransformerEncoderConfig::new(d_model, 2 * d_model + 1, heads, 2);
        let of_burns = |layer: &burns::transformer::TransformerEncoder, x| {
            layer.forward(burns::transformer::TransformerEncoderInput::new(x))
        };
        let of_ours =
            |layer: &ours::TransformerEncoder, x| layer.forward(ours::TransformerEncoderInput::new(x));
        compare(config.with_dropout(0.0).init(&device), x.clone(), of_burns, of_ours);
        let config = burns::transformer::TransformerDecoderConfig::new(d_model, 2 * d_model + 1, heads, 1);
        let of_burns = |layer: &burns::transformer::TransformerDecoder, x: Tensor<3>| {
            layer.forward(burns::transformer::TransformerDecoderInput::new(x.clone(), x))
        };
        let of_ours = |layer: &ours::TransformerDecoder, x: Tensor<3>| {
            layer.forward(ours::TransformerDecoderInput::new(x.clone(), x))
        };
        compare(config.with_dropout(0.0).init(&device), x, of_burns, of_ours);
    }
}

/// An output layer that has the transposed vectors of an embedding as its weights.
struct Transposed<'a>(&'a Embedding, Option<Tensor<1>>);

impl LinearLayer for Transposed<'_> {
    fn parameters(&self) -> (Tensor<2>, Option<Tensor<1>>) {
        (self.0.weight.val().transpose(), self.1.clone())
    }
}

#[test]
fn an_output_layer_has_the_weights_of_the_embedding() {
    const NONE: &[Tensor<1>] = &[];
    for (device, bias, seed) in cases() {
        let [rows, width, length] = sizes(seed, [5, 3, 1]);
        let context = format!("{rows} vectors of {width}, {length} tokens, bias {bias}");
        let tokens = |rows: usize| {
            let tokens = Tensor::<1, Int>::arange(0..2 * length as i64, &device);
            tokens.remainder_scalar(rows as i64).reshape([2, length])
        };
        let burns = fixed(burns::EmbeddingConfig::new(rows, width).init(&device));
        let values = bias.then(|| random([rows], seed, &device));
        let expected = results(&burns, NONE, |layer, _| {
            let weights = layer.weight.val().transpose();
            burn::tensor::module::linear(layer.forward(tokens(rows)), weights, values.clone())
        });
        let found = results(&Embedding::from(burns), NONE, |layer, _| {
            linear(layer.forward(tokens(rows)), &Transposed(layer, values.clone()))
        });
        assert_close(&found, &expected, &format!("transposed, {context}"));

        let embedding = fixed(burns::EmbeddingConfig::new(width, width).init(&device));
        let mut head = fixed(burns::LinearConfig::new(width, width).with_bias(bias).init(&device));
        head.weight = embedding.weight.clone();
        let ours = (Embedding::from(embedding.clone()), Linear::from(head.clone()));
        let expected = results(&(embedding, head), NONE, |(embedding, head), _| {
            head.forward(embedding.forward(tokens(width)))
        });
        let found =
            results(&ours, NONE, |(embedding, head), _| head.forward(embedding.forward(tokens(width))));
        assert_close(&found, &expected, &format!("one parameter, {context}"));
    }
}
