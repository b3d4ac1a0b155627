//! The cross-attention layer: queries attend to a second sequence, the context. Several heads of queries may
//! share one head of keys and values.

use burn::module::Module;
use burn::nn::Initializer;
use burn::tensor::{Bool, Device, Tensor, assert_shape};

use crate::nn::cache::TensorCache;
use crate::nn::convert::config;
use crate::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use crate::ops::attention::Attention;

config! {
    /// Configuration of [`CrossAttention`]; replaces [`burn::nn::attention::CrossAttentionConfig`].
    pub struct CrossAttentionConfig of burn::nn::attention::CrossAttentionConfig {
        /// Width of a query and of an output.
        pub d_model: usize,
        /// Width of an element of the context.
        pub d_context: usize,
        /// Number of heads of queries.
        pub n_heads: usize,
        /// Number of heads of keys and values, which divides `n_heads`.
        pub n_heads_kv: usize,
        /// Width of a head.
        pub d_head: usize,
        /// Probability that dropout sets an attention weight to zero in training.
        #[config(default = 0.1)]
        pub dropout: f64,
        /// The score of a masked key.
        #[config(default = -1.0e4)]
        pub min_float: f64,
        /// Whether softmax adds 1 to its denominator.
        #[config(default = false)]
        pub quiet_softmax: bool,
    }
}

/// Attention of queries to the elements of a context; replaces [`burn::nn::attention::CrossAttention`].
///
/// The fields of Burn's module are private, so no `From` converts it. A record of either module loads into
/// the other.
#[derive(Module, Debug)]
pub struct CrossAttention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    dropout: Dropout,
    n_heads: usize,
    n_heads_kv: usize,
    d_head: usize,
    scale: f64,
    min_float: f64,
    quiet_softmax: bool,
}

/// Cache of a [`CrossAttention`], for inference with one context.
pub struct CrossAttentionCache {
    /// Keys `[batch, context, n_heads_kv, d_head]`.
    pub k: TensorCache<4>,
    /// Values, in the shape of the keys.
    pub v: TensorCache<4>,
}

impl CrossAttentionCache {
    /// Creates an empty cache.
    pub fn new() -> Self {
        Self { k: TensorCache::empty(), v: TensorCache::empty() }
    }
}

impl Default for CrossAttentionCache {
    fn default() -> Self {
        Self::new()
    }
}

impl CrossAttentionConfig {
    /// Creates a cross-attention with new parameters.
    ///
    /// # Panics
    /// If `n_heads_kv` is 0 or does not divide `n_heads`, or `dropout` is not in the range [0, 1).
    pub fn init(&self, device: &Device) -> CrossAttention {
        assert_eq!(self.n_heads % self.n_heads_kv, 0, "Query heads must be divisible by KV heads");
        let root = (self.d_head as f64).sqrt();
        let initializer = Initializer::KaimingUniform { gain: 1.0 / root, fan_out_only: false };
        let linear = |inputs, outputs| {
            LinearConfig::new(inputs, outputs).with_initializer(initializer.clone()).init(device)
        };
        let (width, kv_width) = (self.n_heads * self.d_head, self.n_heads_kv * self.d_head);
        CrossAttention {
            query: linear(self.d_model, width),
            key: linear(self.d_context, kv_width),
            value: linear(self.d_context, kv_width),
            output: linear(width, self.d_model),
            dropout: DropoutConfig::new(self.dropout).init(),
            n_heads: self.n_heads,
            n_heads_kv: self.n_heads_kv,
            d_head: self.d_head,
            scale: root.recip(),
            min_float: self.min_float,
            quiet_softmax: self.quiet_softmax,
        }
    }
}

impl CrossAttention {
    /// Returns the outputs `[batch, queries, d_model]`. `query` has the same shape, and `context` is
    /// `[batch, context, d_context]`. `mask` `[batch, context]` is true for the elements of the context that
    /// it hides.
    ///
    /// # Panics
    /// If `query` and `context` have different batch sizes, if their last axes are not `d_model` and
    /// `d_context`, or if `mask` has another shape.
    pub fn forward(&self, query: Tensor<3>, context: Tensor<3>, mask: Option<Tensor<2, Bool>>) -> Tensor<3> {
        let batch = query.dims()[0];
        assert_shape!(context, [batch, _, _]);
        let (key, value) = (self.key.forward(context.clone()), self.value.forward(context));
        self.attend(query, key, value, mask)
    }

    /// Does the same as [`forward`](Self::forward), but computes keys and values only from the first
    /// `context`, and keeps them in the cache. Later contexts are ignored.
    ///
    /// # Panics
    /// In the same cases as [`forward`](Self::forward).
    pub fn forward_cache(
        &self,
        query: Tensor<3>,
        context: Tensor<3>,
        mask: Option<Tensor<2, Bool>>,
        cache: &mut CrossAttentionCache,
    ) -> Tensor<3> {
        let [batch, ..] = query.dims();
        assert_shape!(context, [batch, _, _]);
        let length = context.dims()[1];
        let cached = |cache: &mut TensorCache<4>, layer: &Linear| {
            let heads = cache.or_compute(|| {
                layer.forward(context.clone()).reshape([batch, length, self.n_heads_kv, self.d_head])
            });
            heads.flatten(2, 3)
        };
        let (key, value) = (cached(&mut cache.k, &self.key), cached(&mut cache.v, &self.value));
        self.attend(query, key, value, mask)
    }

    fn attend(
        &self,
        query: Tensor<3>,
        key: Tensor<3>,
        value: Tensor<3>,
        mask: Option<Tensor<2, Bool>>,
    ) -> Tensor<3> {
        let dropout = self.dropout.active_prob(&query.device());
        let attention = Attention {
            heads: self.n_heads,
            kv_heads: self.n_heads_kv,
            scale: self.scale,
            min_float: self.min_float,
            quiet_softmax: self.quiet_softmax,
            dropout,
            masks: mask.map(|mask| mask.unsqueeze_dim(1)).into_iter().collect(),
        };
        let (context, _) = attention.run([self.query.forward(query), key, value], false);
        self.output.forward(context)
    }
}
