//! Describes the machine on which a process runs, and measures the load of other programs on it.
//!
//! Timings mean little if the machine and this load are unknown. All values are read from `/proc`. A value
//! that cannot be read is recorded as unknown, and the run continues.

use std::fs;
use std::time::Duration;

use burn_mpi::Place;
use burn_mpi::internals::memory_limit;
use run_record::Machine;
use serde::{Deserialize, Serialize};

/// Describes the machine of this process, which is named `host`.
pub fn of_this_process(host: &str) -> Machine {
    Machine {
        host: host.to_owned(),
        cpu: cpu_model(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
        memory_bytes: memory("MemTotal"),
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
            .map_or_else(|_| "unknown".into(), |text| text.trim().to_owned()),
    }
}

/// Returns a field of `/proc/meminfo` in bytes; 0 if it is unknown.
fn memory(name: &str) -> u64 {
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kilobytes = field(&memory, name, ':').and_then(|text| text.split_whitespace().next()?.parse().ok());
    kilobytes.map_or(0, |kilobytes: u64| kilobytes * 1024)
}

/// Returns the size of swap space in bytes. Processes may use it in addition to memory.
pub fn swap() -> u64 {
    memory("SwapTotal")
}

/// Returns the bytes of memory that all processes on this host may use together, or 0 if unknown. The flag is
/// true if a container or a batch job limits the processes to less than the machine's memory.
pub fn usable_memory(host: &str) -> (u64, bool) {
    let all = of_this_process(host).memory_bytes;
    let limit = memory_limit().filter(|&limit| limit < all);
    (limit.unwrap_or(all), limit.is_some())
}

/// Finds the first line that consists of `name`, the separator `mark` and a value, and returns the value.
/// Ignores spaces around the name and the value.
fn field<'t>(text: &'t str, name: &str, mark: char) -> Option<&'t str> {
    let mut lines = text.lines().filter_map(|line| line.split_once(mark));
    lines.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
}

/// Returns the model of the processor. On x86 the kernel names the model; on Arm it gives the numbers of
/// implementer and part.
fn cpu_model(cpuinfo: &str) -> String {
    let value_of = |name| field(cpuinfo, name, ':').filter(|text| !text.is_empty());
    let numbers =
        || Some(format!("implementer {} part {}", value_of("CPU implementer")?, value_of("CPU part")?));
    let named = value_of("model name").or(value_of("Model")).map(ToOwned::to_owned);
    named.or_else(numbers).unwrap_or_else(|| "unknown".into())
}

/// CPU times from the start of the machine or of the process up to one moment, in the kernel's ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTime {
    /// Time of all cores of the machine, including idle time.
    pub all: u64,
    /// Time of all cores of the machine without idle time. Includes steal time, which the hypervisor took
    /// from this virtual machine.
    pub busy: u64,
    /// Time of all threads of this process.
    pub own: u64,
}

impl CpuTime {
    /// Returns the CPU time up to now; zeros if `/proc` cannot be read.
    pub fn now() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Self::parse(&read("/proc/stat"), &read("/proc/self/stat")).unwrap_or_default()
    }

    fn parse(machine: &str, process: &str) -> Option<Self> {
        // The columns are user nice system idle iowait irq softirq steal. Guest time, a later column, is
        // already part of user.
        let ticks = machine.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
        let ticks: Vec<u64> = ticks.map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let idle = ticks.get(3)? + ticks.get(4)?;
        let all: u64 = ticks.iter().sum();
        Some(Self { all, busy: all - idle, own: stat(process, 14)? + stat(process, 15)? })
    }

    /// Returns the CPU time since `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            all: self.all.saturating_sub(before.all),
            busy: self.busy.saturating_sub(before.busy),
            own: self.own.saturating_sub(before.own),
        }
    }
}

/// Returns the percentage of a machine's CPU time that programs other than its ranks used. `ranks` are the
/// ranks' times over the same interval. `None` if the interval is too short or unknown.
pub fn others_percent(ranks: &[CpuTime]) -> Option<f64> {
    // The ranks start and end their intervals at nearly the same time. The longest interval stands for all of
    // them.
    let longest = ranks.iter().max_by_key(|time| time.all)?;
    let own: u64 = ranks.iter().map(|time| time.own).sum();
    let others = longest.busy.saturating_sub(own);
    (longest.all > 0).then(|| 100.0 * others as f64 / longest.all as f64)
}

/// Returns field `number` of `text`, the contents of `/proc/PID/stat`. Fields are numbered from 1, as in
/// proc(5). The second field is the program's name in parentheses, and may contain spaces, so fields are
/// counted from its end.
fn stat(text: &str, number: usize) -> Option<u64> {
    text.rsplit_once(')')?.1.split_whitespace().nth(number - 3)?.parse().ok()
}

