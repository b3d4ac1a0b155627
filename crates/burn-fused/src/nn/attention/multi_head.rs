//! The multi-head attention layer, its input with masks, and its cache for inference.

use burn::nn::Initializer;
use burn::nn::attention as burns;
use burn::tensor::{Bool, Device, Tensor, assert_shape};

use crate::nn::cache::{TensorCache, last};
use crate::nn::convert::{config, module};
use crate::nn::{Dropout, Gelu, Linear};
use crate::ops::attention::Attention;

config! {
    /// Configuration of [`MultiHeadAttention`]; replaces [`burn::nn::attention::MultiHeadAttentionConfig`].
    pub struct MultiHeadAttentionConfig of burns::MultiHeadAttentionConfig {
        /// Width of an input and of an output.
        pub d_model: usize,
        /// Number of heads.
        pub n_heads: usize,
        /// Probability that dropout sets an attention weight to zero in training.
        #[config(default = 0.1)]
        pub dropout: f64,
        /// The score of a masked key.
        #[config(default = -1.0e4)]
        pub min_float: f64,
        /// Whether softmax adds 1 to its denominator, so that all attention weights of a query may be near
        /// zero.
        #[config(default = false)]
        pub quiet_softmax: bool,
        /// How parameters are initialised.
        #[config(default = "Initializer::KaimingUniform{gain: 1.0 / 3f64.sqrt(), fan_out_only: false}")]
        pub initializer: Initializer,
        /// Whether the linear layer of keys has a bias.
        #[config(default = true)]
        pub key_bias: bool,
        /// Whether the linear layer of values has a bias.
        #[config(default = true)]
        pub value_bias: bool,
        /// Whether the linear layer of queries has a bias.
        #[config(default = true)]
        pub query_bias: bool,
        /// Whether the linear layer of outputs has a bias.
        #[config(default = true)]
        pub output_bias: bool,
    }

    /// Creates an attention with new parameters.
    ///
    /// # Panics
    /// If `n_heads` is 0, or `dropout` is not in the range [0, 1).
    pub fn init(&self, device: &Device) -> MultiHeadAttention;
}

module! {
    /// Multi-head attention: Vaswani et al., "Attention is all you need" (2017). Replaces
    /// [`burn::nn::attention::MultiHeadAttention`].
    pub struct MultiHeadAttention of burns::MultiHeadAttention {
        /// Linear layer of queries, `d_model` to `d_model`.
        pub query: Linear,
        /// Linear layer of keys.
        pub key: Linear,
        /// Linear layer of values.
        pub value: Linear,
        /// Linear layer of the outputs.
        pub output: Linear,
        /// Dropout of the attention weights.
        pub dropout: Dropout,
        /// Unused, as in Burn's module.
        pub activation: Gelu,
        /// Width of an input and of an output.
        pub d_model: usize,
        /// Number of heads.
        pub n_heads: usize,
        /// Width of a head's query or key.
        pub d_k: usize,
        /// The score of a masked key.
        pub min_float: f64,
        /// Whether softmax adds 1 to its denominator.
        pub quiet_softmax: bool,
    }
}

/// Masks of one attention.
#[derive(Debug, Clone, Default)]
pub(in crate::nn) struct Masks {
    /// `[batch, keys]`, true for keys that are hidden from all queries.
    pub pad: Option<Tensor<2, Bool>>,
    /// `[batch, queries, keys]`, true where a key is hidden from a query.
    pub attn: Option<Tensor<3, Bool>>,
}

/// Input of [`MultiHeadAttention`].
#[derive(Debug, Clone)]
pub struct MhaInput {
    query: Tensor<3>,
    key: Tensor<3>,
    value: Tensor<3>,
    masks: Masks,
}

impl MhaInput {
    /// Creates an input for self-attention: `tensor` `[batch, sequence, d_model]` is queries, keys and
    /// values.
    pub fn self_attn(tensor: Tensor<3>) -> Self {
        Self::new(tensor.clone(), tensor.clone(), tensor)
    }

    /// Creates an input from queries `[batch, queries, d_model]`, and keys and values
    /// `[batch, keys, d_model]`.
    pub fn new(query: Tensor<3>, key: Tensor<3>, value: Tensor<3>) -> Self {
        Self { query, key, value, masks: Masks::default() }
    }

    /// Sets a mask `[batch, keys]` that is true for keys that are hidden from all queries.
    pub fn mask_pad(mut self, mask_pad: Tensor<2, Bool>) -> Self {
        self.masks.pad = Some(mask_pad);
        self
    }

    /// Sets a mask `[batch, queries, keys]` that is true where a key is hidden from a query.
    pub fn mask_attn(mut self, mask_attn: Tensor<3, Bool>) -> Self {
        self.masks.attn = Some(mask_attn);
        self
    }

    /// Replaces the masks.
    pub(in crate::nn) fn masked(self, masks: &Masks) -> Self {
        Self { masks: masks.clone(), ..self }
    }
}

