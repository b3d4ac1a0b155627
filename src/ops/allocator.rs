//! What this program asks of its allocator.

use libmimalloc_sys::{mi_option_set, mi_option_t};

/// mimalloc's number of the option `purge_delay`, the same in its versions 2
/// and 3; its Rust binding has no name for it.
const PURGE_DELAY: mi_option_t = 15;

/// Has mimalloc keep all memory that is freed. A training step frees what the
/// next one allocates again; handing large blocks back to the system between them
/// makes the kernel clear their pages anew in every step.
pub fn keep_freed_pages() {
    // SAFETY: sets a number that the allocator reads; -1 means never to purge.
    unsafe { mi_option_set(PURGE_DELAY, -1) };
}

/// Has this process, and those that it starts, use pages of the common size
/// alone. mimalloc asks for huge ones, of 2 MiB, which a small network fills in
/// part: the kernel clears each as a whole when it is first touched, and it
/// counts as used memory. No network's steps were found to gain by them.
pub fn use_common_pages() {
    // A kernel without the setting has no huge pages to be kept from.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}
