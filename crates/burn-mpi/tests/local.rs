//! Checks the results of local updates on ranks that are threads, against a simulation of all ranks in one
//! process, and against plain Burn on the union of the data.

use std::ops::RangeInclusive;

use burn::module::{Module, Param};
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Tensor};
use burn_mpi::threads::{Options, run};
use burn_mpi::{
    Backend, Collective, CommError, GradientSync, LocalOptions, LocalState, LocalUpdates, Outer, ParamLayout,
    Reduction, SyncOptions, Transport, WireType, World, check_equal_weights, connect,
};

/// Returns options with this seed. `TURNS=off` makes ranks run at the same time, for a thread sanitizer.
fn with_seed(seed: u64) -> Options {
    let turns = std::env::var("TURNS").map_or(true, |text| text != "off");
    Options::default().with_turns(turns).with_seed(seed)
}

const NESTEROV: Outer = Outer::Nesterov { learning_rate: 0.7, momentum: 0.9 };

fn options(every: usize, fragments: usize, delay: usize, merge: f32, outer: Outer) -> LocalOptions {
    let reduction = Reduction::Ordered;
    LocalOptions::default()
        .with_every(every)
        .with_outer(outer)
        .with_fragments(fragments)
        .with_delay(delay)
        .with_merge(merge)
        .with_reduction(reduction)
}

/// Local SGD, DiLoCo and Streaming DiLoCo, with up to three fragments in flight.
fn all_options() -> Vec<LocalOptions> {
    vec![
        options(1, 1, 0, 0.0, Outer::None),
        options(3, 1, 0, 0.0, Outer::None),
        options(3, 1, 0, 0.0, NESTEROV),
        options(4, 2, 0, 0.0, NESTEROV),
        options(4, 2, 1, 0.5, NESTEROV),
        options(4, 2, 3, 0.5, Outer::None),
        options(6, 3, 5, 0.25, NESTEROV),
        options(4, 4, 3, 0.0, NESTEROV),
    ]
}

/// Lengths of the parameters. The third one gets no gradients. The others are as many as 5, and fragment f of
/// F has the parameters f, f + F, … of these.
const LENGTHS: [usize; 6] = [6, 6, 3, 6, 6, 5];
const BUFFER: usize = 2;

fn start() -> Vec<f32> {
    (0..LENGTHS.iter().sum()).map(|at| (at as f32 * 0.37).sin()).collect()
}

fn layout() -> ParamLayout {
    let device = Device::flex().autodiff();
    let param = |(at, &length): (usize, &usize)| {
        let param = Param::from_tensor(Tensor::<1>::zeros([length], &device));
        if at == BUFFER { param.no_grad() } else { param }
    };
    ParamLayout::of_module(&LENGTHS.iter().enumerate().map(param).collect::<Vec<_>>())
}

/// Indices in the flat buffer of a fragment's values, and of all trainable values with 0 of 1 fragments.
fn indices(fragment: usize, fragments: usize) -> Vec<usize> {
    let (mut start, mut number, mut found) = (0, 0, Vec::new());
    for (at, length) in LENGTHS.into_iter().enumerate() {
        if at != BUFFER {
            if number % fragments == fragment {
                found.extend(start..start + length);
            }
            number += 1;
        }
        start += length;
    }
    found
}

/// Number of samples of a rank in a step. The last of several ranks has none for 7 steps, and no rank has
/// samples in steps 11 to 16.
fn samples(rank: usize, ranks: usize, step: usize) -> usize {
    match (rank, step) {
        (_, 11..17) => 0,
        (rank, ..7) if rank > 0 && rank == ranks - 1 => 0,
        _ => (3 * rank + 5 * step) % 4 + usize::from(rank == 0),
    }
}

/// Makes a local step of SGD towards a target of the rank. The values without gradients change, too.
fn train(params: &mut [f32], rank: usize, ranks: usize, step: usize) {
    let rate = if samples(rank, ranks, step) > 0 { 0.1 } else { 0.0 };
    let trainable = indices(0, 1);
    for (at, value) in params.iter_mut().enumerate() {
        if trainable.contains(&at) {
            let target = ((at * (rank + 2) + step) as f32).cos();
            *value -= rate * (*value - target);
        } else {
            *value += rank as f32 + 0.5;
        }
    }
}

