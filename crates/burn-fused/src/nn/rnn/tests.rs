//! Checks the layers against Burn's.

use burn::module::Module;
use burn::nn::activation::ActivationConfig;
use burn::nn::{self, LstmState};
use burn::tensor::Int;

use super::*;
use crate::kernels::simd::Level;
use crate::ops::testing::{Part, assert_close, autodiff_devices, random, results};

/// Numbers of sequences, steps, inputs and hidden units.
const SIZES: [[usize; 4]; 6] =
    [[1, 1, 2, 3], [3, 5, 4, 7], [13, 4, 3, 16], [2, 9, 20, 33], [7, 3, 5, 80], [9, 6, 16, 64]];

/// Returns inputs of this shape. If `repeat` is set, only a third of the rows differ.
fn inputs(shape @ [first, second, width]: [usize; 3], repeat: bool, device: &Device) -> Tensor<3> {
    if !repeat {
        return random(shape, 1, device);
    }
    let rows = first * second;
    let numbers: Vec<i32> = (0..rows as i32).map(|row| row * row % rows.div_ceil(3) as i32).collect();
    let numbers = Tensor::<1, Int>::from_data(&numbers[..], device);
    random([1, rows.div_ceil(3), width], 1, device).select(1, numbers).reshape(shape)
}

/// Returns the state in `tensors`, which are inputs, hidden states and cells, all with three dimensions.
/// Returns `None` if there are only inputs.
fn state(tensors: &[Tensor<3>]) -> Option<LstmState<2>> {
    let [_, hidden, cell] = tensors else { return None };
    Some(LstmState::new(cell.clone().squeeze_dim(0), hidden.clone().squeeze_dim(0)))
}

/// Joins output and states to one tensor. [`results`] then weights the values of output and states
/// differently in the sum whose gradients it returns.
fn joined((output, state): (Tensor<3>, LstmState<2>)) -> Tensor<1> {
    let parts = [output.flatten(0, 2), state.hidden.flatten(0, 1), state.cell.flatten(0, 1)];
    Tensor::cat(parts.to_vec(), 0)
}

