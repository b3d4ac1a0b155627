//! Convolution with bias and an optional ReLU and max pooling as one operator of Burn.
//!
//! flex runs the kernels of [`super::cpu`] forward and backward, on 16-bit images by
//! [`super::conv_mixed`]; libtorch runs its own backward; ndarray, and flex for other
//! types, compose it of Burn's operators.

use std::sync::Arc;

#[cfg(feature = "tch")]
use burn::backend::LibTorch;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients as Container;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata};
use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2d;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{DType, Tensor};

use super::Algorithm;
use super::conv_mixed::{self, Gradients};
use super::cpu::{self, Argmax, Forward, Route, Shape};
use crate::epilogue::Epilogue;
use crate::extension::operator;
use crate::flex_tensor::{tensor, values};
use crate::poll;
use crate::precision::{Half, cast, supported};
use crate::shapes;
use crate::simd::Level;

/// `conv` of `images` with `epilogue` in one operator, or none unless `conv` is a 3x3
/// convolution with padding 1, biases, stride 1, dilation 1 and one group.
///
/// # Panics
/// As [`shapes::of_conv`].
#[track_caller]
pub(super) fn apply(images: Tensor<4>, conv: &Conv2d, epilogue: Epilogue) -> Option<Tensor<4>> {
    shapes::of_conv(images.dims(), conv);
    let (weights, bias) = parameters(conv)?;
    let output = <Dispatch as ConvEpilogue>::conv_epilogue(
        images.into_dispatch(),
        weights.into_dispatch(),
        bias.into_dispatch(),
        epilogue,
    );
    Some(Tensor::from_dispatch(output))
}

/// Weights and biases of a convolution that the operators support.
pub(super) fn parameters(conv: &Conv2d) -> Option<(Tensor<4>, Tensor<1>)> {
    let ones = [conv.stride, conv.dilation] == [[1, 1]; 2] && conv.groups == 1;
    let bordered = matches!(conv.padding, PaddingConfig2d::Explicit(1, 1, 1, 1));
    let bias = conv.bias.as_ref()?;
    (ones && bordered && conv.kernel_size == [3, 3]).then(|| (conv.weight.val(), bias.val()))
}

operator! {
    pub(super) trait ConvEpilogue(Backend) {
        fn conv_epilogue(
            images: FloatTensor<Self>,
            weights: FloatTensor<Self>,
            bias: FloatTensor<Self>,
            epilogue: Epilogue,
        ) -> FloatTensor<Self> {
            composed::<Self>(images, weights, bias, epilogue)
        }
    } except Autodiff<LibTorch>
}

/// The operator, composed of Burn's operators.
fn composed<B: Backend>(
    images: FloatTensor<B>,
    weights: FloatTensor<B>,
    bias: FloatTensor<B>,
    epilogue: Epilogue,
) -> FloatTensor<B> {
    let dtype = images.dtype();
    let [weights, bias] = [weights, bias].map(|tensor| cast::<B>(tensor, dtype));
    let options = ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
    epilogue.composed::<B>(B::conv2d(images, weights, Some(bias), options))
}

#[cfg(feature = "tch")]
impl<C: CheckpointStrategy> ConvEpilogue for Autodiff<LibTorch, C> {
    fn conv_epilogue(
        images: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        epilogue: Epilogue,
    ) -> FloatTensor<Self> {
        super::conv_tch::conv_epilogue::<C>(images, weights, bias, epilogue)
    }
}

impl ConvEpilogue for Flex {
    fn conv_epilogue(
        images: FlexTensor,
        weights: FlexTensor,
        bias: FlexTensor,
        epilogue: Epilogue,
    ) -> FlexTensor {
        match Inputs::of(&images, &weights, &bias) {
            Some(inputs) => inputs.forward(epilogue, false).0,
            None => composed::<Self>(images, weights, bias, epilogue),
        }
    }
}

impl<C: CheckpointStrategy> ConvEpilogue for Autodiff<Flex, C> {
    fn conv_epilogue(
        images: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        epilogue: Epilogue,
    ) -> FloatTensor<Self> {
        let found = Inputs::of(images.primitive(), weights.primitive(), bias.primitive());
        let Some(inputs) = found else {
            return composed::<Self>(images, weights, bias, epilogue);
        };
        let nodes = [images, weights, bias].map(|tensor| tensor.into_parts().1);
        match ConvEpilogueBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let (output, argmax) = inputs.forward(epilogue, true);
                let state = State { inputs, epilogue, output: output.clone(), argmax: Arc::new(argmax) };
                prepared.finish(state, output)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(inputs.forward(epilogue, false).0),
        }
    }
}

