//! Options of `mpiburn train` about the network.

use clap::Args;

use crate::model::Activation;
use crate::names::OneOf;

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct NetworkArgs {
    /// What follows every layer but the last.
    #[arg(long, value_name = "NAME", default_value = "relu", value_parser = OneOf::values::<Activation>())]
    pub activation: String,
    /// Put a batch norm between each convolution and its activation; mlp has one always.
    #[arg(long)]
    pub batch_norm: bool,
    /// Drop features in training with this probability: in front of the last layer, in vgg of
    /// the last but one.
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    pub dropout: f64,
    /// Width of mlp's hidden layer [default: 32].
    #[arg(long, value_name = "N")]
    pub hidden: Option<usize>,
}
