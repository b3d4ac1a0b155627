//! Options of a profile of a run: typed ones, and the run's own where none are typed.

use crate::config::{ConfigError, RunConfig};
use crate::train::Recipe;

/// `typed` with the network and the data set of the run `stored`. Its batch size, and in training
/// its optimizer, penalties and precision, are taken where no option of that name is among the
/// typed `names`.
///
/// # Errors
/// If a typed option is another network than the run's, or does not fit the run's options.
pub fn of_run(
    stored: RunConfig,
    typed: RunConfig,
    names: &[String],
    train: bool,
) -> Result<RunConfig, ConfigError> {
    let is_typed = |name: &str| names.iter().any(|typed| typed == name);
    if is_typed("model") && typed.model != stored.model {
        let problem = format!("the checkpoint is of a {}; leave the option out", stored.model);
        return Err(ConfigError::new("model", typed.model, problem));
    }
    let own = &typed.network;
    for (name, value, other) in [
        ("activation", own.activation.to_string(), stored.network.activation.to_string()),
        ("batch_norm", own.batch_norm.to_string(), stored.network.batch_norm.to_string()),
        ("dropout", own.dropout.to_string(), stored.network.dropout.to_string()),
        ("hidden", format!("{:?}", own.hidden), format!("{:?}", stored.network.hidden)),
    ] {
        if is_typed(name) && value != other {
            let (option, value) = match name {
                "batch_norm" => ("batch-norm", String::new()),
                "hidden" => ("hidden", own.hidden.unwrap_or_default().to_string()),
                "dropout" => ("dropout", value),
                _ => ("activation", value),
            };
            let problem = "the checkpoint's network has another; leave the option out";
            return Err(ConfigError::new(option, value, problem));
        }
    }
    let own = |name: &str| is_typed(name);
    let (recipe, given) = (stored.recipe, typed.recipe.clone());
    let recipe = Recipe {
        // A momentum belongs to its optimizer.
        momentum: pick(own("momentum") || own("optimizer"), given.momentum, recipe.momentum),
        optimizer: pick(own("optimizer"), given.optimizer, recipe.optimizer),
        clip_norm: pick(own("clip_norm"), given.clip_norm, recipe.clip_norm),
        l1: pick(own("l1"), given.l1, recipe.l1),
        l2: pick(own("l2"), given.l2, recipe.l2),
        label_smoothing: pick(own("label_smoothing"), given.label_smoothing, recipe.label_smoothing),
        ..given
    };
    let config = RunConfig {
        model: stored.model,
        network: stored.network,
        num_classes: stored.num_classes,
        data_root: pick(own("data_root"), typed.data_root.clone(), stored.data_root),
        train_batch_size: pick(own("train_batch_size"), typed.train_batch_size, stored.train_batch_size),
        lr: pick(own("lr"), typed.lr, stored.lr),
        weight_decay: pick(own("weight_decay"), typed.weight_decay, stored.weight_decay),
        // Inference is in f32.
        precision: pick(own("precision") || !train, typed.precision, stored.precision),
        recipe,
        ..typed
    };
    config.check_stored()?;
    Ok(config)
}

fn pick<T>(is_typed: bool, typed: T, stored: T) -> T {
    if is_typed { typed } else { stored }
}