/// The inputs of the operator, each contiguous.
#[derive(Debug, Clone)]
pub(super) struct Inputs {
    pub images: FlexTensor,
    pub weights: FlexTensor,
    pub bias: FlexTensor,
    pub shape: Shape,
    pub level: Level,
    pub route: Route,
}

impl Inputs {
    /// The inputs, if types are supported and shapes match and are not empty.
    pub fn of(images: &FlexTensor, weights: &FlexTensor, bias: &FlexTensor) -> Option<Self> {
        let [batch, inputs, height, width] = images.shape().dims();
        let [outputs, weight_inputs, 3, 3] = weights.shape().dims() else { return None };
        let shape = Shape { batch, inputs, outputs, height, width };
        if !supported(images, &[weights, bias])
            || inputs != weight_inputs
            || [batch, inputs, outputs, height, width].contains(&0)
        {
            return None;
        }
        let [images, weights, bias] = [images, weights, bias].map(FlexTensor::to_contiguous);
        let (level, mut route) = (Level::current(), Route::of(shape, Algorithm::current()));
        if images.dtype() == DType::BF16 {
            route = route.in_bf16(shape);
        }
        Some(Self { images, weights, bias, shape, level, route })
    }

    fn forward(&self, epilogue: Epilogue, backward: bool) -> (FlexTensor, Vec<Argmax>) {
        let Self { shape, level, route, .. } = *self;
        if let Some(half) = Half::of(self.images.dtype()) {
            return conv_mixed::forward(half, self, epilogue, backward);
        }
        let [images, weights, bias] = [&self.images, &self.weights, &self.bias].map(values);
        let (output, argmax) = cpu::forward((level, route), shape, epilogue, images, weights, bias, backward);
        let [height, width] = shape.output_size(epilogue);
        (tensor(output, &[shape.batch, shape.outputs, height, width]), vec![argmax])
    }

    /// The gradients from that of the output.
    fn backward(
        &self,
        epilogue: Epilogue,
        (output, argmax): (&FlexTensor, &[Argmax]),
        gradient: &FlexTensor,
        of_images: bool,
    ) -> Gradients {
        let Self { shape, level, route, .. } = *self;
        let poll = &mut poll::current();
        if let Some(half) = Half::of(self.images.dtype()) {
            return conv_mixed::backward(half, self, epilogue, (output, argmax), gradient, of_images, poll);
        }
        let [input, weights, output] = [&self.images, &self.weights, output].map(values);
        let forward = Forward { input, weights, output, argmax: &argmax[0] };
        let found =
            cpu::backward((level, route), shape, epilogue, forward, values(gradient), of_images, poll);
        let sizes = [shape.batch, shape.inputs, shape.height, shape.width];
        let images = found.input.map(|found| tensor(found, &sizes));
        Gradients { images, weights: found.weights, bias: found.bias }
    }
}

/// Saved by forward for backward.
#[derive(Debug, Clone)]
struct State {
    inputs: Inputs,
    epilogue: Epilogue,
    output: FlexTensor,
    /// Of the batch, or of each block of 16-bit images.
    argmax: Arc<Vec<Argmax>>,
}

/// The operator's backward.
#[derive(Debug)]
struct ConvEpilogueBackward;

impl Backward<Flex, 3> for ConvEpilogueBackward {
    type State = State;

    fn backward(self, ops: Ops<State, 3>, grads: &mut Container, _checkpointer: &mut Checkpointer) {
        let gradient = grads.consume::<Flex>(&ops.node).to_contiguous();
        let State { inputs, epilogue, output, argmax } = ops.state;
        let [images, weights, bias] = ops.parents;
        let found = inputs.backward(epilogue, (&output, &argmax), &gradient, images.is_some());
        let Shape { inputs, outputs, .. } = inputs.shape;
        if let Some(bias) = bias {
            grads.register::<Flex>(bias.id, tensor(found.bias, &[outputs]));
        }
        if let Some(weights) = weights {
            grads.register::<Flex>(weights.id, tensor(found.weights, &[outputs, inputs, 3, 3]));
        }
        if let (Some(images), Some(of_images)) = (images, found.images) {
            grads.register::<Flex>(images.id, of_images);
        }
    }
}
