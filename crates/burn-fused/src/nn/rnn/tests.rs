//! The layers are compared with Burn's.

use burn::nn::{self, LstmState};

use super::*;
use crate::nn::testing::{Part, assert_close, random, results};
use crate::simd::Level;

/// The states of inputs, then hidden states, then cells, as tensors of one number of dimensions.
fn state(tensors: &[Tensor<3>]) -> Option<LstmState<2>> {
    let [_, hidden, cell] = tensors else { return None };
    Some(LstmState::new(cell.clone().squeeze_dim(0), hidden.clone().squeeze_dim(0)))
}

/// The output and the states side by side, each of another weight in the gradient.
fn joined((output, state): (Tensor<3>, LstmState<2>)) -> Tensor<1> {
    let parts = [output.flatten(0, 2), state.hidden.flatten(0, 1), state.cell.flatten(0, 1)];
    Tensor::cat(parts.to_vec(), 0)
}

/// Outputs and gradients of ours and of Burn's.
fn both(burns: &nn::Lstm, tensors: &[Tensor<3>]) -> [Vec<Part>; 2] {
    let ours = Lstm::from(burns.clone());
    [
        results(&ours, tensors, |layer, x| joined(layer.forward(x[0].clone(), state(x)))),
        results(burns, tensors, |layer, x| joined(layer.forward(x[0].clone(), state(x)))),
    ]
}

#[test]
fn lstm_is_burns() {
    let device = Device::flex().autodiff();
    let mut seed = 0;
    for [batch, steps, width, hidden] in
        [[1, 1, 2, 3], [3, 5, 4, 7], [13, 4, 3, 16], [2, 9, 20, 33], [7, 3, 5, 80], [9, 6, 16, 64]]
    {
        for bits in 0..32 {
            let bit = |at: u32| bits >> at & 1 == 1;
            seed += 1;
            device.seed(seed);
            let config = nn::LstmConfig::new(width, hidden, bit(0))
                .with_initializer(Initializer::Uniform { min: -0.6, max: 0.6 })
                .with_batch_first(bit(1))
                .with_reverse(bit(2))
                .with_input_forget(bit(3))
                .with_clip((bits % 3 == 0).then_some(0.2));
            let shape = if bit(1) { [batch, steps, width] } else { [steps, batch, width] };
            let mut tensors = vec![random(shape, 1, &device)];
            if bit(4) {
                tensors.extend([2, 3].map(|seed| random([1, batch, hidden], seed, &device)));
            }
            for level in Level::available().take(if bits < 8 { 4 } else { 1 }) {
                let _held = level.hold();
                let [ours, burns] = both(&config.init(&device), &tensors);
                assert_close(&ours, &burns, &format!("{batch} x {steps} at {level}, {config}"));
            }
        }
    }
}
