//! Checks ranks that are threads: the results of exchanges, how ranks end, and that a seed repeats a run.

use std::sync::Mutex;
use std::time::Duration;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use burn_mpi::threads::{Failure, Options, run, run_with_lines, sleep};
use burn_mpi::{
    Backend, CommError, GradientSync, MicroBatch, MissingGradient, Operation, Reduction, SyncOptions,
    Transport, Wire, World, broadcast_module, chunk_range, connect,
};
use burn_mpi::{Call, Element, Primitives, connect_primitives};

/// Returns options with this seed. `TURNS=off` makes ranks run at the same time, for a thread sanitizer.
fn with_seed(seed: u64) -> Options {
    let turns = std::env::var("TURNS").map_or(true, |text| text != "off");
    simulated(seed).with_turns(turns)
}

fn simulated(seed: u64) -> Options {
    Options::default().with_seed(seed)
}

/// Returns values that differ between ranks. Their sums are exact in every type.
fn values(rank: usize, length: usize) -> Vec<f32> {
    (0..length).map(|at| ((rank * 7 + at) % 5) as f32).collect()
}

fn summed(ranks: usize, length: usize) -> Vec<f32> {
    (0..length).map(|at| (0..ranks).map(|rank| values(rank, length)[at]).sum()).collect()
}

fn primitives(world: &World) -> Result<Box<dyn Primitives>, CommError> {
    connect_primitives(world, Backend::Mpi, &Transport::default())
}

#[test]
fn primitives_have_the_results_of_arithmetic() {
    for ranks in 1..5 {
        for seed in 0..20 {
            let check = |world: &World| -> Result<(), CommError> {
                let mut on = primitives(world)?;
                let rank = world.rank();
                for root in 0..ranks {
                    let mut buffer = [rank as u8; 3];
                    on.broadcast(&mut buffer, root)?;
                    assert_eq!(buffer, [root as u8; 3]);
                    let mut all = vec![0; if rank == root { 2 * ranks } else { 0 }];
                    on.gather(&[rank as u8, 9], &mut all, root)?;
                    let expected: Vec<u8> = (0..ranks).flat_map(|rank| [rank as u8, 9]).collect();
                    assert!(rank != root || all == expected, "{all:?}");
                    let all: Vec<u8> = (0..ranks as u8).collect();
                    let mut mine = [77];
                    on.scatter(if rank == root { &all } else { &[] }, &mut mine, root)?;
                    assert_eq!(mine, [rank as u8]);
                    let mut sum = Wire::F64(vec![0.0]);
                    on.reduce(&Wire::F64(vec![rank as f64]), &mut sum, root)?;
                    let total = (0..ranks).sum::<usize>() as f64;
                    assert!(rank != root || sum == Wire::F64(vec![total]), "{sum:?}");
                }
                let mut all = vec![0; ranks];
                on.all_gather(&[rank as u8], &mut all)?;
                assert_eq!(all, (0..ranks as u8).collect::<Vec<_>>());
                let mut to = vec![0; ranks];
                on.all_to_all(&vec![rank as u8; ranks], &mut to)?;
                assert_eq!(to, (0..ranks as u8).collect::<Vec<_>>());
                let mut part = Wire::F32(vec![0.0; 2]);
                on.reduce_scatter(&Wire::F32(values(rank, 2 * ranks)), &mut part)?;
                assert_eq!(part, Wire::F32(summed(ranks, 2 * ranks)[2 * rank..][..2].to_vec()));
                // A ring of messages. Several of them may be in flight.
                let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
                for number in 0..3 {
                    on.send(&[rank as u8, number], next)?;
                }
                for number in 0..3 {
                    let mut message = [0; 2];
                    on.receive(&mut message, previous)?;
                    assert_eq!(message, [previous as u8, number]);
                }
                on.barrier()
            };
            run(ranks, &with_seed(seed), check).unwrap();
        }
    }
}

