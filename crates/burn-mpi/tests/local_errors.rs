//! Checks on ranks that are threads how local updates fail, and that fragments in flight make progress while
//! ranks compute.

use std::cell::Cell;
use std::error::Error;
use std::rc::Rc;
use std::time::Duration;

use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use burn_mpi::threads::{Options, run, sleep};
use burn_mpi::{
    Backend, Collective, CommError, LocalOptions, LocalUpdates, Operation, Outer, ParamLayout, SharedError,
    Transport, Wire, WireType, World, connect, poll,
};

const SEEDS: u64 = 10;

fn simulated(seed: u64) -> Options {
    Options::default().with_seed(seed)
}

fn model() -> Linear {
    let config = LinearConfig::new(3, 2).with_initializer(Initializer::Ones);
    config.init(&Device::flex().autodiff())
}

/// A rank that trains with local updates: its parameters change by 1 in each step.
struct Rank {
    local: LocalUpdates,
    params: Vec<f32>,
}

impl Rank {
    fn new(world: &World, collective: Box<dyn Collective>, options: LocalOptions) -> Result<Self, CommError> {
        let params = ParamLayout::of_module(&model()).read(&model());
        Ok(Self { local: LocalUpdates::of_module(world, collective, &model(), options)?, params })
    }

    fn step(&mut self) -> Result<(), CommError> {
        self.params.iter_mut().for_each(|value| *value += 1.0);
        self.local.step(&mut self.params, 1).map(drop)
    }
}

fn transport(world: &World) -> Result<Box<dyn Collective>, CommError> {
    connect(world, Backend::Mpi, &Transport::default())
}

fn streaming() -> LocalOptions {
    let outer = Outer::Nesterov { learning_rate: 0.7, momentum: 0.9 };
    let reduction = burn_mpi::Reduction::Ordered;
    LocalOptions::default()
        .with_every(4)
        .with_outer(outer)
        .with_fragments(2)
        .with_delay(3)
        .with_merge(0.5)
        .with_reduction(reduction)
}

/// A transport that counts polls, and changes a value of a sum.
struct Observed {
    inner: Box<dyn Collective>,
    polls: Rc<Cell<usize>>,
    /// Number of sums until the one whose first value is changed.
    until_changed: usize,
}

impl Collective for Observed {
    fn transport(&self) -> &str {
        self.inner.transport()
    }

    fn world_size(&self) -> usize {
        self.inner.world_size()
    }

    fn start(&mut self, operation: Operation, buffer: Wire) -> Result<(), CommError> {
        self.inner.start(operation, buffer)
    }

    fn poll(&mut self) -> Result<usize, CommError> {
        self.polls.set(self.polls.get() + 1);
        self.inner.poll()
    }

    fn is_done(&self, bucket: usize) -> bool {
        self.inner.is_done(bucket)
    }

    fn wait(&mut self, bucket: usize) -> Result<Wire, CommError> {
        let mut sum = self.inner.wait(bucket)?;
        self.until_changed = self.until_changed.wrapping_sub(1);
        if let (0, Wire::F32(values)) = (self.until_changed, &mut sum) {
            values[0] += 1.0;
        }
        Ok(sum)
    }
}

/// Returns the error of each rank of three. Rank 1 changes a value of its first sum.
fn errors(
    seed: u64,
    options: LocalOptions,
    body: fn(&World, &mut Rank) -> Result<(), CommError>,
) -> Vec<CommError> {
    let found = run(3, &simulated(seed), |world| {
        let until_changed = usize::from(world.rank() == 1);
        let observed = Observed { inner: transport(world)?, polls: Rc::default(), until_changed };
        let mut rank = Rank::new(world, Box::new(observed), options)?;
        let error = body(world, &mut rank).unwrap_err();
        let again = rank.step().unwrap_err();
        assert_eq!(error.to_string(), again.to_string(), "a failed training stays failed");
        Ok::<_, CommError>(error)
    });
    found.unwrap()
}

