//! Two convolutions of few channels, each with ReLU and pooling, as one operator
//! of Burn: the activations between them stay in the cache.
//!
//! It exists on flex only; on other backends, and for shapes and types that it does not
//! support, two operators are applied.

use std::sync::Arc;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients as Container;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata};
use burn::nn::conv::Conv2d;
use burn::tensor::{DType, Tensor, try_read_sync};

use super::conv_operator::{ConvEpilogue, Inputs, parameters};
use super::conv_relu_pool::conv_relu_pool;
use super::cpu::{self, Between, Layer, PairShape, Parameters};
use crate::epilogue::Epilogue;
use crate::extension::operator;
use crate::fake_quantize::{FakeQuantize, Steps, fake_quantize, range};
use crate::flex_tensor::{tensor, values};
use crate::int8::{Int8Error, QParams, Scheme, min_max};
use crate::poll;
use crate::shapes;

/// [`conv_relu_pool`] by `first` and then by `second`:
/// `[batch, channels, height, width]` to `[batch, outputs, height / 4, width / 4]`.
///
/// It is one operator on flex if height and width are multiples of 4 and each
/// layer has at most 128 pairs of an input and an output channel; the values and
/// the gradients are the same bits as those of two operators.
///
/// ```
/// use burn::nn::PaddingConfig2d;
/// use burn::nn::conv::Conv2dConfig;
/// use burn::tensor::{Device, Tensor};
/// use burn_fused::conv::{conv_relu_pool, conv_relu_pool_twice};
///
/// let device = Device::flex().autodiff();
/// let layer = |inputs, outputs| {
///     let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
///     Conv2dConfig::new([inputs, outputs], [3, 3]).with_padding(padding).init(&device)
/// };
/// let (first, second) = (layer(1, 4), layer(4, 8));
/// let images = Tensor::<4>::ones([2, 1, 8, 8], &device);
/// let output = conv_relu_pool_twice(images.clone(), &first, &second);
/// assert_eq!(output.dims(), [2, 8, 2, 2]);
/// let apart = conv_relu_pool(conv_relu_pool(images, &first), &second);
/// assert_eq!(output.into_data(), apart.into_data());
/// ```
///
/// # Panics
/// If the channels of `images`, `first` and `second` do not match, and as [`conv_relu_pool`] for each.
#[track_caller]
pub fn conv_relu_pool_twice(images: Tensor<4>, first: &Conv2d, second: &Conv2d) -> Tensor<4> {
    pair(images, first, second, None)
}

/// [`conv_relu_pool_twice`] with [fake quantization](fake_quantize) of the activations between
/// the two: `quantize` gets their minimum and maximum over the batch, or the reason why there
/// are none, and returns the parameters of [`Scheme::Affine`], or `None` to leave them as they
/// are. Values and gradients are the same bits as those of the operators one by one.
///
/// ```
/// use burn::nn::PaddingConfig2d;
/// use burn::nn::conv::Conv2dConfig;
/// use burn::tensor::{Device, Tensor};
/// use burn_fused::conv::{conv_relu_pool, conv_relu_pool_twice_quantized};
/// use burn_fused::fake_quantize::{fake_quantize, range};
/// use burn_fused::int8::Scheme;
///
/// let device = Device::flex().autodiff();
/// let layer = |inputs, outputs| {
///     let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
///     Conv2dConfig::new([inputs, outputs], [3, 3]).with_padding(padding).init(&device)
/// };
/// let (first, second) = (layer(1, 4), layer(4, 8));
/// let images = Tensor::<4>::ones([2, 1, 8, 8], &device);
/// let output = conv_relu_pool_twice_quantized(images.clone(), &first, &second, &mut |found| {
///     let [min, max] = found.ok()?;
///     Scheme::Affine.parameters(min, max).ok()
/// });
/// let middle = conv_relu_pool(images, &first);
/// let [min, max] = range(&middle).unwrap();
/// let parameters = Scheme::Affine.parameters(min, max).unwrap();
/// let apart = conv_relu_pool(fake_quantize(middle, Scheme::Affine, &[parameters], 0), &second);
/// assert_eq!(output.into_data(), apart.into_data());
/// ```
///
/// # Panics
/// As [`conv_relu_pool_twice`], or if parameters are invalid.
#[track_caller]
pub fn conv_relu_pool_twice_quantized(
    images: Tensor<4>,
    first: &Conv2d,
    second: &Conv2d,
    quantize: &mut dyn FnMut(Result<[f32; 2], Int8Error>) -> Option<QParams>,
) -> Tensor<4> {
    pair(images, first, second, Some(quantize))
}

