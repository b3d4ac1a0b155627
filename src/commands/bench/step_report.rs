//! Output of `mpiburn bench step`: a table, lines on memory and arithmetic, and a JSON
//! file.

use serde::Serialize;

use super::product::SIDE;
use crate::device::DeviceKind;
use crate::model::ModelKind;
use crate::train::Precision;
use burn_fused::conv::Algorithm;
use burn_fused::simd::Level;
use run_record::StepMs;
use run_report::table;

/// The measurements and their configuration. Times are in milliseconds; times and
/// counters are means over ranks.
#[derive(Debug, Clone, Serialize)]
pub struct StepReport {
    /// Network.
    pub model: ModelKind,
    /// Batch size per rank.
    pub train_batch_size: usize,
    /// World size.
    pub ranks: usize,
    /// Machines x processes per machine.
    pub topology: String,
    /// Transport of the gradients.
    pub backend: String,
    /// Compute device.
    pub device: DeviceKind,
    /// Type of activations and products.
    pub precision: Precision,
    /// Whether convolution, ReLU and pooling are fused.
    pub fused: bool,
    /// Algorithm of fused convolutions with many channels.
    pub conv: Option<Algorithm>,
    /// Number of threads per rank.
    pub threads: usize,
    /// SIMD level of the operators.
    pub simd: Level,
    /// Number of measured steps in each mode.
    pub steps: usize,
    /// Times with the all-reduce overlapping backward.
    pub overlap_on: Timing,
    /// Times with the all-reduce after backward; none with one rank.
    pub overlap_off: Option<Timing>,
    /// Allocations and reallocations of the training thread.
    pub allocations_per_step: f64,
    /// Page faults of the process.
    pub page_faults_per_step: f64,
    /// Floating-point operations of one rank's step, from the network's layers.
    pub flop_per_step: u64,
    /// Floating-point operations per second of a large matrix product; none if none was timed.
    pub product_flop_per_s: Option<f64>,
    /// Bytes of gradients that each rank sends in a step, as sent.
    pub gradient_bytes: usize,
    /// Time of an all-gather of as many bytes as a ring all-reduce of the gradients moves; none with
    /// one rank.
    pub gather_ms: Option<f64>,
    /// The step's operations per second divided by those of the matrix product.
    pub share_of_product: Option<f64>,
}

/// Milliseconds per step.
#[derive(Debug, Clone, Serialize)]
pub struct Timing {
    /// The phases of the step, medians over steps.
    #[serde(flatten)]
    pub parts: StepMs,
    /// The whole step, mean over steps.
    pub mean: f64,
    /// The whole step, median over steps.
    pub median: f64,
}

impl Timing {
    /// Operations per second of the median step, of `flop` operations.
    pub fn per_second(&self, flop: u64) -> f64 {
        1e3 * flop as f64 / self.median
    }
}

impl StepReport {
    /// Prints the table and the lines.
    pub fn print(&self) {
        println!("{}", self.table());
        for line in self.communication().into_iter().chain(self.bytes_alone()) {
            println!("{line}");
        }
        println!(
            "a rank's step: {:.1} allocations, {:.1} page faults",
            self.allocations_per_step, self.page_faults_per_step
        );
        println!("{}", self.arithmetic());
    }

    fn table(&self) -> run_report::table::Table {
        let cells = |timing: &Timing| {
            timing.parts.into_array().into_iter().chain([timing.median]).collect::<Vec<_>>()
        };
        let names = StepMs::TITLES.into_iter().chain(["whole step"]);
        let (header, columns) = match &self.overlap_off {
            Some(off) => (
                vec!["median ms per step, mean over ranks", "overlap on", "overlap off"],
                vec![cells(&self.overlap_on), cells(off)],
            ),
            None => (vec!["median ms per step", "1 rank"], vec![cells(&self.overlap_on)]),
        };
        let row = |(i, name): (usize, &str)| {
            let numbers = columns.iter().map(|column| format!("{:.3}", column[i]));
            std::iter::once(name.to_owned()).chain(numbers).collect()
        };
        table::table(&header, 1, names.enumerate().map(row))
    }

    /// Share of the communication that is hidden behind backward.
    fn communication(&self) -> Option<String> {
        let (on, off) = (&self.overlap_on, self.overlap_off.as_ref()?);
        let hidden = off.parts.exposed - on.parts.exposed;
        // Where ranks wait for each other more with overlap than without, nothing can be said of it.
        let hidden = match hidden >= 0.0 {
            true => {
                let share = 100.0 * hidden / off.parts.exposed.max(f64::MIN_POSITIVE);
                format!("hidden {hidden:.3} ms ({share:.0}%)")
            }
            false => "none hidden".to_owned(),
        };
        Some(format!(
            "{} at batch {}, {} ranks, backend {}: communication {:.3} ms, {hidden}, exposed {:.3} ms ({:.1}% of \
             the step)",
            self.model,
            self.train_batch_size,
            self.ranks,
            self.backend,
            off.parts.exposed,
            on.parts.exposed,
            100.0 * on.parts.exposed / on.median,
        ))
    }

