//! Compares modules of random options with Burn's, for all types of parameters and inputs. If Burn's module
//! runs, ours must give the same types and values. If Burn's module panics, ours must panic with the same
//! message, except in mixed precision, which Burn's modules do not support.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::activation::ActivationConfig;
use burn::nn::{self as burns, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::{DType, Device, Gradients, Int, Tensor};

use crate::kernels::testing::Random;
use crate::nn::{self, attention, conv, loss, pool, transformer};
use crate::ops::testing::{fixed, random};

/// Casts parameters and running statistics.
struct To(DType);

impl ModuleMapper for To {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| {
            let cast = value.clone().cast(self.0);
            if value.is_require_grad() { cast.detach().require_grad() } else { cast }
        })
    }
}

/// Outputs and gradients, each as its name, its type and its values. A parameter without a gradient has none.
type Parts = Vec<(String, Option<(DType, Vec<f32>)>)>;

fn part<const D: usize>(tensor: Tensor<D>) -> (DType, Vec<f32>) {
    (tensor.dtype(), tensor.into_data().iter::<f32>().collect())
}

/// Collects the gradients of parameters.
struct GradientsOf {
    gradients: Gradients,
    path: Vec<String>,
    parts: Parts,
}

impl ModuleVisitor for GradientsOf {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let name = self.path.join(".");
        // The gradients of key biases are mostly rounding errors.
        if !name.ends_with("key.bias") {
            self.parts.push((name, param.val().grad(&self.gradients).map(part)));
        }
    }
}

/// Returns the output of `forward`, and on an autodiff device the gradients of a weighted sum of the output.
/// Returns the message of a panic as the error.
fn outcome<M: Module, const D: usize, const E: usize>(
    module: &M,
    x: &Tensor<D>,
    forward: impl Fn(&M, Tensor<D>) -> Tensor<E>,
) -> Result<Parts, String> {
    let run = || {
        if !x.device().is_autodiff() {
            return vec![("output".into(), Some(part(forward(module, x.clone()))))];
        }
        let x = x.clone().detach().require_grad();
        let output = forward(module, x.clone());
        let weights = random(output.dims(), 9, &output.device());
        let gradients = (output.clone().cast(DType::F32) * weights).sum().backward();
        let of_x = x.grad(&gradients).map(part);
        let parts = vec![("output".into(), Some(part(output))), ("input".into(), of_x)];
        let mut visitor = GradientsOf { gradients, path: Vec::new(), parts };
        module.visit(&mut visitor);
        visitor.parts
    };
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(panic) => panic.downcast_ref::<&str>().unwrap_or(&"").to_string(),
    })
}

/// Draws the options of a module. Counts how often Burn's modules run, panic, and do not support mixed
/// precision, for each name of a module.
struct Draw {
    random: Random,
    counts: BTreeMap<&'static str, [usize; 3]>,
}

impl Draw {
    fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.random.below(choices.len())].clone()
    }

    fn flag(&mut self) -> bool {
        self.pick(&[false, true])
    }

    /// Compares two modules with the same parameters. `create` creates a module on a device.
    #[track_caller]
    fn compare<B: Module, O: Module, const D: usize, const E: usize>(
        &mut self,
        name: &'static str,
        shape: [usize; D],
        (create_burns, create_ours): (impl Fn(&Device) -> B, impl Fn(&Device) -> O),
        (of_burns, of_ours): (impl Fn(&B, Tensor<D>) -> Tensor<E>, impl Fn(&O, Tensor<D>) -> Tensor<E>),
    ) {
        let device = self.pick(&[Device::flex().autodiff(), Device::flex()]);
        let types = [DType::F32, DType::BF16, DType::F16, DType::F64];
        let parameters = self.pick(&types);
        // Most modules have parameters and inputs of one type.
        let input = if self.flag() { parameters } else { self.pick(&types) };
        let frozen = self.pick(&[false, false, true]);
        let x = random(shape, 3, &device).cast(input);
        let (burns, ours) = (fixed(create_burns(&device)), fixed(create_ours(&device)));
        let (burns, ours) = (burns.map(&mut To(parameters)), ours.map(&mut To(parameters)));
        let (burns, ours) = if frozen { (burns.freeze(), ours.freeze()) } else { (burns, ours) };
        let (expected, found) = (outcome(&burns, &x, of_burns), outcome(&ours, &x, of_ours));
        let what = format!(
            "{name} of {parameters:?}, frozen {frozen}, {input:?} {shape:?} on {device:?}: {found:?}, \
             Burn's {expected:?}"
        );
        let counts = self.counts.entry(name).or_default();
        let is_half = |dtype| matches!(dtype, DType::BF16 | DType::F16);
        match (&found, &expected) {
            (Ok(found), Ok(expected)) => {
                counts[0] += 1;
                let tolerance = if is_half(parameters) || is_half(input) { 5e-2 } else { 2e-5 };
                assert_parts(found, expected, tolerance, &what);
            }
            (Err(found), Err(expected)) => {
                counts[1] += 1;
                assert_eq!(found, expected, "{what}");
            }
            (Ok(found), Err(_)) => {
                counts[2] += 1;
                assert!(is_half(input) && parameters == DType::F32, "{what}");
                assert!(found[0].1.as_ref().is_some_and(|(dtype, _)| *dtype == input), "{what}");
            }
            (Err(_), Ok(_)) => panic!("{what}"),
        }
    }
}

