//! Training without images or classes: fits a line through points.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData};
use burn_mpi::{MpiCollective, World};

use super::*;

#[derive(Module, Debug)]
struct Line {
    linear: Linear,
}

impl Model for Line {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn apply(&self, input: Tensor<2>, _place: Option<&BatchPlace>) -> Tensor<2> {
        self.linear.forward(input)
    }
}

/// Two features and a float target per sample.
struct Points {
    features: Vec<[f32; 2]>,
    targets: Vec<f32>,
}

impl Samples for Points {
    type Input = Tensor<2>;
    type Target = Vec<f32>;

    fn count(&self) -> usize {
        self.targets.len()
    }

    fn batch(&self, range: Range<usize>, device: &Device) -> (Tensor<2>, Vec<f32>) {
        let features = self.features[range.clone()].as_flattened().to_vec();
        let input = TensorData::new(features, [range.len(), 2]);
        (Tensor::from_data(input, device), self.targets[range].to_vec())
    }
}

struct MeanSquares;

impl Loss<Tensor<2>, Vec<f32>> for MeanSquares {
    fn score(&self, output: Tensor<2>, target: Vec<f32>) -> Scored {
        let samples = target.len();
        let target = Tensor::from_data(TensorData::new(target, [samples, 1]), &output.device());
        let loss = (output - target).square().mean();
        let value = f64::from(loss.clone().into_scalar::<f32>());
        Scored { loss, tally: Tally::of_batch(value, 0, samples) }
    }
}

fn options() -> RunConfig {
    RunConfig::read(["--seed=1", "--train-batch-size=2", "--lr=0.05", "--weight-decay=0"]).unwrap()
}

#[test]
fn a_regression_finds_the_line_through_its_points() {
    let world = World::init().expect("a world of one");
    let line = LinearConfig::new(2, 1).init(&Device::flex().autodiff());
    let collective = Box::new(MpiCollective::new(&world).expect("a transport"));
    let mut learner = Learner::new(&world, &options(), Line { linear: line }, Plain, MeanSquares, collective)
        .expect("a learner");
    // Five samples are micro-batches of two, two and one.
    let features = vec![[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 0.5]];
    let targets = features.iter().map(|[x, y]| 2.0 * x - 3.0 * y + 0.5).collect();
    let points = Points { features, targets };
    let mut losses = Vec::new();
    for _ in 0..400 {
        let (tally, signals) = learner.step(&points, 5, false).expect("a step");
        assert_eq!((tally.samples, signals.not_finite), (5.0, 0.0));
        losses.push(tally.mean_loss());
    }
    assert!(losses[0] > 1.0 && losses[399] < 1e-6, "{} to {}", losses[0], losses[399]);
    for (found, expected) in learner.params.iter().zip([2.0, -3.0, 0.5]) {
        assert!((found - expected).abs() < 1e-2, "{:?}", learner.params);
    }
}