/// Simulates all ranks in one process. `train` makes the local step of a rank. Returns each rank's parameters
/// after each step; if `finishes`, the last step is followed by `finish`.
fn simulated(
    ranks: usize,
    options: LocalOptions,
    (steps, finishes): (usize, bool),
    start: &[f32],
    indices: impl Fn(usize) -> Vec<usize>,
    mut train: impl FnMut(&mut Vec<f32>, usize, usize),
) -> Vec<Vec<Vec<f32>>> {
    let LocalOptions { every, fragments, delay, merge, outer, .. } = options;
    let mut params = vec![start.to_vec(); ranks];
    let (mut anchor, mut velocity) = (start.to_vec(), vec![0.0; start.len()]);
    let mut trained = vec![vec![0; ranks]; fragments];
    let (mut sent, mut after) = (Vec::new(), Vec::new());
    for step in 1..=steps {
        for rank in 0..ranks {
            train(&mut params[rank], rank, step);
            trained.iter_mut().for_each(|ranks_of| ranks_of[rank] += samples(rank, ranks, step));
        }
        for (fragment, trained) in trained.iter_mut().enumerate() {
            if step % every == fragment * every / fragments % every {
                let change = |at: usize, rank: usize| trained[rank] as f32 * (params[rank][at] - anchor[at]);
                let sum = |at: usize| (1..ranks).fold(change(at, 0), |sum, rank| sum + change(at, rank));
                let sums: Vec<(usize, f32)> = indices(fragment).into_iter().map(|at| (at, sum(at))).collect();
                sent.push((step + delay, sums, trained.iter().sum::<usize>()));
                trained.fill(0);
            }
        }
        let is_end = finishes && step == steps;
        for (_, sums, total) in sent.extract_if(.., |(due, ..)| *due == step || is_end) {
            for (at, sum) in sums {
                let change = sum / total as f32;
                match outer {
                    _ if total == 0 => {}
                    Outer::None => anchor[at] += change,
                    Outer::Nesterov { learning_rate, momentum } => {
                        velocity[at] = momentum * velocity[at] - change;
                        anchor[at] -= learning_rate * (momentum * velocity[at] - change);
                    }
                }
                for params in &mut params {
                    params[at] =
                        if delay == 0 { anchor[at] } else { merge * params[at] + (1.0 - merge) * anchor[at] };
                }
            }
        }
        for (fragment, trained) in trained.iter().enumerate().filter(|_| is_end) {
            let total: usize = trained.iter().sum();
            let share = |rank: usize| {
                if total == 0 { 1.0 / ranks as f32 } else { trained[rank] as f32 / total as f32 }
            };
            for at in indices(fragment) {
                let change = |rank: usize| share(rank) * (params[rank][at] - anchor[at]);
                let mean = anchor[at] + (1..ranks).fold(change(0), |sum, rank| sum + change(rank));
                params.iter_mut().for_each(|params| params[at] = mean);
            }
        }
        after.push(params.clone());
    }
    after
}

fn reference(ranks: usize, options: LocalOptions, steps: (usize, bool)) -> Vec<Vec<Vec<f32>>> {
    let train = |params: &mut Vec<f32>, rank, step| train(params, rank, ranks, step);
    simulated(ranks, options, steps, &start(), |fragment| indices(fragment, options.fragments), train)
}

fn transport(world: &World) -> Result<Box<dyn Collective>, CommError> {
    connect(world, Backend::Mpi, &Transport::default())
}

fn local_updates(world: &World, options: LocalOptions) -> Result<LocalUpdates, CommError> {
    LocalUpdates::new(world, transport(world)?, &layout(), &start(), options)
}

/// Makes local steps from the start to the end, and returns the parameters after each of them.
fn train_all(world: &World, options: LocalOptions, steps: usize) -> Result<Vec<Vec<f32>>, CommError> {
    let (mut local, mut params) = (local_updates(world, options)?, start());
    let after = train_on(world, &mut local, &mut params, 1..=steps)?;
    local.finish(&mut params)?;
    Ok(after)
}

