//! Checks compressed gradients on ranks that are threads: bits that do not depend on timing, transports and
//! interruptions, compressions of a program, and the accuracy of a training.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor, TensorData};
use burn_mpi::threads::{Options, run};
use burn_mpi::{
    ArrivalOrder, Backend, CommError, Compression, CompressionState, GradientBucket, GradientSync,
    MicroBatch, PowerSgd, Reduction, SharedError, Signals, SyncOptions, Transport, WireType, World, connect,
};

#[path = "programs/check_modules/compressed.rs"]
mod compressed;
#[path = "powersgd/pytorch.rs"]
mod pytorch;

use compressed::{Averages, Steps, check, options};

/// Returns options with this seed. `TURNS=off` makes ranks run at the same time, for a thread sanitizer.
fn with_seed(seed: u64) -> Options {
    let turns = std::env::var("TURNS").map_or(true, |text| text != "off");
    Options::default().with_turns(turns).with_seed(seed)
}

fn ordered() -> SyncOptions {
    options(WireType::F32, Reduction::Ordered)
}

#[test]
fn averages_and_memories_add_up_on_ranks_of_every_timing() {
    for (ranks, seed) in (1..=4).flat_map(|ranks| (20..25).map(move |seed| (ranks, seed))) {
        run(ranks, &with_seed(seed), |world| check(world, Backend::Mpi)).unwrap();
    }
}

#[test]
fn ordered_sums_have_the_same_bits_over_every_transport_with_and_without_overlap() {
    let averages = |backend: Backend, hosts: usize, seed: u64, overlap: bool| {
        let body = |world: &World| -> Result<Vec<Averages>, CommError> {
            let mut steps = Steps::new(world, backend, ordered().with_overlap(overlap), 5)?;
            (0..6).map(|step| steps.step(step)).collect()
        };
        run(3, &with_seed(seed).with_hosts(hosts), body).unwrap()
    };
    let expected = averages(Backend::Mpi, 1, 0, true);
    assert!(expected.iter().all(|rank| *rank == expected[0]));
    for (hosts, seed) in (1..=3).flat_map(|hosts| (1..4).map(move |seed| (hosts, seed))) {
        for overlap in [true, false] {
            assert_eq!(averages(Backend::Gloo, hosts, seed, overlap), expected, "seed {seed}");
        }
    }
}

/// What a program saves.
type Saved = (ArrivalOrder, CompressionState);

/// Makes steps, from `saved` on if it is there. Returns the averages and what is saved after them.
fn steps(
    world: &World,
    steps: std::ops::Range<usize>,
    saved: Option<Saved>,
) -> Result<(Vec<Averages>, Saved), CommError> {
    let mut on = Steps::new(world, Backend::Mpi, ordered(), 6)?;
    if let Some((arrival, state)) = saved {
        on.sync.adopt(arrival)?;
        on.sync.restore_compression(state)?;
    }
    let averages = steps.map(|step| on.step(step)).collect::<Result<_, _>>()?;
    let saved = (on.sync.arrival().cloned(), on.sync.compression_state());
    Ok((averages, (saved.0.expect("steps were made"), saved.1.expect("gradients are compressed"))))
}

#[test]
fn a_resumed_run_has_the_bits_of_an_uninterrupted_one() {
    const LAST: usize = 7;
    for ranks in 2..=4 {
        for stop in 1..LAST {
            let body = |world: &World| {
                let (whole, last) = steps(world, 0..LAST, None)?;
                let (_, saved) = steps(world, 0..stop, None)?;
                let (rest, resumed) = steps(world, stop..LAST, Some(saved))?;
                assert_eq!(rest, whole[stop..], "{ranks} ranks, stopped at {stop}");
                assert_eq!(resumed, last);
                Ok::<_, CommError>(())
            };
            run(ranks, &with_seed(stop as u64), body).unwrap();
        }
    }
}

#[test]
fn memories_can_move_to_another_rank() {
    let body = |world: &World| {
        let (_, (arrival, mut state)) = steps(world, 0..4, None)?;
        let (stayed, _) = steps(world, 4..8, Some((arrival.clone(), state.clone())))?;
        let all = world.gather(&state.own)?;
        for (at, own) in state.own.iter_mut().enumerate() {
            *own = if world.rank() == 1 { all.iter().map(|all| all[at]).sum() } else { 0.0 };
        }
        let (moved, _) = steps(world, 4..8, Some((arrival, state)))?;
        for (stayed, moved) in stayed.iter().flatten().zip(moved.iter().flatten()) {
            assert_eq!(stayed.is_some(), moved.is_some());
            for (a, b) in stayed.iter().flatten().zip(moved.iter().flatten()) {
                assert!((a - b).abs() < 1e-4, "{a} and {b}");
            }
        }
        Ok::<_, CommError>(())
    };
    run(3, &with_seed(1), body).unwrap();
}

