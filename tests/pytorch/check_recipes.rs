//! Computes updates of given weights by given gradients, with options of `mpiburn train`.
//!
//! `check_recipes FILE.safetensors STEPS [OPTIONS]` reads f32 tensors: `weight.P` for each parameter P,
//! `gradient.K.P` for the updates K = 0, 1, …, and `scores` `[batch, classes]`, whose rows belong to the
//! classes 0, 1, … in turn. An epoch has STEPS steps.
//!
//! Prints one line of JSON: the weights after the `first` and the `last` update, `rates` (learning rate,
//! momentum) of every step of the training, and `loss` and `gradient` of the scores. tests/pytorch/recipes.py
//! compares them with PyTorch's.

use anyhow::{Context, bail};
use burn::tensor::{Device, Tensor, TensorData};
use safetensors::SafeTensors;

use burn_fused::loss::smoothed_cross_entropy;
use mpiburn::options::RunConfig;
use mpiburn::train::{Optimizer, OwnGradients};

/// Reads the tensors `prefix.0`, `prefix.1`, …
fn tensors(file: &SafeTensors<'_>, prefix: &str) -> Vec<Vec<f32>> {
    (0..).map_while(|at| floats(file, &format!("{prefix}.{at}"))).collect()
}

fn floats(file: &SafeTensors<'_>, name: &str) -> Option<Vec<f32>> {
    let tensor = file.tensor(name).ok()?;
    let number = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    Some(tensor.data().chunks_exact(4).map(number).collect())
}

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [path, steps, options @ ..] = words.as_slice() else {
        bail!("usage: check_recipes FILE.safetensors STEPS [OPTIONS]");
    };
    let config = RunConfig::read(options)?;
    let schedule = config.rates(steps.parse().context("STEPS")?, 1);
    let rate = |step: usize| schedule.rate(step / schedule.steps, step % schedule.steps);
    let bytes = std::fs::read(path).with_context(|| path.clone())?;
    let file = SafeTensors::deserialize(&bytes)?;

    let weights = tensors(&file, "weight");
    let mut params = weights.concat();
    let apart = |mut params: &[f32]| {
        let lengths = weights.iter().map(Vec::len);
        lengths.map(|length| params.split_off(..length).unwrap_or_default().to_vec()).collect()
    };
    let mut optimizer = Optimizer::new(&config);
    let mut states: Vec<Vec<Vec<f32>>> = Vec::new();
    for step in 0.. {
        let gradients = tensors(&file, &format!("gradient.{step}"));
        if gradients.is_empty() {
            break;
        }
        optimizer.update(&mut params, &mut OwnGradients::from_values(&gradients), rate(step))?;
        states.push(apart(&params));
    }

    let shape = file.tensor("scores")?.shape().to_vec();
    let (batch, classes) = (shape[0], shape[1]);
    let labels: Vec<u16> = (0..batch).map(|at| (at % classes) as u16).collect();
    let scores = TensorData::new(floats(&file, "scores").unwrap_or_default(), [batch, classes]);
    let scores = Tensor::<2>::from_data(scores, &Device::flex().autodiff()).require_grad();
    let score = smoothed_cross_entropy(scores.clone(), &labels, config.recipe.label_smoothing.get());
    let gradient = scores.grad(&score.loss.backward()).context("no gradient of the scores")?;
    let gradient = gradient.into_data().as_slice::<f32>().map(<[f32]>::to_vec);

    let rates = (0..schedule.epochs * schedule.steps).map(|step| (rate(step).lr, rate(step).momentum));
    let found = serde_json::json!({
        "first": states.first(),
        "last": states.last(),
        "rates": rates.collect::<Vec<_>>(),
        "loss": score.value,
        "gradient": gradient.ok().context("a gradient of f32")?,
    });
    println!("{found}");
    Ok(())
}