/// Makes the local steps of a range, and returns the parameters after each of them.
fn train_on(
    world: &World,
    local: &mut LocalUpdates,
    params: &mut [f32],
    steps: RangeInclusive<usize>,
) -> Result<Vec<Vec<f32>>, CommError> {
    let mut after = Vec::new();
    for step in steps {
        train(params, world.rank(), world.size(), step);
        let own = samples(world.rank(), world.size(), step);
        let before = params.to_vec();
        let has_changed = if local.is_due() { local.step(params, own)? } else { local.step(&mut [], own)? };
        assert!(has_changed || params == before);
        after.push(params.to_vec());
    }
    Ok(after)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn assert_close(found: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let error = (found - expected).abs() / expected.abs().max(1.0);
        assert!(error <= tolerance, "{what}: {found} instead of {expected}");
    }
}

const STEPS: usize = 24;

#[test]
fn all_kinds_of_local_updates_have_the_bits_of_a_simulation_in_one_process() {
    for (ranks, options) in (1..=4).flat_map(|ranks| all_options().into_iter().map(move |all| (ranks, all))) {
        let expected = reference(ranks, options, (STEPS, false));
        for seed in 0..5 {
            let found = run(ranks, &with_seed(seed), |world| train_all(world, options, STEPS));
            for (rank, after) in found.unwrap().into_iter().enumerate() {
                for (step, params) in after.iter().enumerate() {
                    let what = format!("rank {rank} of {ranks} after step {}, {options:?}", step + 1);
                    assert_eq!(bits(params), bits(&expected[step][rank]), "{what}");
                }
            }
        }
    }
}

#[test]
fn changes_sent_in_16_bit_types_differ_by_rounding_only() {
    for options in all_options() {
        for (wire, tolerance) in [(WireType::Bf16, 0.02), (WireType::F16, 0.003)] {
            let options = options.with_wire(wire);
            let found = run(3, &with_seed(1), |world| train_all(world, options, STEPS));
            let expected = reference(3, options, (STEPS, false));
            for (rank, after) in found.unwrap().into_iter().enumerate() {
                assert_close(&after[STEPS - 1], &expected[STEPS - 1][rank], tolerance, wire.name());
                assert_ne!(after[STEPS - 1], expected[STEPS - 1][rank]);
            }
        }
    }
}

#[test]
fn half_precision_carries_changes_of_many_samples() {
    let found = run(2, &with_seed(2), |world| {
        let options = options(2, 1, 0, 0.0, Outer::None).with_wire(WireType::F16);
        let (mut local, mut params) = (local_updates(world, options)?, start());
        for _ in 0..4 {
            params.iter_mut().for_each(|value| *value += 1.0);
            local.step(&mut params, 1_000_000)?;
        }
        Ok::<_, CommError>(params)
    });
    let expected: Vec<f32> = start().iter().map(|value| value + 4.0).collect();
    assert_close(&found.unwrap()[0], &expected, 1e-3, "f16");
}

#[test]
fn a_training_that_is_interrupted_at_any_step_has_the_same_bits() {
    for options in [
        options(4, 2, 1, 0.5, NESTEROV),
        options(6, 3, 5, 0.25, NESTEROV),
        options(6, 2, 4, 0.5, Outer::None).with_wire(WireType::F16),
    ] {
        let (ranks, steps) = (3, 4 * options.every);
        let all = run(ranks, &with_seed(0), |world| train_all(world, options, steps)).unwrap();
        for stop in 0..=2 * options.every {
            let found = run(ranks, &with_seed(stop as u64), |world| {
                let (mut local, mut params) = (local_updates(world, options)?, start());
                train_on(world, &mut local, &mut params, 1..=stop)?;
                let (state, kept) = (serde_json::to_string(&local.state()?).unwrap(), params.clone());
                let state: LocalState = serde_json::from_str(&state).unwrap();
                let mut resumed = local_updates(world, options)?;
                resumed.restore(state.clone())?;
                assert_eq!(resumed.state()?, state);
                // The state does not change the training that it was taken from.
                let after = train_on(world, &mut local, &mut params, stop + 1..=steps)?;
                params = kept;
                assert_eq!(train_on(world, &mut resumed, &mut params, stop + 1..=steps)?, after);
                assert_eq!(resumed.state()?, local.state()?);
                resumed.finish(&mut params)?;
                local.finish(&mut params)?;
                Ok::<_, CommError>(after)
            });
            for (found, all) in found.unwrap().iter().zip(&all) {
                assert_eq!(found[..], all[stop..], "{options:?} interrupted after step {stop}");
            }
        }
    }
}

