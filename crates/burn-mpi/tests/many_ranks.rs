//! Checks many ranks, as threads: their results are those of plain Burn on the union of the data, and what a
//! rank receives and what all ranks keep does not grow with the square of the number of ranks.
//!
//! Four ranks do not show a table of all ranks on each rank, or a sum that each rank computes again.

use std::cell::RefCell;
use std::rc::Rc;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig, Relu};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Tensor};
use burn_mpi::threads::{Options, run};
use burn_mpi::{
    Backend, CommError, GradientSync, LocalOptions, LocalUpdates, MicroBatch, ParamLayout, PowerSgd,
    ShardedOptimizer, Signals, SyncOptions, Transport, World, broadcast_module, check_equal_weights, connect,
};
use burn_mpi::{Call, Element, Primitives, connect_primitives};

/// Returns options with this seed. `TURNS=off` makes ranks run at the same time, for a thread sanitizer.
fn with_seed(seed: u64) -> Options {
    let turns = std::env::var("TURNS").map_or(true, |text| text != "off");
    Options::default().with_turns(turns).with_seed(seed)
}

const INPUTS: usize = 6;
const RATE: f64 = 0.1;

#[derive(Module, Debug)]
struct Mlp {
    hidden: Linear,
    out: Linear,
}

impl Mlp {
    /// Returns the network with fixed weights, or with zeros.
    fn new(is_zero: bool, device: &Device) -> Self {
        let hidden = LinearConfig::new(INPUTS, 8).init(device);
        let mlp = Self { hidden, out: LinearConfig::new(8, 3).init(device) };
        let layout = ParamLayout::of_module(&mlp);
        let weight = |at: usize| if is_zero { 0.0 } else { (at as f32 * 0.7).sin() };
        layout.write(mlp, &(0..layout.len()).map(weight).collect::<Vec<_>>())
    }

    /// Returns the mean loss of `samples`.
    fn loss(&self, samples: &[usize], device: &Device) -> Tensor<1> {
        let values: Vec<f32> = samples.iter().flat_map(|&sample| inputs(sample)).collect();
        let x = Tensor::<1>::from_floats(values.as_slice(), device).reshape([samples.len(), INPUTS]);
        let out = self.out.forward(Relu::new().forward(self.hidden.forward(x)));
        out.powi_scalar(2).mean()
    }
}

fn inputs(sample: usize) -> [f32; INPUTS] {
    std::array::from_fn(|at| ((sample * INPUTS + at) as f32 * 0.3).cos())
}

fn values(mlp: &Mlp) -> Vec<f32> {
    ParamLayout::of_module(mlp).read(mlp)
}

/// An epoch has one sample for each rank, and then for less than half of the ranks.
fn samples_of_step(step: usize, ranks: usize) -> std::ops::Range<usize> {
    step * ranks..((step + 1) * ranks).min(ranks + ranks * 2 / 5)
}

const STEPS: usize = 2;

/// Trains an epoch with plain Burn.
fn plain(ranks: usize) -> Vec<f32> {
    let device = Device::flex().autodiff();
    let (mut mlp, mut optimizer) = (Mlp::new(false, &device), SgdConfig::new().init());
    for step in 0..STEPS {
        let samples: Vec<usize> = samples_of_step(step, ranks).collect();
        let gradients = GradientsParams::from_grads(mlp.loss(&samples, &device).backward(), &mlp);
        mlp = optimizer.step(RATE, mlp, gradients);
    }
    values(&mlp)
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Averaged,
    Compressed,
    Sharded,
    Local,
}

