//! A thread that names the test case in which a rank panics or hangs.
//!
//! A rank that waits for a message cannot check the time, and the transport's error does not contain the
//! case. The thread therefore checks the time, and reports a hang before the transport's deadline.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The time limit of a step: half of the limit of a test, at which the job is killed.
fn limit() -> Duration {
    Duration::from_secs(include_str!("../limit_s").trim().parse().expect("a number of seconds")) / 2
}

/// The current case, and the time of its last progress.
static UNDER_WAY: Mutex<Option<(String, Instant)>> = Mutex::new(None);

/// Marks the beginning of a case; `name` describes it in one line.
pub fn begin(name: String) {
    set(Some((name, Instant::now())));
}

/// Marks the beginning of a step.
pub fn progress() {
    let name = current().map(|(name, _)| name);
    set(name.map(|name| (name, Instant::now())));
}

/// Marks the end of a case.
pub fn end() {
    set(None);
}

/// Prints an error of the current case, and aborts the job. All ranks may detect the same
/// error at once; the line of the lowest rank is enough.
pub fn fail(rank: usize, what: &str) -> ! {
    let name = current().map_or_else(|| "no case".into(), |(name, _)| name);
    // Stops the watchdog: the other ranks may need longer than its limit to finish a step.
    set(None);
    std::thread::sleep(Duration::from_millis(50) * rank as u32);
    eprintln!("not ok - rank {rank}: {what}; {name}");
    burn_mpi::abort(1)
}

/// Starts the watchdog, including a panic hook.
pub fn start(rank: usize) {
    std::panic::set_hook(Box::new(move |panic| {
        let what = panic.to_string().replace('\n', " ");
        fail(rank, &what)
    }));
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_millis(100));
            let patience = limit() + Duration::from_millis(200) * rank as u32;
            if let Some((name, since)) = current()
                && since.elapsed() > patience
            {
                eprintln!("not ok - rank {rank}: a step takes more than {} s; {name}", limit().as_secs());
                // The other thread may be inside MPI, so this thread must not call it; mpirun
                // ends the other ranks.
                std::process::abort();
            }
        }
    });
}

fn set(value: Option<(String, Instant)>) {
    *UNDER_WAY.lock().unwrap_or_else(|error| error.into_inner()) = value;
}

fn current() -> Option<(String, Instant)> {
    UNDER_WAY.lock().unwrap_or_else(|error| error.into_inner()).clone()
}
