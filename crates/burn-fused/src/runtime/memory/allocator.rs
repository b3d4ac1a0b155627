//! Settings of mimalloc as the global allocator of a training program.

use libmimalloc_sys::{mi_option_set, mi_option_t};

/// mimalloc's number of the option `purge_delay`, the same in its versions 2 and 3;
/// its Rust binding does not name it.
const PURGE_DELAY: mi_option_t = 15;

/// Makes mimalloc keep all freed memory; call it at the start of `main`. A training
/// step frees blocks that the next one allocates again; if mimalloc returned large
/// blocks to the system, the kernel would clear their pages again in each step.
pub fn keep_freed_pages() {
    // SAFETY: the number is that of an option, and -1 (never purge) is a valid value. The option
    // is one aligned word, which the allocator reads for each use: a thread that allocates at the
    // same time sees the old or the new value.
    unsafe { mi_option_set(PURGE_DELAY, -1) };
}

/// Disables transparent huge pages for this process and those that it starts.
/// mimalloc requests such pages of 2 MiB, of which a small network uses a part: the
/// kernel clears each as a whole when it is first touched, and counts it as used
/// memory. No network was measured to train faster with them.
pub fn use_common_pages() {
    // A kernel without the setting has no huge pages.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}