    /// What of the communication is bandwidth, and no waiting or adding.
    fn bytes_alone(&self) -> Option<String> {
        let (all, gather) = (self.overlap_off.as_ref()?.parts.exposed, self.gather_ms?);
        Some(format!(
            "the bytes of {:.3} MB of gradients alone take {gather:.3} ms between these ranks ({:.0}% of the \
             communication)",
            1e-6 * self.gradient_bytes as f64,
            100.0 * gather / all.max(f64::MIN_POSITIVE)
        ))
    }

    fn arithmetic(&self) -> String {
        let speed = format!(
            "{} at batch {}: {:.1} MFLOP in {:.3} ms are {:.1} GFLOP/s",
            self.model,
            self.train_batch_size,
            1e-6 * self.flop_per_step as f64,
            self.overlap_on.median,
            1e-9 * self.overlap_on.per_second(self.flop_per_step),
        );
        let threads = if self.threads == 1 { "thread" } else { "threads" };
        let mixed = match self.precision {
            Precision::No => String::new(),
            other => format!(", the step in {other}"),
        };
        let on = format!("({}{mixed}, {} {threads})", self.device, self.threads);
        match self.product_flop_per_s.zip(self.share_of_product) {
            Some((product, share)) => format!(
                "{speed}, {:.0}% of the {:.1} GFLOP/s of a {SIDE}x{SIDE} matrix product {on}",
                100.0 * share,
                1e-9 * product,
            ),
            None => format!("{speed} {on}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(overlap_off: Option<Timing>) -> StepReport {
        let ranks = if overlap_off.is_some() { 2 } else { 1 };
        StepReport {
            model: ModelKind::Vgg,
            train_batch_size: 32,
            ranks,
            topology: "1x1".into(),
            backend: "mpi".into(),
            device: DeviceKind::Flex,
            precision: Precision::No,
            fused: true,
            conv: Some(Algorithm::Winograd),
            threads: 1,
            simd: Level::Portable,
            steps: 10,
            overlap_on: timing(2.0),
            overlap_off,
            allocations_per_step: 12.0,
            page_faults_per_step: 0.5,
            flop_per_step: 150_000_000,
            product_flop_per_s: Some(50e9),
            gradient_bytes: 10_512_040,
            gather_ms: (ranks > 1).then_some(6.0),
            share_of_product: Some(0.3),
        }
    }

    fn timing(exposed: f64) -> Timing {
        Timing { parts: StepMs { exposed, ..StepMs::default() }, mean: 20.0, median: 10.0 }
    }

    #[test]
    fn the_share_refers_to_the_median_step() {
        let report = report(None);
        // 150 MFLOP in 10 ms are 15 GFLOP/s.
        assert_eq!(report.overlap_on.per_second(report.flop_per_step), 15e9);
        assert!(
            report.arithmetic().contains("15.0 GFLOP/s, 30% of the 50.0 GFLOP/s"),
            "{}",
            report.arithmetic()
        );
        let alone = StepReport { product_flop_per_s: None, ..report };
        assert_eq!(
            alone.arithmetic(),
            "vgg at batch 32: 150.0 MFLOP in 10.000 ms are 15.0 GFLOP/s (flex, 1 thread)"
        );
    }

    #[test]
    fn one_rank_has_one_column_and_no_communication() {
        assert_eq!((report(None).communication(), report(None).bytes_alone()), (None, None));
        assert!(!report(None).table().to_string().contains("overlap"));
        let two = report(Some(timing(8.0)));
        assert!(two.table().to_string().contains("overlap off"));
        let line = two.communication().unwrap();
        assert!(line.contains("hidden 6.000 ms (75%), exposed 2.000 ms (20.0% of the step)"), "{line}");
        let line = report(Some(timing(1.0))).communication().unwrap();
        assert!(line.contains("communication 1.000 ms, none hidden, exposed 2.000 ms"), "{line}");
    }

    #[test]
    fn the_bytes_alone_are_a_share_of_the_communication_without_overlap() {
        let line = report(Some(timing(8.0))).bytes_alone().unwrap();
        let expected = "the bytes of 10.512 MB of gradients alone take 6.000 ms between these ranks (75% of the \
                        communication)";
        assert_eq!(line, expected);
    }
}
