//! The random samples of a micro-batch of a test case. Every rank can draw the samples of every other rank.

use burn::tensor::{Device, Int, Tensor, TensorData};

use super::draw::{Draw, Purpose};
use super::plan::{BatchId, Plan};

/// Inputs and targets of one micro-batch.
pub struct Samples {
    /// `[samples, inputs]`, within ±1.
    pub values: Tensor<2>,
    /// `[samples, tokens]`, below the vocabulary's size.
    pub tokens: Tensor<2, Int>,
    /// `[samples, outputs]`, within ±1, for the mean squared error.
    pub targets: Tensor<2>,
    /// `[samples, 1]`, below the number of outputs, for cross entropy.
    pub classes: Tensor<2, Int>,
}

impl Samples {
    /// The `count` samples of `batch`.
    pub fn at(plan: &Plan, batch: BatchId, count: usize, device: &Device) -> Self {
        let key = [batch.step, batch.rank, batch.micro, 0].map(|part| part as u16);
        let draw = &mut Draw::for_case(plan.seed, plan.index, Purpose::Samples, key);
        Self {
            values: floats(draw, [count, plan.inputs], device),
            tokens: integers(draw, [count, plan.tokens], plan.vocabulary, device),
            targets: floats(draw, [count, plan.outputs], device),
            classes: integers(draw, [count, 1], plan.outputs, device),
        }
    }
}

fn floats(draw: &mut Draw, shape: [usize; 2], device: &Device) -> Tensor<2> {
    let values: Vec<f32> = (0..shape[0] * shape[1]).map(|_| draw.between(-1.0, 1.0)).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

fn integers(draw: &mut Draw, shape: [usize; 2], below: usize, device: &Device) -> Tensor<2, Int> {
    let values: Vec<i64> = (0..shape[0] * shape[1]).map(|_| draw.below(below) as i64).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}