#[test]
fn operations_in_flight_are_right_in_any_order() {
    for ranks in 1..5 {
        for (seed, hosts) in (0..30).map(|seed| (seed, 1 + seed as usize % 2)) {
            let check = |world: &World| -> Result<(), CommError> {
                let mut collective = connect(world, Backend::Mpi, &Transport::default())?;
                let (rank, length) = (world.rank(), 7);
                let sums = summed(ranks, length);
                let mine = chunk_range(length, ranks, rank);
                for how in Reduction::ALL {
                    let input = Wire::F32(values(rank, length));
                    collective.start(Operation::all_reduce(0, &input, how), input.clone())?;
                    collective.start(Operation::reduce_scatter(1, &input, how), input)?;
                    // Values twice as large: the sums differ from the sums of operation 0.
                    let twice = values(rank, length).into_iter().map(|value| 2.0 * value).collect();
                    let twice = Wire::F32(twice);
                    collective.start(Operation::all_reduce(2, &twice, Reduction::Ordered), twice)?;
                    let part = Wire::F32(sums[mine.clone()].to_vec());
                    collective.start(Operation::all_gather(3, &part, length), part)?;
                    let empty = Wire::F32(Vec::new());
                    collective.start(Operation::all_reduce(4, &empty, how), empty)?;
                    collective.poll()?;
                    // Ranks wait in different orders.
                    for at in 0..5 {
                        let bucket = (at + rank) % 5;
                        let expected = match bucket {
                            1 => sums[mine.clone()].to_vec(),
                            2 => sums.iter().map(|sum| 2.0 * sum).collect(),
                            4 => Vec::new(),
                            _ => sums.clone(),
                        };
                        assert_eq!(collective.wait(bucket)?, Wire::F32(expected), "bucket {bucket}");
                    }
                }
                assert_eq!(collective.poll()?, 0);
                world.barrier()
            };
            run(ranks, &with_seed(seed).with_hosts(hosts), check).unwrap();
        }
    }
}

#[test]
fn a_rank_that_only_looks_does_not_stop_the_time() {
    run(2, &simulated(1), |world| {
        let mut collective = connect(world, Backend::Mpi, &Transport::default())?;
        if world.rank() == 1 {
            sleep(world, Duration::from_secs(5));
        }
        let value = Wire::F32(vec![1.0]);
        collective.start(Operation::all_reduce(0, &value, Reduction::Native), value)?;
        while !collective.is_done(0) {
            collective.poll()?;
        }
        assert_eq!(collective.wait(0)?, Wire::F32(vec![2.0]));
        Ok::<_, CommError>(())
    })
    .unwrap();
}

#[test]
fn sums_in_rank_order_have_one_set_of_bits_and_native_ones_another() {
    let sums = |how: Reduction, hosts: usize| -> Vec<Vec<u32>> {
        let options = with_seed(3).with_hosts(hosts);
        run(3, &options, |world| {
            let mut collective = connect(world, Backend::Gloo, &Transport::default())?;
            let mut buffer = Wire::F32(vec![[1e8, 1.0, -1e8][world.rank()]; 2]);
            collective.all_reduce(&mut buffer, how)?;
            let Wire::F32(sums) = buffer else { unreachable!("an all-reduce keeps the type of its buffer") };
            Ok::<_, CommError>(sums.into_iter().map(f32::to_bits).collect())
        })
        .unwrap()
    };
    // 1e8 + 1 - 1e8 is 0 in f32, in rank order and in reverse: 1 is below the precision of 1e8.
    assert_eq!(sums(Reduction::Ordered, 1), vec![vec![0f32.to_bits(); 2]; 3]);
    assert_eq!(sums(Reduction::Ordered, 2), sums(Reduction::Ordered, 1));
    assert_eq!(sums(Reduction::Native, 1)[0], sums(Reduction::Native, 1)[2]);
}

fn barrier_after(
    ranks: usize,
    options: &Options,
    late: usize,
    time: Duration,
) -> Result<Vec<String>, Failure> {
    let body = |world: &World| {
        if world.rank() == late {
            sleep(world, time);
        }
        world.barrier()
    };
    run_with_lines(ranks, options, body).map(|(_, lines)| lines)
}

