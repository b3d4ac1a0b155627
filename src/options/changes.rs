//! Options that change when a run is resumed.

use super::{ConfigError, RunConfig, Words, can_change};

/// Options of the schedule, which another schedule does not have.
const OF_SCHEDULES: [&str; 3] = ["max-lr", "step-size", "gamma"];

impl RunConfig {
    /// The configuration with the options that were `typed` beside `--resume`.
    ///
    /// # Errors
    /// If an option cannot change, or has an invalid value.
    pub fn changed(&self, typed: &Words) -> Result<Self, ConfigError> {
        let before = self.words()?;
        let mut words = before.clone();
        let schedule = typed.0.get("schedule");
        if schedule.is_some_and(|schedule| before.0.get("schedule") != Some(schedule)) {
            words.0.retain(|option, _| !OF_SCHEDULES.contains(&option.as_str()));
        }
        words.0.extend(typed.of_runs().0);
        let changed = Self::read(words.to_args())?;
        let after = changed.words()?;
        for option in before.0.keys().chain(after.0.keys()) {
            let value = after.0.get(option);
            if let (true, Err(reason)) = (before.0.get(option) != value, can_change(option)) {
                let shown = value.cloned().flatten().unwrap_or_default();
                let problem = format!("cannot change in a resumed run: {reason}");
                return Err(ConfigError::new(option.clone(), shown.display(), problem));
            }
        }
        Ok(changed)
    }
}

#[cfg(test)]
#[path = "changes_tests.rs"]
mod tests;
