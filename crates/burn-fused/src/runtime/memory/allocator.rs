//! Settings of mimalloc as the global allocator of a training program.

use libmimalloc_sys::{mi_option_set, mi_option_t};

/// The number of mimalloc's option `purge_delay`. It is the same in mimalloc 2 and 3. The Rust binding has no
/// name for it.
const PURGE_DELAY: mi_option_t = 15;

/// Makes mimalloc keep all freed memory. Call this function at the start of `main`. A training step frees
/// blocks that the next step allocates again. If mimalloc returned large blocks to the system, the kernel
/// would clear their pages again in each step.
pub fn keep_freed_pages() {
    // SAFETY: `PURGE_DELAY` is the number of an option, and -1 (never purge) is a valid value of that option.
    // The option is one aligned word: a thread that allocates during this call reads either the old or the
    // new value.
    unsafe { mi_option_set(PURGE_DELAY, -1) };
}

/// Disables transparent huge pages for this process and the processes that it starts. mimalloc requests huge
/// pages of 2 MiB, but a small network uses only a part of each. The kernel clears the whole page when it is
/// first touched, and counts the whole page as used memory. In measurements, no network trained faster with
/// huge pages.
pub fn use_common_pages() {
    // A kernel that does not know the setting returns an error. It may then use huge pages as before.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}
