//! Options of a profile of a run: typed ones, and the run's own where none are typed.

use crate::options::{ConfigError, Part, RunConfig, Words, part};

/// What was `typed`, with the network and the data set of the run `stored`, and its batch size, optimizer and
/// penalties, and in training its precision, where no such option is typed.
///
/// # Errors
/// If a typed option is another network than the run's, or does not fit the run's options.
pub fn of_run(stored: &RunConfig, typed: &Words, train: bool) -> Result<RunConfig, ConfigError> {
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
            let own = own.0.get(option).cloned().flatten().unwrap_or("none".into());
            let problem = format!("the checkpoint's network has {}; leave the option out", own.display());
            return Err(ConfigError::new(option.clone(), shown.display(), problem));
        }
    }
    Ok(config)
}
