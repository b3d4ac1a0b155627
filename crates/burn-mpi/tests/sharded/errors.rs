//! Errors, which all ranks return, or which name the rank.

use super::*;

#[test]
fn an_error_of_a_file_is_that_of_all_ranks() {
    let errors = run(3, &with_seed(0), |world| {
        let net = net(5);
        let mut sync = sync_of(world, &net, options(true))?;
        backward(world, &mut sync, &net, 0)?;
        sync.reduce(Signals::default())?;
        let length = sync.share()?.iter().map(|(_, range)| range.len()).sum();
        let full = |_: usize, _: &[f32]| Err("disk full");
        let written = sync.gather_share(&vec![0.0; length], full).unwrap_err();
        let read =
            sync.scatter_share(|param, _| if param == 1 { Err("cut off") } else { Ok(()) }).unwrap_err();
        let wrong = if world.rank() == 2 { length + 1 } else { length };
        let short = sync.gather_share(&vec![0.0; wrong], |_, _| Ok::<_, String>(())).unwrap_err();
        world.barrier()?;
        Ok::<_, CommError>([written, read, short].map(|error| error.to_string()))
    });
    for [written, read, short] in errors.unwrap() {
        assert_eq!([written, read], ["rank 0 on node0: disk full", "rank 0 on node0: cut off"]);
        assert!(short.starts_with("rank 2 on node0: gather_share requires the "), "{short}");
    }
}

#[test]
fn shares_of_compressed_gradients_are_refused() {
    let errors = run(2, &with_seed(0), |world| {
        let net = net(5);
        let compression = Some(PowerSgd::new(1));
        let mut sync = sync_of(world, &net, options(true).with_compression(compression))?;
        Ok::<_, CommError>(backward(world, &mut sync, &net, 0).unwrap_err().to_string())
    });
    for error in errors.unwrap() {
        assert!(error.contains("SyncOptions::shard and a compression"), "{error}");
    }
}

#[test]
fn misuse_is_an_error_that_says_what_to_do() {
    let lines = run(2, &with_seed(0), |world| {
        let mut net = net(5);
        let mut sync = sync_of(world, &net, options(true))?;
        let mut optimizer = ShardedOptimizer::new(AdamConfig::new().build())?;
        let mut lines = Vec::new();
        backward(world, &mut sync, &net, 0)?;
        lines.push(optimizer.step(RATE, net.clone(), &mut sync).unwrap_err());
        lines.push(sync.finish(&net).unwrap_err());
        sync.reduce(Signals::default())?;
        lines.push(sync.gradient(0).unwrap_err());
        lines.push(sync.gradients(&net).unwrap_err());
        net = optimizer.step(RATE, net, &mut sync)?;
        lines.push(sync.pieces().unwrap_err());
        lines.push(sync.clip_norm(1.0).unwrap_err());
        // Another order of gradients changes the shares.
        let mut arrival = sync.arrival().unwrap().clone();
        arrival.order.reverse();
        sync.adopt(arrival)?;
        lines.push(optimizer.to_record(&sync, &net).unwrap_err());
        backward(world, &mut sync, &net, 1)?;
        sync.reduce(Signals::default())?;
        lines.push(optimizer.step(RATE, net, &mut sync).unwrap_err());
        Ok::<_, CommError>(lines.into_iter().map(|error| error.to_string()).collect::<Vec<_>>())
    });
    let (before, sharded) = (MissingGradient::NoStep.to_string(), MissingGradient::Sharded.to_string());
    let changed = "the shares of the ranks have changed";
    let expected =
        [&before, &sharded, &sharded, &sharded, &before, &before, "of the optimizer's last step", changed];
    for lines in lines.unwrap() {
        assert_eq!(lines.len(), expected.len());
        for (line, expected) in lines.iter().zip(expected) {
            assert!(line.contains(expected), "{line}: {expected}");
        }
    }
}

#[test]
fn options_that_differ_and_weights_that_differ_are_errors_of_all_ranks() {
    let failure = run(3, &with_seed(0), |world| {
        let net = net(5);
        let mut sync = sync_of(world, &net, options(world.rank() == 1))?;
        sync.reduce(Signals::default()).map(drop)
    });
    let text = failure.unwrap_err().to_string();
    assert!(text.contains("SyncOptions differs") && text.contains("shard: true"), "{text}");
    let errors = run(3, &with_seed(0), |world| {
        let mut net = net(5);
        if world.rank() == 2 {
            net = net.map(&mut Numbered(1));
        }
        let mut sync = sync_of(world, &net, options(true))?;
        let mut optimizer = ShardedOptimizer::new(AdamConfig::new().build())?;
        backward(world, &mut sync, &net, 0)?;
        sync.reduce(Signals::default())?;
        let error = optimizer.step(RATE, net, &mut sync).unwrap_err();
        Ok::<_, CommError>(
            [error, sync.reduce(Signals::default()).unwrap_err()].map(|error| error.to_string()),
        )
    });
    for error in errors.unwrap().into_iter().flatten() {
        assert!(error.contains("before the first step") && error.contains("first.weight"), "{error}");
    }
}

#[test]
fn a_rank_that_leaves_before_its_step_ends_the_job() {
    for (seed, is_panic) in (0..10).flat_map(|seed| [(seed, true), (seed, false)]) {
        let others = Mutex::new(Vec::new());
        let failure = run(3, &with_seed(seed), |world| {
            let mut net = net(5);
            let mut sync = sync_of(world, &net, options(true)).map_err(|error| error.to_string())?;
            let mut optimizer =
                ShardedOptimizer::new(AdamConfig::new().build()).map_err(|error| error.to_string())?;
            for step in 0..STEPS {
                let reduced =
                    backward(world, &mut sync, &net, step).and_then(|()| sync.reduce(Signals::default()));
                reduced.map_err(|error| error.to_string())?;
                if world.rank() == 1 && step == 2 {
                    assert!(!is_panic, "a bug");
                    return Err("no memory".to_owned());
                }
                net = optimizer.step(RATE, net, &mut sync).map_err(|error| {
                    others
                        .lock()
                        .unwrap()
                        .push((error.clone(), sync.reduce(Signals::default()).unwrap_err()));
                    error.to_string()
                })?;
            }
            Ok(())
        });
        let line = failure.unwrap_err().to_string();
        let expected = if is_panic { "panicked: a bug" } else { "rank 1 on node0: no memory" };
        assert!(line.contains("rank 1 on node0") && line.contains(expected), "{line}");
        let others = others.into_inner().unwrap();
        assert_eq!(others.len(), 2);
        for (error, later) in others {
            assert!(matches!(error, CommError::Left { rank: 1, .. }), "{error}");
            assert_eq!(error.to_string(), later.to_string(), "a later step has the same error");
        }
    }
}
