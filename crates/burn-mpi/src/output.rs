//! Waiting for the launcher to read what this rank has printed.
//!
//! A launcher reads its ranks' output through pipes. MPICH's ends the job as soon as one rank asks
//! for it, and may drop what is still in a pipe: often the line that tells why.

use std::time::{Duration, Instant};

/// How long the launcher may take. One that is busy or stopped must not keep the job from its end.
pub(crate) const LIMIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);

/// Waits until the readers of standard output and standard error have read everything, where these
/// are pipes. To be called before this process ends the job.
pub(crate) fn wait_until_read() {
    let began = Instant::now();
    while [libc::STDOUT_FILENO, libc::STDERR_FILENO].into_iter().any(is_unread) && began.elapsed() < LIMIT {
        std::thread::sleep(PAUSE);
    }
}

/// Whether bytes are left in a pipe; false for anything else, such as a file.
fn is_unread(descriptor: libc::c_int) -> bool {
    // SAFETY: fstat and ioctl take any number, and fail if that is no open descriptor; both write to
    // variables of this function alone, of the types that they require. All zeros is a valid stat.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        let mut bytes: libc::c_int = 0;
        libc::fstat(descriptor, &mut status) == 0
            && status.st_mode & libc::S_IFMT == libc::S_IFIFO
            && libc::ioctl(descriptor, libc::FIONREAD, &mut bytes) == 0
            && bytes > 0
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_pipe_is_unread_until_its_reader_has_read_it() {
        let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
        assert!(!is_unread(writer.as_raw_fd()));
        writer.write_all(b"why\n").expect("room in the pipe");
        assert!(is_unread(writer.as_raw_fd()));
        reader.read_exact(&mut [0; 4]).expect("four bytes");
        assert!(!is_unread(writer.as_raw_fd()));
    }

    #[test]
    fn files_and_closed_descriptors_have_nothing_to_wait_for() {
        let file = std::fs::File::open("/proc/self/exe").expect("this program");
        assert!(!is_unread(file.as_raw_fd()));
        assert!(!is_unread(-1));
    }
}
