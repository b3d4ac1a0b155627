//! Writes the file of a time line in the Chrome trace event format, which Perfetto and chrome://tracing open.
//!
//! The format groups events by process and thread. Here, each rank is a process. Its first thread shows
//! operators. The other threads show the all-reduces of buckets (buffers of gradients). All-reduces that
//! overlap in time are on different threads.

use std::cmp::Reverse;
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;

use burn_mpi::Place;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use super::{Clock, RankTrace};
use crate::spans::{Logged, REST};
use run_record::files::{WholeFile, open_regular};

/// Number of the thread that shows operators. The threads that show buckets have the next numbers.
const COMPUTE: usize = 1;

/// The time line of all ranks.
#[derive(Debug)]
pub struct TraceFile<'a> {
    /// Events of each rank.
    pub ranks: &'a [RankTrace],
    /// Clock of each rank.
    pub clocks: &'a [Clock],
    /// Where each rank runs.
    pub places: &'a [Place],
    /// Description of the run, written as metadata.
    pub run: Value,
}

/// The first bytes of every time line.
const BEGINNING: &[u8] = b"{\"displayTimeUnit\": ";

/// Whether a file begins as a time line does, compressed or not.
fn is_time_line(path: &Path) -> io::Result<bool> {
    let mut first = [0; BEGINNING.len()];
    let begins = |mut file: Box<dyn Read>, first: &mut [u8]| file.read_exact(first).is_ok();
    let plain = begins(Box::new(open_regular(path)?), &mut first) && first == BEGINNING;
    Ok(plain || (begins(Box::new(GzDecoder::new(open_regular(path)?)), &mut first) && first == BEGINNING))
}

impl TraceFile<'_> {
    /// Checks that a file can be written at `path`. Creates no file, and leaves an existing file as it is.
    ///
    /// # Errors
    /// If the file cannot be written, or would replace a file that is neither empty nor a time line.
    pub fn check(path: &Path) -> io::Result<()> {
        let length = fs::metadata(path).map_or(0, |found| if found.is_file() { found.len() } else { 0 });
        if length > 0 && !is_time_line(path)? {
            return Err(io::Error::other(
                "the existing file is not a time line and must not be overwritten: choose another name",
            ));
        }
        WholeFile::at(path).map(drop)
    }

    /// Writes the file, compressed if its name ends in `.gz`. An existing file is replaced when the new file
    /// is complete.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut file = WholeFile::at(path)?;
        if path.extension().is_some_and(|extension| extension == "gz") {
            let mut packed = GzEncoder::new(&mut file, Compression::default());
            self.write_json(&mut packed)?;
            packed.finish()?;
        } else {
            self.write_json(&mut file)?
        }
        file.finish()
    }

    /// Writes one event per line, without building the whole text in memory.
    fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        let other = self.metadata();
        write!(out, "{{\"displayTimeUnit\": \"ms\",\n\"otherData\": {other},\n\"traceEvents\": [")?;
        let mut before = "\n";
        let begins = self.ranks.iter().flat_map(|rank| &rank.spans).map(|span| span.begin_ns);
        let first = begins.min().unwrap_or(0);
        for (number, rank) in self.ranks.iter().enumerate() {
            let computed = computed(rank);
            let spans = computed.iter().map(|(name, category, span)| {
                let times = [span.begin_ns - first, span.end_ns - span.begin_ns];
                event(number, COMPUTE, [name, category], times, json!({"step": span.step}))
            });
            let buckets = rank.buckets.iter().map(|bucket| {
                let exposed: i64 = bucket.calls.iter().map(|call| call.end_ns - call.begin_ns).sum();
                let args = json!({
                    "step": bucket.step,
                    "bytes": bucket.bytes,
                    "parameters": bucket.parameters,
                    "hidden_ms": 1e-6 * bucket.hidden as f64,
                    "exposed_ms": 1e-6 * exposed as f64,
                });
                let name = format!("bucket {} all-reduce", bucket.index + 1);
                let times = [bucket.begin - first, bucket.end - bucket.begin];
                event(number, COMPUTE + 1 + bucket.lane, [&name, COMMUNICATION], times, args)
            });
            for event in self.headings(number).into_iter().chain(spans).chain(buckets) {
                write!(out, "{before}{event}")?;
                before = ",\n";
            }
        }
        out.write_all(b"\n]}\n")
    }

    /// Returns the events that name a rank's process and threads.
    fn headings(&self, rank: usize) -> Vec<Value> {
        let heading = |what: &str, tid: usize, args: Value| json!({"name": what, "ph": "M", "pid": rank, "tid": tid, "args": args});
        let place = &self.places[rank];
        let process = format!("rank {rank} on {}, core {}", place.host, place.binding);
        let mut all = vec![
            heading("process_name", COMPUTE, json!({"name": process})),
            heading("process_sort_index", COMPUTE, json!({"sort_index": rank})),
        ];
        let lanes = self.ranks[rank].buckets.iter().map(|bucket| bucket.lane + 1);
        for thread in 0..=lanes.max().unwrap_or(0).max(1) {
            let name = match thread {
                0 => "compute".to_owned(),
                1 => "communication".to_owned(),
                _ => format!("communication {thread}"),
            };
            all.push(heading("thread_name", COMPUTE + thread, json!({"name": name})));
            all.push(heading("thread_sort_index", COMPUTE + thread, json!({"sort_index": thread})));
        }
        all
    }

    fn metadata(&self) -> Value {
        let mut all = self.run.clone();
        let us =
            |ns: fn(&Clock) -> f64| -> Vec<f64> { self.clocks.iter().map(|clock| ns(clock) / 1e3).collect() };
        all["ranks"] = json!(self.ranks.len());
        all["clock_error_us"] = json!(us(|clock| clock.error_ns() as f64));
        all["clock_drift_us"] = json!(us(|clock| clock.drift_ns() as f64));
        all
    }
}

/// Category of the calls of collectives.
const COMMUNICATION: &str = "communication";

/// Returns a rank's spans on the thread of operators, with names and categories. If several spans begin at
/// the same time, the outer span is first.
pub(super) fn computed(rank: &RankTrace) -> Vec<(String, &str, &Logged)> {
    let spans = rank.spans.iter().map(|span| match span.row {
        REST => (format!("step {}", span.step), "step", span),
        row => (rank.operators[row].0.clone(), rank.operators[row].1.as_str(), span),
    });
    let calls = rank.buckets.iter().flat_map(|bucket| {
        bucket.calls.iter().enumerate().map(|(at, call)| {
            let what = match (at, bucket.calls.len()) {
                (_, 1) => "all-reduce of",
                // A compressed bucket is started again for each round.
                (at, _) if at % 2 == 0 => "start of",
                _ => "wait for",
            };
            (format!("{what} bucket {}", bucket.index + 1), COMMUNICATION, call)
        })
    });
    let mut all: Vec<_> = spans.chain(calls).collect();
    all.sort_by_key(|(_, _, span)| (span.begin_ns, Reverse(span.end_ns), span.row != REST));
    all
}

/// Makes an event of a thread. `times` are its start and duration in ns; the file gives them in µs.
fn event(pid: usize, tid: usize, [name, category]: [&str; 2], times: [i64; 2], args: Value) -> Value {
    let [ts, dur] = times.map(|ns| ns as f64 / 1e3);
    json!({"name": name, "cat": category, "ph": "X", "ts": ts, "dur": dur, "pid": pid, "tid": tid, "args": args})
}
