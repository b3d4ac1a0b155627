//! Files: atomic replacement, locks, digests, links.

mod digest;
mod folder;
mod folder_lock;
mod links;
mod regular;
mod same_file;
mod whole_file;

pub use digest::{NO_DIGEST, hex, sha256, sha256_of_f32};
pub use folder::entries;
pub use folder_lock::{FolderLock, LOCK, LockError};
pub use links::{append_here, append_in, create_here, open_here, refuse_link, write_here, write_synced};
pub use regular::{open_regular, read_regular, read_text};
pub use same_file::{place, same_file};
pub use whole_file::{WholeFile, replace_file, replace_json, sync_folder};
