//! Shares of the state: their sizes, and how they are saved and loaded on other numbers of ranks.

use super::*;
use burn_mpi::Element;

/// Counts the values of the states that it has returned.
#[derive(Clone)]
struct Counted(Adam, Arc<AtomicUsize>);

impl Optimizer for Counted {
    type State<const D: usize> = <Adam as Optimizer>::State<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let (tensor, state) = self.0.step(lr, tensor, grad, state);
        let moments = state.iter().flat_map(|state| [&state.momentum.moment_1, &state.momentum.moment_2]);
        let values = moments.map(|moment| moment.dims().iter().product::<usize>()).sum();
        self.1.fetch_add(values, Ordering::Relaxed);
        (tensor, state)
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        Adam::to_device(state, device)
    }
}

#[test]
fn a_rank_has_its_share_of_the_state() {
    for ranks in 1..=4 {
        let values = run(ranks, &with_seed(0), |world| {
            let count = Arc::new(AtomicUsize::new(0));
            let mut net = net(13);
            let mut sync = sync_of(world, &net, options(true))?;
            let mut optimizer = ShardedOptimizer::new(Counted(AdamConfig::new().build(), count.clone()))?;
            for step in 0..2 {
                backward(world, &mut sync, &net, step)?;
                sync.reduce(Signals::default())?;
                count.store(0, Ordering::Relaxed);
                net = optimizer.step(RATE, net, &mut sync)?;
            }
            Ok::<_, CommError>((count.load(Ordering::Relaxed), sync.report().buckets.len()))
        })
        .unwrap();
        // The layers first, sometimes and out.
        let whole = 2 * ((3 + 1) * 13 + (13 + 1) * 13 + 13 + 1);
        assert_eq!(values.iter().map(|(values, _)| values).sum::<usize>(), whole, "{ranks} ranks");
        for (values, buckets) in values {
            assert!(
                values <= whole / ranks + 2 * buckets,
                "{values} of {whole} values on one of {ranks} ranks"
            );
        }
    }
}

/// The weights, the module's record and the optimizer's record after some steps on 3 ranks, and the weights
/// after all steps.
fn saved() -> (Vec<u8>, Vec<u8>, Vec<f32>) {
    let saved = run(3, &with_seed(0), |world| {
        let mut net = net(5);
        let mut sync = sync_of(world, &net, options(true))?;
        let mut optimizer = ShardedOptimizer::new(AdamConfig::new().build())?;
        let (mut model, mut state) = (Vec::new(), Vec::new());
        for step in 0..STEPS {
            if step == 3 {
                model = net.clone().into_record().into_bytes().unwrap().to_vec();
                let record = optimizer.to_record(&sync, &net)?;
                assert_eq!(record.is_empty(), world.rank() > 0);
                state = record.into_bytes().unwrap().to_vec();
            }
            backward(world, &mut sync, &net, step)?;
            sync.reduce(Signals::default())?;
            sync.clip_norm(0.2)?;
            net = optimizer.step(RATE, net, &mut sync)?;
        }
        Ok::<_, CommError>((model, state, ParamLayout::of_module(&net).read(&net)))
    });
    saved.unwrap().remove(0)
}

fn model_of(bytes: &[u8]) -> Net {
    let record = ModuleRecord::from_bytes(Bytes::from_bytes_vec(bytes.to_vec())).unwrap();
    net(5).try_load_record(record).unwrap()
}

fn record_of(bytes: &[u8]) -> OptimizerRecord {
    OptimizerRecord::from_bytes(Bytes::from_bytes_vec(bytes.to_vec())).unwrap()
}

