//! Profiles for tests, as `mpiburn profile --json` writes them.

use std::path::PathBuf;

use serde_json::{Value, json as value};

use run_record::profile::Profile;

/// Makes an operator of the forward pass.
pub fn operator(kind: &str, calls: u64, ms: f64, allocated: u64) -> Value {
    value!({
        "name": kind, "kind": kind, "phase": "forward", "calls": calls, "self_cpu_ms": ms,
        "self_cpu_percent": 0.0, "cpu_total_percent": 0.0, "cpu_total_ms": ms, "cpu_time_avg_ms": ms,
        "memory_bytes": 0, "self_memory_bytes": 0,
        "allocated_bytes": allocated, "peak_memory_bytes": 0,
    })
}

/// Makes the file of a profile of 100 inferences that took 10 ms.
pub fn json(model: &str, activation: &str, int8: bool, operators: &[Value]) -> Value {
    value!({
        "model": model, "train": false, "int8": int8, "batches": 100, "batch": 32, "ranks": 1,
        "device": "flex", "precision": "no", "fused": true, "threads": 1, "simd": "avx2",
        "checkpoint_bytes": 1024, "cpu": "a processor", "config": {"activation": activation}, "wall_ms": 10.0,
        "accounted_percent": 100.0, "batch_ms": 0.1,
        "batch_ms_without_profiling": 0.09, "operators": operators,
    })
}

/// Makes the profile of a file with the content that [`json`] makes.
pub fn profile(model: &str, activation: &str, int8: bool, operators: &[Value]) -> Profile {
    let profile: Profile =
        serde_json::from_value(json(model, activation, int8, operators)).expect("a profile");
    Profile { path: PathBuf::from(format!("{model}-{activation}-{int8}.json")), ..profile }
}
