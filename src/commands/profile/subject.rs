//! The network and the samples of a profile: of a checkpoint, or initial weights and noise.

use burn_mpi::World;

use crate::commands::checkpoint::Opened;
use crate::commands::subject::{BATCHES, Subject};
use crate::commands::{check_random_batch, warn_of_ignored};
use crate::device::DeviceKind;
use crate::options::{ConfigError, Part, ProfileArgs, RunConfig, Words, part};
use crate::train::Precision;
use data::Split;

/// The network and samples that the options name, the same on every rank.
pub fn open(world: &World, args: &ProfileArgs) -> anyhow::Result<Subject> {
    let is_ignored = |option: &str| match part(option) {
        Part::Run => option != "data-root" || args.run.path().is_none(),
        Part::Recipe | Part::Transport => !args.train,
        _ => false,
    };
    let does = match (args.run.path(), args.train) {
        (None, _) => "profile takes initial weights and random samples",
        (Some(_), false) => "profile takes the run's network and infers",
        (Some(_), true) => "profile takes the run's network, and its options where none are typed",
    };
    warn_of_ignored(world, does, &args.typed, is_ignored);
    let Some(run) = args.run.path() else {
        let typed = args.config.clone().completed()?;
        check(&typed, args)?;
        check_random_batch(&typed)?;
        let samples = BATCHES * typed.data.train_batch_size * world.size();
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

/// What was `typed`, with the network and the data set of the run `stored`, and its batch size, optimizer and
/// penalties, and in training its precision, where no such option is typed.
///
/// # Errors
/// If a typed option is another network than the run's, or does not fit the run's options.
fn of_run(stored: &RunConfig, typed: &Words, train: bool) -> Result<RunConfig, ConfigError> {
    let own = stored.words()?;
    let mut words = own.clone();
    words.0.retain(|option, _| match part(option) {
        Part::Network => true,
        // Inference is in f32, and a momentum belongs to its optimizer.
        Part::Recipe if option == "precision" => train,
        Part::Recipe => option != "momentum" || !typed.has("optimizer"),
        _ => ["data-root", "num-classes", "train-batch-size"].contains(&option.as_str()),
    });
    words.0.extend(typed.of_runs().0);
    let config = RunConfig::read(words.to_args())?;
    let made = config.words()?;
    for option in typed.0.keys().filter(|option| part(option) == Part::Network) {
        let value = made.0.get(option);
        if value != own.0.get(option) {
            let shown = value.cloned().flatten().unwrap_or_default();
            let made = match own.0.get(option) {
                Some(Some(own)) => format!("with --{option} {}", own.display()),
                Some(None) => format!("with --{option}"),
                None => format!("without --{option}"),
            };
            let problem = format!("the network of the checkpoint was made {made}; leave the option out");
            return Err(ConfigError::new(option.clone(), shown.display(), problem));
        }
    }
    Ok(config)
}

/// Checks options against each other.
fn check(config: &RunConfig, args: &ProfileArgs) -> Result<(), ConfigError> {
    if let Some(kind) = config.quantization.quantize {
        return Err(ConfigError::new("quantize", kind, "training is profiled in floats; leave it out"));
    }
    if config.precision != Precision::No && !args.train {
        return Err(ConfigError::new("precision", config.precision, "requires --train"));
    }
    if !args.int8 {
        return Ok(());
    }
    let problem = match () {
        () if args.train => "profiles inference; leave out --train".to_owned(),
        () if config.device != DeviceKind::Flex => format!("runs on flex alone, not on {}", config.device),
        () if !config.fused => "has no --fused off; leave that out".to_owned(),
        () => return Ok(()),
    };
    Err(ConfigError::new("int8", "", problem))
}
