//! Checks that training gives the same bits on any number of threads. In unit tests, almost all work is
//! divided, however small it is.

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::PaddingConfig2d;
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Int, Tensor};

use crate::kernels::epilogue::Epilogue;
use crate::kernels::simd::Level;
use crate::nn::conv::{Conv2d, Conv2dConfig};
use crate::nn::gru::{Gru, GruConfig};
use crate::nn::loss::CrossEntropyLossConfig;
use crate::nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
use crate::nn::{
    BatchNorm, BatchNormConfig, BiLstm, BiLstmConfig, Embedding, EmbeddingConfig, Linear, LinearConfig, Lstm,
    LstmConfig,
};
use crate::ops::conv::{conv_relu_pool, conv_relu_pool_twice};
use crate::ops::precision;
use crate::ops::testing::{fixed, random};
use crate::optim::AdamWConfig;

const STEPS: usize = 20;

/// Trains `model` on each number of threads and at each SIMD level, and compares the weights and the running
/// statistics.
fn compare<M: Module>(model: impl Fn(&Device) -> M, loss: impl Fn(&M) -> Tensor<1> + Sync) {
    for level in Level::available() {
        let found = [1, 2, 3, 5].map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
            let mut model = fixed(model(&Device::flex().autodiff()));
            let train = || {
                let (_held, mut optimizer) = (level.hold(), AdamWConfig::new().init());
                let mut losses = Vec::new();
                for _ in 0..STEPS {
                    let loss = loss(&model);
                    let gradients = GradientsParams::from_grads(loss.backward(), &model);
                    model = optimizer.step(1e-3, model.clone(), gradients);
                    losses.push(loss.into_scalar::<f32>());
                }
                assert!(losses[STEPS - 1] < losses[0], "{losses:?}");
                bits(&model)
            };
            pool.build().expect("threads").install(train)
        });
        for (threads, other) in [2, 3, 5].iter().zip(&found[1..]) {
            let same = found[0].iter().zip(other).filter(|(one, other)| one == other).count();
            assert_eq!(same, found[0].len(), "{level}: {threads} threads give other weights than one");
        }
    }
}

/// Returns the bits of all weights.
fn bits(module: &impl Module) -> Vec<u32> {
    struct Bits(Vec<u32>);
    impl ModuleVisitor for Bits {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.extend(param.val().into_data().iter::<f32>().map(f32::to_bits));
        }
    }
    let mut bits = Bits(Vec::new());
    module.visit(&mut bits);
    bits.0
}

fn conv(channels: [usize; 2], device: &Device) -> Conv2d {
    let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
    Conv2dConfig::new(channels, [3, 3]).with_padding(padding).init(device)
}

/// Mean cross entropy of classes that the indices of the samples determine.
fn cross_entropy(scores: Tensor<2>) -> Tensor<1> {
    let [batch, classes] = scores.dims();
    let classes = Tensor::<1, Int>::arange(0..batch as i64, &scores.device()) % classes as i64;
    CrossEntropyLossConfig::new().init(&scores.device()).forward(scores, classes)
}

#[derive(Module, Debug)]
struct Cnn {
    /// im2col, and few weights.
    gemm: Conv2d,
    /// Winograd with a normalisation.
    winograd: Conv2d,
    norm1: BatchNorm,
    /// Winograd with a pooling, and channels for several panels.
    wide: Conv2d,
    /// The operator of a normalisation alone.
    norm2: BatchNorm,
    linear: Linear,
}

#[test]
fn convolutions_give_the_same_bits() {
    let device = Device::flex().autodiff();
    let model = |device: &Device| Cnn {
        gemm: conv([9, 33], device),
        winograd: conv([33, 24], device),
        norm1: BatchNormConfig::new(24).init(device),
        wide: conv([24, 70], device),
        norm2: BatchNormConfig::new(70).init(device),
        linear: LinearConfig::new(70 * 2 * 3, 10).init(device),
    };
    // Sizes that no number of lanes or threads divides.
    let images = random([21, 9, 11, 13], 1, &device);
    compare(model, |model| {
        let x = model.gemm.forward_relu(images.clone());
        let x = model.winograd.forward_norm(x, &model.norm1, Epilogue::ReluPool);
        let x = model.norm2.forward_with(model.wide.forward_relu_pool(x), Epilogue::Relu);
        cross_entropy(model.linear.forward(x.flatten(1, 3)))
    });
}