#[test]
fn a_state_that_does_not_fit_is_an_error_of_all_ranks() {
    let errors = run(3, &with_seed(0), |world| {
        let mut on = Steps::new(world, Backend::Mpi, ordered(), 6)?;
        let state = on.sync.compression_state().expect("gradients are compressed");
        let mut restore = |change: fn(&mut CompressionState)| {
            let mut state = state.clone();
            if world.rank() == 1 {
                change(&mut state);
            }
            Ok::<_, CommError>(on.sync.restore_compression(state).unwrap_err().to_string())
        };
        let errors = [restore(|state| state.own.truncate(5))?, restore(|state| state.shared[3] += 1.0)?];
        on.sync.restore_compression(state)?;
        let mut plain = Steps::new(world, Backend::Mpi, SyncOptions::default(), 6)?;
        assert_eq!(plain.sync.compression_state(), None);
        let none = plain.sync.restore_compression(CompressionState::default()).unwrap_err();
        Ok::<_, CommError>((errors, none.to_string()))
    });
    for ([length, shared], none) in errors.unwrap() {
        assert!(
            length.contains("rank 1 on node0") && length.contains("5 of this rank, instead of"),
            "{length}"
        );
        assert!(shared.contains("shared state of the compression differs between ranks: rank 1"), "{shared}");
        assert!(none.contains("gradients are not compressed"), "{none}");
    }
}

#[test]
fn a_rank_above_that_of_every_matrix_is_an_error_of_all_ranks() {
    for ranks in 1..=3 {
        let errors = run(ranks, &with_seed(0), |world| {
            let compression = Some(PowerSgd::new(6));
            let mut steps = Steps::new(world, Backend::Mpi, ordered().with_compression(compression), 0)?;
            let error = steps.step(0).unwrap_err();
            assert!(matches!(error, CommError::Shared(SharedError::Compression(_))));
            Ok::<_, CommError>(error.to_string())
        });
        let expected = "gradients cannot be compressed: PowerSGD of rank 6 would save half of the values of no \
                        parameter; choose a rank up to 5, the highest for wide [24, 20]";
        assert!(errors.unwrap().iter().all(|error| error == expected));
    }
    let differ = run(2, &with_seed(0), |world| {
        let compression = Some(PowerSgd::new(1 + world.rank()));
        let mut steps = Steps::new(world, Backend::Mpi, ordered().with_compression(compression), 0)?;
        Ok::<_, CommError>(steps.step(0).unwrap_err().to_string())
    });
    assert!(differ.unwrap()[0].contains("SyncOptions differs between ranks"));
}

/// Sends the values of a bucket without loss, in a number of rounds that differs between buckets; in no rounds
/// if it would be 0.
struct InRounds;

impl InRounds {
    /// Returns the values of `round`; `None` if there is no such round.
    fn part(bucket: &GradientBucket<'_>, round: usize, length: usize) -> Option<std::ops::Range<usize>> {
        let rounds = bucket.index() % 4;
        let at = |round: usize| round * length / rounds;
        (round < rounds).then(|| at(round)..at(round + 1))
    }
}

impl Compression for InRounds {
    fn name(&self) -> String {
        "in rounds".to_owned()
    }

    fn begin(&mut self, bucket: &GradientBucket<'_>, gradients: &mut [f32], send: &mut Vec<f32>) -> bool {
        assert!(send.is_empty());
        let covered: usize = bucket.params().map(|(_, range)| range.len()).sum();
        assert_eq!(covered, gradients.len());
        let Some(part) = Self::part(bucket, 0, gradients.len()) else { return false };
        send.extend_from_slice(&gradients[part]);
        true
    }

    fn next(
        &mut self,
        bucket: &GradientBucket<'_>,
        gradients: &mut [f32],
        round: usize,
        values: &mut Vec<f32>,
    ) -> bool {
        let Some(next) = Self::part(bucket, round + 1, gradients.len()) else { return false };
        let part = Self::part(bucket, round, gradients.len()).expect("this round was sent");
        gradients[part].copy_from_slice(values);
        values.clear();
        values.extend_from_slice(&gradients[next]);
        true
    }