#[test]
fn a_state_of_3_ranks_continues_on_any_number_and_with_burns_optimizer() {
    let (model, state, stayed) = saved();
    for (ranks, seed) in (1..=4).flat_map(|ranks| (0..4).map(move |seed| (ranks, seed))) {
        let continued = run(ranks, &with_seed(seed), |world| {
            let mut net = model_of(&model);
            let mut sync = sync_of(world, &net, options(true))?;
            let optimizer = ShardedOptimizer::new(AdamConfig::new().build())?;
            let mut optimizer = optimizer.load_record(record_of(&state))?;
            // A record that no step has used yet can be saved again.
            let again = optimizer.to_record(&sync, &net)?;
            assert_eq!(again.len(), if world.is_root() { record_of(&state).len() } else { 0 });
            for step in 3..STEPS {
                backward(world, &mut sync, &net, step)?;
                sync.reduce(Signals::default())?;
                sync.clip_norm(0.2)?;
                net = optimizer.step(RATE, net, &mut sync)?;
            }
            Ok::<_, CommError>(ParamLayout::of_module(&net).read(&net))
        });
        let with_burn = run(ranks, &with_seed(seed), |world| {
            let mut net = model_of(&model);
            let mut sync = sync_of(world, &net, options(false))?;
            let mut optimizer = AdamConfig::new().init().load_record(record_of(&state));
            for step in 3..STEPS {
                backward(world, &mut sync, &net, step)?;
                sync.reduce(Signals::default())?;
                sync.clip_norm(0.2)?;
                let gradients = sync.gradients(&net)?;
                net = optimizer.step(RATE, net, gradients);
            }
            Ok::<_, CommError>(ParamLayout::of_module(&net).read(&net))
        });
        let with_burn = with_burn.unwrap().remove(0);
        for weights in continued.unwrap() {
            assert_eq!(bits(&weights), bits(&with_burn), "{ranks} ranks, seed {seed}");
            // The first step after a start overlaps nothing, so the step with late gradients sums in another
            // order than in the job that went on.
            let far = distance(&weights, &stayed);
            assert!(far < 1e-5, "{ranks} ranks, seed {seed}: {far}");
        }
    }
}

#[test]
fn a_record_that_does_not_fit_is_an_error_of_all_ranks() {
    let (_, state, _) = saved();
    let step = |world: &World, net: Net| {
        let mut sync = sync_of(world, &net, options(true))?;
        let optimizer = ShardedOptimizer::new(AdamConfig::new().build())?;
        let mut optimizer = optimizer.load_record(record_of(&state))?;
        backward(world, &mut sync, &net, 0)?;
        sync.reduce(Signals::default())?;
        optimizer.step(RATE, net, &mut sync).map(drop)
    };
    // Another module has other ids.
    let errors =
        run(3, &with_seed(0), |world| Ok::<_, CommError>(step(world, net(5)).unwrap_err().to_string()));
    for error in errors.unwrap() {
        assert!(error.contains("none of the module's ids"), "{error}");
    }
    let (model, state, _) = saved();
    let step = |world: &World| {
        let mut net = model_of(&model);
        // The same ids, and another shape.
        let device = Device::flex().autodiff();
        let wide = Tensor::<2>::ones([15, 1], &device);
        let id = net.out.weight.id;
        net.out.weight = Param::initialized(id, wide.require_grad());
        let mut sync = sync_of(world, &net, options(true))?;
        let optimizer = ShardedOptimizer::new(AdamConfig::new().build())?;
        let mut optimizer = optimizer.load_record(record_of(&state))?;
        sync.backward(&net.out.weight.val().sum().reshape([1]), &net, 1, world.size(), MicroBatch::Last)?;
        sync.reduce(Signals::default())?;
        optimizer.step(RATE, net, &mut sync).map(drop)
    };
    let errors = run(3, &with_seed(0), |world| Ok::<_, CommError>(step(world).unwrap_err().to_string()));
    for error in errors.unwrap() {
        assert!(error.contains("[5, 1]") && error.contains("out.weight has 15 values"), "{error}");
    }
}

/// SGD with momentum on flat vectors: each rank has its share of the velocity. Saves the velocity and the
/// weights before `restart`, and continues with the share of what was saved.
fn train_flat(
    world: &World,
    shard: bool,
    restart: Option<&(Vec<f32>, Vec<Vec<f32>>)>,
    steps: std::ops::Range<usize>,
) -> Result<(Vec<f32>, Vec<Vec<f32>>), CommError> {
    let mut net = net(5);
    let layout = ParamLayout::of_module(&net);
    let mut sync = sync_of(world, &net, options(shard))?;
    let mut params = layout.read(&net);
    let mut velocity = Vec::new();
    for step in steps.clone() {
        if let Some((saved, _)) = restart.filter(|_| step == steps.start) {
            params.clone_from(saved);
            net = layout.write(net, &params);
        }
        backward(world, &mut sync, &net, step)?;
        sync.reduce(Signals::default())?;
        sync.clip_norm(0.2)?;
        if step == steps.start {
            velocity = match restart {
                None => vec![0.0; sync.share()?.iter().map(|(_, range)| range.len()).sum()],
                Some((_, whole)) => sync.scatter_share(|param, values| {
                    values.copy_from_slice(&whole[param]);
                    Ok::<_, String>(())
                })?,
            };
        }
        for piece in sync.pieces()? {
            let values = params[piece.range].iter_mut().zip(&mut velocity[piece.start..]);
            for ((value, velocity), gradient) in values.zip(piece.gradient) {
                *velocity = 0.9 * *velocity + *gradient;
                *value -= 0.05 * *velocity;
            }
        }
        sync.gather_params(&mut params)?;
        net = layout.write_trainable(net, &params);
    }
    let mut whole = vec![Vec::new(); layout.specs().len()];
    sync.gather_share(&velocity, |param, values| {
        whole[param] = values.to_vec();
        Ok::<_, String>(())
    })?;
    Ok((params, whole))
}

