//! Times modules of `burn_fused::nn` against the modules of `burn::nn`, forward and backward. Each
//! measurement times Burn's module, then the fused one. Usage:
//!
//! ```text
//! cargo run --release --example compare_modules [PART OF A NAME]
//! ```

use std::hint::black_box;
use std::time::Instant;

use burn::module::Module;
use burn::tensor::{Device, Distribution, Int, Tensor};
use burn_fused::nn as fused;

/// Number of measurements of each module.
const REPEATS: usize = 21;

/// Runs forward and returns the sum of the output, or the loss. The measured time includes the backward of
/// the sum or the loss.
type Output = Box<dyn Fn() -> Tensor<1>>;

fn main() {
    let part = std::env::args().nth(1).unwrap_or_default();
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    println!("threads of operators: {threads}");
    println!("{:<40} {:>9} {:>9} {:>6}", "module", "Burn, ms", "fused, ms", "ratio");
    for (name, burns, ours) in pairs(&Device::flex().autodiff()) {
        if name.contains(&part) {
            let mut times = [Vec::new(), Vec::new()];
            for _ in 0..REPEATS {
                for (times, output) in times.iter_mut().zip([&burns, &ours]) {
                    let began = Instant::now();
                    black_box(output().backward());
                    times.push(1e3 * began.elapsed().as_secs_f64());
                }
            }
            let [burns, ours] = times.map(|mut times| {
                times.sort_by(f64::total_cmp);
                times[REPEATS / 2]
            });
            println!("{name:<40} {burns:>9.3} {ours:>9.3} {:>6.2}", burns / ours);
        }
    }
}

/// A name, then the function of Burn's module and of the fused one.
type Pair = (&'static str, Output, Output);

fn pairs(device: &Device) -> Vec<Pair> {
    let mut pairs = Vec::new();
    linear(&mut pairs, device);
    rows(&mut pairs, device);
    losses(&mut pairs, device);
    attention(&mut pairs, device);
    transformers(&mut pairs, device);
    cross_attention(&mut pairs, device);
    recurrent(&mut pairs, device);
    images(&mut pairs, device);
    pairs
}

fn random<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Default, device).require_grad()
}

/// Adds a module with a forward that takes one tensor.
macro_rules! pair {
    ($pairs:ident, $name:expr, $layer:expr, $ours:ty, $x:expr) => {{
        let (x, layer) = ($x, $layer);
        let (y, ours) = (x.clone(), <$ours>::from(layer.clone()));
        let name: &'static str = String::leak($name.into());
        $pairs.push((
            name,
            Box::new(move || layer.forward(x.clone()).sum()),
            Box::new(move || ours.forward(y.clone()).sum()),
        ));
    }};
}

fn linear(pairs: &mut Vec<Pair>, device: &Device) {
    let layer = burn::nn::LinearConfig::new(256, 1024).init(device);
    pair!(pairs, "Linear 256 to 1024, 16 x 32 rows", layer, fused::Linear, random([16, 32, 256], device));
}

fn rows(pairs: &mut Vec<Pair>, device: &Device) {
    for width in [256, 512] {
        let (name, x) = (format!("{width}, 16 x 32 rows"), random([16, 32, width], device));
        let layer = burn::nn::LayerNormConfig::new(width).init(device);
        pair!(pairs, format!("LayerNorm {name}"), layer, fused::LayerNorm, x.clone());
        let layer = burn::nn::RmsNormConfig::new(width).init(device);
        pair!(pairs, format!("RmsNorm {name}"), layer, fused::RmsNorm, x.clone());
        let layer = burn::nn::DropoutConfig::new(0.1).init();
        pair!(pairs, format!("Dropout {name}"), layer, fused::Dropout, x);
        pair!(
            pairs,
            format!("Gelu 4 x {name}"),
            burn::nn::Gelu::new(),
            fused::Gelu,
            random([16, 32, 4 * width], device)
        );
    }
    for vocabulary in [1000, 10_000] {
        let layer = burn::nn::EmbeddingConfig::new(vocabulary, 256).init(device);
        let name = format!("Embedding {vocabulary} x 256, 16 x 32 tokens");
        let tokens = Distribution::Uniform(0.0, vocabulary as f64);
        let tokens = Tensor::<2, Int>::random([16, 32], tokens, device);
        pair!(pairs, name, layer, fused::Embedding, tokens);
    }
}

