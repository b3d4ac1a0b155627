//! Checks each rule against its definition in f64, at every SIMD level.

use super::*;
use crate::kernels::simd::Level;

/// Number of weights: two of the widest vectors and a remainder.
const LEN: usize = 2 * 16 + 5;
const STEPS: u64 = 20;
const DECAY: f64 = 0.01;

/// Asserts that the weights after [`STEPS`] steps equal the weights that
/// `reference(weight, gradient, moments, time)` computes in f64. The gradient of a weight `w` is `2w + 0.3`.
fn assert_follows<const M: usize, R: UpdateRule<M>>(
    context: &str,
    rule: impl Fn(u64) -> R,
    reference: impl Fn(f64, f64, &mut [f64; 3], i32) -> f64,
) {
    let start: Vec<f32> = (0..LEN).map(|i| (i as f32 - 18.5) / 9.0).collect();
    let mut bits = Vec::new();
    for level in Level::available() {
        let _held = level.hold();
        let (mut weights, mut moments) = (start.clone(), [(); M].map(|()| vec![0.0; LEN]));
        for time in 1..=STEPS {
            let gradients: Vec<f32> = weights.iter().map(|w| 2.0 * w + 0.3).collect();
            let moments = moments.each_mut().map(Vec::as_mut_slice);
            update(rule(time), &mut weights, &gradients, moments);
        }
        for (&found, &start) in weights.iter().zip(&start) {
            let (mut expected, mut moments) = (f64::from(start), [0.0; 3]);
            for time in 1..=STEPS as i32 {
                expected = reference(expected, 2.0 * expected + 0.3, &mut moments, time);
            }
            let off = (f64::from(found) - expected).abs();
            assert!(off < 1e-5, "{context}, {level}: {found} for {expected}");
        }
        bits.push(weights.iter().map(|w| w.to_bits()).collect::<Vec<_>>());
    }
    assert!(bits.iter().all(|level| level == &bits[0]), "{context}: bits differ between levels");
}

#[test]
fn adam_follows_its_definition_with_the_same_bits_at_every_level() {
    for beta_1 in [0.9, 0.85] {
        for decay in [Decay::L2(DECAY), Decay::Decoupled(DECAY), Decay::Cautious(DECAY)] {
            let options = AdamOptions { lr: 0.02, beta_1, decay, ..AdamOptions::default() };
            let reference = |largest: bool| {
                move |mut w: f64, mut g: f64, [first, second, most]: &mut [f64; 3], time: i32| {
                    if let Decay::L2(penalty) = decay {
                        g += penalty * w;
                    }
                    *first = beta_1 * *first + (1.0 - beta_1) * g;
                    *second = 0.999 * *second + 0.001 * g * g;
                    *most = second.max(*most);
                    match decay {
                        Decay::Decoupled(decay) => w -= 0.02 * decay * w,
                        Decay::Cautious(decay) if (w >= 0.0) == (*first >= 0.0) => w -= 0.02 * decay * w,
                        _ => {}
                    }
                    let hat = |moment: f64, beta: f64| moment / (1.0 - beta.powi(time));
                    let second = if largest { *most } else { *second };
                    w - 0.02 * hat(*first, beta_1) / (hat(second, 0.999).sqrt() + 1e-8)
                }
            };
            let context = format!("{options:?}");
            assert_follows::<2, _>(&context, |time| options.rule(time), reference(false));
            assert_follows::<3, _>(
                &format!("{context}, AMSGrad"),
                |time| options.rule(time),
                reference(true),
            );
        }
    }
}

