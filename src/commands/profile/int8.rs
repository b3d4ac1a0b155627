//! Profiles the inference of an int8 model: measures the time and memory of each of its stages.

use burn_fused::int8::{Layer, Model, Stage};

use super::{Times, alternate};
use crate::commands::subject::BatchCycle;
use crate::quant::Quantized;
use crate::spans::{BATCH, Operator, Phase, end_sequence, follow, is_recording, register, span};

/// Registers the stages of a model with the span recorder, which keeps a row of measurements for each stage.
/// The stages are the input, the steps of the model (layers that are computed together), and the output.
/// Returns the row numbers in this order. `names` are the names of the layers with weights.
fn rows<'a>(model: &Model, mut names: impl Iterator<Item = &'a str>) -> Vec<usize> {
    let new = |layer: &str, kind: &str| register(Operator::new(layer, kind), Phase::Forward);
    let mut rows = vec![new("input", "quantize")];
    let mut last = "input";
    for step in model.steps() {
        let layers = &model.layers()[step];
        if !matches!(layers, [Layer::MaxPool(_) | Layer::AveragePool(_), ..]) {
            last = names.next().unwrap_or(last);
        }
        let kinds: Vec<&str> = layers.iter().map(kind).collect();
        rows.push(new(last, &format!("int8 {}", kinds.join("+"))));
    }
    rows.push(new("scores", "dequantize"));
    rows
}

fn kind(layer: &Layer) -> &'static str {
    match layer {
        Layer::Conv(conv) if conv.relu => "conv+relu",
        Layer::Conv(_) => "conv",
        Layer::MaxPool(_) => "max pool",
        Layer::AveragePool(_) => "average pool",
        Layer::Linear(linear) if linear.relu => "linear+relu",
        Layer::Linear(_) => "linear",
    }
}

/// Profiles `batches` batches on this rank.
///
/// # Errors
/// If samples on disk cannot be read.
pub fn profile(int8: Quantized, source: &mut BatchCycle, batches: usize) -> anyhow::Result<Times> {
    let Quantized { model, mut workspace, file } = int8;
    let rows = rows(&model, file.products().map(|(name, _)| name));
    let row = |stage| match stage {
        Stage::Input => rows[0],
        Stage::Step(step) => rows[step + 1],
        Stage::Output => rows[rows.len() - 1],
    };
    let mut scores = Vec::new();
    alternate(batches, || {
        let samples = source.next()?;
        let values = span(&BATCH, || samples.normalizer.values(&samples.bytes));
        scores.resize(samples.labels.len() * model.outputs(), 0.0);
        if is_recording() {
            let mut watch = |stage| follow(row(stage));
            model.infer_watched(&mut workspace, &values, &mut scores, &mut watch);
            end_sequence();
        } else {
            model.infer(&mut workspace, &values, &mut scores)
        }
        Ok(())
    })
}