    fn finish(&mut self, bucket: &GradientBucket<'_>, gradients: &mut [f32], sums: &[f32]) {
        let start = gradients.len() - sums.len();
        gradients[start..].copy_from_slice(sums);
        assert!(!bucket.is_last() || bucket.params().count() > 0);
    }
}

#[test]
fn a_compression_of_the_program_may_have_any_number_of_rounds() {
    for (ranks, seed) in (1..=4).flat_map(|ranks| (0..10).map(move |seed| (ranks, seed))) {
        let body = |world: &World| -> Result<(), CommError> {
            for wire in [WireType::F32, WireType::Bf16] {
                // Buckets of one parameter, and of several.
                for bytes in [16, 1200] {
                    let plain = options(wire, Reduction::Ordered)
                        .with_compression(None)
                        .with_bucket_bytes(bytes)
                        .with_first_bucket_bytes(bytes);
                    let mut expected = Steps::new(world, Backend::Mpi, plain, seed)?;
                    let mut found = Steps::new(world, Backend::Mpi, plain, seed)?;
                    found.sync.compress_with(Box::new(InRounds))?;
                    for step in 0..6 {
                        assert_eq!(found.step(step)?, expected.step(step)?, "{ranks} ranks, step {step}");
                    }
                    let [found, expected] = [found, expected].map(|steps| steps.sync.report());
                    assert_eq!(found.late_steps, expected.late_steps);
                    assert_eq!(found.sent > 0, ranks > 1);
                }
            }
            Ok(())
        };
        run(ranks, &with_seed(seed), body).unwrap();
    }
}