#[test]
fn weights_that_differ_after_a_synchronisation_are_told_of_at_the_next_one() {
    let whole = LocalOptions::default().with_every(2);
    for seed in 0..SEEDS {
        for (options, step) in [(whole, 4), (streaming(), 9)] {
            let train = |_: &World, rank: &mut Rank| (0..20).try_for_each(|_| rank.step());
            for error in errors(seed, options, train) {
                assert!(error.is_shared());
                let line = error.to_string();
                let facts = ["fragment ", &format!("before step {step},"), "rank 1 on node0 has digest "];
                assert!(facts.iter().all(|fact| line.contains(fact)), "{line}");
            }
        }
        // The first sum is that of the average at the end.
        let end = |_: &World, rank: &mut Rank| rank.step().and_then(|()| rank.local.finish(&mut rank.params));
        for error in errors(seed, whole, end) {
            let line = error.to_string();
            assert!(line.contains("at the end of local updates differs between ranks: rank 1 "), "{line}");
        }
    }
}

/// Returns the error with which a job of three ranks ends.
fn failure<E: std::fmt::Display>(seed: u64, body: impl Fn(&World) -> Result<(), E> + Sync) -> String {
    run(3, &simulated(seed), body).unwrap_err().to_string()
}

#[test]
fn ranks_that_begin_differently_are_named() {
    for seed in 0..SEEDS {
        let line = failure(seed, |world| {
            let layout = ParamLayout::of_module(&model());
            let mut params = layout.read(&model());
            params[7] += f32::from(u8::from(world.rank() == 2));
            LocalUpdates::new(world, transport(world)?, &layout, &params, streaming()).map(drop)
        });
        assert!(line.contains("the parameter bias differs between ranks: rank 2 on node0 has "), "{line}");
        let line = failure(seed, |world| {
            let options = streaming().with_delay(1 + world.rank());
            Rank::new(world, transport(world)?, options).map(drop)
        });
        assert!(line.contains("LocalOptions differs between ranks: rank 1 on node0 has "), "{line}");
    }
}

#[test]
fn wrong_options_are_an_error_of_all_ranks() {
    for (options, expected) in [
        (streaming().with_every(0), "local updates: every is 0"),
        (streaming().with_fragments(3), "fragments (3) must divide every (4)"),
        (streaming().with_fragments(4), "fragments (4) exceeds the number of trainable parameters (2)"),
        (streaming().with_delay(4), "delay (4) must be below every (4)"),
        (streaming().with_delay(0), "merge (0.5) requires a delay"),
    ] {
        let found = run(3, &simulated(0), |world| {
            let error = Rank::new(world, transport(world)?, options).err().expect("wrong options");
            assert!(matches!(error, CommError::Shared(SharedError::LocalUpdates(_))));
            Ok::<_, CommError>(error.to_string())
        });
        for line in found.unwrap() {
            assert!(line.contains(expected), "{line}");
        }
    }
}

#[test]
fn a_state_that_does_not_fit_is_an_error_of_all_ranks() {
    let restored = |change: fn(&World, &mut burn_mpi::LocalState), options: LocalOptions| {
        failure(1, |world| {
            let mut rank = Rank::new(world, transport(world)?, streaming())?;
            (0..5).try_for_each(|_| rank.step())?;
            let mut state = rank.local.state()?;
            change(world, &mut state);
            Rank::new(world, transport(world)?, options)?.local.restore(state)
        })
    };
    let same: fn(&World, &mut burn_mpi::LocalState) = |_, _| ();
    let line = restored(|world, state| state.fragments[1].anchor[0] += world.rank() as f32, streaming());
    assert!(line.contains("the state of local updates differs between ranks: rank 1 on node0"), "{line}");
    let line = restored(|world, state| state.fragments.truncate(2 - world.rank() % 2), streaming());
    assert!(
        line.contains("rank 1 on node0: the state ") && line.contains("1 fragments instead of 2"),
        "{line}"
    );
    let line = restored(same, streaming().with_delay(1));
    assert!(line.contains("fragment 0: it has a synchronisation in progress"), "{line}");
    let line = restored(same, streaming().with_outer(Outer::None));
    assert!(line.contains("its velocity has 6 values instead of 0"), "{line}");
    let line = restored(|_, state| state.fragments[0].arrived = Some(vec![0.0; 7]), streaming());
    assert!(line.contains("its sum is not that of 3 ranks"), "{line}");
    // Another state can be restored after one that does not fit.
    let found = run(3, &simulated(2), |world| {
        let mut rank = Rank::new(world, transport(world)?, streaming())?;
        (0..5).try_for_each(|_| rank.step())?;
        let state = rank.local.state()?;
        (0..3).try_for_each(|_| rank.step())?;
        let mut other = state.clone();
        other.samples.pop();
        assert!(rank.local.restore(other).is_err());
        rank.local.restore(state.clone())?;
        assert_eq!((rank.local.state()?, rank.local.steps()), (state, 5));
        Ok::<_, CommError>(())
    });
    found.unwrap();
}