#[test]
fn a_late_rank_is_told_of_once_and_one_that_never_comes_ends_the_job() {
    for seed in 0..20 {
        let none = barrier_after(3, &simulated(seed), 1, Duration::from_secs(59)).unwrap();
        assert_eq!(none, Vec::<String>::new(), "seed {seed}");
        let lines = barrier_after(3, &simulated(seed), 1, Duration::from_secs(119)).unwrap();
        let [line] = &lines[..] else { panic!("seed {seed}: {lines:?}") };
        let facts = [
            "memory comparison of barrier, call 1: ",
            " 60 s;",
            "rank 0 on node0 has",
            "missing: rank 1 on node0 ",
        ];
        assert!(facts.iter().all(|fact| line.contains(fact)), "{line}");
        let failure = barrier_after(3, &simulated(seed), 0, Duration::from_secs(3600)).unwrap_err();
        let facts =
            ["memory comparison of barrier, call 1 ", "deadline of 120 s", "missing: rank 0 on node0 "];
        assert!(facts.iter().all(|fact| failure.error.contains(fact)), "{failure}");
        assert!(
            failure.error.contains("has waited for 120.0 s"),
            "the error must come at the deadline: {failure}"
        );
        assert!(
            failure.error.contains("rank 1 on node0 has waited"),
            "rank 1 is the lowest waiting rank: {failure}"
        );
        assert_eq!((failure.lines.len(), failure.seed), (1, Some(seed)));
    }
}

#[test]
fn ranks_that_leave_end_the_others_with_their_name_and_reason() {
    let leaves = |how: fn() -> Result<(), String>| {
        let others = Mutex::new(Vec::new());
        let failure = run(3, &with_seed(5), |world| {
            if world.rank() == 1 {
                return how();
            }
            world.barrier().map_err(|error| {
                others.lock().unwrap().push(error.clone());
                error.to_string()
            })
        });
        let failure = failure.unwrap_err();
        let others = others.into_inner().unwrap();
        assert_eq!(others.len(), 2);
        for error in others {
            assert!(matches!(error, CommError::Left { rank: 1, .. }), "{error}");
        }
        failure.to_string()
    };
    assert_eq!(leaves(|| Err("no data of a rank 0".into())), "rank 1 on node0: no data of a rank 0 (seed 5)");
    assert_eq!(leaves(|| panic!("a bug")), "rank 1 on node0 panicked: a bug (seed 5)");
    let early = leaves(|| Ok(()));
    assert!(early.starts_with("rank 1 on node0 ") && early.contains("exit code 0"), "{early}");
    assert!(early.contains("memory comparison of barrier"), "{early}");
}

#[test]
fn an_error_of_one_rank_is_that_of_all() {
    for seed in 0..20 {
        let errors = run(3, &with_seed(seed), |world| {
            let mine = if world.rank() == 2 { Err("disk\nfull") } else { Ok(()) };
            Ok::<_, CommError>(world.agree(mine).unwrap_err().to_string())
        });
        assert_eq!(errors.unwrap(), vec!["rank 2 on node0: disk full"; 3]);
    }
}

