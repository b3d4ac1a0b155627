//! The decoder of a transformer.

use burn::module::Module;
use burn::nn::Initializer;
use burn::nn::transformer as burns;
use burn::tensor::{Bool, Device, Tensor};

use super::PositionWiseFeedForward;
use super::stack::stack;
use crate::nn::activation::ActivationConfig;
use crate::nn::attention::{Masks, MhaCache, MhaInput, MultiHeadAttention};
use crate::nn::cache::{TensorCache, cached};
use crate::nn::convert::{config, converts, module, shown_as_burns};
use crate::nn::{Dropout, LayerNorm};

stack! {
    /// Configuration of a [`TransformerDecoder`]; replaces
    /// [`burn::nn::transformer::TransformerDecoderConfig`].
    config TransformerDecoderConfig,
    /// Creates a decoder with new parameters.
    ///
    /// # Panics
    /// If `n_heads` is 0, or `dropout` is not in the range [0, 1).
    init,
    /// Decoder of a transformer: Vaswani et al., "Attention is all you need" (2017). Replaces
    /// [`burn::nn::transformer::TransformerDecoder`].
    stack TransformerDecoder of TransformerDecoderLayer,
    /// Cache of a [`TransformerDecoder`], for autoregressive inference.
    cache TransformerDecoderAutoregressiveCache of TransformerDecoderLayerAutoregressiveCache,
}

/// Input of a [`TransformerDecoder`], and output of each of its layers.
#[derive(Debug)]
pub struct TransformerDecoderInput {
    target: Tensor<3>,
    target_masks: Masks,
    memory: Tensor<3>,
    memory_masks: Masks,
}

impl TransformerDecoderInput {
    /// Creates an input from tokens `target` `[batch, sequence, d_model]`, and `memory`
    /// `[batch, memory, d_model]`, the output of an encoder.
    pub fn new(target: Tensor<3>, memory: Tensor<3>) -> Self {
        Self { target, target_masks: Masks::default(), memory, memory_masks: Masks::default() }
    }

    /// Sets a mask `[batch, memory]` that is true for elements of the memory that are hidden from all tokens.
    pub fn memory_mask_pad(mut self, mask_pad: Tensor<2, Bool>) -> Self {
        self.memory_masks.pad = Some(mask_pad);
        self
    }

    /// Sets a mask `[batch, sequence, memory]` that is true where an element of the memory is hidden from a
    /// token.
    pub fn memory_mask_attn(mut self, mask_attn: Tensor<3, Bool>) -> Self {
        self.memory_masks.attn = Some(mask_attn);
        self
    }

    /// Sets a mask `[batch, sequence]` that is true for tokens that are hidden from all tokens.
    pub fn target_mask_pad(mut self, mask_pad: Tensor<2, Bool>) -> Self {
        self.target_masks.pad = Some(mask_pad);
        self
    }

    /// Sets a mask `[batch, sequence, sequence]` that is true where a token (the last axis) is hidden from
    /// another token (the middle axis).
    pub fn target_mask_attn(mut self, mask_attn: Tensor<3, Bool>) -> Self {
        self.target_masks.attn = Some(mask_attn);
        self
    }
}

impl TransformerDecoder {
    /// Returns the outputs `[batch, sequence, d_model]`.
    ///
    /// # Panics
    /// If tokens or memory do not have the width `d_model`, or masks do not fit.
    pub fn forward(&self, input: TransformerDecoderInput) -> Tensor<3> {
        self.layers.iter().fold(input, |input, layer| layer.forward(input)).target
    }

    /// Does the same as [`forward`](Self::forward), but computes only the last token. The results of the
    /// tokens before it come from the cache. If the cache is empty, all tokens are computed.
    ///
    /// # Panics
    /// In the same cases as [`forward`](Self::forward), and if the cache belongs to a decoder with fewer
    /// layers.
    pub fn forward_autoregressive_inference(
        &self,
        input: TransformerDecoderInput,
        cache: &mut TransformerDecoderAutoregressiveCache,
    ) -> Tensor<3> {
        let layers = self.layers.iter().enumerate();
        layers.fold(input, |input, (at, layer)| layer.run(input, Some(&mut cache.layers[at]))).target
    }

    /// Creates an empty cache.
    pub fn new_autoregressive_cache(&self) -> TransformerDecoderAutoregressiveCache {
        let layers = self.layers.iter().map(|_| TransformerDecoderLayerAutoregressiveCache::empty());
        TransformerDecoderAutoregressiveCache { layers: layers.collect() }
    }
}

