//! A small transformer, made faster by its import.

use std::time::Instant;

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::{Device, Int, Tensor};
use burn_fused::{nn, optim}; // instead of `use burn::{nn, optim};`

use nn::loss::CrossEntropyLossConfig;
use nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};

#[derive(Module, Debug)]
struct Classifier {
    embedding: nn::Embedding,
    encoder: TransformerEncoder,
    output: nn::Linear,
}

impl Classifier {
    /// `tokens` is `[sequences, tokens]`; the scores are `[sequences, 2]`.
    fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<2> {
        let x = self.encoder.forward(TransformerEncoderInput::new(self.embedding.forward(tokens)));
        self.output.forward(x.mean_dim(1).squeeze_dim(1))
    }
}

fn main() {
    let device = Device::flex().autodiff();
    let mut model = Classifier {
        embedding: nn::EmbeddingConfig::new(50, 64).init(&device),
        encoder: TransformerEncoderConfig::new(64, 256, 4, 2).with_dropout(0.0).init(&device),
        output: nn::LinearConfig::new(64, 2).init(&device),
    };
    let mut optimizer = optim::AdamWConfig::new().init();
    let criterion = CrossEntropyLossConfig::new().init(&device);
    // Class 1 has the tokens of class 0 and one more.
    let tokens = Tensor::<1, Int>::arange(0..16 * 32, &device).reshape([16, 32]) % 7;
    let classes = Tensor::<1, Int>::arange(0..16, &device) % 2;
    let tokens = tokens + classes.clone().unsqueeze_dim::<2>(1) * 40;
    let began = Instant::now();
    for step in 0..20 {
        let loss = criterion.forward(model.forward(tokens.clone()), classes.clone());
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-3, model, gradients);
        println!("step {step}: loss {:.4}", loss.into_scalar::<f32>());
    }
    println!("{:.1} ms per step", began.elapsed().as_secs_f64() / 20.0 * 1e3);
}
