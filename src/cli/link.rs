//! What can be typed after `bench link`.

use std::path::PathBuf;

use clap::Args;

use crate::names::OneOf;
use burn_mpi::Backend;

#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "\
Example:
  mpirun -n 2 --host alpha,beta --bind-to core mpiburn bench link --csv results/link.csv
  mpiburn report --predict results/NAME --link results/link.csv

Both ranks send at once, as in an all-reduce; the median exchange is a message's time. Shapers and
switches let what comes after a pause pass faster: --pause-us makes one, as long as the computing
of the step that is to be predicted. The latency is the shortest, the bandwidth the slope of least squares from there over all sizes, each
weighted by the inverse of its size."
)]
pub struct LinkArgs {
    /// Transport to send over.
    #[arg(long, default_value = "mpi", value_parser = OneOf::names(Backend::ALL.map(Backend::name)))]
    pub backend: String,
    /// Message sizes in bytes, KiB or MiB; 4..64KiB is each power of two between
    /// [default: 4..4MiB, ending where an exchange takes a tenth of a second].
    #[arg(long, value_name = "SIZES")]
    pub sizes: Option<String>,
    /// Exchanges of each size [default: as many as fit into a second, 10 to 1000].
    #[arg(long, value_name = "N")]
    pub iterations: Option<usize>,
    /// Microseconds of computing between two messages.
    #[arg(long, value_name = "US", default_value_t = 0.0)]
    pub pause_us: f64,
    /// Write the times to FILE, replacing it.
    #[arg(long, value_name = "FILE.csv")]
    pub csv: Option<PathBuf>,
}
