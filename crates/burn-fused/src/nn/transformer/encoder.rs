//! The encoder of a transformer.

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
    /// Configuration of a [`TransformerEncoder`]; replaces
    /// [`burn::nn::transformer::TransformerEncoderConfig`].
    config TransformerEncoderConfig,
    /// Creates an encoder with new parameters.
    ///
    /// # Panics
    /// If `n_heads` is 0, or `dropout` is not in the range [0, 1).
    init,
    /// Encoder of a transformer: Vaswani et al., "Attention is all you need" (2017). Replaces
    /// [`burn::nn::transformer::TransformerEncoder`].
    stack TransformerEncoder of TransformerEncoderLayer,
    /// Cache of a [`TransformerEncoder`], for autoregressive inference.
    cache TransformerEncoderAutoregressiveCache of TransformerEncoderLayerAutoregressiveCache,
}

/// Input of a [`TransformerEncoder`].
#[derive(Debug)]
pub struct TransformerEncoderInput {
    tensor: Tensor<3>,
    masks: Masks,
}

impl TransformerEncoderInput {
    /// Creates an input from tokens `[batch, sequence, d_model]`.
    pub fn new(tensor: Tensor<3>) -> Self {
        Self { tensor, masks: Masks::default() }
    }

    /// Sets a mask `[batch, sequence]` that is true for tokens that are hidden from all tokens.
    pub fn mask_pad(mut self, mask_pad: Tensor<2, Bool>) -> Self {
        self.masks.pad = Some(mask_pad);
        self
    }

    /// Sets a mask `[batch, sequence, sequence]` that is true where a token (the last axis) is hidden from
    /// another token (the middle axis).
    pub fn mask_attn(mut self, mask_attn: Tensor<3, Bool>) -> Self {
        self.masks.attn = Some(mask_attn);
        self
    }
}

impl TransformerEncoder {
    /// Returns the outputs `[batch, sequence, d_model]`.
    ///
    /// # Panics
    /// If the tokens do not have the width `d_model`, or masks do not fit.
    pub fn forward(&self, input: TransformerEncoderInput) -> Tensor<3> {
        let TransformerEncoderInput { tensor, masks } = input;
        self.layers.iter().fold(tensor, |x, layer| layer.run(x, &masks, None))
    }

    /// Does the same as [`forward`](Self::forward), but computes only the last token. The results of the
    /// tokens before it come from the cache. If the cache is empty, all tokens are computed.
    ///
    /// # Panics
    /// In the same cases as [`forward`](Self::forward), and if the cache belongs to an encoder with fewer
    /// layers.
    pub fn forward_autoregressive_inference(
        &self,
        input: TransformerEncoderInput,
        cache: &mut TransformerEncoderAutoregressiveCache,
    ) -> Tensor<3> {
        let TransformerEncoderInput { tensor, masks } = input;
        let layers = self.layers.iter().enumerate();
        layers.fold(tensor, |x, (at, layer)| layer.run(x, &masks, Some(&mut cache.layers[at])))
    }

    /// Creates an empty cache.
    pub fn new_autoregressive_cache(&self) -> TransformerEncoderAutoregressiveCache {
        let layers = self.layers.iter().map(|_| TransformerEncoderLayerAutoregressiveCache::empty());
        TransformerEncoderAutoregressiveCache { layers: layers.collect() }
    }
}

module! {
    /// Layer of a [`TransformerEncoder`].
    pub struct TransformerEncoderLayer of burns::TransformerEncoderLayer {
        /// Self-attention.
        pub mha: MultiHeadAttention,
        /// Feed-forward network.
        pub pwff: PositionWiseFeedForward,
        /// Normalisation before the feed-forward network.
        pub norm_1: LayerNorm,
        /// Normalisation before attention if `norm_first` is true. If `norm_first` is false, normalisation of
        /// the layer's output.
        pub norm_2: LayerNorm,
        /// Dropout of the outputs of attention and feed-forward network.
        pub dropout: Dropout,
        /// Whether normalisation is before attention and feed-forward network rather than after them.
        pub norm_first: bool,
    }
}

impl TransformerEncoderLayer {
    /// Creates a layer with new parameters.
    pub fn new(config: &TransformerEncoderConfig, device: &Device) -> Self {
        burns::TransformerEncoderLayer::new(&config.clone().into(), device).into()
    }

    /// Returns the output `[batch, sequence, d_model]` for an input of the same shape. The masks are as in
    /// [`TransformerEncoderInput`].
    ///
    /// # Panics
    /// If the tokens do not have the width `d_model`, or masks do not fit.
    pub fn forward(
        &self,
        input: Tensor<3>,
        mask_pad: Option<Tensor<2, Bool>>,
        mask_attn: Option<Tensor<3, Bool>>,
    ) -> Tensor<3> {
        self.run(input, &Masks { pad: mask_pad, attn: mask_attn }, None)
    }

    /// Does the same as [`forward`](Self::forward), but computes only the last token. The results of the
    /// tokens before it come from the cache. If the cache is empty, all tokens are computed.
    ///
    /// # Panics
    /// In the same cases as [`forward`](Self::forward).
    pub fn forward_autoregressive_inference(
        &self,
        input: Tensor<3>,
        mask_pad: Option<Tensor<2, Bool>>,
        mask_attn: Option<Tensor<3, Bool>>,
        cache: &mut TransformerEncoderLayerAutoregressiveCache,
    ) -> Tensor<3> {
        self.run(input, &Masks { pad: mask_pad, attn: mask_attn }, Some(cache))
    }

    fn run(
        &self,
        x: Tensor<3>,
        masks: &Masks,
        mut cache: Option<&mut TransformerEncoderLayerAutoregressiveCache>,
    ) -> Tensor<3> {
        let input = if self.norm_first {
            let cache = cache.as_deref_mut().map(|cache| &mut cache.norm_2);
            cached(cache, x.clone(), |x| self.norm_2.forward(x))
        } else {
            x.clone()
        };
        let input = MhaInput::self_attn(input).masked(masks);
        let attended = self.mha.context(input, cache.as_deref_mut().map(|cache| &mut cache.mha));
        let x = self.dropout.forward_added(x, attended);

        let of_norm = cache.as_deref_mut().map(|cache| &mut cache.norm_1);
        let input = cached(of_norm, x.clone(), |x| self.norm_1.forward(x));
        let x = if self.norm_first { x } else { input.clone() };
        let of_pwff = cache.as_deref_mut().map(|cache| &mut cache.pwff);
        let x = self.dropout.forward_added(x, cached(of_pwff, input, |x| self.pwff.forward(x)));
        if self.norm_first {
            x
        } else {
            cached(cache.map(|cache| &mut cache.norm_2), x, |x| self.norm_2.forward(x))
        }
    }
}

/// Cache of a [`TransformerEncoderLayer`].
pub struct TransformerEncoderLayerAutoregressiveCache {
    /// Cache of the attention.
    pub mha: MhaCache,
    /// Cache of the feed-forward network.
    pub pwff: TensorCache<3>,
    /// Cache of the layer's `norm_1`.
    pub norm_1: TensorCache<3>,
    /// Cache of the layer's `norm_2`.
    pub norm_2: TensorCache<3>,
}

impl TransformerEncoderLayerAutoregressiveCache {
    /// Creates an empty cache.
    pub fn empty() -> Self {
        let [pwff, norm_1, norm_2] = [(); 3].map(|()| TensorCache::empty());
        Self { mha: MhaCache::autoregressive(), pwff, norm_1, norm_2 }
    }
}
