//! Selects what `mpiburn profile` measures: the network and samples of a run, or a network with initial
//! weights and random samples.

use burn_mpi::World;

use crate::commands::checkpoint::Opened;
use crate::commands::subject::{BATCHES, Subject};
use crate::commands::{check_random_batch, warn_of_ignored};
use crate::device::DeviceKind;
use crate::options::{ConfigError, ProfileArgs, RunConfig, Words, as_typed};
use crate::train::{MixedPrecision, OptionSpec, Scope, spec};
use data::Split;
use run_record::Part;
use serde_json::Value;

/// Returns the network and samples that the options select, the same on every rank.
pub fn subject(world: &World, args: &ProfileArgs) -> anyhow::Result<Subject> {
    let is_ignored = |option: &str| match spec(option).map(|spec| spec.scope) {
        Some(Scope::Training) => option != "data-root" || args.run.path().is_none(),
        // `check` rejects `--precision` without `--train`.
        Some(Scope::Step) => !args.train && option != "precision",
        _ => false,
    };
    let does = match (args.run.path(), args.train) {
        (None, _) => "profile without RUN uses random initial weights and random samples",
        (Some(_), false) => "profile uses the run's network for inference",
        (Some(_), true) => "profile uses the run's network, and the run's options unless others are typed",
    };
    warn_of_ignored(world, does, &args.typed, is_ignored);
    let Some(run) = args.run.path() else {
        let typed = args.config.clone().completed()?;
        check(&typed, args)?;
        check_random_batch(&typed)?;
        let samples = BATCHES * typed.data.train_batch_size.get() * world.size();
        return Subject::initial(world, typed, samples, args.int8);
    };
    let checked = [if args.train { Split::Train } else { Split::Test }];
    let data_root = Some(&args.config.data.data_root).filter(|_| args.typed.has("data-root"));
    let adapt = |stored: RunConfig| {
        let config = of_run(&stored, &args.typed, args.train)?;
        check(&config, args)?;
        Ok(config)
    };
    Subject::of_run(world, Opened::open(world, run, data_root, &checked, adapt)?, args.int8)
}

/// Combines the `typed` options with `stored`, the options of the run. The network is always the run's. Data
/// set, batch size, and the options of the recipe that affect a step, such as optimizer and penalties, are
/// the run's unless they are typed. If `train` is true, the same applies to the precision.
///
/// # Errors
/// If a typed option asks for a network other than the run's, or does not fit the run's options.
fn of_run(stored: &RunConfig, typed: &Words, train: bool) -> Result<RunConfig, ConfigError> {
    let own = stored.fields();
    let is_kept = |spec: &OptionSpec| match (spec.scope, spec.part) {
        (Scope::Network, _) => true,
        (Scope::Step, Part::Recipe) => match spec.field {
            // Inference runs in f32. The run's momentum does not apply if another optimizer is typed.
            "precision" => train,
            "momentum" => !typed.has("optimizer"),
            _ => true,
        },
        _ => ["data_root", "num_classes", "train_batch_size"].contains(&spec.field),
    };
    let mut fields = own.clone();
    fields.retain(|field, _| spec(field).is_some_and(is_kept));
    typed.overlay(&mut fields)?;
    let config = RunConfig::from_fields(fields)?;
    for (field, value) in config.fields() {
        let is_network = spec(&field).is_some_and(|spec| spec.scope == Scope::Network);
        if is_network && value != own[&field] {
            let option = field.replace('_', "-");
            let made = match &own[&field] {
                Value::Null | Value::Bool(false) => format!("without --{option}"),
                Value::Bool(true) => format!("with --{option}"),
                own => format!("with --{option} {}", as_typed(own)),
            };
            let shown = if value == true { String::new() } else { as_typed(&value) };
            let problem = format!("the checkpoint's network was trained {made}: leave the option out");
            return Err(ConfigError::new(option, shown, problem));
        }
    }
    Ok(config)
}

/// Rejects options that profiling does not support, or that conflict with each other.
pub fn check(config: &RunConfig, args: &ProfileArgs) -> Result<(), ConfigError> {
    if let Some(kind) = config.quantization.quantize {
        return Err(ConfigError::new(
            "quantize",
            kind,
            "profile measures only float training: leave the option out",
        ));
    }
    if config.precision != MixedPrecision::No && !args.train {
        return Err(ConfigError::new("precision", config.precision, "requires --train"));
    }
    if !args.int8 {
        return Ok(());
    }
    let problem = if args.train {
        "profiles only inference: leave out --train".to_owned()
    } else if config.device != DeviceKind::Flex {
        format!("requires --device flex, not {}", config.device)
    } else if !config.fused {
        "does not support --fused off: leave out --fused off".to_owned()
    } else {
        return Ok(());
    };
    Err(ConfigError::new("int8", "", problem))
}
