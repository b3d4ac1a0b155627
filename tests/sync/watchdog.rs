//! Names the case in which a rank panics or hangs.
//!
//! A rank that waits for a message cannot look at the clock, and the transport's
//! own error does not know the case. A thread looks instead, and speaks before
//! the transport's timeout of 10 s.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long a step may take.
const LIMIT: Duration = Duration::from_secs(8);

/// The case under way, and when it last made progress.
static UNDER_WAY: Mutex<Option<(String, Instant)>> = Mutex::new(None);

/// A case begins; `name` describes it in one line.
pub fn begin(name: String) {
    set(Some((name, Instant::now())));
}

/// A step begins.
pub fn progress() {
    let name = under_way().map(|(name, _)| name);
    set(name.map(|name| (name, Instant::now())));
}

/// No case is under way.
pub fn end() {
    set(None);
}

/// Prints what is wrong with the case under way, and ends the job. All ranks may
/// find the same at once; the lowest one's line is enough.
pub fn fail(rank: usize, what: &str) -> ! {
    let name = under_way().map_or_else(|| "no case".into(), |(name, _)| name);
    // One step may keep the others for longer than this.
    set(None);
    std::thread::sleep(Duration::from_millis(50) * rank as u32);
    eprintln!("not ok - rank {rank}: {what}; {name}");
    burn_mpi::abort(1)
}

/// Starts watching, for panics too.
pub fn start(rank: usize) {
    std::panic::set_hook(Box::new(move |panic| {
        let what = panic.to_string().replace('\n', " ");
        fail(rank, &what)
    }));
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_millis(100));
            let patience = LIMIT + Duration::from_millis(200) * rank as u32;
            if let Some((name, since)) = under_way()
                && since.elapsed() > patience
            {
                eprintln!("not ok - rank {rank}: a step takes more than {} s; {name}", LIMIT.as_secs());
                // The other thread may be inside MPI, so this one must not call
                // it; mpirun ends the other ranks.
                std::process::abort();
            }
        }
    });
}

fn set(value: Option<(String, Instant)>) {
    *UNDER_WAY.lock().unwrap_or_else(|error| error.into_inner()) = value;
}

fn under_way() -> Option<(String, Instant)> {
    UNDER_WAY.lock().unwrap_or_else(|error| error.into_inner()).clone()
}
