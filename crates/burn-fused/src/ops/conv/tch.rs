//! The operator of [`super::operator`] on libtorch. It runs libtorch's own backward, because Burn's backward
//! is composed of several convolutions.
//!
//! Forward runs in a small graph of libtorch's autograd that contains only this operator. The node in Burn's
//! graph keeps the small graph, and the node's backward runs libtorch's backward on it.

use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::Autodiff;
use burn::backend::LibTorch;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients as Container;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::libtorch::TchTensor;
use burn::tensor::Tensor;
use tch::Kind;

use crate::kernels::epilogue::Epilogue;

/// Returns the operator's output as a node of Burn's graph; `None` on other backends, and for tensors without
/// autodiff.
pub(super) fn conv_epilogue(
    maps: [&Tensor<4>; 2],
    bias: &Tensor<1>,
    epilogue: Epilogue,
) -> Option<Tensor<4>> {
    let bias = bias.clone().try_into_primitive::<Autodiff<LibTorch>>().ok()?;
    let [Ok(images), Ok(weights)] = maps.map(|map| map.clone().try_into_primitive::<Autodiff<LibTorch>>())
    else {
        return None;
    };
    let (inputs, nodes): (Vec<_>, Vec<_>) =
        [images, weights, bias].map(|tensor| tensor.into_parts()).into_iter().unzip();
    let Ok(nodes): Result<[_; 3], _> = nodes.try_into() else { unreachable!("built from three tensors") };
    // The leaves of libtorch's graph share memory with Burn's tensors. Backward requests only the gradients
    // that Burn's graph requires, so libtorch computes no others.
    let leaf = |input: &TchTensor| input.tensor.detach().set_requires_grad(true);
    let leaves: Vec<tch::Tensor> = inputs.iter().map(leaf).collect();
    let output = match LibtorchBackward.prepare::<NoCheckpointing>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => {
            let result = tch::with_grad(|| apply(&leaves, epilogue));
            let output = TchTensor::new(result.detach());
            let graph = Graph { result, leaves, _kept: (inputs, output.clone()) };
            prepared.finish(State(Arc::new(Mutex::new(graph))), output)
        }
        OpsKind::UnTracked(prepared) => {
            prepared.finish(TchTensor::new(tch::no_grad(|| apply(&leaves, epilogue))))
        }
    };
    Some(Tensor::from_primitive::<Autodiff<LibTorch>>(output))
}

fn apply(leaves: &[tch::Tensor], epilogue: Epilogue) -> tch::Tensor {
    let [images, weights, bias] = leaves else { unreachable!("three leaves") };
    // In mixed precision, f32 parameters are rounded to the type of the images within libtorch's graph, so
    // their gradients are f32. If the types are equal, `to_kind` makes no copy.
    let [weights, bias] = [weights, bias].map(|parameter| parameter.to_kind(images.kind()));
    let output = images.conv2d(&weights, Some(&bias), [1, 1], [1, 1], [1, 1], 1);
    match epilogue {
        Epilogue::Identity => output,
        Epilogue::Relu => output.relu(),
        Epilogue::ReluPool => output.relu().max_pool2d([2, 2], [2, 2], [0, 0], [1, 1], false),
    }
}

/// libtorch's graph of one convolution.
#[derive(Debug)]
struct Graph {
    result: tch::Tensor,
    leaves: Vec<tch::Tensor>,
    /// References to Burn's tensors, which libtorch's graph still reads. Without these references, Burn could
    /// change the tensors in place.
    _kept: (Vec<TchTensor>, TchTensor),
}

#[derive(Debug, Clone)]
struct State(Arc<Mutex<Graph>>);

#[derive(Debug)]
struct LibtorchBackward;

impl Backward<LibTorch, 3> for LibtorchBackward {
    type State = State;

    fn backward(self, ops: Ops<State, 3>, grads: &mut Container, _checkpointer: &mut Checkpointer) {
        let gradient = grads.consume::<LibTorch>(&ops.node).tensor;
        let graph = ops.state.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted: Vec<(NodeId, &tch::Tensor)> = ops
            .parents
            .iter()
            .zip(&graph.leaves)
            .filter_map(|(parent, leaf)| Some((parent.as_ref()?.id, leaf)))
            .collect();
        let leaves: Vec<&tch::Tensor> = wanted.iter().map(|(_, leaf)| *leaf).collect();
        let found = tch::with_grad(|| {
            // The gradient of this scalar with respect to `result` is `gradient`.
            let product = (&graph.result * gradient).sum(Kind::Float);
            tch::Tensor::run_backward(&[product], &leaves, false, false)
        });
        for ((id, _), gradient) in wanted.iter().zip(found) {
            grads.register::<LibTorch>(*id, TchTensor::new(gradient));
        }
    }
}
