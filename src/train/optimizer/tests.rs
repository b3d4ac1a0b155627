//! Checks the updates of each optimizer against values computed by hand.

use std::ops::Range;

use super::*;
use crate::train::RunConfig;

/// Gradients of a share, each with the index of its first value in the flat vector of parameters.
struct Given(Vec<(usize, Vec<f32>)>);

impl AveragedGradients for Given {
    fn share_length(&self) -> Result<usize, CommError> {
        Ok(self.0.iter().map(|(_, gradient)| gradient.len()).sum())
    }

    fn pieces(&mut self) -> Result<Vec<Piece<'_>>, CommError> {
        let mut start = 0;
        let piece = |(param, (first, gradient)): (usize, &'_ mut (usize, Vec<f32>))| {
            start += gradient.len();
            (param, *first..*first + gradient.len(), start - gradient.len())
        };
        let places: Vec<_> = self.0.iter_mut().enumerate().map(piece).collect();
        let pieces = places.into_iter().zip(&mut self.0);
        Ok(pieces
            .map(|((param, range, start), (_, gradient))| Piece { param, range, start, gradient })
            .collect())
    }

    fn clip_norm(&mut self, max: f64) -> Result<(), CommError> {
        let norm = self.0.iter().map(|(_, gradient)| flat::square_sum(gradient)).sum::<f64>().sqrt();
        if max < norm {
            self.0.iter_mut().for_each(|(_, gradient)| _ = flat::scale(gradient, (max / norm) as f32));
        }
        Ok(())
    }
}

/// Returns the optimizer of a run with these options, and its initial rate.
fn optimizer(options: &str) -> (Optimizer, Rate) {
    let words: Vec<String> = options.split_whitespace().map(str::to_owned).collect();
    let config = RunConfig::read(&words).unwrap();
    (Optimizer::new(&config), config.base_rate())
}

/// Returns the weights after one step with each gradient in `steps`.
fn updated<const N: usize>(options: &str, mut params: [f32; N], steps: &[[f32; N]]) -> [f32; N] {
    let (mut optimizer, rate) = optimizer(options);
    for gradients in steps {
        let mut given = Given(vec![(0, gradients[..1].to_vec()), (1, gradients[1..].to_vec())]);
        optimizer.update(&mut params, &mut given, rate).unwrap();
    }
    assert_eq!(optimizer.updates(), steps.len() as u64);
    params
}

#[track_caller]
fn assert_close<const N: usize>(found: [f32; N], expected: [f32; N], context: &str) {
    let close = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-6);
    assert!(close, "{context}: {found:?} for {expected:?}");
}

#[test]
fn each_kind_takes_the_options_of_the_run() {
    // With the L2 penalty 0.1 * weight, gradients 0.4 and -0.2 become 0.5 and -0.4.
    let (start, gradients) = ([1.0, -2.0], [0.4, -0.2]);
    let once = |options: &str| updated(&format!("--lr 0.1 {options}"), start, &[gradients]);
    assert_close(once("--optimizer adam --weight-decay 0.1"), [0.9, -1.9], "adam");
    assert_close(once("--optimizer adamw --weight-decay 0.1"), [0.89, -1.88], "adamw");
    assert_close(once("--optimizer sgd --weight-decay 0.1"), [0.95, -1.96], "sgd");
    // Each update of LAMB is scaled by the norm of its parameter's weight, here to the size of the weight.
    assert_close(once("--optimizer lamb --weight-decay 0.1"), [0.9, -1.8], "lamb");
    // After one step, the root of RMSprop's mean square is a tenth of the gradient.
    assert_close(once("--optimizer rmsprop --weight-decay 0.1"), [0.0, -1.0], "rmsprop");
    let twice = |options: &str| {
        let options = format!("--lr 0.1 --weight-decay 0 {options}");
        updated(&options, start, &[gradients, [0.0; 2]])
    };
    assert_close(twice("--optimizer sgd"), [0.96, -1.98], "no momentum");
    assert_close(twice("--optimizer sgd --momentum 0.5"), [0.94, -1.97], "sgd with momentum");
    assert_close(twice("--optimizer rmsprop --momentum 0.5"), [-0.5, -0.5], "rmsprop with momentum");
    // The second step's moments are 0.9 * 0.1 of the first gradient and 0.999 * 0.001 of its square. Their
    // bias corrections are 0.19 and 0.001999.
    let step = 0.1 * (0.09 / 0.19) / (0.000999f32 / 0.001999).sqrt();
    assert_close(twice("--optimizer adam"), [0.9 - step, -1.9 + step], "adam's second step");
}