/// Asserts that types are equal, and that values differ by at most `tolerance` times the largest value of all
/// parts: the rounding errors of large values may be the whole of a small gradient.
#[track_caller]
fn assert_parts(found: &Parts, expected: &Parts, tolerance: f32, what: &str) {
    let all = expected.iter().filter_map(|(_, part)| part.as_ref()).flat_map(|(_, values)| values);
    let largest = all.fold(0.0f32, |most, x| most.max(x.abs()));
    assert_eq!(found.len(), expected.len(), "{what}");
    for ((name, found), (_, expected)) in found.iter().zip(expected) {
        let types = [found, expected].map(|part| part.as_ref().map(|(dtype, _)| *dtype));
        assert_eq!(types[0], types[1], "{name} of {what}");
        if let (Some((_, found)), Some((_, expected))) = (found, expected) {
            let close = |(x, y): (&f32, &f32)| (x - y).abs() <= tolerance * largest;
            let same = found.len() == expected.len() && found.iter().zip(expected).all(close);
            assert!(same, "{name} of {what}");
        }
    }
}

#[test]
fn modules_of_all_types_are_burns() {
    // The hook would print the message of each expected panic.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let counts = catch_unwind(compare_modules);
    std::panic::set_hook(hook);
    let counts = counts.unwrap_or_else(|panic| panic!("{}", panic.downcast_ref::<String>().expect("text")));
    for (name, [run, panic, mixed]) in counts {
        // Modules without parameters run in all types.
        let all = matches!(name, "MaxPool2d" | "Gelu" | "Embedding");
        assert!(run > 20 && (all || panic > 5), "{name}: {run} run, {panic} panic, {mixed} mixed");
    }
}