#[track_caller]
fn pair(
    images: Tensor<4>,
    first: &Conv2d,
    second: &Conv2d,
    quantize: Option<&mut Parameters<'_>>,
) -> Tensor<4> {
    let [batch, channels, height, width] = shapes::of_conv(images.dims(), first);
    shapes::of_conv([batch, channels, height / 2, width / 2], second);
    let (Some((weights1, bias1)), Some((weights2, bias2))) = (parameters(first), parameters(second)) else {
        let middle = conv_relu_pool(images, first);
        let found = quantize.and_then(|quantize| quantize(range(&middle)));
        let middle = match found {
            Some(found) => fake_quantize(middle, Scheme::Affine, &[found], 0),
            None => middle,
        };
        return conv_relu_pool(middle, second);
    };
    let output = <Dispatch as ConvPair>::conv_pair(
        images.into_dispatch(),
        weights1.into_dispatch(),
        bias1.into_dispatch(),
        weights2.into_dispatch(),
        bias2.into_dispatch(),
        quantize,
    );
    Tensor::from_dispatch(output)
}

operator! {
    trait ConvPair(Backend + ConvEpilogue + FakeQuantize) {
        fn conv_pair(
            images: FloatTensor<Self>,
            weights1: FloatTensor<Self>,
            bias1: FloatTensor<Self>,
            weights2: FloatTensor<Self>,
            bias2: FloatTensor<Self>,
            quantize: Option<&mut Parameters<'_>>,
        ) -> FloatTensor<Self> {
            two::<Self>([images, weights1, bias1, weights2, bias2], quantize)
        }
    }
}

/// The pair by two operators, and a third between them.
fn two<B: ConvPair>(
    [images, weights1, bias1, weights2, bias2]: [FloatTensor<B>; 5],
    quantize: Option<&mut Parameters<'_>>,
) -> FloatTensor<B> {
    let mut middle = B::conv_epilogue(images, weights1, bias1, Epilogue::ReluPool);
    if let Some(quantize) = quantize {
        let found = try_read_sync(B::float_into_data(middle.clone()));
        let found = match found.and_then(Result::ok) {
            Some(data) => min_max(data.convert::<f32>().as_slice().unwrap_or_default()),
            None => Err(Int8Error::NoValues),
        };
        if let Some(found) = quantize(found) {
            let steps = Steps::new(Scheme::Affine, &[found], &middle.shape(), 0);
            middle = B::fake_quantize(middle, steps);
        }
    }
    B::conv_epilogue(middle, weights2, bias2, Epilogue::ReluPool)
}

impl ConvPair for Flex {
    fn conv_pair(
        images: FlexTensor,
        weights1: FlexTensor,
        bias1: FlexTensor,
        weights2: FlexTensor,
        bias2: FlexTensor,
        quantize: Option<&mut Parameters<'_>>,
    ) -> FlexTensor {
        match Pair::of([&images, &weights1, &bias1, &weights2, &bias2]) {
            Some(pair) => pair.forward(quantize, false).0,
            None => two::<Self>([images, weights1, bias1, weights2, bias2], quantize),
        }
    }
}

