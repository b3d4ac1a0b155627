//! The random module of a test case, built from a plan.

use burn::module::{Module, Param};
use burn::nn::conv::{Conv1d, Conv1dConfig};
use burn::nn::{
    BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig,
    PaddingConfig1d,
};
use burn::tensor::activation::{log_softmax, relu, tanh};
use burn::tensor::{Device, Int, Tensor};

use super::draw::{Draw, Purpose};
use super::plan::{Activation, BatchId, Kind, Plan, Stage};
use super::samples::Samples;
use burn_mpi::ParamSpec;

/// Epsilon of batch norm and layer norm. With 0.1, they divide by a standard deviation of at least 0.31. With
/// Burn's 1e-5, two samples with close values would amplify rounding errors, and the comparison would need a
/// larger tolerance.
const EPSILON: f64 = 0.1;

/// Layers in the order in which Burn visits them. The plan says when each one is used.
#[derive(Module, Debug)]
pub struct Network {
    layers: Vec<Layer>,
}

#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "a module has few layers")]
enum Layer {
    Linear(Linear),
    BatchNorm(BatchNorm),
    LayerNorm(LayerNorm),
    Scale(Scale),
    Conv(Conv1d),
    Embedding(Embedding),
}

/// A bare parameter.
#[derive(Module, Debug)]
struct Scale {
    scale: Param<Tensor<1>>,
}

impl Network {
    /// The module of a plan, before its values are set.
    pub fn build(plan: &Plan, device: &Device) -> Self {
        let layers = plan.layers.iter().map(|layer| {
            let built = Layer::build(&layer.kind, plan.vocabulary, device);
            if layer.frozen { built.no_grad() } else { built }
        });
        Self { layers: layers.collect() }
    }

    /// The mean loss of the micro-batch `batch` of one rank.
    pub fn loss(&self, plan: &Plan, batch: BatchId, samples: &Samples) -> Tensor<1> {
        let mut x = samples.values.clone();
        for (number, stage) in plan.stages.iter().enumerate() {
            x = self.stage(plan, number, stage, batch, x, &samples.tokens);
        }
        let scores = self.layers[plan.head].forward(x, &samples.tokens);
        let mut loss = if plan.classes {
            log_softmax(scores, 1).gather(1, samples.classes.clone()).mean().neg()
        } else {
            (scores - samples.targets.clone()).powi_scalar(2).mean()
        };
        if let Some((layer, rule)) = plan.penalty
            && let Layer::Linear(linear) = &self.layers[layer]
            && plan.pick(rule, 2, batch, 1000) == 1
        {
            loss = loss + linear.weight.val().powi_scalar(2).mean().mul_scalar(0.1);
        }
        loss
    }

    fn stage(
        &self,
        plan: &Plan,
        number: usize,
        stage: &Stage,
        batch: BatchId,
        x: Tensor<2>,
        tokens: &Tensor<2, Int>,
    ) -> Tensor<2> {
        let salt = 3 * number;
        let branch = &stage.branches[plan.pick(stage.branch, stage.branches.len(), batch, salt)];
        let times = stage.repeats[plan.pick(stage.repeat, stage.repeats.len(), batch, salt + 1)];
        let cut = stage.cut.is_some_and(|rule| plan.pick(rule, 2, batch, salt + 2) == 1);
        let mut x = if cut { x.detach() } else { x };
        for _ in 0..times {
            for &layer in branch {
                x = self.layers[layer].forward(x, tokens);
            }
            x = match stage.activation {
                Activation::None => x,
                Activation::Tanh => tanh(x),
                Activation::Relu => relu(x),
            };
        }
        x
    }
}

impl Layer {
    fn build(kind: &Kind, vocabulary: usize, device: &Device) -> Self {
        match *kind {
            Kind::Linear { inputs, outputs, bias } => {
                Self::Linear(LinearConfig::new(inputs, outputs).with_bias(bias).init(device))
            }
            Kind::BatchNorm { width } => {
                Self::BatchNorm(BatchNormConfig::new(width).with_epsilon(EPSILON).init(device))
            }
            Kind::LayerNorm { width } => {
                Self::LayerNorm(LayerNormConfig::new(width).with_epsilon(EPSILON).init(device))
            }
            Kind::Scale { width } => {
                Self::Scale(Scale { scale: Param::from_tensor(Tensor::ones([width], device)) })
            }
            Kind::Conv { channels } => {
                Self::Conv(Conv1dConfig::new(1, channels, 3).with_padding(PaddingConfig1d::Same).init(device))
            }
            Kind::Embedding { width } => {
                Self::Embedding(EmbeddingConfig::new(vocabulary, width).init(device))
            }
        }
    }

    /// Maps `[samples, width]` to `[samples, width]`; only a linear layer may change the width.
    fn forward(&self, x: Tensor<2>, tokens: &Tensor<2, Int>) -> Tensor<2> {
        match self {
            Self::Linear(linear) => linear.forward(x),
            Self::BatchNorm(norm) => norm.forward(x),
            Self::LayerNorm(norm) => norm.forward(x),
            Self::Scale(Scale { scale }) => x * scale.val().unsqueeze_dim(0),
            // Convolution along the width, then the mean over channels.
            Self::Conv(conv) => conv.forward(x.unsqueeze_dim(1)).mean_dim(1).squeeze_dim(1),
            Self::Embedding(embedding) => x + embedding.forward(tokens.clone()).mean_dim(1).squeeze_dim(1),
        }
    }
}

/// All values of `rank`'s module before rank 0 broadcasts its own. They differ between ranks, and their scale
/// keeps activations and gradients near 1.
pub fn initial_values(plan: &Plan, specs: &[ParamSpec], rank: usize) -> Vec<f32> {
    let draw = &mut Draw::for_case(plan.seed, plan.index, Purpose::Values, [rank as u16, 0, 0, 0]);
    let mut values = Vec::new();
    for spec in specs {
        let field = spec.name.rsplit('.').next().unwrap_or_default();
        let (low, high) = match (field, spec.shape.as_slice()) {
            ("gamma" | "scale" | "running_var", _) => (0.5, 1.5),
            ("weight", &[inputs, _]) if spec.transposed => limits(inputs),
            ("weight", &[_, inputs, kernel]) => limits(inputs * kernel),
            _ => (-0.5, 0.5),
        };
        values.extend(spec.range.clone().map(|_| draw.between(low, high)));
    }
    values
}

/// Range of uniform random weights that keep the variance of a layer's `inputs` values.
fn limits(inputs: usize) -> (f32, f32) {
    let limit = (3.0 / inputs as f32).sqrt();
    (-limit, limit)
}