fn compare_modules() -> BTreeMap<&'static str, [usize; 3]> {
    let mut draw = Draw { random: Random(5), counts: BTreeMap::new() };
    for _ in 0..200 {
        let draw = &mut draw;
        let (bias, flag) = (draw.flag(), draw.flag());
        let [batch, steps, inputs] = [1, 2, 3].map(|least| least + draw.random.below(3));
        let outputs = 2 * draw.pick(&[1, 2, 9]);

        let layer = burns::LinearConfig::new(inputs, outputs).with_bias(bias);
        draw.compare(
            "Linear",
            [batch, steps, inputs],
            (|device: &Device| layer.init(device), |device: &Device| nn::Linear::from(layer.init(device))),
            (|layer: &burns::Linear, x| layer.forward(x), |layer: &nn::Linear, x| layer.forward(x)),
        );

        let kernel = draw.pick(&[[3, 3], [3, 3], [1, 1], [2, 3], [5, 4]]);
        let one = PaddingConfig2d::Explicit(1, 1, 1, 1);
        let padding =
            draw.pick(&[one.clone(), one, PaddingConfig2d::Same, PaddingConfig2d::Explicit(2, 1, 0, 3)]);
        let groups = draw.pick(&[1, 1, 2]);
        let layer = burns::conv::Conv2dConfig::new([2 * inputs, outputs], kernel)
            .with_padding(padding)
            .with_stride(draw.pick(&[[1, 1], [1, 1], [2, 1]]))
            .with_groups(groups)
            .with_bias(bias);
        let pooling = burns::pool::MaxPool2dConfig::new([2, 2]).init();
        draw.compare(
            "Conv2d",
            [batch, 2 * inputs, 6, 5],
            (|device: &Device| layer.init(device), |device: &Device| conv::Conv2d::from(layer.init(device))),
            (
                |layer: &burns::conv::Conv2d, x| {
                    let output = layer.forward(x);
                    if flag { pooling.forward(relu(output)) } else { output }
                },
                |layer: &conv::Conv2d, x| if flag { layer.forward_relu_pool(x) } else { layer.forward(x) },
            ),
        );

        let layer = burns::BatchNormConfig::new(inputs);
        draw.compare(
            "BatchNorm",
            [batch + 1, inputs, steps],
            (|device: &Device| layer.init(device), |device: &Device| nn::BatchNorm::from(layer.init(device))),
            (|layer: &burns::BatchNorm, x| layer.forward(x), |layer: &nn::BatchNorm, x| layer.forward(x)),
        );

        let layer = burns::LayerNormConfig::new(inputs).with_bias(bias);
        draw.compare(
            "LayerNorm",
            [batch, steps, inputs],
            (|device: &Device| layer.init(device), |device: &Device| nn::LayerNorm::from(layer.init(device))),
            (|layer: &burns::LayerNorm, x| layer.forward(x), |layer: &nn::LayerNorm, x| layer.forward(x)),
        );

        let layer = burns::RmsNormConfig::new(inputs);
        draw.compare(
            "RmsNorm",
            [batch, steps, inputs],
            (|device: &Device| layer.init(device), |device: &Device| nn::RmsNorm::from(layer.init(device))),
            (|layer: &burns::RmsNorm, x| layer.forward(x), |layer: &nn::RmsNorm, x| layer.forward(x)),
        );

        let layer = burns::LstmConfig::new(inputs, outputs, bias).with_input_forget(flag);
        draw.compare(
            "Lstm",
            [batch, steps, inputs],
            (|device: &Device| layer.init(device), |device: &Device| nn::Lstm::from(layer.init(device))),
            (
                |layer: &burns::Lstm, x| layer.forward(x, None).0,
                |layer: &nn::Lstm, x| layer.forward(x, None).0,
            ),
        );

        let layer = burns::BiLstmConfig::new(inputs, outputs, bias);
        draw.compare(
            "BiLstm",
            [batch, steps, inputs],
            (|device: &Device| layer.init(device), |device: &Device| nn::BiLstm::from(layer.init(device))),
            (
                |layer: &burns::BiLstm, x| layer.forward(x, None).0,
                |layer: &nn::BiLstm, x| layer.forward(x, None).0,
            ),
        );

        let layer = burns::GruConfig::new(inputs, outputs, bias).with_reset_after(flag);
        draw.compare(
            "Gru",
            [batch, steps, inputs],
            (|device: &Device| layer.init(device), |device: &Device| nn::Gru::from(layer.init(device))),
            (|layer: &burns::Gru, x| layer.forward(x, None), |layer: &nn::Gru, x| layer.forward(x, None)),
        );

        let layer = burns::BiGruConfig::new(inputs, outputs, bias);
        draw.compare(
            "BiGru",
            [batch, steps, inputs],
            (|device: &Device| layer.init(device), |device: &Device| nn::BiGru::from(layer.init(device))),
            (
                |layer: &burns::BiGru, x| layer.forward(x, None).0,
                |layer: &nn::BiGru, x| layer.forward(x, None).0,
            ),
        );

        let width = 2 * inputs;
        let layer = burns::attention::MultiHeadAttentionConfig::new(width, 2).with_dropout(0.0);
        let layer = layer.with_quiet_softmax(flag).with_query_bias(bias);
        draw.compare(
            "MultiHeadAttention",
            [batch, steps, width],
            (
                |device: &Device| layer.init(device),
                |device: &Device| attention::MultiHeadAttention::from(layer.init(device)),
            ),
            (
                |layer: &burns::attention::MultiHeadAttention, x| {
                    layer.forward(burns::attention::MhaInput::self_attn(x)).context
                },
                |layer: &attention::MultiHeadAttention, x| {
                    layer.forward(attention::MhaInput::self_attn(x)).context
                },
            ),
        );

        let layer = burns::attention::CrossAttentionConfig::new(width, width, 2, 1, 3).with_dropout(0.0);
        let layer = layer.with_quiet_softmax(flag);
        let our_layer = attention::CrossAttentionConfig::from(layer.clone());
        draw.compare(
            "CrossAttention",
            [batch, steps, width],
            (|device: &Device| layer.init(device), |device: &Device| our_layer.init(device)),
            (
                |layer: &burns::attention::CrossAttention, x: Tensor<3>| layer.forward(x.clone(), x, None),
                |layer: &attention::CrossAttention, x: Tensor<3>| layer.forward(x.clone(), x, None),
            ),
        );

        let layer = burns::transformer::TransformerEncoderConfig::new(width, 7, 2, 1).with_dropout(0.0);
        let layer = layer.with_norm_first(flag);
        draw.compare(
            "TransformerEncoder",
            [batch, steps, width],
            (
                |device: &Device| layer.init(device),
                |device: &Device| transformer::TransformerEncoder::from(layer.init(device)),
            ),
            (
                |layer: &burns::transformer::TransformerEncoder, x| {
                    layer.forward(burns::transformer::TransformerEncoderInput::new(x))
                },
                |layer: &transformer::TransformerEncoder, x| {
                    layer.forward(transformer::TransformerEncoderInput::new(x))
                },
            ),
        );

        let layer = burns::transformer::TransformerDecoderConfig::new(width, 7, 2, 1).with_dropout(0.0);
        let layer = layer.with_norm_first(flag);
        draw.compare(
            "TransformerDecoder",
            [batch, steps, width],
            (
                |device: &Device| layer.init(device),
                |device: &Device| transformer::TransformerDecoder::from(layer.init(device)),
            ),
            (
                |layer: &burns::transformer::TransformerDecoder, x: Tensor<3>| {
                    layer.forward(burns::transformer::TransformerDecoderInput::new(x.clone(), x))
                },
                |layer: &transformer::TransformerDecoder, x: Tensor<3>| {
                    layer.forward(transformer::TransformerDecoderInput::new(x.clone(), x))
                },
            ),
        );

        let activation = draw.pick(&[ActivationConfig::Gelu, ActivationConfig::Relu, ActivationConfig::Tanh]);
        let layer = burns::transformer::PositionWiseFeedForwardConfig::new(inputs, outputs);
        let layer = layer.with_dropout(0.0).with_activation(activation);
        draw.compare(
            "PositionWiseFeedForward",
            [batch, steps, inputs],
            (
                |device: &Device| layer.init(device),
                |device: &Device| transformer::PositionWiseFeedForward::from(layer.init(device)),
            ),
            (
                |layer: &burns::transformer::PositionWiseFeedForward, x| layer.forward(x),
                |layer: &transformer::PositionWiseFeedForward, x| layer.forward(x),
            ),
        );

        let layer = burns::pool::MaxPool2dConfig::new(draw.pick(&[[2, 2], [2, 2], [3, 1]]));
        draw.compare(
            "MaxPool2d",
            [batch, inputs, 4, 5],
            (|_: &Device| layer.init(), |_: &Device| pool::MaxPool2d::from(layer.init())),
            (
                |layer: &burns::pool::MaxPool2d, x| layer.forward(x),
                |layer: &pool::MaxPool2d, x| layer.forward(x),
            ),
        );

        let layer = burns::Gelu { approximate: flag };
        draw.compare(
            "Gelu",
            [batch, steps, inputs],
            (|_: &Device| layer.clone(), |_: &Device| nn::Gelu::from(layer.clone())),
            (|layer: &burns::Gelu, x| layer.forward(x), |layer: &nn::Gelu, x| layer.forward(x)),
        );

        let layer = burns::EmbeddingConfig::new(3, outputs);
        let indices = |x: &Tensor<2>| Tensor::<2, Int>::ones(x.dims(), &x.device());
        draw.compare(
            "Embedding",
            [batch, steps],
            (|device: &Device| layer.init(device), |device: &Device| nn::Embedding::from(layer.init(device))),
            (
                |layer: &burns::Embedding, x: Tensor<2>| {
                    layer.forward(indices(&x)) + x.sum().reshape([1, 1, 1]).cast(layer.weight.val().dtype())
                },
                |layer: &nn::Embedding, x: Tensor<2>| {
                    layer.forward(indices(&x)) + x.sum().reshape([1, 1, 1]).cast(layer.weight.val().dtype())
                },
            ),
        );

        let layer = burns::loss::CrossEntropyLossConfig::new();
        let layer = layer.with_smoothing(flag.then_some(0.2)).with_weights(bias.then(|| vec![0.5; inputs]));
        let classes = |x: &Tensor<2>| Tensor::<1, Int>::ones([x.dims()[0]], &x.device());
        draw.compare(
            "CrossEntropyLoss",
            [batch, inputs],
            (
                |device: &Device| layer.init(device),
                |device: &Device| loss::CrossEntropyLoss::from(layer.init(device)),
            ),
            (
                |layer: &burns::loss::CrossEntropyLoss, x: Tensor<2>| layer.forward(x.clone(), classes(&x)),
                |layer: &loss::CrossEntropyLoss, x: Tensor<2>| layer.forward(x.clone(), classes(&x)),
            ),
        );
    }
    draw.counts
}
