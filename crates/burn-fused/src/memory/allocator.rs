//! Settings of mimalloc as the global allocator of a training program.

use libmimalloc_sys::{mi_option_set, mi_option_t};

/// mimalloc's number of the option `purge_delay`, the same in its versions 2
/// and 3; its Rust binding has no name for it.
const PURGE_DELAY: mi_option_t = 15;

/// Has mimalloc keep all freed memory; to be called at the start of `main`. A training step frees what the
/// next one allocates again; returning large blocks to the system in between
/// makes the kernel clear their pages again in each step.
pub fn keep_freed_pages() {
    // SAFETY: the number is that of an option, and -1, to never purge, is a valid value. It is
    // one aligned word, which the allocator reads anew for each use: a thread that allocates
    // meanwhile uses the value before or after.
    unsafe { mi_option_set(PURGE_DELAY, -1) };
}

/// Has this process, and those that it starts, not use transparent huge pages.
/// mimalloc asks for such pages of 2 MiB, of which a small network fills a part:
/// the kernel clears each as a whole when it is first touched, and it counts as used
/// memory. No network was measured to train faster with them.
pub fn use_common_pages() {
    // A kernel without the setting has no such pages.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}