#[test]
fn different_calls_are_an_error_that_names_them() {
    for seed in 0..20 {
        let failure = run(2, &simulated(seed), |world| {
            let mut on = primitives(world)?;
            match world.rank() {
                0 => on.barrier(),
                _ => on.broadcast(&mut [0; 5], 0),
            }
        });
        let text = failure.unwrap_err().to_string();
        let calls =
            ["rank 1 on node0 is in broadcast of 5 bytes from rank 0, call 1", "rank 0 in barrier, call 1"];
        assert!(calls.iter().all(|call| text.contains(call)), "{text}");
        let failure = run(2, &simulated(seed), |world| {
            primitives(world)?.all_reduce(&mut Wire::F32(vec![0.0; 3 + world.rank()]))
        });
        let text = failure.unwrap_err().to_string();
        assert!(text.contains("all-reduce of 4 f32") && text.contains("all-reduce of 3 f32"), "{text}");
        // The two buffers are padded to chunks of the same length.
        type Constructor = fn(usize, &Wire, Reduction) -> Operation;
        let sums = [
            (Operation::all_reduce as Constructor, Reduction::Ordered, "all-reduce (ordered)"),
            (Operation::reduce_scatter, Reduction::Native, "reduce-scatter (native)"),
        ];
        for (sum, order, name) in sums {
            let failure = run(2, &simulated(seed), |world| {
                let mut collective = connect(world, Backend::Mpi, &Transport::default())?;
                let buffer = Wire::F32(vec![1.0; 5 + world.rank()]);
                collective.start(sum(0, &buffer, order), buffer)?;
                collective.wait(0).map(drop)
            });
            let text = failure.unwrap_err().to_string();
            let [five, six] = ["of 5 f32, call 1", "of 6 f32, call 1"];
            assert!(text.contains(name) && text.contains(five) && text.contains(six), "{text}");
        }
        let failure = run(2, &simulated(seed), |world| match world.rank() {
            0 => world.gather(&1).map(drop),
            _ => world.check_equal("a", "b"),
        });
        let text = failure.unwrap_err().to_string();
        assert!(text.contains("is in check_equal of a") && text.contains("rank 0 in gather"), "{text}");
    }
}

#[test]
fn ranks_that_can_never_continue_end_before_the_deadline() {
    for seed in 0..20 {
        let failure = run(3, &simulated(seed), |world| {
            let mut on = primitives(world)?;
            for _ in 0..50 {
                on.all_reduce(&mut Wire::F32(vec![1.0]))?;
                on.barrier()?;
            }
            if world.rank() == 2 { on.barrier() } else { on.all_reduce(&mut Wire::F32(vec![1.0])) }
        });
        let text = failure.unwrap_err().to_string();
        assert!(text.contains("rank 2 on node0 is in ") && text.contains("rank 0 in "), "{text}");
        assert!(text.contains("the same operations in the same order"), "{text}");
    }
}

#[test]
fn ranks_may_wait_in_another_order_longer_than_the_warning() {
    for seed in 0..10 {
        let check = |world: &World| -> Result<(), CommError> {
            let mut collective = connect(world, Backend::Mpi, &Transport::default())?;
            if world.rank() == 2 {
                sleep(world, Duration::from_secs(70));
            }
            for bucket in 0..2 {
                let buffer = Wire::F32(vec![1.0; 10]);
                let operation = Operation::all_reduce(bucket, &buffer, Reduction::Native);
                collective.start(operation, buffer)?;
            }
            for bucket in if world.is_root() { [0, 1] } else { [1, 0] } {
                collective.wait(bucket)?;
            }
            Ok(())
        };
        run(3, &simulated(seed), check).unwrap();
    }
}

#[test]
fn what_never_comes_ends_by_the_deadline_whatever_else_is_in_flight() {
    let ends = |body: &(dyn Fn(&World) -> Result<(), CommError> + Sync)| {
        for seed in 0..10 {
            let failure = run(2, &simulated(seed), body).unwrap_err().to_string();
            assert!(failure.contains("deadline of 120 s"), "seed {seed}: {failure}");
        }
    };
    let value = || Wire::F32(vec![1.0]);
    let all_reduce = Operation::all_reduce(0, &value(), Reduction::Ordered);
    let two = |world: &World| -> Result<_, CommError> {
        let [mut one, mut other] = [
            connect(world, Backend::Mpi, &Transport::default())?,
            connect(world, Backend::Mpi, &Transport::default())?,
        ];
        one.start(all_reduce, value())?;
        other.start(all_reduce, value())?;
        Ok((one, other))
    };
    // Each rank waits on a different collective, for the second part of its all-reduce.
    ends(&|world| {
        let (mut one, mut other) = two(world)?;
        if world.rank() == 0 { one.wait(0) } else { other.wait(0) }.map(drop)
    });
    // The first collective's operation completes, and no rank waits for it.
    ends(&|world| {
        let (_unused, mut other) = two(world)?;
        other.wait(0)?;
        if world.rank() == 1 {
            sleep(world, Duration::MAX);
        }
        other.start(all_reduce, value())?;
        other.wait(0).map(drop)
    });
    // Each rank sends a long message before it receives the other rank's.
    ends(&|world| {
        let (mut on, peer) = (primitives(world)?, 1 - world.rank());
        on.send(&[0; 5000], peer)?;
        on.receive(&mut [0; 5000], peer)
    });
}