/// Returns the weights after `steps` steps of LAMB, computed in f64 from algorithm 2 of the paper. The
/// gradient of a weight `w` is `2w + 0.3`.
fn lamb_in_f64(options: LambOptions, start: &[f32], steps: i32) -> Vec<f64> {
    let LambOptions { lr, beta_1, beta_2, epsilon, weight_decay } = options;
    let mut weights: Vec<f64> = start.iter().map(|&w| f64::from(w)).collect();
    let mut moments = vec![[0.0; 2]; start.len()];
    for time in 1..=steps {
        let ratio = |(w, [first, second]): (&f64, &mut [f64; 2])| {
            let g = 2.0 * w + 0.3;
            *first = beta_1 * *first + (1.0 - beta_1) * g;
            *second = beta_2 * *second + (1.0 - beta_2) * g * g;
            let hat = |moment: f64, beta: f64| moment / (1.0 - beta.powi(time));
            hat(*first, beta_1) / (hat(*second, beta_2).sqrt() + epsilon) + weight_decay * w
        };
        let updates: Vec<f64> = weights.iter().zip(&mut moments).map(ratio).collect();
        let norm = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>().sqrt();
        let trust = match (norm(&weights), norm(&updates)) {
            (of_weights, of_update) if of_weights > 0.0 && of_update > 0.0 => of_weights / of_update,
            _ => 1.0,
        };
        weights.iter_mut().zip(updates).for_each(|(w, update)| *w -= lr * trust * update);
    }
    weights
}

#[test]
fn lamb_follows_its_definition_with_the_same_bits_at_every_level() {
    let plain = LambOptions { lr: 0.02, ..LambOptions::default() };
    let start: Vec<f32> = (0..LEN).map(|i| (i as f32 - 18.5) / 9.0).collect();
    // The norm of a tensor of zeros is 0, so its first update is not scaled.
    let starts = [start, vec![0.0; LEN]];
    for (options, start) in [plain, LambOptions { beta_1: 0.85, weight_decay: DECAY, ..plain }]
        .into_iter()
        .flat_map(|options| starts.iter().map(move |start| (options, start)))
    {
        for steps in [1, STEPS] {
            let mut bits = Vec::new();
            for level in Level::available() {
                let _held = level.hold();
                let (mut weights, mut moments) = (start.clone(), [vec![0.0; LEN], vec![0.0; LEN]]);
                for time in 1..=steps {
                    let mut gradients: Vec<f32> = weights.iter().map(|w| 2.0 * w + 0.3).collect();
                    let moments = moments.each_mut().map(Vec::as_mut_slice);
                    options.update(time, &mut weights, &mut gradients, moments);
                }
                let tolerance = if steps == 1 { 1e-6 } else { 1e-5 };
                for (&found, expected) in weights.iter().zip(lamb_in_f64(options, start, steps as i32)) {
                    let off = (f64::from(found) - expected).abs();
                    assert!(off < tolerance, "{options:?}, {level}: {found} for {expected}");
                }
                bits.push(weights.iter().map(|w| w.to_bits()).collect::<Vec<_>>());
            }
            assert!(bits.iter().all(|level| level == &bits[0]), "{options:?}: bits differ between levels");
        }
    }
}

#[test]
fn sgd_follows_its_definition_with_the_same_bits_at_every_level() {
    let plain = SgdOptions { lr: 0.02, weight_decay: DECAY, ..SgdOptions::default() };
    assert_follows::<0, _>("SGD", |_| plain.rule(), |w, g, _, _| w - 0.02 * (g + DECAY * w));
    for (momentum, dampening, nesterov) in
        [(0.0, 0.0, false), (0.9, 0.0, false), (0.9, 0.0, true), (0.9, 0.3, false), (0.9, 0.3, true)]
    {
        let options = SgdOptions { momentum, nesterov, ..plain };
        let damped = |first: bool| if first { 0.0 } else { dampening };
        assert_follows::<1, _>(
            &format!("{options:?}, dampening {dampening}"),
            |time| SgdOptions { dampening: damped(time == 1), ..options }.rule(),
            |w, mut g, [velocity, ..], time| {
                g += DECAY * w;
                *velocity = momentum * *velocity + (1.0 - damped(time == 1)) * g;
                w - 0.02 * if nesterov { g + momentum * *velocity } else { *velocity }
            },
        );
    }
}

#[test]
fn rmsprop_follows_its_definition_with_the_same_bits_at_every_level() {
    for momentum in [0.0, 0.9] {
        let options = RmspropOptions { lr: 0.02, momentum, weight_decay: DECAY, ..RmspropOptions::default() };
        let reference = |w: f64, mut g: f64, [square, velocity, _]: &mut [f64; 3], _: i32| {
            g += DECAY * w;
            *square = 0.99 * *square + 0.01 * g * g;
            *velocity = momentum * *velocity + g / (square.sqrt() + 1e-8);
            w - 0.02 * *velocity
        };
        let context = format!("{options:?}");
        assert_follows::<2, _>(&context, |_| options.rule(), reference);
        if momentum == 0.0 {
            assert_follows::<1, _>(&format!("{context}, no velocity"), |_| options.rule(), reference);
        }
    }
}

