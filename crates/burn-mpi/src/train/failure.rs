//! The end of a job whose training has failed: burn-train's strategies return no errors.

use crate::{CommError, World};

/// The value, or the end of the job with one line.
pub(super) fn or_end<T>(world: &World, result: Result<T, CommError>) -> T {
    let error = match result {
        Ok(value) => return value,
        Err(error) => error,
    };
    // All ranks have a shared error, and the first prints it.
    if !error.is_shared() || world.is_root() {
        crate::process::say(&error.to_string());
    }
    world.member().activity.with(|state| state.reason = error.to_string());
    if world.seat().is_some() {
        panic!("{error}");
    }
    // The exit handler meets the other ranks, or ends them.
    std::process::exit(1)
}