#[test]
fn a_flat_state_in_shares_has_the_bits_of_the_whole() {
    for ranks in 1..=4 {
        let whole = run(ranks, &with_seed(0), |world| train_flat(world, false, None, 0..STEPS)).unwrap();
        for seed in 0..5 {
            let sharded =
                run(ranks, &with_seed(seed), |world| train_flat(world, true, None, 0..STEPS)).unwrap();
            for (params, _) in &sharded {
                assert_eq!(bits(params), bits(&whole[0].0), "{ranks} ranks, seed {seed}");
            }
            assert_eq!(sharded[0].1, whole[0].1, "{ranks} ranks, seed {seed}");
            assert!(whole[0].1[0].iter().any(|velocity| *velocity != 0.0));
        }
    }
    // A state of 3 ranks continues on other numbers of ranks.
    let saved = run(3, &with_seed(0), |world| train_flat(world, true, None, 0..3)).unwrap().remove(0);
    for ranks in 1..=4 {
        let [sharded, whole] = [true, false].map(|shard| {
            run(ranks, &with_seed(1), |world| train_flat(world, shard, Some(&saved), 3..4)).unwrap()
        });
        assert!(sharded.iter().all(|(params, _)| bits(params) == bits(&whole[0].0)), "{ranks} ranks");
        assert_eq!(sharded[0].1, whole[0].1, "{ranks} ranks");
    }
}

#[test]
fn shares_are_all_trainable_values_and_each_is_on_one_rank() {
    for ranks in 1..=4 {
        let shares = run(ranks, &with_seed(0), |world| {
            let net = net(13);
            let mut sync = sync_of(world, &net, options(true))?;
            if ranks > 1 {
                assert!(matches!(sync.share(), Err(CommError::NoGradient { .. })), "not known yet");
            }
            backward(world, &mut sync, &net, 0)?;
            sync.reduce(Signals::default())?;
            let layout = ParamLayout::of_module(&net);
            Ok::<_, CommError>((sync.share()?, layout.trainable(), layout.specs().to_vec()))
        })
        .unwrap();
        let (trainable, specs) = (shares[0].1, shares[0].2.clone());
        let mut values = Vec::new();
        for (share, ..) in &shares {
            assert!(share.iter().all(|(param, range)| {
                specs[*param].trainable
                    && specs[*param].range.start <= range.start
                    && range.end <= specs[*param].range.end
            }));
            assert!(share.is_sorted_by_key(|(param, _)| *param));
            values.extend(share.iter().flat_map(|(_, range)| range.clone()));
        }
        values.sort_unstable();
        values.dedup();
        assert_eq!(values.len(), trainable, "{ranks} ranks");
    }
}

#[test]
fn a_reduce_scatter_and_an_all_gather_use_the_memory_of_earlier_operations() {
    for how in Reduction::ALL {
        run(3, &with_seed(0), |world| {
            let mut collective = connect(world, Backend::Mpi, &Transport::default())?;
            let address = |wire: &Wire| wire.bytes().as_ptr();
            let whole = Wire::F32(vec![1.0; 12]);
            let first = address(&whole);
            collective.start(Operation::reduce_scatter(0, &whole, how), whole)?;
            let chunk = collective.wait(0)?;
            assert_eq!(chunk, Wire::F32(vec![3.0; 4]));
            collective.start(Operation::all_gather(0, &chunk, 12), chunk)?;
            let whole = collective.wait(0)?;
            assert_eq!(whole, Wire::F32(vec![3.0; 12]));
            // The gathered values are in a buffer of the reduce-scatter: its own or the one received.
            let other = collective.buffer(Element::F32, 12);
            let gathered = address(&whole);
            collective.recycle(whole);
            let again = collective.buffer(Element::F32, 12);
            assert!(address(&again) == gathered && [gathered, address(&other)].contains(&first), "{how}");
            Ok::<_, CommError>(())
        })
        .unwrap();
    }
}
