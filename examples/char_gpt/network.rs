// A network that predicts the next character: a transformer or an LSTM. main.rs includes this file twice,
// with `nn` and `optim` of Burn and of burn_fused.

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};
use nn::attention::generate_autoregressive_mask;
use nn::loss::CrossEntropyLossConfig;
use nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
use nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use optim::{AdamW, AdamWConfig};

use super::{CHARACTERS, Network, Options};

/// A transformer, or an LSTM.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one")]
pub enum Layers {
    Gpt(Gpt),
    Lstm(nn::Lstm),
}

#[derive(Module, Debug)]
pub struct Gpt {
    positions: Embedding,
    layers: TransformerEncoder,
    norm: LayerNorm,
}

#[derive(Module, Debug)]
pub struct Characters {
    embedding: Embedding,
    layers: Layers,
    head: Linear,
}

impl Network for Characters {
    type Optimizer = AdamW;

    fn new(options: &Options, device: &Device) -> Self {
        let &Options { width, layers, heads, tokens, dropout, .. } = options;
        let layers = if options.lstm {
            Layers::Lstm(nn::LstmConfig::new(width, width, true).init(device))
        } else {
            Layers::Gpt(Gpt {
                positions: EmbeddingConfig::new(tokens, width).init(device),
                layers: TransformerEncoderConfig::new(width, 4 * width, heads, layers)
                    .with_dropout(dropout)
                    .with_norm_first(true)
                    .init(device),
                norm: LayerNormConfig::new(width).init(device),
            })
        };
        Self {
            embedding: EmbeddingConfig::new(CHARACTERS, width).init(device),
            layers,
            head: LinearConfig::new(width, CHARACTERS).init(device),
        }
    }

    fn loss(&self, windows: &[Vec<u8>], device: &Device) -> Tensor<1> {
        let (batch, length) = (windows.len(), windows[0].len() - 1);
        let characters = |from: usize| {
            let window = |window: &Vec<u8>| window[from..from + length].to_vec();
            let values: Vec<i32> = windows.iter().flat_map(window).map(i32::from).collect();
            Tensor::<2, Int>::from_data(TensorData::new(values, [batch, length]), device)
        };
        let x = self.embedding.forward(characters(0));
        let x = match &self.layers {
            Layers::Lstm(lstm) => lstm.forward(x, None).0,
            Layers::Gpt(Gpt { positions, layers, norm }) => {
                let x = x + positions.forward(Tensor::<1, Int>::arange(0..length as i64, device).unsqueeze());
                let mask = generate_autoregressive_mask(batch, length, device);
                norm.forward(layers.forward(TransformerEncoderInput::new(x).mask_attn(mask)))
            }
        };
        let logits = self.head.forward(x);
        CrossEntropyLossConfig::new()
            .init(device)
            .forward(logits.reshape([batch * length, CHARACTERS]), characters(1).reshape([batch * length]))
    }

    fn optimizer() -> AdamW {
        AdamWConfig::new().with_epsilon(1e-8).build()
    }
}