#[test]
fn an_average_between_synchronisations_counts_samples_and_does_not_change_the_training() {
    let options = options(6, 3, 1, 0.5, NESTEROV);
    for (ranks, seed) in [(2, 0), (3, 1), (4, 2)] {
        let plain = reference(ranks, options, (STEPS, false));
        let found = run(ranks, &with_seed(seed), |world| {
            let (mut local, mut params) = (local_updates(world, options)?, start());
            let mut averages = Vec::new();
            for step in 1..=STEPS {
                let after = train_on(world, &mut local, &mut params, step..=step)?;
                assert_eq!(bits(&after[0]), bits(&plain[step - 1][world.rank()]));
                let mut average = params.clone();
                local.average(&mut average)?;
                averages.push(average);
            }
            local.finish(&mut params)?;
            Ok::<_, CommError>(averages)
        });
        let found = found.unwrap();
        for at in indices(0, 1) {
            // Steps 1 and 2 come before the first synchronisation of each value, and the last rank has no
            // samples.
            let own = |rank| (1..=2).map(|step| samples(rank, ranks, step)).sum::<usize>() as f32;
            let sum: f32 = (0..ranks).map(|rank| own(rank) * plain[1][rank][at]).sum();
            let expected = sum / (0..ranks).map(own).sum::<f32>();
            if !indices(1, 3).contains(&at) {
                assert_close(&[found[0][1][at]], &[expected], 1e-5, "average");
            }
            for averages in &found {
                assert!((0..STEPS).all(|step| averages[step][at] == found[0][step][at]));
            }
        }
    }
}

#[test]
fn after_the_end_all_ranks_have_equal_weights_and_can_go_on() {
    for (options, stop) in all_options().into_iter().flat_map(|all| (1..14).map(move |stop| (all, stop))) {
        let expected = reference(3, options, (stop, true)).remove(stop - 1);
        let found = run(3, &with_seed(stop as u64), |world| {
            let (mut local, mut params) = (local_updates(world, options)?, start());
            train_on(world, &mut local, &mut params, 1..=stop)?;
            local.finish(&mut params)?;
            assert_eq!(bits(&params), bits(&expected[world.rank()]), "{options:?} ends at step {stop}");
            let LocalState { samples, fragments, .. } = local.state()?;
            assert!(samples.iter().all(|samples| *samples == 0));
            assert!(fragments.iter().all(|fragment| fragment.arrived.is_none()));
            let end = params.clone();
            local.finish(&mut params)?;
            assert_eq!(bits(&params), bits(&end), "equal weights have themselves as their mean");
            train_on(world, &mut local, &mut params, stop + 1..=STEPS)?;
            local.finish(&mut params)?;
            Ok::<_, CommError>([end, params])
        });
        let found = found.unwrap();
        for at in indices(0, 1) {
            assert!(
                found.iter().all(|rank| (rank[0][at], rank[1][at]) == (found[0][0][at], found[0][1][at]))
            );
        }
    }
}

fn model() -> Linear {
    let device = Device::flex().autodiff();
    let model = LinearConfig::new(3, 2).with_initializer(Initializer::Zeros).init(&device);
    let layout = ParamLayout::of_module(&model);
    let values: Vec<f32> = (0..layout.len()).map(|at| (at as f32).sin()).collect();
    layout.write(model, &values)
}

/// Makes a step of Burn's SGD on the samples of some ranks. Without samples, there is no step.
fn sgd(
    model: Linear,
    ranks: &[usize],
    size: usize,
    step: usize,
    backward: &dyn Fn(Tensor<1>) -> GradientsParams,
) -> Linear {
    match loss(&model, ranks, size, step) {
        Some(loss) => SgdConfig::new().init().step(0.1, model, backward(loss)),
        None => model,
    }
}