impl<C: CheckpointStrategy> ConvPair for Autodiff<Flex, C> {
    fn conv_pair(
        images: FloatTensor<Self>,
        weights1: FloatTensor<Self>,
        bias1: FloatTensor<Self>,
        weights2: FloatTensor<Self>,
        bias2: FloatTensor<Self>,
        quantize: Option<&mut Parameters<'_>>,
    ) -> FloatTensor<Self> {
        let all = [images, weights1, bias1, weights2, bias2];
        let Some(pair) = Pair::of(all.each_ref().map(|tensor| tensor.primitive())) else {
            return two::<Self>(all, quantize);
        };
        let nodes = all.map(|tensor| tensor.into_parts().1);
        match ConvPairBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let (output, between) = pair.forward(quantize, true);
                prepared.finish(State { pair, between: Arc::new(between) }, output)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(pair.forward(quantize, false).0),
        }
    }
}

/// The inputs of the operator, each contiguous.
#[derive(Debug, Clone)]
struct Pair {
    first: Inputs,
    weights2: FlexTensor,
    bias2: FlexTensor,
    shape: PairShape,
}

impl Pair {
    /// The inputs, if they are f32 and of shapes that the operator supports.
    fn of([images, weights1, bias1, weights2, bias2]: [&FlexTensor; 5]) -> Option<Self> {
        let first = Inputs::of(images, weights1, bias1)?;
        let [outputs, inputs, 3, 3] = weights2.shape().dims() else { return None };
        let shape = PairShape { first: first.shape, outputs };
        let f32s = [images, weights2, bias2].iter().all(|tensor| tensor.dtype() == DType::F32);
        let fits = f32s && inputs == first.shape.outputs && outputs > 0 && shape.fits();
        let [weights2, bias2] = [weights2, bias2].map(FlexTensor::to_contiguous);
        fits.then(|| Self { first, weights2, bias2, shape })
    }

    fn forward(&self, quantize: Option<&mut Parameters<'_>>, backward: bool) -> (FlexTensor, Between) {
        let layer = |weights, bias| Layer { weights: values(weights), bias: values(bias) };
        let layers = [layer(&self.first.weights, &self.first.bias), layer(&self.weights2, &self.bias2)];
        let input = values(&self.first.images);
        let (output, between) =
            cpu::forward_pair(self.first.level, self.shape, input, layers, quantize, backward);
        let second = self.shape.second();
        let [height, width] = second.output_size(Epilogue::ReluPool);
        (tensor(output, &[second.batch, second.outputs, height, width]), between)
    }
}

/// Saved by forward for backward.
#[derive(Debug, Clone)]
struct State {
    pair: Pair,
    between: Arc<Between>,
}

/// The operator's backward.
#[derive(Debug)]
struct ConvPairBackward;

impl Backward<Flex, 5> for ConvPairBackward {
    type State = State;

    fn backward(self, ops: Ops<State, 5>, grads: &mut Container, _checkpointer: &mut Checkpointer) {
        let gradient = grads.consume::<Flex>(&ops.node).to_contiguous();
        let State { pair, between } = ops.state;
        let [images, weights1, bias1, weights2, bias2] = ops.parents;
        let forward =
            (values(&pair.first.images), [values(&pair.first.weights), values(&pair.weights2)], &*between);
        let of_images = images.is_some();
        let mut poll = poll::current();
        let found = cpu::backward_pair(
            pair.first.level,
            pair.shape,
            forward,
            values(&gradient),
            of_images,
            &mut poll,
        );
        let [first, second] = [pair.shape.first, pair.shape.second()];
        let [of_weights1, of_weights2] = found.weights;
        let [of_bias1, of_bias2] = found.bias;
        // The order that two operators have: the second's gradients first.
        let ours = [
            (bias2, of_bias2, vec![second.outputs]),
            (weights2, of_weights2, vec![second.outputs, second.inputs, 3, 3]),
            (bias1, of_bias1, vec![first.outputs]),
            (weights1, of_weights1, vec![first.outputs, first.inputs, 3, 3]),
        ];
        for (parent, values, sizes) in ours {
            if let Some(parent) = parent {
                grads.register::<Flex>(parent.id, tensor(values, &sizes));
            }
        }
        if let (Some(images), Some(of_images)) = (images, found.input) {
            let sizes = [first.batch, first.inputs, first.height, first.width];
            grads.register::<Flex>(images.id, tensor(of_images, &sizes));
        }
    }
}

#[cfg(test)]
#[path = "conv_pair_tests.rs"]
mod tests;
