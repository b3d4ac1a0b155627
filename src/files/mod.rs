//! Files and what they hold, whoever writes them: replaced in one step, digests,
//! PNG pictures.

mod digest;
mod png;
mod whole_file;

pub use self::png::write_png;
pub use digest::{hex, sha256};
pub use whole_file::{WholeFile, replace_json, sync_folder};
