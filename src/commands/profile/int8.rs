//! Profile of an integer model's inference.

use burn_fused::int8::{Layer, Model, Stage};

use super::{Times, alternate};
use crate::commands::subject::Batches;
use crate::options::ConfigError;
use crate::quant::{QuantError, Quantized};
use crate::spans::{BATCH, Operator, Phase, end_sequence, follow, is_recording, register, span};

/// Rows of the stages of a model.
struct Rows {
    input: usize,
    steps: Vec<usize>,
    output: usize,
}

impl Rows {
    /// `names` are those of the layers with weights.
    fn new<'a>(model: &Model, mut names: impl Iterator<Item = &'a str>) -> Self {
        let new = |layer: &str, kind: &str| register(Operator::new(layer, kind), Phase::Forward);
        let mut last = "input";
        let mut step = |layers: &[Layer]| {
            if !matches!(layers, [Layer::MaxPool(_), ..]) {
                last = names.next().unwrap_or(last);
            }
            let kinds: Vec<&str> = layers.iter().map(kind).collect();
            new(last, &format!("int8 {}", kinds.join("+")))
        };
        Self {
            steps: model.steps().into_iter().map(|step_of| step(&model.layers()[step_of])).collect(),
            input: new("input", "quantize"),
            output: new("scores", "dequantize"),
        }
    }

    fn row(&self, stage: Stage) -> usize {
        match stage {
            Stage::Input => self.input,
            Stage::Step(step) => self.steps[step],
            Stage::Output => self.output,
        }
    }
}

fn kind(layer: &Layer) -> &'static str {
    match layer {
        Layer::Conv(conv) if conv.relu => "conv+relu",
        Layer::Conv(_) => "conv",
        Layer::MaxPool(_) => "max pool",
        Layer::Linear(linear) if linear.relu => "linear+relu",
        Layer::Linear(_) => "linear",
    }
}

/// Profiles `batches` batches on this rank.
pub fn profile(int8: Quantized, source: &mut Batches, batches: usize) -> anyhow::Result<Times> {
    let Quantized { model: Some((model, mut workspace)), file } = int8 else {
        let problem = "the checkpoint's model is dynamic, whose layers run in floats; make a static one with \
                       mpiburn quantize";
        return Err(ConfigError::new("int8", "", problem).into());
    };
    let rows = Rows::new(&model, file.products().map(|(name, _)| name));
    let mut scores = Vec::new();
    let times = alternate(batches, || {
        let samples = source.next();
        let values = span(&BATCH, || samples.normalizer.values(samples.bytes));
        scores.resize(samples.labels.len() * model.outputs(), 0.0);
        match is_recording() {
            true => {
                let mut watch = |stage| follow(rows.row(stage));
                model.infer_watched(&mut workspace, &values, &mut scores, &mut watch);
                end_sequence();
            }
            false => model.infer(&mut workspace, &values, &mut scores),
        }
        Ok::<(), QuantError>(())
    })?;
    Ok(times)
}
