//! What encoder and decoder have in common: a stack of layers, its configuration and its cache.

/// Defines the configuration, the stack of layers and the cache of an encoder or a decoder.
macro_rules! stack {
    (
        $(#[$of_config:meta])* config $config:ident,
        $(#[$of_init:meta])* init,
        $(#[$of_stack:meta])* stack $stack:ident of $layer:ident,
        $(#[$of_cache:meta])* cache $cache:ident of $layer_cache:ident,
    ) => {
        config! {
            $(#[$of_config])*
            pub struct $config of burns::$config {
                /// Width of a token.
                pub d_model: usize,
                /// Width between the two linear layers of a feed-forward network.
                pub d_ff: usize,
                /// Number of heads.
                pub n_heads: usize,
                /// Number of layers.
                pub n_layers: usize,
                /// Probability of dropout.
                #[config(default = 0.1)]
                pub dropout: f64,
                /// Whether normalisation comes before attention and feed-forward networks rather than after
                /// them.
                #[config(default = false)]
                pub norm_first: bool,
                /// Whether softmax adds 1 to its denominator.
                #[config(default = false)]
                pub quiet_softmax: bool,
                /// How parameters are initialised.
                #[config(default = "Initializer::KaimingUniform{gain: 1.0 / 3f64.sqrt(), fan_out_only: false}")]
                pub initializer: Initializer,
                /// Activation of the feed-forward networks.
                #[config(default = "ActivationConfig::Gelu")]
                pub activation: ActivationConfig,
                /// Number that is added to variances in normalisation.
                #[config(default = 1e-5)]
                pub layer_norm_eps: f64,
            }

            $(#[$of_init])*
            pub fn init(&self, device: &Device) -> $stack;
        }

        $(#[$of_stack])*
        #[derive(Module, Debug)]
        #[module(custom_display)]
        pub struct $stack {
            /// The layers.
            pub layers: Vec<$layer>,
            /// Width of a token.
            pub d_model: usize,
            /// Width between the two linear layers of a feed-forward network.
            pub d_ff: usize,
            /// Number of heads.
            pub n_heads: usize,
            /// Number of layers.
            pub n_layers: usize,
            /// Probability of dropout.
            pub dropout: f64,
            /// Whether normalisation comes before attention and feed-forward networks rather than after them.
            pub norm_first: bool,
            /// Whether softmax adds 1 to its denominator.
            pub quiet_softmax: bool,
        }

        converts!($stack of burns::$stack {
            d_model,
            d_ff,
            n_heads,
            n_layers,
            dropout,
            norm_first,
            quiet_softmax,
        } each { layers });
        shown_as_burns!($stack of burns::$stack);

        $(#[$of_cache])*
        pub struct $cache {
            layers: Vec<$layer_cache>,
        }
    };
}
pub(super) use stack;