#[test]
fn an_optimizer_goes_on_from_its_moments_alone() {
    for options in
        ["--optimizer adam", "--optimizer sgd --momentum 0.5", "--optimizer rmsprop --momentum 0.5"]
    {
        let update = |optimizer: &mut Optimizer, rate, params: &mut [f32], gradients: [f32; 2]| {
            let mut given = Given(vec![(0, gradients.to_vec())]);
            optimizer.update(params, &mut given, rate).unwrap();
        };
        let options = format!("{options} --weight-decay 0.01");
        let (mut whole, (mut first, rate)) = ([1.0f32, -1.0], optimizer(&options));
        update(&mut first, rate, &mut whole, [0.25, 0.5]);
        let (mut cut, (mut second, _)) = (whole, optimizer(&options));
        second.restore(first.moments.clone(), first.updates()).unwrap();
        update(&mut first, rate, &mut whole, [0.5, -0.5]);
        update(&mut second, rate, &mut cut, [0.5, -0.5]);
        assert_eq!((whole, first), (cut, second), "{options}");
    }
}

/// Two ranks with shares of uneven lengths, which cut a parameter, have together the bits of one rank.
#[test]
fn shares_of_the_parameters_are_updated_alone() {
    for options in ["adam", "adamw", "sgd", "sgd --momentum 0.5", "rmsprop", "rmsprop --momentum 0.5"] {
        let options = format!("--optimizer {options} --weight-decay 0.01 --l1 0.1 --l2 0.2");
        let start = [1.0, -2.0, 0.5, 3.0, -0.25];
        let steps = [[0.25, 0.5, -0.5, 1.0, 2.0], [0.5, -0.25, 0.125, -1.0, 0.75]];
        let update = |shares: &[&[Range<usize>]]| {
            let mut whole = start;
            for pieces in shares {
                let ((mut optimizer, rate), mut params) = (optimizer(&options), start);
                for gradients in steps {
                    let piece = |range: &Range<usize>| (range.start, gradients[range.clone()].to_vec());
                    let mut given = Given(pieces.iter().map(piece).collect());
                    optimizer.update(&mut params, &mut given, rate).unwrap();
                }
                let length = pieces.iter().map(|range| range.len()).sum::<usize>();
                assert!(optimizer.moments.iter().all(|(_, moment)| moment.len() == length), "{options}");
                for range in *pieces {
                    whole[range.clone()].copy_from_slice(&params[range.clone()]);
                }
            }
            whole
        };
        assert_eq!(update(&[&[0..2, 4..5], &[2..3, 3..4]]), update(&[&[0..3, 3..5]]), "{options}");
    }
}

#[test]
fn moments_of_another_optimizer_are_refused_and_both_named() {
    let (adam, _) = optimizer("--optimizer adam");
    let (mut sgd, _) = optimizer("--optimizer sgd --momentum 0.5");
    let message = sgd.restore(adam.moments, 1).unwrap_err().to_string();
    assert!(message.contains("first, second") && message.contains("velocity"), "{message}");
}

/// Returns the gradients that reach the optimizer. With SGD and `--lr 1`, a step decreases the weights by the
/// gradients.
fn taken(options: &str, weights: [f32; 4], gradients: [f32; 4]) -> [f32; 4] {
    let params =
        updated(&format!("--optimizer sgd --lr 1 --weight-decay 0 {options}"), weights, &[gradients]);
    std::array::from_fn(|at| weights[at] - params[at])
}

#[test]
fn penalties_are_added_to_the_gradients() {
    let weights = [2.0, -4.0, 0.0, 8.0];
    assert_eq!(taken("--l1 0.5", weights, [0.0; 4]), [0.5, -0.5, 0.0, 0.5]);
    assert_eq!(taken("--l2 0.25", weights, [1.0; 4]), [2.0, -1.0, 1.0, 5.0]);
}

#[test]
fn gradients_are_clipped_by_the_norm_over_all_parameters() {
    let gradients = [3.0, 0.0, 4.0, 0.0];
    assert_eq!(taken("--clip-norm 5.1", [0.0; 4], gradients), gradients, "below the norm");
    assert_close(taken("--clip-norm 1", [0.0; 4], gradients), [0.6, 0.0, 0.8, 0.0], "clipped");
    // The norm includes penalties; without them it would be 0.
    assert_close(taken("--clip-norm 1 --l1 1", [1.0; 4], [0.0; 4]), [0.5; 4], "of penalties");
}