/// Returns the time since this process started, with a resolution of 10 ms; zero if unknown.
pub fn process_age() -> Duration {
    /// Ticks of `/proc` per second (USER_HZ): 100 on x86, Arm and RISC-V.
    const PER_SECOND: f64 = 100.0;
    let age = || {
        let uptime: f64 = fs::read_to_string("/proc/uptime").ok()?.split_whitespace().next()?.parse().ok()?;
        let started = stat(&fs::read_to_string("/proc/self/stat").ok()?, 22)? as f64 / PER_SECOND;
        Duration::try_from_secs_f64(uptime - started).ok()
    };
    age().unwrap_or_default()
}

/// Returns the peak resident memory of this process, in MB of 2^20 bytes; 0 if unknown.
pub fn peak_rss_mb() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes =
        field(&status, "VmHWM", ':').and_then(|text| text.split_whitespace().next()?.parse().ok());
    kilobytes.map_or(0.0, |kilobytes: f64| kilobytes / 1024.0)
}

/// Returns the number of page faults of this process: minor faults (first touch) plus major faults (read from
/// disk).
pub fn page_faults() -> u64 {
    let process = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    [10, 12].into_iter().filter_map(|number| stat(&process, number)).sum()
}

/// Whether some hosts with different names are the same machine. Containers and network namespaces, for
/// example, have different host names and share a machine's cores, caches and memory.
pub fn shared_machine(places: &[Place]) -> bool {
    places.iter().any(|a| places.iter().any(|b| a.boot_id == b.boot_id && a.host != b.host))
}

/// Returns the topology of ranks at these `places`, such as `2x2`. See [`run_record::topology`].
pub fn topology(places: &[Place]) -> String {
    run_record::topology(places.iter().map(|place| place.host.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(hosts: [&str; 4], boot_ids: [&str; 4]) -> Vec<Place> {
        let place_of = |rank: usize| Place {
            host: hosts[rank].into(),
            boot_id: boot_ids[rank].into(),
            ..Place::of_this_process(rank)
        };
        (0..4).map(place_of).collect()
    }

    #[test]
    fn topologies_are_machines_times_processes() {
        let two_by_two = places(["alpha", "alpha", "beta", "beta"], ["a", "a", "b", "b"]);
        assert_eq!(topology(&two_by_two), "2x2");
        assert_eq!(topology(&two_by_two[..2]), "1x2");
        assert_eq!(topology(&two_by_two[..3]), "3on2");
    }

    #[test]
    fn two_host_names_of_one_machine_share_it() {
        let lab = places(["node0", "node0", "node1", "node1"], ["same"; 4]);
        assert!(shared_machine(&lab) && !shared_machine(&lab[..2]));
    }

    #[test]
    fn touching_new_memory_is_a_page_fault() {
        let before = page_faults();
        // The vector is larger than what an allocator keeps cached and larger than a huge page, so touching
        // it causes page faults.
        let memory = std::hint::black_box(vec![1u8; 64 << 20]);
        assert!(before > 0 && page_faults() > before, "{}", memory.len());
    }
    #[test]
    fn this_process_has_memory() {
        assert!(peak_rss_mb() > 1.0);
    }

    #[test]
    fn processors_are_named_by_model_or_by_numbers() {
        assert_eq!(cpu_model("processor\t: 0\nmodel name\t: Zen 5: fast\n"), "Zen 5: fast");
        let arm = "CPU implementer\t: 0x41\nCPU part\t: 0xd08\n";
        assert_eq!(cpu_model(arm), "implementer 0x41 part 0xd08");
        assert_eq!(cpu_model("flags: x\n"), "unknown");
        let here = of_this_process("alpha");
        assert!(here.host == "alpha" && here.memory_bytes > 1 << 20 && !here.kernel.is_empty(), "{here:?}");
    }

    #[test]
    fn the_load_of_others_is_busy_time_without_the_ranks() {
        let at = |user: u64, idle: u64, own: u64| {
            let process = format!("1 (a b) c) S{} {own} 2 0", " 0".repeat(10));
            CpuTime::parse(&format!("cpu  {user} 0 10 {idle} 0 0 0 20 0 0\ncpu0 1\n"), &process).unwrap()
        };
        let (before, after) = (at(100, 1000, 5), at(400, 1700, 105));
        let passed = after.since(before);
        assert_eq!((passed.all, passed.busy, passed.own), (1000, 300, 100));
        assert_eq!(others_percent(&[passed]), Some(20.0));
        assert_eq!(others_percent(&[passed, passed]), Some(10.0), "two ranks of one machine");
        assert_eq!(others_percent(&[passed; 4]), Some(0.0), "coarse ticks never give less than 0");
        assert_eq!((others_percent(&[]), others_percent(&[CpuTime::default()])), (None, None));
        assert_eq!(CpuTime::parse("nonsense", ""), None);
    }

    #[test]
    fn this_process_has_an_age_and_cpu_time() {
        let age = process_age().as_secs_f64();
        let uptime = fs::read_to_string("/proc/uptime").expect("the machine's age");
        let uptime: f64 =
            uptime.split_whitespace().next().and_then(|word| word.parse().ok()).expect("seconds");
        assert!(age <= uptime, "{age} s on a machine that has run for {uptime} s");
        let now = CpuTime::now();
        assert!(now.all >= now.busy && now.busy > 0, "{now:?}");
    }
}
