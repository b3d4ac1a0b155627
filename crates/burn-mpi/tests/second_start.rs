//! Checks that a second start of MPI in one process is an error.

#![cfg(feature = "mpi")]

use burn_mpi::{CommError, World};

#[test]
fn a_second_start_is_an_error_and_leaves_the_environment_unchanged() {
    const SETTING: &str = "OMPI_MCA_ess_singleton_isolated";
    let world = World::init().expect("MPI starts");
    assert_eq!(world.size(), 1);
    // SAFETY: this is the only test of this program, and no other thread uses the environment.
    unsafe { std::env::remove_var(SETTING) };
    let error = World::init().err().expect("a second start");
    assert!(matches!(error, CommError::Start(_)), "{error}");
    assert_eq!(std::env::var_os(SETTING), None);
}