#[test]
fn different_compressions_are_an_error() {
    struct Named(usize);
    impl Compression for Named {
        fn name(&self) -> String {
            format!("number {}", self.0)
        }
        fn begin(&mut self, _: &GradientBucket<'_>, _: &mut [f32], _: &mut Vec<f32>) -> bool {
            false
        }
        fn finish(&mut self, _: &GradientBucket<'_>, _: &mut [f32], _: &[f32]) {}
    }
    let errors = run(2, &with_seed(0), |world| {
        let mut steps = Steps::new(world, Backend::Mpi, SyncOptions::default(), 0)?;
        let error = steps.sync.compress_with(Box::new(Named(world.rank()))).unwrap_err();
        Ok::<_, CommError>(error.to_string())
    });
    let expected = "compression differs between ranks: rank 1 on node0 has number 1, rank 0 has number 0";
    assert!(errors.unwrap().iter().all(|error| error == expected));
}

#[derive(Module, Debug)]
struct Regression {
    hidden: Linear,
    out: Linear,
}

impl Regression {
    /// Makes the same network on every rank, without random numbers.
    fn new() -> Self {
        let device = Device::flex().autodiff();
        let linear = |inputs: usize, outputs: usize| {
            let values: Vec<f32> =
                (0..inputs * outputs).map(|at| number(7, at) / (inputs as f32).sqrt()).collect();
            let weight = Tensor::<2>::from_data(TensorData::new(values, [inputs, outputs]), &device);
            let linear = LinearConfig::new(inputs, outputs).with_bias(false).init(&device);
            Linear { weight: burn::module::Param::from_tensor(weight), ..linear }
        };
        Self { hidden: linear(16, 32), out: linear(32, 8) }
    }

    fn loss(&self, samples: std::ops::Range<usize>) -> Tensor<1> {
        let count = samples.len();
        let values = |seed: usize, width: usize| {
            let at = samples.start * width..samples.end * width;
            let values: Vec<f32> = at.map(|at| number(seed, at)).collect();
            Tensor::<2>::from_data(TensorData::new(values, [count, width]), &Device::flex().autodiff())
        };
        let x = values(1, 16);
        // The targets depend on the inputs.
        let targets = x.clone().slice([0..count, 0..8]).sin() + x.clone().slice([0..count, 8..16]) * 0.5;
        (self.out.forward(self.hidden.forward(x).tanh()) - targets).powi_scalar(2).mean()
    }
}

/// A pseudo-random number from -1 to 1.
fn number(seed: usize, at: usize) -> f32 {
    let mixed = ((seed * 1_000_003 + at + 1) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 40;
    mixed as f32 / (1 << 23) as f32 - 1.0
}

const SAMPLES: usize = 48;

/// The samples of three ranks.
fn own(rank: usize) -> std::ops::Range<usize> {
    [0..24, 24..42, 42..48][rank].clone()
}

#[test]
fn a_step_whose_samples_do_not_add_up_leaves_the_memories() {
    let body = |world: &World| {
        let net = Regression::new();
        let collective = connect(world, Backend::Mpi, &Transport::default())?;
        let compression = Some(PowerSgd::new(1).with_seed(1));
        // Two buckets.
        let options = SyncOptions::default().with_compression(compression).with_first_bucket_bytes(1100);
        let mut sync = GradientSync::of_module(world, collective, &net, options);
        let mut step = |total: usize| {
            let samples = own(world.rank());
            sync.backward(&net.loss(samples.clone()), &net, samples.len(), total, MicroBatch::Last)?;
            let result = sync.finish(&net).map(drop);
            Ok::<_, CommError>((result, sync.compression_state()))
        };
        let (_, before) = step(SAMPLES)?;
        let (error, after) = step(if world.rank() == 2 { 60 } else { SAMPLES })?;
        assert!(matches!(error, Err(CommError::Shared(SharedError::Shares { .. }))));
        assert!(before == after && before.is_some());
        let (right, after) = step(SAMPLES)?;
        assert!(before != after);
        right
    };
    run(3, &with_seed(1), body).unwrap();
}

#[test]
fn values_that_a_step_carries_are_averaged_beside_compressed_gradients() {
    for wire in WireType::ALL {
        let body = |world: &World| {
            let net = Regression::new();
            let collective = connect(world, Backend::Mpi, &Transport::default())?;
            let compression = Some(PowerSgd::new(2).with_seed(1));
            let options = SyncOptions::default().with_compression(compression).with_wire(wire);
            let mut sync = GradientSync::of_module(world, collective, &net, options);
            sync.carry(3)?;
            for step in 0..4 {
                // In every other step, rank 2 has no samples.
                let with_samples = 3 - step % 2;
                if world.rank() < with_samples {
                    let samples = own(world.rank());
                    let total = own(with_samples - 1).end;
                    sync.backward(&net.loss(samples.clone()), &net, samples.len(), total, MicroBatch::Last)?;
                }
                let mut carried = [1.0, world.rank() as f32, 1e-3];
                let stop = Signals { stop: 1.0, ..Signals::default() };
                assert_eq!(sync.reduce_with(stop, &mut carried)?.stop, 3.0);
                let mean = [1.0, (with_samples - 1) as f32 / 2.0, 1e-3];
                assert!(carried.iter().zip(mean).all(|(a, b)| (a - b).abs() < 1e-6), "{wire}: {carried:?}");
                assert!(sync.gradient(0)?.iter().any(|value| *value != 0.0));
            }
            Ok::<_, CommError>(())
        };
        run(3, &with_seed(3), body).unwrap();
    }
}

#[test]
fn a_training_converges_as_without_compression() {
    let final_loss = |compression: Option<PowerSgd>| {
        let losses = run(3, &with_seed(2), |world| {
            let mut net = Regression::new();
            let collective = connect(world, Backend::Mpi, &Transport::default())?;
            let options = SyncOptions::default().with_compression(compression);
            let mut sync = GradientSync::of_module(world, collective, &net, options);
            let mut optimizer = SgdConfig::new().init();
            let own = own(world.rank());
            for _ in 0..400 {
                sync.backward(&net.loss(own.clone()), &net, own.len(), SAMPLES, MicroBatch::Last)?;
                let gradients = sync.finish(&net)?;
                net = optimizer.step(0.5, net, gradients);
            }
            let report = sync.report();
            Ok::<_, CommError>((
                net.loss(0..SAMPLES).into_scalar::<f32>(),
                report.sent_per_step(),
                report.bytes(),
            ))
        });
        losses.unwrap().remove(0)
    };
    let start = Regression::new().loss(0..SAMPLES).into_scalar::<f32>();
    let (plain, sent, bytes) = final_loss(None);
    // 5 control values, and one to make the length divisible by 3.
    assert_eq!((sent, bytes), (4.0 * 774.0, 4 * 768));
    let (compressed, sent, _) = final_loss(Some(PowerSgd::new(2).with_seed(1)));
    // 16 by 32 and 32 by 8 in two columns, 5 control values and the padding.
    assert_eq!(sent, 4.0 * (2.0 * (48.0 + 40.0) + 6.0));
    assert!(plain < 0.1 * start, "{start} to {plain}");
    assert!(compressed < 1.2 * plain, "{compressed} instead of {plain}");
}