#[test]
fn the_first_step_of_adam_is_the_learning_rate_whatever_the_gradient() {
    for level in Level::available() {
        let _held = level.hold();
        for gradient in [1e-3f32, 1.0, 1e3] {
            let (mut weight, [mut first, mut second]) = ([1.0f32], [[0.0]; 2]);
            let rule = AdamOptions { lr: 0.01, ..AdamOptions::default() }.rule(1);
            update(rule, &mut weight, &[gradient], [&mut first, &mut second]);
            assert!((weight[0] - 0.99).abs() < 1e-6, "{level}, gradient {gradient}: {}", weight[0]);
        }
    }
}

#[test]
fn an_update_goes_on_from_its_moments_alone() {
    let adam = AdamOptions { lr: 0.1, decay: Decay::L2(DECAY), ..AdamOptions::default() };
    let step = |time, weights: &mut [f32], gradients: &[f32], moments: &mut [Vec<f32>; 2]| {
        update(adam.rule(time), weights, gradients, moments.each_mut().map(Vec::as_mut_slice));
    };
    let (mut whole, mut moments) = ([1.0, -1.0], [vec![0.0; 2], vec![0.0; 2]]);
    step(1, &mut whole, &[0.25, 0.5], &mut moments);
    let (mut cut, mut restored) = (whole, moments.clone());
    step(2, &mut whole, &[0.5, -0.5], &mut moments);
    step(2, &mut cut, &[0.5, -0.5], &mut restored);
    assert_eq!((whole, moments), (cut, restored));
}

#[test]
#[should_panic(expected = "2 weights have 3 gradients and [2] moments")]
fn slices_of_different_lengths_are_rejected() {
    update(SgdOptions::default().rule(), &mut [0.0; 2], &[0.0; 3], [&mut [0.0; 2]]);
}

#[test]
fn penalties_are_the_slopes_of_what_they_add_to_the_loss() {
    let weights = [2.0, -4.0, 0.0, 8.0];
    let slopes = |l1, l2, mut gradients: [f32; 4]| {
        add_penalties(l1, l2, &weights, &mut gradients);
        gradients
    };
    assert_eq!(slopes(0.5, 0.0, [0.0; 4]), [0.5, -0.5, 0.0, 0.5]);
    assert_eq!(slopes(0.0, 0.25, [1.0; 4]), [2.0, -1.0, 1.0, 5.0]);
}

#[test]
fn sums_of_squares_have_the_same_bits_at_every_level_and_on_any_threads() {
    let values: Vec<f32> = (0..100_003).map(|i| ((i * 7919) % 1000) as f32 / 300.0 - 1.7).collect();
    let sum = |level: Level, threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        pool.install(|| {
            let _held = level.hold();
            square_sum(&values)
        })
    };
    let sums: Vec<f64> =
        Level::available().flat_map(|level| [1, 2, 3].map(|threads| sum(level, threads))).collect();
    assert!(sums.iter().all(|sum| sum.to_bits() == sums[0].to_bits()), "{sums:?}");
    let plain: f64 = values.iter().map(|&x| f64::from(x).powi(2)).sum();
    assert!((sums[0] - plain).abs() < 1e-9 * plain, "{} for {plain}", sums[0]);
    assert_eq!(square_sum(&[]).to_bits(), 0);
}

#[test]
fn scaling_tells_of_values_that_were_not_finite() {
    let mut values = [1.0, -3.0, f32::MAX];
    assert!(scale(&mut values, 2.0), "finite before");
    assert_eq!(values, [2.0, -6.0, f32::INFINITY]);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut values = [1.0, bad, 3.0];
        assert!(!scale(&mut values, 0.5), "{bad}");
        assert_eq!([values[0], values[2]], [0.5, 1.5]);
    }
}

#[test]
#[should_panic(expected = "step 0")]
fn adam_has_no_step_0() {
    let _ = AdamOptions::default().rule(0);
}
