//! The version of the gloo library.

use std::ffi::c_int;

unsafe extern "C" {
    fn burn_mpi_gloo_version() -> c_int;
}

/// The version of gloo that this program was compiled with, such as `0.5.0`. Distributions name
/// their packages by the date of a commit: gloo's own number rarely changes.
///
/// ```
/// assert_eq!(burn_mpi::gloo_version().split('.').count(), 3);
/// ```
pub fn gloo_version() -> String {
    // SAFETY: returns a constant and has no preconditions.
    let number = unsafe { burn_mpi_gloo_version() };
    // As in gloo/config.h: two decimal digits for each part after the first.
    format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100)
}
