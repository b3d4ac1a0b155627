//! Weights and norms have the bits of an optimizer with the whole state.

use std::cell::Cell;

use super::*;

/// Checks an optimizer in all ways: `build` makes it for [`ShardedOptimizer`], `init` for a module.
fn check<O: Optimizer>(build: fn() -> O, init: fn() -> ModuleOptimizer) {
    let sizes = [(5, None), (5, Some(0.2)), (1, Some(0.2)), (13, None)];
    for (ranks, (width, clip)) in (1..=4).flat_map(|ranks| sizes.map(|size| (ranks, size))) {
        for (wire, overlap) in [(WireType::F32, true), (WireType::F32, false), (WireType::Bf16, true)] {
            let setup = Setup { width, options: options(true).with_wire(wire).with_overlap(overlap), clip };
            let whole =
                run(ranks, &with_seed(0), |world| train_whole(world, init(), setup)).unwrap().remove(0);
            for seed in 0..4 {
                let all = run(ranks, &with_seed(seed), |world| train(world, build(), setup)).unwrap();
                for (rank, (weights, norms, report)) in all.iter().enumerate() {
                    let case = format!(
                        "{ranks} ranks, width {width}, {clip:?}, {wire}, {overlap}, seed {seed}, rank {rank}"
                    );
                    assert_eq!(bits(weights), bits(&whole), "{case}");
                    assert_eq!(norms, &all[0].1, "{case}");
                    assert!(report.buckets.len() > 1, "{case}");
                    let is_late = report.late_steps > 0;
                    assert_eq!(is_late, overlap && ranks > 1, "{case}");
                }
            }
            if clip.is_none() {
                let far = distance(&train_plain(init(), width), &whole);
                let most = if wire == WireType::F32 { 1e-5 } else { 0.1 };
                assert!(far < most, "{ranks} ranks, width {width}, {wire}: {far} from plain Burn");
            }
        }
    }
}

#[test]
fn adam_in_shares_has_the_bits_of_the_whole() {
    check(|| AdamConfig::new().build(), || AdamConfig::new().init());
}

#[test]
fn adamw_in_shares_has_the_bits_of_the_whole() {
    check(|| AdamWConfig::new().build(), || AdamWConfig::new().init());
}

#[test]
fn sgd_with_momentum_in_shares_has_the_bits_of_the_whole() {
    check(|| momentum().build(), || momentum().init());
}

#[test]
fn native_sums_differ_by_rounding_only() {
    let native = |shard| options(shard).with_reduction(Reduction::Native);
    for (ranks, seed) in (1..=4).flat_map(|ranks| (0..5).map(move |seed| (ranks, seed))) {
        let weights = |shard| {
            let setup = Setup { width: 5, options: native(shard), clip: Some(0.2) };
            run(ranks, &with_seed(seed), |world| train(world, AdamConfig::new().build(), setup)).unwrap()
        };
        let (sharded, whole) = (weights(true), weights(false));
        assert!(sharded.iter().all(|of_rank| bits(&of_rank.0) == bits(&sharded[0].0)), "ranks differ");
        let far = distance(&sharded[0].0, &whole[0].0);
        assert!(far < 1e-5, "{ranks} ranks, seed {seed}: {far}");
    }
}

