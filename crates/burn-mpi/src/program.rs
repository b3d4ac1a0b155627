//! The program's name, which begins the lines that the library prints itself.

use std::path::Path;
use std::sync::OnceLock;

static NAME: OnceLock<String> = OnceLock::new();

/// Sets the name that begins the lines which this library prints on standard error,
/// as `trainer: rank 1 on alpha panicked: ending the job`. Without it that is the
/// name of the executable's file. Called once, before [`World::init`](crate::World::init);
/// a later call changes nothing.
///
/// ```
/// burn_mpi::name_program("trainer");
/// ```
pub fn name_program(name: &str) {
    NAME.get_or_init(|| name.to_owned());
}

/// The program's name.
pub(crate) fn name() -> &'static str {
    NAME.get_or_init(|| {
        let path = std::env::args_os().next();
        let file = path.as_deref().and_then(|path| Path::new(path).file_name());
        file.map_or_else(|| "burn-mpi".to_owned(), |name| name.to_string_lossy().into_owned())
    })
}
