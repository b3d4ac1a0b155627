//! Options of `mpiburn bench link`.

use std::path::PathBuf;

use clap::Args;

use super::bench::timed;
use crate::values::{between, named};
use burn_mpi::Backend;

/// Ten seconds: no step computes longer without communication.
const LONGEST_PAUSE_US: f64 = 1e7;

#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "\
Example:
  mpirun -n 2 --host alpha,beta --bind-to core mpiburn bench link --csv results/link.csv
  mpiburn report --predict results/NAME --link results/link.csv

Both ranks send at once, as in an all-reduce; the time of a message is the median exchange. Shapers
and switches forward a message faster after a pause: set --pause-us to the computing time of the
step that is to be predicted. The latency is the shortest median; the bandwidth is the slope of a
least-squares line from there over all sizes, weighted by the inverse of the size."
)]
pub struct LinkArgs {
    /// Transport to send over.
    #[arg(long, default_value = "mpi", value_parser = named::<Backend, _>(Backend::ALL.map(Backend::name)))]
    pub backend: Backend,
    /// Message sizes in bytes, KiB or MiB; 4..64KiB: each power of two in the range
    /// [default: 4..4MiB, up to the size whose exchange takes 0.1 s].
    #[arg(long, value_name = "SIZES")]
    pub sizes: Option<String>,
    /// Exchanges of each size [default: as many as fit into a second, 10 to 1000].
    #[arg(long, value_name = "N", value_parser = timed())]
    pub iterations: Option<usize>,
    /// Computing time between two messages, in microseconds.
    #[arg(long, value_name = "US", default_value = "0", value_parser = between(0.0, LONGEST_PAUSE_US))]
    pub pause_us: f64,
    /// Write the times to FILE, replacing it.
    #[arg(long, value_name = "FILE.csv")]
    pub csv: Option<PathBuf>,
}