module! {
    /// Layer of a [`TransformerDecoder`].
    pub struct TransformerDecoderLayer of burns::TransformerDecoderLayer {
        /// Attention to the memory.
        pub cross_attn: MultiHeadAttention,
        /// Self-attention.
        pub self_attn: MultiHeadAttention,
        /// Feed-forward network.
        pub pwff: PositionWiseFeedForward,
        /// Normalisation between self-attention and the attention to the memory.
        pub norm_1: LayerNorm,
        /// Normalisation between the attention to the memory and the feed-forward network.
        pub norm_2: LayerNorm,
        /// Normalisation before self-attention if `norm_first` is true. If `norm_first` is false,
        /// normalisation of the layer's output.
        pub norm_3: LayerNorm,
        /// Dropout of the outputs of attention and feed-forward network.
        pub dropout: Dropout,
        /// Whether normalisation is before attention and feed-forward network rather than after them.
        pub norm_first: bool,
    }
}

impl TransformerDecoderLayer {
    /// Creates a layer with new parameters.
    pub fn new(config: &TransformerDecoderConfig, device: &Device) -> Self {
        burns::TransformerDecoderLayer::new(&config.clone().into(), device).into()
    }

    /// Returns `input` with the output of this layer as its target.
    ///
    /// # Panics
    /// In the same cases as [`TransformerDecoder::forward`].
    pub fn forward(&self, input: TransformerDecoderInput) -> TransformerDecoderInput {
        self.run(input, None)
    }

    /// Does the same as [`forward`](Self::forward), but computes only the last token. The results of the
    /// tokens before it come from the cache. If the cache is empty, all tokens are computed.
    ///
    /// # Panics
    /// In the same cases as [`forward`](Self::forward).
    pub fn forward_autoregressive_inference(
        &self,
        input: TransformerDecoderInput,
        cache: &mut TransformerDecoderLayerAutoregressiveCache,
    ) -> TransformerDecoderInput {
        self.run(input, Some(cache))
    }

    fn run(
        &self,
        mut all: TransformerDecoderInput,
        mut cache: Option<&mut TransformerDecoderLayerAutoregressiveCache>,
    ) -> TransformerDecoderInput {
        let x = all.target;
        let input = if self.norm_first {
            let cache = cache.as_deref_mut().map(|cache| &mut cache.norm_3);
            cached(cache, x.clone(), |x| self.norm_3.forward(x))
        } else {
            x.clone()
        };
        let input = MhaInput::self_attn(input).masked(&all.target_masks);
        let attended = self.self_attn.context(input, cache.as_deref_mut().map(|cache| &mut cache.self_attn));
        let x = self.dropout.forward_added(x, attended);

        let of_norm = cache.as_deref_mut().map(|cache| &mut cache.norm_1);
        let input = cached(of_norm, x.clone(), |x| self.norm_1.forward(x));
        let x = if self.norm_first { x } else { input.clone() };
        let input = MhaInput::new(input, all.memory.clone(), all.memory.clone()).masked(&all.memory_masks);
        let of_attention = cache.as_deref_mut().map(|cache| &mut cache.cross_attn);
        let x = self.dropout.forward_added(x, self.cross_attn.context(input, of_attention));

        let of_norm = cache.as_deref_mut().map(|cache| &mut cache.norm_2);
        let input = cached(of_norm, x.clone(), |x| self.norm_2.forward(x));
        let x = if self.norm_first { x } else { input.clone() };
        let of_pwff = cache.as_deref_mut().map(|cache| &mut cache.pwff);
        let x = self.dropout.forward_added(x, cached(of_pwff, input, |x| self.pwff.forward(x)));
        all.target = if self.norm_first {
            x
        } else {
            cached(cache.map(|cache| &mut cache.norm_3), x, |x| self.norm_3.forward(x))
        };
        all
    }
}

/// Cache of a [`TransformerDecoderLayer`].
pub struct TransformerDecoderLayerAutoregressiveCache {
    /// Cache of the attention to the memory.
    pub cross_attn: MhaCache,
    /// Cache of the self-attention.
    pub self_attn: MhaCache,
    /// Cache of the feed-forward network.
    pub pwff: TensorCache<3>,
    /// Cache of the layer's `norm_1`.
    pub norm_1: TensorCache<3>,
    /// Cache of the layer's `norm_2`.
    pub norm_2: TensorCache<3>,
    /// Cache of the layer's `norm_3`.
    pub norm_3: TensorCache<3>,
}

impl TransformerDecoderLayerAutoregressiveCache {
    /// Creates an empty cache.
    pub fn empty() -> Self {
        let [pwff, norm_1, norm_2, norm_3] = [(); 4].map(|()| TensorCache::empty());
        let (cross_attn, self_attn) =
            (MhaCache::autoregressive_cross_attention(), MhaCache::autoregressive());
        Self { cross_attn, self_attn, pwff, norm_1, norm_2, norm_3 }
    }
}
