//! A deadline for the start of MPI, when there are no guards yet that could ask each other.
//!
//! `MPI_Init` waits for every process of the job, and reports nothing. A rank that was stopped, that
//! another machine's firewall cuts off, or that never calls it leaves the others there for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{PATIENCE, TICK, TIMED_OUT, end_mpirun};
use crate::output::wait_until_read;
use crate::process::say;
use crate::{Launcher, process};

/// Watches the start of the world until dropped.
pub(crate) struct StartUp(Arc<AtomicBool>);

impl Drop for StartUp {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Ends this process, and with it the job, if the result lives longer than the deadline. A process
/// without other ranks needs none.
pub(crate) fn watch(launcher: Option<&Launcher>) -> StartUp {
    let started = StartUp(Arc::default());
    let Some(launcher) = launcher.filter(|launcher| launcher.size > 1).cloned() else { return started };
    let done = Arc::clone(&started.0);
    // Without messages, time alone keeps a second rank from printing the line.
    let patience = 3 * PATIENCE * launcher.rank.min(8) as u32;
    let wait = move || {
        let (mut waited, mut last) = (Duration::ZERO, Instant::now());
        while !done.load(Ordering::Relaxed) {
            if waited > process::activity().with(|state| state.deadline).saturating_add(patience) {
                end_the_job(&launcher, waited);
            }
            std::thread::sleep(TICK);
            waited += counted(last.elapsed());
            last = Instant::now();
        }
    };
    if std::thread::Builder::new().name("start".into()).spawn(wait).is_err() {
        log::warn!("no thread for the deadline of MPI's start: a start that hangs will not be ended");
    }
    started
}

/// What of the time between two looks counts: a busy core delays them, and in seconds this process was
/// stopped itself, which must not be told of as others' silence.
fn counted(since: Duration) -> Duration {
    since.min(5 * TICK)
}

fn end_the_job(launcher: &Launcher, waited: Duration) -> ! {
    let Launcher { name, rank, size, .. } = launcher;
    let host = crate::host::Place::of_this_process(*rank).host;
    let others = match siblings::stopped().as_slice() {
        [] => "other ranks may have been stopped, have ended, or be cut off from this host".to_owned(),
        [one] => format!("stopped: rank {one} on {host}"),
        some => {
            let ranks: Vec<String> = some.iter().map(ToString::to_string).collect();
            format!("stopped: ranks {} on {host}", ranks.join(", "))
        }
    };
    say(&format!(
        "the start of MPI exceeded the deadline of {} s ({}) after {:.1} s on rank {rank} ({host}), one of {size} \
         ranks of {name}; {others}",
        process::activity().with(|state| state.deadline).as_secs_f64(),
        process::deadline_setting(),
        waited.as_secs_f64(),
    ));
    wait_until_read();
    end_mpirun();
    // SAFETY: exits this process at once, which ends the job: the main thread is inside MPI, and exit
    // handlers could wait for it.
    unsafe { libc::_exit(TIMED_OUT) }
}

/// Other ranks on this host: processes with the same parent.
mod siblings {
    use std::fs;

    /// Numbers of those that a signal has stopped, in order.
    pub(super) fn stopped() -> Vec<usize> {
        let own = std::os::unix::process::parent_id();
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let mut ranks: Vec<usize> = processes
            .filter(|entry| {
                let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
                state_and_parent(&stat)
                    .is_some_and(|(state, parent)| matches!(state, 'T' | 't') && parent == own)
            })
            .filter_map(|entry| rank_in(&fs::read(entry.path().join("environ")).ok()?))
            .collect();
        ranks.sort_unstable();
        ranks
    }

    /// Parses `PID (NAME) STATE PARENT …`, where the name may contain any character.
    fn state_and_parent(stat: &str) -> Option<(char, u32)> {
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
    }

    /// The rank that a launcher has set in a process's environment.
    fn rank_in(environment: &[u8]) -> Option<usize> {
        let value = |name: &str| {
            environment.split(|&byte| byte == 0).find_map(|variable| {
                let value = variable.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
                String::from_utf8(value.to_vec()).ok()
            })
        };
        crate::Launcher::from_variables(value).map(|launcher| launcher.rank)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn state_parent_and_rank_are_read() {
            assert_eq!(state_and_parent("12 (a) b) T 7 12 1"), Some(('T', 7)));
            assert_eq!(state_and_parent("12"), None);
            let variables = b"A=1\0OMPI_COMM_WORLD_RANK=3\0OMPI_COMM_WORLD_SIZE=4\0";
            assert_eq!((rank_in(variables), rank_in(b"A=1\0")), (Some(3), None));
        }
    }
}