/// Returns outputs and gradients of the fused layer, then of Burn's.
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
    for [batch, steps, width, hidden] in SIZES {
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
            let mut tensors = vec![inputs(shape, bits % 3 == 1, &device)];
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

#[test]
fn gru_is_burns() {
    let device = Device::flex().autodiff();
    let mut seed = 100;
    for [batch, steps, width, hidden] in SIZES {
        for bits in 0..8 {
            let bit = |at: u32| bits >> at & 1 == 1;
            seed += 1;
            device.seed(seed);
            let config = nn::GruConfig::new(width, hidden, bit(0))
                .with_initializer(Initializer::Uniform { min: -0.6, max: 0.6 })
                .with_reset_after(bits != 5)
                .with_clip(bit(1).then_some(0.2));
            let burns = config.init(&device);
            let ours = Gru::from(burns.clone());
            let mut tensors = vec![inputs([batch, steps, width], bits % 3 == 1, &device)];
            if bit(2) {
                tensors.push(random([1, batch, hidden], 2, &device));
            }
            let state = |x: &[Tensor<3>]| x.get(1).map(|state| state.clone().squeeze_dim(0));
            let expected = results(&burns, &tensors, |layer, x| layer.forward(x[0].clone(), state(x)));
            for level in Level::available() {
                let _held = level.hold();
                let found = results(&ours, &tensors, |layer, x| layer.forward(x[0].clone(), state(x)));
                assert_close(&found, &expected, &format!("{batch} x {steps} at {level}, {config}"));
            }
        }
    }
}

#[test]
fn both_directions_are_burns() {
    let [device, checkpointing] = autodiff_devices();
    for (bits, device) in (0..8).map(|bits| (bits, &device)).chain([(7, &checkpointing)]) {
        let bit = |at: u32| bits >> at & 1 == 1;
        let (batch, steps, width, hidden) = (3, 5, 6, 20);
        let shape = if bit(0) { [batch, steps, width] } else { [steps, batch, width] };
        let mut tensors = vec![random(shape, 1, device)];
        if bit(1) {
            tensors.extend([2, 3].map(|seed| random([2, batch, hidden], seed, device)));
        }
        let state = |x: &[Tensor<3>]| {
            let [_, hidden, cell] = x else { return None };
            Some(LstmState::new(cell.clone(), hidden.clone()))
        };
        let joined =
            |parts: Vec<Tensor<3>>| Tensor::<1>::cat(parts.into_iter().map(|x| x.flatten(0, 2)).collect(), 0);
        let lstm =
            |(output, state): (Tensor<3>, LstmState<3>)| joined(vec![output, state.cell, state.hidden]);
        let burns =
            nn::BiLstmConfig::new(width, hidden, true).with_batch_first(bit(0)).with_input_forget(bit(2));
        let burns = burns.init(device);
        let ours = BiLstm::from(burns.clone());
        let found: Vec<Part> =
            results(&ours, &tensors, |layer, x| lstm(layer.forward(x[0].clone(), state(x))));
        let expected = results(&burns, &tensors, |layer, x| lstm(layer.forward(x[0].clone(), state(x))));
        assert_close(&found, &expected, &format!("LSTM {bits}"));

        tensors.truncate(2);
        let gru = |(output, state): (Tensor<3>, Tensor<3>)| joined(vec![output, state]);
        let burns = nn::BiGruConfig::new(width, hidden, bit(2)).with_batch_first(bit(0)).init(device);
        let ours = BiGru::from(burns.clone());
        let found = results(&ours, &tensors, |layer, x| gru(layer.forward(x[0].clone(), x.get(1).cloned())));
        let expected =
            results(&burns, &tensors, |layer, x| gru(layer.forward(x[0].clone(), x.get(1).cloned())));
        assert_close(&found, &expected, &format!("GRU {bits}"));
    }
}

/// Returns the inputs of two sequences of 4 steps with 5 values each, as a view.
fn view(device: &Device) -> Vec<Tensor<3>> {
    vec![random([4, 5, 2], 3, device).swap_dims(0, 2).swap_dims(1, 2)]
}

#[test]
fn layers_are_used_twice_and_share_or_freeze_parameters() {
    let device = Device::flex().autodiff();
    let mut burns = nn::LstmConfig::new(5, 5, true).init(&device);
    burns.output_gate = burns.input_gate.clone();
    burns.cell_gate.hidden_transform = burns.cell_gate.input_transform.clone();
    burns.cell_gate = burns.cell_gate.no_grad();
    let ours = Lstm::from(burns.clone());
    let found = results(&ours, &view(&device), |layer, x| {
        let (output, state) = layer.forward(x[0].clone(), None);
        joined(layer.forward(output, Some(state)))
    });
    let expected = results(&burns, &view(&device), |layer, x| {
        let (output, state) = layer.forward(x[0].clone(), None);
        joined(layer.forward(output, Some(state)))
    });
    assert_close(&found, &expected, "LSTM");

    let mut burns = nn::GruConfig::new(5, 5, true).init(&device);
    burns.new_gate = burns.reset_gate.clone();
    burns.update_gate = burns.update_gate.no_grad();
    let ours = Gru::from(burns.clone());
    let twice = |output: Tensor<3>| output.clone() * output;
    let found = results(&ours, &view(&device), |layer, x| {
        layer.forward(twice(layer.forward(x[0].clone(), None)), None)
    });
    let expected = results(&burns, &view(&device), |layer, x| {
        layer.forward(twice(layer.forward(x[0].clone(), None)), None)
    });
    assert_close(&found, &expected, "GRU");
}

#[test]
fn the_last_states_alone_have_gradients() {
    let device = Device::flex().autodiff();
    let burns = nn::LstmConfig::new(5, 7, true).init(&device);
    let ours = Lstm::from(burns.clone());
    let found = results(&ours, &view(&device), |layer, x| layer.forward(x[0].clone(), None).1.cell);
    let expected = results(&burns, &view(&device), |layer, x| layer.forward(x[0].clone(), None).1.cell);
    assert_close(&found, &expected, "cells");
    let found = results(&ours, &view(&device), |layer, x| layer.forward(x[0].clone(), None).1.hidden);
    let expected = results(&burns, &view(&device), |layer, x| layer.forward(x[0].clone(), None).1.hidden);
    assert_close(&found, &expected, "hidden states");
}

fn part<const D: usize>(name: &str, tensor: Tensor<D>) -> Part {
    (name.into(), tensor.into_data().try_into_vec_as().expect("floats"))
}

/// Returns outputs and states without gradients: first of the fused layers, then of Burn's.
fn outputs(x: &Tensor<3>, lstm: &nn::Lstm, gru: &nn::Gru) -> [Vec<Part>; 2] {
    let parts = |(output, state): (Tensor<3>, LstmState<2>), gru_output| {
        vec![
            part("LSTM", output),
            part("cell", state.cell),
            part("hidden", state.hidden),
            part("GRU", gru_output),
        ]
    };
    let ours = Lstm::from(lstm.clone()).forward(x.clone(), None);
    [
        parts(ours, Gru::from(gru.clone()).forward(x.clone(), None)),
        parts(lstm.forward(x.clone(), None), gru.forward(x.clone(), None)),
    ]
}

#[test]
fn without_autodiff_and_of_nothing_outputs_are_burns() {
    for device in [Device::flex(), Device::flex().autodiff()] {
        let lstm = nn::LstmConfig::new(5, 33, true).init(&device);
        let gru = nn::GruConfig::new(5, 33, false).init(&device);
        for shape in [[3, 4, 5], [0, 4, 5], [3, 0, 5]] {
            let [ours, burns] = outputs(&random(shape, 2, &device), &lstm, &gru);
            assert_close(&ours, &burns, &format!("{shape:?}"));
        }
        let x = random([3, 4, 5], 2, &device);
        for activation in [ActivationConfig::Relu, ActivationConfig::HardSwish] {
            let lstm = nn::LstmConfig::new(5, 6, true).with_hidden_activation(activation.clone());
            let gru = nn::GruConfig::new(5, 6, true).with_hidden_activation(activation.clone());
            let [ours, burns] = outputs(&x, &lstm.init(&device), &gru.init(&device));
            assert_close(&ours, &burns, &format!("{activation}"));
        }
    }
}

#[test]
fn non_finite_values_are_where_burns_are() {
    let device = Device::flex().autodiff();
    let cases = [(f32::NAN, 5), (f32::INFINITY, 5), (f32::NEG_INFINITY, 16)];
    for ((number, hidden), repeat) in cases.into_iter().flat_map(|case| [(case, false), (case, true)]) {
        let lstm = nn::LstmConfig::new(16, hidden, true).init(&device);
        let x = inputs([2, 4, 16], repeat, &device);
        let bad = Tensor::full([1, 1, 1], number, &device);
        let x = [x.slice_assign(s![1..2, 2..3, 1..2], bad)];
        let finite = |parts: Vec<Part>| -> Vec<(String, Vec<bool>)> {
            parts
                .into_iter()
                .map(|(name, values)| (name, values.iter().map(|x| x.is_finite()).collect()))
                .collect()
        };
        let [ours, burns] = both(&lstm, &x).map(finite);
        assert_eq!(ours, burns, "{number} in an LSTM of {hidden}");
        let gru = nn::GruConfig::new(16, hidden, true).init(&device);
        let found = results(&Gru::from(gru.clone()), &x, |layer, x| layer.forward(x[0].clone(), None));
        let expected = results(&gru, &x, |layer, x| layer.forward(x[0].clone(), None));
        assert_eq!(finite(found), finite(expected), "{number} in a GRU of {hidden}");
    }
}

#[test]
fn they_are_shown_configured_and_recorded_as_burns() {
    let device = Device::flex();
    let lstm = BiLstmConfig::new(3, 4, true).with_input_forget(true).with_clip(Some(2.0));
    assert_eq!(lstm.to_string(), nn::BiLstmConfig::from(lstm.clone()).to_string());
    let gru = BiGruConfig::new(3, 4, false).with_reset_after(false);
    assert_eq!(gru.to_string(), nn::BiGruConfig::from(gru.clone()).to_string());
    let (lstm, gru) = (lstm.init(&device), gru.init(&device));
    let (burns_lstm, burns_gru) = (nn::BiLstm::from(lstm.clone()), nn::BiGru::from(gru.clone()));
    assert_eq!((lstm.to_string(), gru.to_string()), (burns_lstm.to_string(), burns_gru.to_string()));
    let other = BiLstmConfig::new(3, 4, true).with_input_forget(true).with_clip(Some(2.0)).init(&device);
    let loaded = other.load_record(burns_lstm.clone().into_record());
    let x = random([2, 3, 3], 1, &device);
    let found = loaded.forward(x.clone(), None).0;
    assert_close(&[part("output", found)], &[part("output", burns_lstm.forward(x, None).0)], "of a record");
}

#[test]
#[should_panic(expected = "Forget gate must be present")]
fn a_missing_forget_gate_is_a_panic() {
    let mut lstm = LstmConfig::new(3, 4, true).init(&Device::flex());
    lstm.forget_gate = None;
    lstm.forward(random([2, 3, 3], 1, &Device::flex()), None);
}

#[test]
fn configurations_take_our_activations() {
    let activation = crate::nn::activation::ActivationConfig::Relu;
    let config = GruConfig::new(2, 3, true).with_hidden_activation(activation.clone());
    let layer = config.init(&Device::flex());
    assert!(matches!(layer.hidden_activation, crate::nn::activation::Activation::Relu(_)));
    let layer = LstmConfig::new(2, 3, true).with_cell_activation(activation).init(&Device::flex());
    assert!(matches!(layer.cell_activation, crate::nn::activation::Activation::Relu(_)));
}