#[test]
fn a_rank_that_ends_early_or_hangs_is_named() {
    for seed in 0..SEEDS {
        for options in [streaming(), LocalOptions::default().with_every(3)] {
            let train = |last: usize, hangs: bool| {
                failure(seed, |world| -> Result<(), Box<dyn Error>> {
                    let mut rank = Rank::new(world, transport(world)?, options)?;
                    for step in 1..=20 {
                        if world.rank() == 1 && step == last {
                            if !hangs {
                                return Err("no more data".into());
                            }
                            sleep(world, Duration::from_secs(3600));
                        }
                        rank.step()?;
                    }
                    Ok(())
                })
            };
            for last in 1..6 {
                assert!(train(last, false).contains("rank 1 on node0: no more data"));
                let line = train(last, true);
                let facts = ["deadline of 120 s", "missing: rank 1 on node0"];
                assert!(facts.iter().all(|fact| line.contains(fact)), "{line}");
            }
        }
    }
}

#[test]
fn fragments_in_flight_make_progress_during_backward_and_in_long_operators() {
    let found = run(2, &simulated(4), |world| {
        let polls = Rc::new(Cell::new(0));
        let observed = Observed { inner: transport(world)?, polls: Rc::clone(&polls), until_changed: 0 };
        let mut rank = Rank::new(world, Box::new(observed), streaming())?;
        let model = model();
        let loss = || model.forward(Tensor::<2>::ones([4, 3], &Device::flex().autodiff())).mean();
        let polled = |work: &dyn Fn()| {
            let before = polls.get();
            work();
            polls.get() - before
        };
        rank.step()?;
        assert_eq!(polled(&poll) + polled(&|| drop(rank.local.backward(&loss()))), 0, "nothing is in flight");
        rank.step()?;
        assert_eq!(polled(&poll), 1);
        assert!(polled(&|| drop(rank.local.backward(&loss()))) > 2);
        assert_eq!(polled(&|| drop(loss().backward())), 0);
        (0..4).try_for_each(|_| rank.step())?;
        let mut local = rank.local;
        local.state()?;
        let (times, bytes) = (local.times(), local.bytes_sent());
        drop(local);
        assert_eq!(polled(&poll), 0, "dropped");
        // Three synchronisations: of fragments 1, 0 and 1, which have 2, 6 and 2 values, with the notes of two
        // ranks.
        assert_eq!(bytes, 4 * (2 + 6 + 2 + 3 * 2 * 16));
        Ok::<_, CommError>(times.hidden)
    });
    assert!(found.unwrap().iter().all(|hidden| *hidden > Duration::ZERO));
}

#[test]
fn without_a_delay_ranks_wait_and_the_wait_is_exposed() {
    let found = run(2, &simulated(5), |world| {
        let options = LocalOptions::default().with_every(2).with_wire(WireType::Bf16);
        let mut rank = Rank::new(world, transport(world)?, options)?;
        for _ in 0..4 {
            if world.rank() == 1 {
                sleep(world, Duration::from_secs(1));
            }
            rank.step()?;
        }
        assert_eq!(rank.local.bytes_sent(), 2 * 2 * (8 + 2 * 16));
        assert_eq!(rank.local.steps(), 4);
        Ok::<_, CommError>(rank.local.times().exposed)
    });
    let exposed = found.unwrap();
    assert!(exposed[0] > Duration::from_secs(3) && exposed[1] < Duration::from_secs(1), "{exposed:?}");
}
