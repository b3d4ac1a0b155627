//! Options of the compression of gradients.

use burn_mpi::PowerSgd;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::values::{Optional, Positive, display_names, one_of, or_none};

/// Compression of gradients.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Distribution")]
pub struct CompressionOptions {
    /// Compression of gradients: powersgd sends each matrix as two factors of --compress-rank columns.
    ///
    /// The average is then approximate. What a step does not send is added to the next step's gradients.
    #[arg(long, value_name = "NAME", default_value = "none", value_parser = one_of::<Compress>())]
    pub compress: Compress,
    /// --compress powersgd: columns of each factor. A matrix is compressed if that saves half of its values.
    #[arg(long, value_name = "R", default_value = "none", value_parser = or_none::<Positive>)]
    pub compress_rank: Optional<Positive>,
}

/// Kind of compression.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Compress {
    /// Gradients are sent as they are.
    #[default]
    None,
    /// PowerSGD (Vogels, Karimireddy, Jaggi, NeurIPS 2019).
    #[value(name = "powersgd")]
    PowerSgd,
}

display_names!(Compress);

impl CompressionOptions {
    /// Returns the compression, which begins with random numbers of `seed`; `None` if gradients are not
    /// compressed.
    pub fn power_sgd(&self, seed: u64) -> Option<PowerSgd> {
        self.compress_rank.map(|rank| PowerSgd::new(rank.get()).with_seed(seed))
    }
}