#[test]
fn a_rank_that_polls_keeps_no_deadline_from_passing() {
    let failure = run(2, &simulated(0), |world| {
        let timeout = Duration::from_secs(5);
        let mut collective = connect(world, Backend::Mpi, &Transport::default().with_timeout(timeout))?;
        if world.rank() == 0 {
            return world.barrier();
        }
        let value = Wire::F32(vec![1.0]);
        collective.start(Operation::all_reduce(0, &value, Reduction::Native), value)?;
        while !collective.is_done(0) {
            collective.poll()?;
        }
        Ok(())
    });
    let text = failure.unwrap_err().to_string();
    assert!(text.contains("barrier") && text.contains("deadline of 5 s"), "{text}");
    // A rank that computes between its polls is late, but the job does not end.
    let late = run_with_lines(2, &simulated(0), |world| {
        let mut collective = connect(world, Backend::Mpi, &Transport::default())?;
        let value = || Wire::F32(vec![1.0]);
        let operation = |bucket| Operation::all_reduce(bucket, &value(), Reduction::Native);
        for bucket in 0..=world.rank() {
            collective.start(operation(bucket), value())?;
        }
        for _ in 0..10_000 * world.rank() {
            collective.poll()?;
        }
        if world.rank() == 0 {
            collective.start(operation(1), value())?;
        }
        collective.wait(0).and(collective.wait(1)).map(drop)
    });
    assert_eq!(late.unwrap().1, Vec::<String>::new());
}

#[test]
fn buffers_that_are_not_those_of_a_call_are_refused_before_they_are_read() {
    for (call, from, to) in [
        (Call::AllGather, 4, 4),
        (Call::AllReduce, 4, 4),
        (Call::Gather { root: 0 }, 4, 4),
        (Call::Scatter { root: 0 }, 4, 4),
        (Call::ReduceScatter, 4, 8),
        (Call::AllToAll, 4, 4),
        (Call::Reduce { root: 1 }, 8, 4),
        (Call::AllReduce, 0, 3),
    ] {
        let failure = run(2, &simulated(0), |world| {
            primitives(world)?.call(call, Element::F32, &vec![0; from], &mut vec![0; to])
        });
        let text = failure.unwrap_err().to_string();
        assert!(text.contains(&format!("panicked: {}: ", call.name())), "{text}");
    }
}

#[test]
fn a_rank_that_there_is_not_is_named() {
    for call in [
        (|on, _| on.send(&[0], 9)) as fn(&mut dyn Primitives, usize) -> Result<(), CommError>,
        |on, _| on.receive(&mut [0], 9),
        |on, _| on.broadcast(&mut [0], 9),
        |on, _| on.reduce(&Wire::F32(vec![0.0]), &mut Wire::F32(vec![0.0]), 9),
    ] {
        let failure = run(2, &simulated(0), |world| call(primitives(world)?.as_mut(), world.rank()));
        let text = failure.unwrap_err().to_string();
        assert!(text.contains("no rank 9") && text.contains("0 to 1"), "{text}");
    }
}