fn losses(pairs: &mut Vec<Pair>, device: &Device) {
    for (name, classes) in [
        ("CrossEntropyLoss of 10 classes, 512 rows", 10),
        ("CrossEntropyLoss of 8000 classes, 512 rows", 8000),
        ("CrossEntropyLoss of 50000 classes, 64 rows", 50_000),
    ] {
        let rows = if classes > 8000 { 64 } else { 512 };
        let logits = random([rows, classes], device);
        let targets = Tensor::<1, Int>::arange(0..rows as i64, device).remainder_scalar(classes as i64);
        let loss = burn::nn::loss::CrossEntropyLossConfig::new().init(device);
        let (logits_too, targets_too) = (logits.clone(), targets.clone());
        let ours = fused::loss::CrossEntropyLoss::from(loss.clone());
        pairs.push((
            name,
            Box::new(move || loss.forward(logits.clone(), targets.clone())),
            Box::new(move || ours.forward(logits_too.clone(), targets_too.clone())),
        ));
    }

    // Here no other tensor shares the memory of the scores, so the gradient overwrites them.
    let (x, layer) = (random([1, 512, 256], device), burn::nn::LinearConfig::new(256, 8000).init(device));
    let targets = Tensor::<1, Int>::arange(0..512, device);
    let loss = burn::nn::loss::CrossEntropyLossConfig::new().init(device);
    let (y, targets_too, ours) = (x.clone(), targets.clone(), fused::Linear::from(layer.clone()));
    let our_loss = fused::loss::CrossEntropyLoss::from(loss.clone());
    pairs.push((
        "Linear 256 to 8000, CrossEntropyLoss",
        Box::new(move || loss.forward(layer.forward(x.clone()).squeeze_dim(0), targets.clone())),
        Box::new(move || our_loss.forward(ours.forward(y.clone()).squeeze_dim(0), targets_too.clone())),
    ));
}

fn attention(pairs: &mut Vec<Pair>, device: &Device) {
    for (name, shape, heads, causal) in [
        ("MultiHeadAttention 256, 4 heads, 16 x 32", [16, 32, 256], 4, false),
        ("MultiHeadAttention 256, 4 heads, 4 x 256", [4, 256, 256], 4, false),
        ("MultiHeadAttention 256, causal, 4 x 256", [4, 256, 256], 4, true),
        ("MultiHeadAttention 512, 8 heads, 16 x 32", [16, 32, 512], 8, false),
        ("MultiHeadAttention 256, causal, 1 x 1024", [1, 1024, 256], 4, true),
    ] {
        let config = burn::nn::attention::MultiHeadAttentionConfig::new(shape[2], heads).with_dropout(0.0);
        let (x, layer) = (random(shape, device), config.init(device));
        let (y, ours) = (x.clone(), fused::attention::MultiHeadAttention::from(layer.clone()));
        let mask = burn::nn::attention::generate_autoregressive_mask(shape[0], shape[1], device);
        let our_mask = mask.clone();
        pairs.push((
            name,
            Box::new(move || {
                let input = burn::nn::attention::MhaInput::self_attn(x.clone());
                let input = if causal { input.mask_attn(mask.clone()) } else { input };
                layer.forward(input).context.sum()
            }),
            Box::new(move || {
                let input = fused::attention::MhaInput::self_attn(y.clone());
                let input = if causal { input.mask_attn(our_mask.clone()) } else { input };
                ours.forward(input).context.sum()
            }),
        ));
    }
}