/// Trains an epoch on this rank of many. Returns the weights on rank 0.
fn train(world: &World, kind: Kind) -> Result<Vec<f32>, CommError> {
    let device = Device::flex().autodiff();
    let mut mlp = broadcast_module(world, Mlp::new(!world.is_root(), &device))?;
    let collective = connect(world, Backend::Mpi, &Transport::default())?;
    let own = |step: usize| -> Vec<usize> {
        let samples = samples_of_step(step, world.size());
        Some(samples.start + world.rank()).filter(|sample| samples.contains(sample)).into_iter().collect()
    };
    let mut optimizer = SgdConfig::new().init();
    if kind == Kind::Local {
        let mut local = LocalUpdates::of_module(world, collective, &mlp, LocalOptions::default())?;
        for step in 0..STEPS {
            let samples = own(step);
            if !samples.is_empty() {
                let gradients = local.backward(&mlp.loss(&samples, &device));
                let gradients = GradientsParams::from_grads(gradients, &mlp);
                mlp = optimizer.step(RATE, mlp, gradients);
            }
            mlp = local.step_module(mlp, samples.len())?;
        }
        mlp = local.finish_module(mlp)?;
    } else {
        let compression = (kind == Kind::Compressed).then_some(PowerSgd::new(1).with_seed(5));
        let options = SyncOptions::default().with_compression(compression).with_shard(kind == Kind::Sharded);
        let mut sync = GradientSync::of_module(world, collective, &mlp, options);
        let mut sharded = ShardedOptimizer::new(SgdConfig::new().build())?;
        for step in 0..STEPS {
            let (samples, total) = (own(step), samples_of_step(step, world.size()).len());
            if !samples.is_empty() {
                let loss = mlp.loss(&samples, &device);
                sync.backward(&loss, &mlp, samples.len(), total, MicroBatch::Last)?;
            }
            if kind == Kind::Sharded {
                sync.reduce(Signals::default())?;
                mlp = sharded.step(RATE, mlp, &mut sync)?;
            } else {
                let gradients = sync.finish(&mlp)?;
                mlp = optimizer.step(RATE, mlp, gradients);
            }
        }
    }
    check_equal_weights(world, &mlp)?;
    Ok(if world.is_root() { values(&mlp) } else { Vec::new() })
}

/// Returns the peak of this process's memory so far, in bytes.
fn peak_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("the status");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    1024 * peak.trim().trim_end_matches(" kB").parse::<usize>().expect("a number")
}

/// The maximum peak is twice what a rank needs. A buffer with 200 bytes of each rank on each rank would exceed
/// it.
#[test]
fn many_ranks_train_as_one_process_on_the_union_and_their_memory_is_linear() {
    for (kind, ranks) in
        [(Kind::Local, 256), (Kind::Sharded, 256), (Kind::Compressed, 256), (Kind::Averaged, 1024)]
    {
        let options = with_seed(3).with_hosts(7).with_stack_bytes(2 << 20);
        let trained = run(ranks, &options, |world| train(world, kind)).unwrap().swap_remove(0);
        let furthest = trained.iter().zip(plain(ranks)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // Compression is exact only for gradients of rank 1.
        assert!(furthest < if kind == Kind::Compressed { 0.1 } else { 1e-6 }, "{kind:?}: {furthest}");
    }
    let per_rank = peak_memory() / 1024;
    assert!(per_rank < 360_000, "{per_rank} bytes for each of 1024 ranks");
}

#[test]
fn ranks_share_the_list_of_places() {
    let address = |world: &World| Ok::<_, CommError>(world.places().as_ptr().addr());
    let addresses = run(5, &with_seed(0), address).unwrap();
    assert!(addresses.iter().all(|address| *address == addresses[0]), "{addresses:?}");
}

/// Counts the calls of a rank, and the bytes that they write.
struct Counting(Box<dyn Primitives>, Rc<RefCell<Vec<(Call, usize)>>>);

impl Primitives for Counting {
    fn transport(&self) -> &str {
        self.0.transport()
    }

    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn call(&mut self, call: Call, element: Element, from: &[u8], to: &mut [u8]) -> Result<(), CommError> {
        self.1.borrow_mut().push((call, to.len()));
        self.0.call(call, element, from, to)
    }
}

/// A gather of what ranks compare, such as the names of all parameters, would receive it from every rank.
#[test]
fn ranks_receive_a_few_bytes_from_each_rank_to_compare_modules_and_orders() {
    let calls_of = |ranks: usize| {
        let counted = |world: &World| {
            let calls = Rc::default();
            let primitives = connect_primitives(world, Backend::Mpi, &Transport::default())?;
            world.exchange_over(Box::new(Counting(primitives, Rc::clone(&calls))));
            train(world, Kind::Averaged)?;
            Ok::<_, CommError>(calls.take())
        };
        run(ranks, &with_seed(0), counted).unwrap().swap_remove(0)
    };
    let calls = calls_of(32);
    assert_eq!(calls_of(8).len(), calls.len(), "the number of calls does not depend on the number of ranks");
    let gathered: Vec<usize> =
        calls.iter().filter(|(call, _)| *call == Call::AllGather).map(|&(_, bytes)| bytes).collect();
    assert!(!gathered.is_empty() && gathered.iter().all(|&bytes| bytes <= 24 * 32), "{gathered:?}");
}
