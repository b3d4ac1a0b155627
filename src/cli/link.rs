//! What can be typed after `bench link`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "\
Example:
  mpirun -n 2 --host alpha,beta --bind-to core mpiburn bench link --csv results/link.csv
  mpiburn report --predict results/NAME --link results/link.csv

A message goes to the last rank and back; half of the median round trip is its time. The latency
is the shortest of them, the bandwidth the slope of least squares from there over all sizes, each
weighted by the inverse of its size."
)]
pub struct LinkArgs {
    /// Transport to send over: mpi or gloo.
    #[arg(long, default_value = "mpi")]
    pub backend: String,
    /// Message sizes in bytes, KiB or MiB; 4..64KiB is each power of two between
    /// [default: 4..4MiB, ending where a round trip takes a fifth of a second].
    #[arg(long, value_name = "SIZES")]
    pub sizes: Option<String>,
    /// Round trips of each size [default: as many as fit into a second, 10 to 1000].
    #[arg(long, value_name = "N")]
    pub iterations: Option<usize>,
    /// Write the times to FILE, replacing it.
    #[arg(long, value_name = "FILE.csv")]
    pub csv: Option<PathBuf>,
}
