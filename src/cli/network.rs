//! Options of `mpiburn train` for the network.

use clap::Args;

use crate::model::Activation;
use crate::names::OneOf;

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct NetworkArgs {
    /// Activation after every layer but the last.
    #[arg(long, value_name = "NAME", default_value = "relu", value_parser = OneOf::values::<Activation>())]
    pub activation: String,
    /// Batch norm between each convolution and its activation; mlp always has batch norm.
    #[arg(long)]
    pub batch_norm: bool,
    /// Dropout probability in training: before the last layer, in vgg before the last layer but
    /// one.
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    pub dropout: f64,
    /// Width of mlp's hidden layer [default: 32].
    #[arg(long, value_name = "N")]
    pub hidden: Option<usize>,
}
