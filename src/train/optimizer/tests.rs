//! Each rule against its definition in f64, at every SIMD level.

use super::*;
use burn_fused::simd::Level;

const DECAY: f64 = 0.01;

/// `steps` updates of one weight in f64, the gradient being `2w + 0.3`.
fn reference(rule: Rule, rate: Rate, steps: usize, mut w: f64) -> f64 {
    let Rate { lr, momentum } = rate;
    let (mut first, mut second) = (0.0, 0.0);
    for t in 1..=steps as i32 {
        let mut g = 2.0 * w + 0.3;
        match rule {
            Rule::Adamw => w -= lr * DECAY * w,
            _ => g += DECAY * w,
        }
        w -= lr
            * match rule {
                Rule::Adam | Rule::Adamw => {
                    first = momentum * first + (1.0 - momentum) * g;
                    second = 0.999 * second + 0.001 * g * g;
                    let hat = |moment: f64, beta: f64| moment / (1.0 - beta.powi(t));
                    hat(first, momentum) / (hat(second, 0.999).sqrt() + 1e-8)
                }
                Rule::Sgd => {
                    first = momentum * first + g;
                    first
                }
                Rule::Rmsprop => {
                    second = 0.99 * second + 0.01 * g * g;
                    first = momentum * first + g / (second.sqrt() + 1e-8);
                    first
                }
            };
    }
    w
}

/// Weights of two parameters: one shorter than any vector, the other of two of
/// the widest vectors and a remainder.
const LENGTHS: [usize; 2] = [1, 2 * 16 + 5];

fn start() -> Vec<f32> {
    (0..LENGTHS.iter().sum()).map(|i| (i as f32 - 18.5) / 9.0).collect()
}

fn updated(rule: Rule, rate: Rate, steps: usize, mut params: Vec<f32>) -> Vec<f32> {
    let mut optimizer = Optimizer::new(rule, DECAY, rate.momentum > 0.0, params.len());
    for _ in 0..steps {
        let grads: Vec<f32> = params.iter().map(|w| 2.0 * w + 0.3).collect();
        optimizer.begin();
        let (first, second) = params.split_at_mut(LENGTHS[0]);
        optimizer.apply(rate, 0, first, &grads[..LENGTHS[0]]);
        optimizer.apply(rate, LENGTHS[0], second, &grads[LENGTHS[0]..]);
    }
    assert_eq!(optimizer.updates(), steps as u64);
    params
}

#[test]
fn updates_follow_the_definitions_with_the_same_bits_at_every_level() {
    for (rule, momentum) in [
        (Rule::Adam, 0.9),
        (Rule::Adam, 0.85),
        (Rule::Adamw, 0.9),
        (Rule::Sgd, 0.0),
        (Rule::Sgd, 0.9),
        (Rule::Rmsprop, 0.0),
        (Rule::Rmsprop, 0.9),
    ] {
        let rate = Rate { lr: 0.02, momentum };
        let mut widest: Option<Vec<u32>> = None;
        for level in Level::available() {
            let _held = level.hold();
            let all = updated(rule, rate, 20, start());
            for (found, start) in all.iter().zip(start()) {
                let expected = reference(rule, rate, 20, f64::from(start));
                let off = (f64::from(*found) - expected).abs();
                assert!(off < 1e-5, "{rule}, momentum {momentum}, {level}: {found} for {expected}");
            }
            let bits: Vec<u32> = all.iter().map(|w| w.to_bits()).collect();
            assert_eq!(
                *widest.get_or_insert_with(|| bits.clone()),
                bits,
                "{rule}, momentum {momentum}, {level}"
            );
        }
    }
}

#[test]
fn the_first_update_of_adam_is_the_step_size_whatever_the_gradient() {
    for level in Level::available() {
        let _held = level.hold();
        for grad in [1e-3f32, 1.0, 1e3] {
            let mut adam = Optimizer::new(Rule::Adam, 0.0, false, 1);
            let mut param = [1.0f32];
            adam.begin();
            adam.apply(Rate { lr: 0.01, momentum: 0.9 }, 0, &mut param, &[grad]);
            assert!((param[0] - 0.99).abs() < 1e-6, "{level}, gradient {grad}: {}", param[0]);
        }
    }
}

#[test]
fn an_optimizer_goes_on_from_its_moments_alone() {
    for level in Level::available() {
        let _held = level.hold();
        for (rule, momentum) in [(Rule::Adam, 0.9), (Rule::Sgd, 0.5), (Rule::Rmsprop, 0.5)] {
            let rate = Rate { lr: 0.1, momentum };
            let (mut whole, mut first) = ([1.0f32, -1.0], Optimizer::new(rule, DECAY, true, 2));
            let update = |optimizer: &mut Optimizer, params: &mut [f32], grads: [f32; 2]| {
                optimizer.begin();
                optimizer.apply(rate, 0, params, &grads);
            };
            update(&mut first, &mut whole, [0.25, 0.5]);
            let mut cut = whole;
            let mut second = Optimizer::new(rule, DECAY, true, 2);
            second.restore(first.moments.clone(), first.updates()).unwrap();
            update(&mut first, &mut whole, [0.5, -0.5]);
            update(&mut second, &mut cut, [0.5, -0.5]);
            assert_eq!((whole, first), (cut, second), "{rule}, {level}");
        }
    }
}

#[test]
fn moments_of_another_rule_are_refused_and_both_named() {
    let adam = Optimizer::new(Rule::Adam, 0.0, false, 2);
    let mut sgd = Optimizer::new(Rule::Sgd, 0.0, true, 2);
    let message = sgd.restore(adam.moments.clone(), 1).unwrap_err().to_string();
    assert!(message.contains("first, second") && message.contains("velocity"), "{message}");
}