#[test]
fn a_rank_that_cannot_begin_ends_the_others() {
    for turns in [true, false] {
        let on_thread = |rank: usize| assert!(rank != 1, "no pool");
        let options = Options::default().with_on_thread(on_thread).with_turns(turns);
        let failure = run(3, &options, World::barrier).unwrap_err();
        assert_eq!((failure.rank, failure.error.as_str()), (1, "rank 1 on node0 panicked: no pool"));
    }
    // More memory than any machine has.
    let options = Options::default().with_stack_bytes(1 << 46);
    let failure = run(2, &options, World::barrier).unwrap_err();
    assert!(
        failure.error.starts_with("rank 0 on node0: ") && failure.error.contains("os error"),
        "{failure}"
    );
}

#[test]
fn a_deadline_of_any_length_is_one() {
    let options = simulated(0).with_deadline(Duration::MAX).with_stall_warning(Duration::MAX);
    let (_, lines) = run_with_lines(2, &options, World::barrier).unwrap();
    assert_eq!(lines, Vec::<String>::new());
    let failure = barrier_after(2, &options, 0, Duration::MAX);
    assert!(failure.is_ok_and(|lines| lines.is_empty()), "both times end at once");
}

#[test]
fn a_seed_repeats_the_order_of_ranks_and_others_have_others() {
    let order = |seed: u64| {
        let order = Mutex::new(Vec::new());
        run(4, &simulated(seed), |world| {
            for _ in 0..5 {
                order.lock().unwrap().push(world.rank());
                world.barrier()?;
            }
            Ok::<_, CommError>(())
        })
        .unwrap();
        order.into_inner().unwrap()
    };
    let all: Vec<_> = (0..20).map(order).collect();
    assert_eq!(all, (0..20).map(order).collect::<Vec<_>>());
    assert!(all.iter().any(|order| *order != all[0]));
}

#[test]
fn ranks_run_at_the_same_time_without_turns() {
    let options = Options::default().with_turns(false);
    for _ in 0..20 {
        let lines = barrier_after(4, &options, 1, Duration::from_millis(5)).unwrap();
        assert_eq!(lines, Vec::<String>::new());
    }
    let short = options.clone().with_deadline(Duration::from_millis(50));
    let failure = run(2, &short, |world| match world.rank() {
        0 => world.barrier(),
        // Sends until rank 0 has reached its deadline.
        _ => loop {
            sleep(world, Duration::from_millis(1));
            primitives(world)?.send(&[], 0)?;
        },
    });
    let text = failure.unwrap_err().to_string();
    assert!(text.contains("deadline of 0.05 s"), "{text}");
    let failure = run(3, &options, |world| match world.rank() {
        2 => Err("no data".to_owned()),
        _ => world.barrier().map_err(|error| error.to_string()),
    });
    assert_eq!(failure.unwrap_err().error, "rank 2 on node0: no data");
}

/// Makes two steps with averaged gradients, and returns the weights.
fn trained(world: &World, module: Linear, samples: &[f32]) -> Result<Vec<f32>, CommError> {
    let mut module = broadcast_module(world, module)?;
    let collective = connect(world, Backend::Mpi, &Transport::default())?;
    let mut sync = GradientSync::of_module(world, collective, &module, SyncOptions::default());
    let mut optimizer = SgdConfig::new().init();
    let mine = &samples[chunk_range(samples.len(), world.size(), world.rank())];
    for _ in 0..2 {
        if !mine.is_empty() {
            let input = Tensor::<1>::from_floats(mine, &Device::flex().autodiff()).reshape([-1, 1]);
            let loss = module.forward(input).powi_scalar(2).mean();
            sync.backward(&loss, &module, mine.len(), samples.len(), MicroBatch::Last)?;
        }
        module = optimizer.step(0.1, module.clone(), sync.finish(&module)?);
    }
    let record = [module.weight.val().into_data(), module.bias.clone().expect("a bias").val().into_data()];
    Ok(record.into_iter().flat_map(|data| data.try_to_vec::<f32>().expect("f32")).collect())
}

fn linear(bias: f64) -> Linear {
    let device = Device::flex().autodiff();
    let module = LinearConfig::new(1, 1).init(&device);
    module.map(&mut Filled(bias as f32))
}

struct Filled(f32);