fn transformers(pairs: &mut Vec<Pair>, device: &Device) {
    for (name, shape, dropout) in [
        ("TransformerEncoder 256, 16 x 32", [16, 32, 256], 0.0),
        ("TransformerEncoder 256, dropout, 16 x 32", [16, 32, 256], 0.1),
        ("TransformerEncoder 512, 16 x 32", [16, 32, 512], 0.0),
    ] {
        let width = shape[2];
        let config = burn::nn::transformer::TransformerEncoderConfig::new(width, 4 * width, width / 64, 1);
        let (x, layer) = (random(shape, device), config.with_dropout(dropout).init(device));
        let (y, ours) = (x.clone(), fused::transformer::TransformerEncoder::from(layer.clone()));
        pairs.push((
            name,
            Box::new(move || {
                layer.forward(burn::nn::transformer::TransformerEncoderInput::new(x.clone())).sum()
            }),
            Box::new(move || ours.forward(fused::transformer::TransformerEncoderInput::new(y.clone())).sum()),
        ));
    }

    let config = burn::nn::transformer::TransformerDecoderConfig::new(256, 1024, 4, 1).with_dropout(0.0);
    let (x, layer) = (random([16, 32, 256], device), config.init(device));
    let (y, ours) = (x.clone(), fused::transformer::TransformerDecoder::from(layer.clone()));
    pairs.push((
        "TransformerDecoder 256, 16 x 32",
        Box::new(move || {
            layer.forward(burn::nn::transformer::TransformerDecoderInput::new(x.clone(), x.clone())).sum()
        }),
        Box::new(move || {
            ours.forward(fused::transformer::TransformerDecoderInput::new(y.clone(), y.clone())).sum()
        }),
    ));

    let config = burn::nn::transformer::PositionWiseFeedForwardConfig::new(256, 1024).with_dropout(0.0);
    let (x, layer) = (random([16, 32, 256], device), config.init(device));
    pair!(
        pairs,
        "PositionWiseFeedForward 256, 16 x 32",
        layer,
        fused::transformer::PositionWiseFeedForward,
        x
    );
}

fn cross_attention(pairs: &mut Vec<Pair>, device: &Device) {
    let config = burn::nn::attention::CrossAttentionConfig::new(256, 256, 4, 2, 64).with_dropout(0.0);
    let layer = config.init(device);
    let config = fused::attention::CrossAttentionConfig::new(256, 256, 4, 2, 64).with_dropout(0.0);
    let ours = config.init(device).load_record(layer.clone().into_record());
    let (x, context) = (random([16, 32, 256], device), random([16, 64, 256], device));
    let (y, same) = (x.clone(), context.clone());
    pairs.push((
        "CrossAttention 256, 4 and 2 heads",
        Box::new(move || layer.forward(x.clone(), context.clone(), None).sum()),
        Box::new(move || ours.forward(y.clone(), same.clone(), None).sum()),
    ));
}

fn recurrent(pairs: &mut Vec<Pair>, device: &Device) {
    for width in [128, 512] {
        let (name, x) = (format!("{width}, 32 steps of 32 rows"), random([32, 32, width], device));
        let layer = burn::nn::LstmConfig::new(width, width, true).init(device);
        let (y, z, ours) = (x.clone(), x.clone(), fused::Lstm::from(layer.clone()));
        pairs.push((
            format!("Lstm {name}").leak(),
            Box::new(move || layer.forward(y.clone(), None).0.sum()),
            Box::new(move || ours.forward(z.clone(), None).0.sum()),
        ));
        let layer = burn::nn::GruConfig::new(width, width, true).init(device);
        let (y, ours) = (x.clone(), fused::Gru::from(layer.clone()));
        pairs.push((
            format!("Gru {name}").leak(),
            Box::new(move || layer.forward(x.clone(), None).sum()),
            Box::new(move || ours.forward(y.clone(), None).sum()),
        ));
    }
}

fn images(pairs: &mut Vec<Pair>, device: &Device) {
    let x = random([32, 64, 16, 16], device);
    let padding = burn::nn::PaddingConfig2d::Explicit(1, 1, 1, 1);
    let layer = burn::nn::conv::Conv2dConfig::new([64, 64], [3, 3]).with_padding(padding).init(device);
    pair!(pairs, "Conv2d 64 to 64, 32 images of 16 x 16", layer, fused::conv::Conv2d, x.clone());
    let layer = burn::nn::BatchNormConfig::new(64).init(device);
    pair!(pairs, "BatchNorm 64, 32 images of 16 x 16", layer, fused::BatchNorm, x.clone());
    let layer = burn::nn::pool::MaxPool2dConfig::new([2, 2]).init();
    pair!(pairs, "MaxPool2d 2 x 2, 32 x 64 of 16 x 16", layer, fused::pool::MaxPool2d, x);
}
