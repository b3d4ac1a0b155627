//! Output files: atomic replacement, digests, PNG.

mod digest;
mod png;
mod same_file;
mod whole_file;

pub use self::png::write_png;
pub use digest::{hex, sha256};
pub use same_file::same_file;
pub use whole_file::{WholeFile, replace_json, sync_folder};
