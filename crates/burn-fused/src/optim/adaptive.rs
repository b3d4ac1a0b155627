//! The step of Adam and AdamW on the tensors of a parameter: its values, gradient and moments.

use burn::optim::AdaptiveMomentumState;
use burn::tensor::Tensor;

use super::flat::AdamOptions;
use super::tensors::{is_supported, update_tensors, zeros_like};

/// Returns the parameter and the state after a step. If `amsgrad` is set, the step is AMSGrad's.
///
/// # Panics
/// If the tensors are not [supported](is_state_supported).
pub fn adam_step<const D: usize>(
    options: AdamOptions,
    amsgrad: bool,
    tensor: Tensor<D>,
    gradient: Tensor<D>,
    state: Option<AdaptiveMomentumState<D>>,
) -> (Tensor<D>, AdaptiveMomentumState<D>) {
    let state =
        state.unwrap_or_else(|| AdaptiveMomentumState::new(0, zeros_like(&tensor), zeros_like(&tensor)));
    let AdaptiveMomentumState { time, moment_1, moment_2, mut max_moment_2 } = state;
    let time = time + 1;
    let rule = options.rule(time as u64);
    let (tensor, moment_1, moment_2) = if amsgrad {
        let most = max_moment_2.take().unwrap_or_else(|| zeros_like(&tensor));
        let (tensor, [first, second, most]) =
            update_tensors(rule, tensor, gradient, [moment_1, moment_2, most]);
        max_moment_2 = Some(most);
        (tensor, first, second)
    } else {
        let (tensor, [first, second]) = update_tensors(rule, tensor, gradient, [moment_1, moment_2]);
        (tensor, first, second)
    };
    (tensor, AdaptiveMomentumState { time, moment_1, moment_2, max_moment_2 })
}

/// Returns whether [`adam_step`] supports these tensors.
pub fn is_state_supported<const D: usize>(
    tensor: &Tensor<D>,
    gradient: &Tensor<D>,
    state: Option<&AdaptiveMomentumState<D>>,
) -> bool {
    let moments = state
        .into_iter()
        .flat_map(|state| [&state.moment_1, &state.moment_2].into_iter().chain(&state.max_moment_2));
    is_supported(tensor, moments.chain([gradient]))
}