/// Output of [`MultiHeadAttention`].
#[derive(Debug, Clone)]
pub struct MhaOutput {
    /// Attention weights `[batch, n_heads, queries, keys]`, after dropout.
    pub weights: Tensor<4>,
    /// Context `[batch, queries, d_model]`: the output of the linear layer `output`.
    pub context: Tensor<3>,
}

/// Cache of [`MultiHeadAttention`] for autoregressive inference.
pub struct MhaCache {
    query: TensorCache<3>,
    key: TensorCache<3>,
    value: TensorCache<3>,
    output: TensorCache<3>,
    /// Whether this is cross-attention: keys and values are the same in each step.
    is_cross: bool,
}

impl MhaCache {
    /// Creates a cache for self-attention: each step adds a token.
    pub fn autoregressive() -> Self {
        let [query, key, value, output] = [(); 4].map(|()| TensorCache::empty());
        Self { query, key, value, output, is_cross: false }
    }

    /// Creates a cache for cross-attention: each step adds a query, and keys and values stay the same.
    pub fn autoregressive_cross_attention() -> Self {
        Self { is_cross: true, ..Self::autoregressive() }
    }
}

impl MultiHeadAttention {
    /// Computes the attention of all queries.
    ///
    /// # Panics
    /// If the last axis of queries, keys or values is not `d_model`, if their batch sizes differ, if the
    /// numbers of keys and values differ, or if a mask does not fit.
    pub fn forward(&self, input: MhaInput) -> MhaOutput {
        self.output_of(input, None)
    }

    /// Does the same as [`forward`](Self::forward), but applies the linear layers only to the last token of
    /// `input`. The results of the tokens before it come from the cache. If the cache is empty, all tokens
    /// are computed. In cross-attention, keys and values come only from the first input.
    ///
    /// # Panics
    /// In the same cases as [`forward`](Self::forward).
    pub fn forward_cache(&self, input: MhaInput, cache: &mut MhaCache) -> MhaOutput {
        self.output_of(input, Some(cache))
    }

    fn output_of(&self, input: MhaInput, cache: Option<&mut MhaCache>) -> MhaOutput {
        let (context, weights) = self.attend(input, cache, true);
        MhaOutput { weights: weights.expect("they are wanted"), context }
    }

    /// Returns the context as [`forward`](Self::forward) does, or as [`forward_cache`](Self::forward_cache)
    /// does with a cache. Does not compute the attention weights.
    pub(in crate::nn) fn context(&self, input: MhaInput, cache: Option<&mut MhaCache>) -> Tensor<3> {
        self.attend(input, cache, false).0
    }

    fn attend(
        &self,
        input: MhaInput,
        cache: Option<&mut MhaCache>,
        wants_weights: bool,
    ) -> (Tensor<3>, Option<Tensor<4>>) {
        let [batch_size, ..] = input.query.dims();
        let [_, seq_length_2, _] = input.key.dims();
        assert_shape!(input.query, [_, _, self.d_model]);
        assert_shape!(input.key, [batch_size, _, self.d_model]);
        assert_shape!(input.value, [batch_size, seq_length_2, self.d_model]);
        let MhaInput { query, key, value, mut masks } = input;
        let device = query.device();
        let query_of = |x| self.query.forward(x);
        let (key_of, value_of) = (|x| self.key.forward(x), |x| self.value.forward(x));
        let Some(cache) = cache else {
            let projected = [query_of(query), key_of(key), value_of(value)];
            let (context, weights) = self.attention(masks, &device).run(projected, wants_weights);
            return (self.output.forward(context), weights);
        };
        let mut query = cache.query.extend(query, query_of);
        let (key, value) = if cache.is_cross {
            (cache.key.or_compute(|| key_of(key)), cache.value.or_compute(|| value_of(value)))
        } else {
            (cache.key.extend(key, key_of), cache.value.extend(value, value_of))
        };
        if !wants_weights && !cache.output.is_empty() {
            // Compute only the last query: the outputs of the other queries are cached.
            query = last(query);
            masks.attn = masks.attn.map(|mask| {
                let queries = mask.dims()[1];
                mask.narrow(1, queries - 1, 1)
            });
        }
        let (context, weights) = self.attention(masks, &device).run([query, key, value], wants_weights);
        (cache.output.extend(context, |x| self.output.forward(x)), weights)
    }

    fn attention(&self, masks: Masks, device: &Device) -> Attention {
        let mask_pad = masks.pad.map(|mask| mask.unsqueeze_dim(1));
        Attention {
            heads: self.n_heads,
            kv_heads: self.n_heads,
            scale: f64::from((self.d_k as f32).sqrt().recip()),
            min_float: self.min_float,
            quiet_softmax: self.quiet_softmax,
            dropout: self.dropout.active_prob(device),
            masks: mask_pad.into_iter().chain(masks.attn).collect(),
        }
    }
}