impl burn::module::ModuleMapper for Filled {
    fn map_float<const D: usize>(
        &mut self,
        param: burn::module::Param<Tensor<D>>,
    ) -> burn::module::Param<Tensor<D>> {
        param.map(|value| Tensor::full(value.dims(), self.0, &value.device()).require_grad())
    }
}

#[test]
fn averaged_gradients_are_those_of_one_rank_on_all_samples() {
    let samples = [1.0, -2.0, 3.0, 0.5, -0.25];
    let weights_of = |ranks: usize, seed: u64| {
        let body = |world: &World| trained(world, linear(0.5 + world.rank() as f64), &samples);
        run(ranks, &with_seed(seed), body).unwrap()
    };
    let one = weights_of(1, 0).remove(0);
    for ranks in 2..8 {
        for seed in 0..10 {
            let all = weights_of(ranks, seed);
            assert!(all.iter().all(|weights| *weights == all[0]), "ranks differ, seed {seed}");
            let apart = one.iter().zip(&all[0]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(apart < 1e-5, "{ranks} ranks, seed {seed}: {one:?} {:?}", all[0]);
        }
    }
}

#[test]
fn a_module_that_ranks_share_is_refused() {
    let shared = linear(0.5);
    let module = Mutex::new(shared);
    let failure = run(2, &with_seed(0), |world| {
        let module = module.lock().unwrap().clone();
        let collective = connect(world, Backend::Mpi, &Transport::default())?;
        let mut sync = GradientSync::of_module(world, collective, &module, SyncOptions::default());
        let input = Tensor::<2>::ones([3, 1], &Device::flex().autodiff());
        let loss = module.forward(input).mean();
        sync.backward(&loss, &module, 3, 6, MicroBatch::Last)?;
        sync.finish(&module).map(drop)
    });
    let text = failure.unwrap_err().to_string();
    assert!(text.contains("ranks 0 and 1 ") && text.contains("autodiff graph"), "{text}");
}

#[test]
fn gradients_stay_until_they_are_dropped_and_are_not_those_of_a_module_of_other_shapes() {
    let failures = run(3, &with_seed(7), |world| {
        let device = Device::flex().autodiff();
        let module = broadcast_module(world, LinearConfig::new(4, 2).init(&device))?;
        let collective = connect(world, Backend::Mpi, &Transport::default())?;
        let mut sync = GradientSync::of_module(world, collective, &module, SyncOptions::default());
        let mut step = |factor: f32, finished: &Linear| {
            // The last rank has no samples.
            let own = usize::from(world.rank() < 2);
            let loss = module.forward(Tensor::<2>::ones([1, 4], &device) * factor).sum();
            sync.backward(&loss, &module, own, 2, MicroBatch::Last)?;
            sync.finish(finished)
        };
        let weights = |gradients: &burn::optim::GradientsParams| {
            let gradient = gradients.get::<2>(module.weight.id).expect("of the weights");
            gradient.into_data().try_to_vec::<f32>().expect("f32")
        };
        let first = step(1.0, &module)?;
        let second = step(3.0, &module)?;
        assert_eq!(weights(&first), [1.0; 8]);
        assert_eq!(weights(&second), [3.0; 8]);
        // The other module has one weight of 10 values, which is the number of values in this module's weight
        // and bias together. A view of these values would take them from both parameters.
        let other = LinearConfig::new(2, 5).with_bias(false).init(&device);
        step(1.0, &other).map(drop)
    })
    .unwrap_err();
    assert!(failures.error.contains(&MissingGradient::OtherShape.to_string()), "{failures}");
}

#[test]
fn a_total_that_is_not_that_of_the_step_is_an_error_of_all_ranks_and_the_next_step_is_right() {
    let steps = run(3, &with_seed(0), |world| {
        let module = linear(0.5);
        let collective = connect(world, Backend::Mpi, &Transport::default())?;
        let mut sync = GradientSync::of_module(world, collective, &module, SyncOptions::default());
        let mut step = |total: usize| {
            let input = Tensor::<2>::ones([2, 1], &Device::flex().autodiff());
            sync.average(&module.forward(input).mean(), &module, 2, total).map(drop)
        };
        // The total of the last rank differs from the step's samples, first slightly (the sum of the shares
        // differs from 1 by less than 5 %), then by a lot.
        let errors = [7, 60].map(|total| step(if world.rank() == 2 { total } else { 6 }).unwrap_err());
        step(6)?;
        let gradient = sync.gradient(0)?.to_vec();
        Ok::<_, CommError>((errors.map(|error| error.to_string()), gradient))
    });
    for ([close, far], gradient) in steps.unwrap() {
        assert!(close.contains("0.952 times"), "{close}");
        let listed = "rank 0: 2 of 6, rank 1: 2 of 6, rank 2: 2 of 60";
        assert!(far.contains("0.700 times") && far.contains(listed), "{far}");
        assert!(far.contains("MicroBatch::Last"), "{far}");
        assert!((gradient[0] - 1.0).abs() < 1e-6, "{gradient:?}");
    }
}

#[test]
fn steps_in_another_order_are_an_error_that_names_the_collective() {
    for seed in 0..10 {
        let failure = run(2, &simulated(seed), |world| {
            let module = linear(0.5);
            let sync = || {
                let collective = connect(world, Backend::Mpi, &Transport::default())?;
                Ok::<_, CommError>(GradientSync::of_module(
                    world,
                    collective,
                    &module,
                    SyncOptions::default(),
                ))
            };
            let mut syncs = [sync()?, sync()?];
            for turn in 0..5 {
                if turn == 4 && world.rank() == 1 {
                    syncs.reverse();
                }
                for sync in &mut syncs {
                    let input = Tensor::<2>::ones([2, 1], &Device::flex().autodiff());
                    sync.average(&module.forward(input).mean(), &module, 2, 4)?;
                }
            }
            Ok::<_, CommError>(())
        });
        let text = failure.unwrap_err().to_string();
        let collectives = ["memory all-reduce", "memory (collective 2) all-reduce"];
        assert!(text.contains("ranks do not call the same operations"), "{text}");
        assert!(collectives.iter().all(|collective| text.contains(collective)), "{text}");
    }
}

#[test]
fn values_pass_from_one_rank_to_another_and_other_ranks_do_nothing() {
    for (ranks, seed) in (1..5).flat_map(|ranks| (0..3).map(move |seed| (ranks, seed))) {
        let check = |world: &World| -> Result<(), CommError> {
            for (from, to) in (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))) {
                for length in [0, 1, 1000] {
                    let mut passed = values(world.rank(), length);
                    world.pass_f32(&mut passed, from, to)?;
                    let expected = values(if world.rank() == to { from } else { world.rank() }, length);
                    assert_eq!(passed, expected, "{from} to {to}");
                }
            }
            Ok(())
        };
        run(ranks, &with_seed(seed), check).unwrap();
    }
}

#[test]
fn a_sync_whose_transport_was_taken_makes_no_more_steps() {
    let check = |world: &World| -> Result<(), CommError> {
        let model = LinearConfig::new(2, 1).init(&Device::flex().autodiff());
        let model: Linear = broadcast_module(world, model)?;
        let collective = connect(world, Backend::Mpi, &Transport::default())?;
        let mut sync = GradientSync::of_module(world, collective, &model, SyncOptions::default());
        let loss = || model.forward(Tensor::<2>::ones([1, 2], &Device::flex().autodiff())).mean();
        sync.average(&loss(), &model, 1, world.size())?;
        let mut collective = sync.take_collective()?;
        let mut wire = Wire::F32(values(world.rank(), 3));
        collective.all_reduce(&mut wire, Reduction::Ordered)?;
        assert_eq!(wire, Wire::F32(summed(world.size(), 3)));
        let error = sync.average(&loss(), &model, 1, world.size()).unwrap_err().to_string();
        assert!(error.contains("was taken"), "{error}");
        assert!(sync.take_collective().is_err());
        Ok(())
    };
    run(2, &with_seed(0), check).unwrap();
}
