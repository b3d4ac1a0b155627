//! The end of a job whose training has failed: burn-train's strategies return no errors.

use crate::guard::activity;
use crate::{CommError, World};

/// The value, or the end of the job with one line.
pub(super) fn or_end<T>(world: &World, result: Result<T, CommError>) -> T {
    let error = match result {
        Ok(value) => return value,
        Err(error) => error,
    };
    // All ranks have a shared error, and the first prints it.
    if !error.is_shared() || world.is_root() {
        crate::run::say(&error.to_string());
    }
    activity::set_reason(&error.to_string());
    // The exit handler meets the other ranks, or ends them.
    std::process::exit(1)
}