#[test]
fn a_norm_has_the_same_bits_in_all_ways_and_clips_as_pytorch() {
    let norms = |ranks: usize, shard: bool, bucket_bytes: usize| {
        let norms = run(ranks, &with_seed(0), |world| {
            let net = net(13);
            let options = options(shard).with_bucket_bytes(bucket_bytes);
            let mut sync = sync_of(world, &net, options)?;
            // Only rank 0 has samples, so the gradients have the same bits for every number of ranks.
            let own = if world.rank() == 0 { 7 } else { 0 };
            sync.backward(&net.loss(&samples(1)[..7], 1), &net, own, 7, MicroBatch::Last)?;
            sync.reduce(Signals::default())?;
            let before = sync.clip_norm(f64::INFINITY)?;
            assert_eq!(sync.clip_norm(1e9)?, before, "a norm below the maximum");
            assert_eq!(sync.clip_norm(0.25)?, before);
            Ok::<_, CommError>((before, sync.clip_norm(f64::INFINITY)?))
        });
        norms.unwrap()
    };
    let expected = norms(1, false, 1 << 20)[0];
    assert!(expected.0 > 0.3 && (expected.1 - 0.25).abs() < 1e-5, "{expected:?}");
    for ranks in 1..=4 {
        for (shard, bytes) in [(false, 120), (true, 120), (true, 300), (true, 1 << 20)] {
            let found = norms(ranks, shard, bytes);
            assert!(found.iter().all(|norm| *norm == expected), "{ranks} ranks, {shard}, {bytes}: {found:?}");
        }
    }
    for (value, is_nan) in [(f32::NAN, true), (f32::INFINITY, false)] {
        for shard in [false, true] {
            let clipped = run(3, &with_seed(0), |world| {
                let net = net(5);
                let mut sync = sync_of(world, &net, options(shard))?;
                let factor = if world.rank() == 1 { value } else { 1.0 };
                let loss =
                    net.loss(&samples(1), 1) + net.first.bias.clone().unwrap().val().slice(0..1) * factor;
                sync.backward(&loss, &net, 1, 3, MicroBatch::Last)?;
                sync.reduce(Signals::default())?;
                let norm = sync.clip_norm(1.0)?;
                let pieces = sync.pieces()?;
                Ok::<_, CommError>((
                    norm,
                    pieces.into_iter().flat_map(|piece| piece.gradient.to_vec()).collect(),
                ))
            });
            for (norm, gradients) in clipped.unwrap() {
                let gradients: Vec<f32> = gradients;
                assert!(if is_nan { norm.is_nan() } else { norm == f64::INFINITY }, "{norm}");
                let as_in_pytorch =
                    |value: &f32| if is_nan { value.is_nan() } else { value.is_nan() || *value == 0.0 };
                assert!(gradients.iter().all(as_in_pytorch), "{gradients:?}");
            }
        }
    }
}

#[test]
fn a_step_may_be_left_out_and_may_have_no_samples() {
    let weights = |shard: bool, seed: u64| {
        let weights = run(3, &with_seed(seed), |world| {
            let mut net = net(5);
            let mut sync = sync_of(world, &net, options(shard))?;
            let mut optimizer = ShardedOptimizer::new(momentum().build())?;
            for step in 0..STEPS {
                // No rank has samples in steps 0 and 3.
                if step % 3 > 0 {
                    backward(world, &mut sync, &net, step)?;
                }
                sync.reduce(Signals::default())?;
                // As a program does if the loss is NaN.
                if step != 2 {
                    net = optimizer.step(RATE, net, &mut sync)?;
                }
            }
            Ok::<_, CommError>(ParamLayout::of_module(&net).read(&net))
        });
        weights.unwrap()
    };
    let whole = weights(false, 0).remove(0);
    assert!(distance(&whole, &ParamLayout::of_module(&net(5)).read(&net(5))) > 0.01);
    for seed in 0..10 {
        assert!(weights(true, seed).iter().all(|weights| bits(weights) == bits(&whole)), "seed {seed}");
    }
}