#[derive(Module, Debug)]
struct Direct {
    patches: Conv2d,
    first_norm: BatchNorm,
    first_linear: Linear,
    first: Conv2d,
    second: Conv2d,
    third: Conv2d,
    norm: BatchNorm,
    half: Conv2d,
    linear: Linear,
}

#[test]
fn direct_convolutions_and_16_bit_images_give_the_same_bits() {
    let device = Device::flex().autodiff();
    let model = |device: &Device| Direct {
        patches: conv([1, 10], device),
        first_norm: BatchNormConfig::new(10).init(device),
        first_linear: LinearConfig::new(10 * 96, 10).init(device),
        first: conv([1, 3], device),
        second: conv([3, 8], device),
        third: conv([8, 7], device),
        norm: BatchNormConfig::new(7).init(device),
        half: conv([7, 5], device),
        linear: LinearConfig::new(5 * 6, 10).init(device),
    };
    let images = random([48, 1, 16, 24], 2, &device);
    compare(model, |model| {
        let x = conv_relu_pool_twice(images.clone(), &model.first, &model.second);
        let x = model.third.forward_norm(x, &model.norm, Epilogue::Relu);
        let x = precision::autocast(x, DType::BF16, |x| conv_relu_pool(x, &model.half));
        let loss = cross_entropy(model.linear.forward(x.flatten(1, 3)));
        let x = model.patches.forward_norm(images.clone(), &model.first_norm, Epilogue::ReluPool);
        loss + cross_entropy(model.first_linear.forward(x.flatten(1, 3)))
    });
}

#[derive(Module, Debug)]
struct Gpt {
    embedding: Embedding,
    encoder: TransformerEncoder,
    head: Linear,
}

#[test]
fn a_transformer_gives_the_same_bits() {
    let device = Device::flex().autodiff();
    let model = |device: &Device| Gpt {
        embedding: EmbeddingConfig::new(23, 40).init(device),
        encoder: TransformerEncoderConfig::new(40, 72, 4, 2).with_dropout(0.0).init(device),
        head: LinearConfig::new(40, 23).init(device),
    };
    let tokens = Tensor::<1, Int>::arange(0..7 * 19, &device).reshape([7, 19]) % 23;
    compare(model, |model| {
        let input = TransformerEncoderInput::new(model.embedding.forward(tokens.clone()));
        cross_entropy(model.head.forward(model.encoder.forward(input)).flatten(0, 1))
    });
}

#[derive(Module, Debug)]
struct Recurrent {
    embedding: Embedding,
    lstm: Lstm,
    gru: Gru,
    both: BiLstm,
    head: Linear,
}

#[test]
fn recurrent_layers_give_the_same_bits() {
    let model = |device: &Device| Recurrent {
        embedding: EmbeddingConfig::new(11, 20).init(device),
        lstm: LstmConfig::new(20, 36, true).init(device),
        gru: GruConfig::new(36, 17, true).init(device),
        both: BiLstmConfig::new(17, 9, true).with_batch_first(false).init(device),
        head: LinearConfig::new(18, 11).init(device),
    };
    let device = Device::flex().autodiff();
    let tokens = Tensor::<1, Int>::arange(0..13 * 10, &device).reshape([13, 10]) % 11;
    compare(model, |model| {
        let x = model.lstm.forward(model.embedding.forward(tokens.clone()), None).0;
        let x = model.gru.forward(x, None);
        let x = model.both.forward(x.swap_dims(0, 1), None).0;
        cross_entropy(model.head.forward(x).flatten(0, 1))
    });
}
