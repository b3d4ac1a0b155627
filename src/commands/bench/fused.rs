//! `mpiburn bench fused`: fused convolution and ReLU compared with Burn's two operators
//! on each compute backend.

use super::fused_net::{Candidate, Operator, Task};
use crate::data::shard::Order;
use crate::data::{self, Normalizer, SampleSource, Shard, ShardPlan, Split};
use crate::device::DeviceKind;
use crate::options::{ConfigError, FusedArgs};
use burn_mpi::World;
use run_report::fused::FusedRow;
use run_report::{table, write_csv};

/// Steps of one row before the next row continues, so that a change in the machine's
/// speed affects all rows.
const TURN: usize = 10;

/// An implementation of the network.
struct Way {
    name: &'static str,
    device: DeviceKind,
    operator: Operator,
}

/// The table's rows, in order.
const WAYS: [Way; 4] = [
    Way { name: "fused", device: DeviceKind::Flex, operator: Operator::Fused },
    Way { name: "unfused", device: DeviceKind::Flex, operator: Operator::Separate },
    Way { name: "ndarray", device: DeviceKind::NdArray, operator: Operator::Separate },
    Way { name: "tch", device: DeviceKind::Tch, operator: Operator::Separate },
];

/// Trains each network with each implementation of this build, and prints the table.
pub fn run(world: &World, args: &FusedArgs) -> anyhow::Result<()> {
    check(world)?;
    super::super::outputs::check(&[("csv", args.csv.as_ref())], &[])?;
    super::super::use_threads(1)?;
    let source = data::open(&args.data_root)?;
    let load = |split, samples: usize| {
        let samples = samples.min(source.len(split));
        let plan = ShardPlan { samples, world_size: 1, batch_size: args.train_batch_size };
        Shard::load(source.as_ref(), split, &plan, 0, Order::Sequential)
    };
    let (train, test) = (load(Split::Train, args.train_samples)?, load(Split::Test, usize::MAX)?);
    let rows = measure(args, source.as_ref(), &train, &test);
    print(args, &rows, train.len());
    match &args.csv {
        Some(path) => Ok(write_csv(path, &rows)?),
        None => Ok(()),
    }
}

fn check(world: &World) -> Result<(), ConfigError> {
    match world.size() {
        1 => Ok(()),
        ranks => Err(ConfigError::new(
            "world-size",
            ranks,
            "an operator is measured on one rank; start it without mpirun",
        )),
    }
}

fn measure(args: &FusedArgs, source: &dyn SampleSource, train: &Shard, test: &Shard) -> Vec<FusedRow> {
    let normalizer = Normalizer::new(source.description());
    let task = Task { channels: args.channels, lr: args.lr, seed: args.seed };
    let built = || WAYS.iter().filter(|way| way.device.check_built().is_ok());
    let mut candidates: Vec<_> = args
        .layers
        .iter()
        .flat_map(|&layers| {
            built().map(move |way| (way.name, Candidate::new(layers, task, way.device, way.operator)))
        })
        .collect();
    let batch = args.train_batch_size;
    let starts: Vec<usize> = (0..train.len()).step_by(batch).collect();
    for turn in starts.chunks(TURN) {
        for (_, candidate) in &mut candidates {
            for &from in turn {
                let (bytes, labels) = train.samples(from, batch);
                candidate.step(&normalizer, bytes, labels);
            }
        }
    }
    let row = |(operator, candidate): &(&'static str, Candidate)| {
        let (forward_ms, backward_ms) = candidate.median_ms();
        FusedRow {
            operator: (*operator).into(),
            layers: candidate.layers,
            channels: args.channels,
            batch,
            steps: starts.len(),
            forward_ms,
            backward_ms,
            test_accuracy: candidate.accuracy(&normalizer, test),
        }
    };
    candidates.iter().map(row).collect()
}

fn print(args: &FusedArgs, rows: &[FusedRow], samples: usize) {
    println!(
        "Conv2d({0}→{0}, 3x3, pad 1) + ReLU, N times with the same weights; {1} digits in batches of {2}; \
         medians over steps, one thread",
        args.channels, samples, args.train_batch_size
    );
    let header = ["layers", "operator", "forward ms", "backward ms", "test accuracy"];
    let line = |layers: usize, name: &str| {
        let mut cells = vec![layers.to_string(), name.to_owned()];
        match rows.iter().find(|row| (row.layers, row.operator.as_str()) == (layers, name)) {
            Some(row) => cells.extend([
                format!("{:.3}", row.forward_ms),
                format!("{:.3}", row.backward_ms),
                format!("{:.2}%", row.test_accuracy),
            ]),
            None => cells.extend(["not built".into(), String::new(), String::new()]),
        }
        cells
    };
    let lines = args.layers.iter().flat_map(|&layers| WAYS.iter().map(move |way| (layers, way.name)));
    println!("{}", table::table(&header, 2, lines.map(|(layers, name)| line(layers, name))));
    let missing: Vec<_> =
        WAYS.iter().filter(|way| way.device.check_built().is_err()).map(|way| way.name).collect();
    if !missing.is_empty() {
        println!("for the others: make build DEVICES={}", missing.join(","));
    }
}