/// The mean loss over the samples of some ranks in a step; `None` without samples.
fn loss(model: &Linear, ranks: &[usize], size: usize, step: usize) -> Option<Tensor<1>> {
    let sample = |rank: usize, at: usize| [rank, at, step].map(|number| (number as f32 * 1.3 + 0.2).sin());
    let rows: Vec<f32> = ranks
        .iter()
        .flat_map(|&rank| (0..samples(rank, size, step)).flat_map(move |at| sample(rank, at)))
        .collect();
    if rows.is_empty() {
        return None;
    }
    let input = Tensor::<1>::from_floats(&rows[..], &Device::flex().autodiff()).reshape([-1, 3]);
    Some((model.forward(input) - 0.5).powi_scalar(2).mean())
}

fn values(model: &Linear) -> Vec<f32> {
    ParamLayout::of_module(model).read(model)
}

#[test]
fn averaging_after_each_step_equals_averaged_gradients_and_one_process() {
    let steps = 10;
    for ranks in 1..=4 {
        let all: Vec<usize> = (0..ranks).collect();
        let union = (1..=steps).fold(model(), |model, step| {
            let like = model.clone();
            sgd(model, &all, ranks, step, &|loss| GradientsParams::from_grads(loss.backward(), &like))
        });
        for seed in 0..5 {
            let found = run(ranks, &with_seed(seed), |world| {
                let (mut model, mut other) = (self::model(), self::model());
                let mut local =
                    LocalUpdates::of_module(world, transport(world)?, &model, LocalOptions::default())?;
                let mut sync =
                    GradientSync::of_module(world, transport(world)?, &other, SyncOptions::default());
                for step in 1..=steps {
                    let own = samples(world.rank(), ranks, step);
                    let like = model.clone();
                    let backward = |loss| GradientsParams::from_grads(local.backward(&loss), &like);
                    model = sgd(model, &[world.rank()], ranks, step, &backward);
                    model = local.step_module(model, own)?;
                    let total = all.iter().map(|&rank| samples(rank, ranks, step)).sum();
                    let loss = loss(&other, &[world.rank()], ranks, step);
                    let none = Tensor::<1>::zeros([1], &Device::flex().autodiff());
                    let gradients = sync.average(&loss.unwrap_or(none), &other, own, total)?;
                    other = SgdConfig::new().init().step(0.1, other, gradients);
                }
                Ok::<_, CommError>([values(&model), values(&other)])
            });
            for [local, averaged] in found.unwrap() {
                assert_close(&local, &values(&union), 1e-5, "one process");
                assert_close(&local, &averaged, 1e-5, "averaged gradients");
            }
        }
    }
}

#[test]
fn a_module_that_streams_has_the_bits_of_a_simulation_in_one_process() {
    let (options, steps) = (options(4, 2, 3, 0.5, NESTEROV), 10);
    for ranks in 2..=3 {
        let layout = ParamLayout::of_module(&model());
        let step_of = |params: &mut Vec<f32>, rank: usize, step: usize| {
            let model = layout.write(model(), params);
            let like = model.clone();
            let backward = |loss: Tensor<1>| GradientsParams::from_grads(loss.backward(), &like);
            *params = values(&sgd(model, &[rank], ranks, step, &backward));
        };
        let parameters = |fragment: usize| layout.specs()[fragment].range.clone().collect();
        let expected = simulated(ranks, options, (steps, false), &values(&model()), parameters, step_of);
        let found = run(ranks, &with_seed(3), |world| {
            let mut model = model();
            let mut local = LocalUpdates::of_module(world, transport(world)?, &model, options)?;
            for step in 1..=steps {
                let like = model.clone();
                let backward = |loss| GradientsParams::from_grads(local.backward(&loss), &like);
                model = sgd(model, &[world.rank()], ranks, step, &backward);
                model = local.step_module(model, samples(world.rank(), ranks, step))?;
            }
            let own = values(&model);
            let averaged = values(&local.average_module(model.clone())?);
            let end = local.finish_module(model)?;
            check_equal_weights(world, &local.average_buffers(end)?)?;
            Ok::<_, CommError>((own, averaged))
        });
        let found = found.unwrap();
        for (rank, (own, averaged)) in found.iter().enumerate() {
            assert_eq!(bits(own), bits(&expected[steps - 1][rank]));
            assert_eq!(averaged, &found[0].1);
        }
    }
}