thread_local! {
    /// Buckets that have started on this thread, and how many of them had when the backward ended.
    static STARTED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

#[test]
fn buckets_are_reduced_during_backward_from_the_second_step_on() {
    let started = run(3, &with_seed(0), |world| {
        let mut net = net(13);
        let mut sync = sync_of(world, &net, options(true))?;
        let mut optimizer = ShardedOptimizer::new(AdamConfig::new().build())?;
        sync.watch(Some(|event| {
            let (now, in_backward) = STARTED.get();
            match event {
                SyncEvent::BucketBegin(_) => STARTED.set((now + 1, in_backward)),
                SyncEvent::BackwardEnd => STARTED.set((now, now)),
                _ => {}
            }
        }))?;
        let mut started = Vec::new();
        for _ in 0..3 {
            STARTED.set((0, 0));
            sync.backward(&net.loss(&[world.rank()], 1), &net, 1, world.size(), MicroBatch::Last)?;
            started.push(STARTED.get().1);
            sync.reduce(Signals::default())?;
            net = optimizer.step(RATE, net, &mut sync)?;
        }
        assert!(sync.report().overlap == Overlap::Active, "{}", sync.report());
        Ok::<_, CommError>(started)
    });
    for started in started.unwrap() {
        assert!(started[0] == 0 && started[1] > 0 && started[2] > 0, "{started:?}");
    }
}

#[derive(Module, Debug)]
struct Chain {
    layers: Vec<Linear>,
}

/// A step that uses a parameter more often than before learns the order again. It must not change the shares.
#[test]
fn another_order_of_gradients_does_not_change_the_shares() {
    let train = |shard: bool, seed: u64| {
        let weights = run(3, &with_seed(seed), |world| {
            let device = Device::flex().autodiff();
            let layers = (0..4).map(|_| LinearConfig::new(3, 3).init(&device)).collect();
            let mut chain = Chain { layers }.map(&mut Numbered(0));
            let mut sync = sync_of(world, &chain, options(shard))?;
            let mut optimizer = ShardedOptimizer::new(AdamConfig::new().build())?;
            for step in 0..STEPS {
                let uses: &[usize] = if step < 2 { &[0, 1, 2, 3] } else { &[3, 3, 2, 1, 0] };
                let x = Tensor::<2>::full([2, 3], 0.1 * (world.rank() + step) as f32, &device);
                let y = uses.iter().fold(x, |x, layer| chain.layers[*layer].forward(x).tanh());
                sync.backward(&(y - 1.0).powi_scalar(2).mean(), &chain, 2, 6, MicroBatch::Last)?;
                sync.reduce(Signals::default())?;
                chain = optimizer.step(RATE, chain, &mut sync)?;
            }
            assert_eq!(sync.report().late_steps, 1);
            Ok::<_, CommError>(ParamLayout::of_module(&chain).read(&chain))
        });
        weights.unwrap()
    };
    let whole = train(false, 0).remove(0);
    for seed in 0..5 {
        assert!(train(true, seed).iter().all(|weights| bits(weights) == bits(&whole)), "seed {seed}");
    }
}

#[test]
fn carried_values_and_samples_are_summed_in_f32() {
    for (ranks, wire) in [(1, WireType::F32), (3, WireType::F32), (3, WireType::Bf16)] {
        let means = run(ranks, &with_seed(0), |world| {
            let net = net(5);
            let mut sync = sync_of(world, &net, options(true).with_wire(wire))?;
            sync.carry(2)?;
            let mut step = |total: usize| {
                sync.backward(&net.loss(&[world.rank()], 1), &net, 100, total, MicroBatch::Last)?;
                let mut values = [1.001 + world.rank() as f32, 3.0];
                let stop = if world.rank() == 0 { 1.0 } else { 0.0 };
                let signals = sync.reduce_with(Signals { not_finite: 0.0, stop }, &mut values)?;
                assert_eq!((signals.not_finite, signals.stop), (0.0, 1.0));
                Ok::<_, CommError>(values)
            };
            // A sum in bf16 would not show that one sample is missing.
            let error = step(100 * ranks + 1).unwrap_err().to_string();
            assert!(error.contains("0.997 times") || error.contains("0.990 times"), "{error}");
            step(100 * ranks)
        });
        let mean = (0..ranks).map(|rank| 1.001 + rank as f32).sum::<f32>() / ranks as f32;
        for [first, second] in means.unwrap() {
            assert!(
                (first - mean).abs() < 1e-6 && (second - 3.0).abs() < 1e-6,
                "{first} {second}, {ranks} ranks"
            );
        }
    }
}

#[test]
fn a_module_without_trainable_parameters_stays_as_it_is() {
    run(3, &with_seed(0), |world| {
        let net = net(5).no_grad();
        let before = ParamLayout::of_module(&net).read(&net);
        let mut sync = sync_of(world, &net, options(true))?;
        let mut optimizer = ShardedOptimizer::new(AdamConfig::new().build())?;
        for _ in 0..2 {
            sync.reduce(Signals::default())?;
            assert_eq!((sync.clip_norm(1.0)?, sync.pieces()?.len()), (0.0, 0));
            let after = optimizer.step(RATE, net.clone(), &mut sync)?;
            assert_eq!(ParamLayout::of_module(&after).read(&after), before);
        }
        Ok::<_, CommError>(())
    })
    .unwrap();
}
