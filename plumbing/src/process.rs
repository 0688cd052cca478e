//! What the kernel knows of this process and of others.

use std::time::Duration;

use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Most resident memory this process ever held, bytes; `None` where the kernel does not tell (`/proc` is Linux's).
#[must_use]
pub fn peak_memory() -> Option<u64> {
    kib_of(&std::fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

/// Descriptors that this process may have open at once; `None` without a limit.
#[must_use]
pub fn file_limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Raises [`file_limit`] to what the system lets this process have, 65,536 at most. Shells start programs with 1024, which
/// a server of many connections and files outgrows.
pub fn raise_file_limit() {
    const ENOUGH: u64 = 1 << 16;
    let limits = getrlimit(Resource::Nofile);
    let wanted = limits.maximum.map_or(ENOUGH, |most| most.min(ENOUGH));
    if limits.current.is_some_and(|current| current < wanted) {
        // Refused, it works with fewer.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limits });
    }
}

/// User and system time of all threads of this process since its start.
#[must_use]
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// User and system time of another process in steps of the kernel's tick (10 ms as a rule), threads that have ended
/// included; `None` when there is no such process, or the kernel does not tell (`/proc` is Linux's).
#[must_use]
pub fn cpu_time_of(process: Pid) -> Option<Duration> {
    // `utime` and `stime`.
    ticks(&process.as_raw_nonzero().to_string(), 14)
}

/// User and system time of the processes that this one started and waited for, and of theirs, in steps of the kernel's
/// tick; `None` where the kernel does not tell.
#[must_use]
pub fn cpu_time_of_children() -> Option<Duration> {
    // `cutime` and `cstime`.
    ticks("self", 16)
}

/// The sum of two fields that follow each other in a process's `stat`, counted from 1.
fn ticks(process: &str, field: usize) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The second field is the program's name in parentheses, which may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(field - 3);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    let ticks = ticks()? + ticks()?;
    Some(Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64))
}

/// What a process runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Cores that this process may use.
    pub cores: usize,
    /// Memory, bytes, where the kernel tells.
    pub memory_bytes: Option<u64>,
    /// The processor's model, where the kernel tells.
    pub processor: Option<String>,
}

impl Machine {
    /// This one.
    #[must_use]
    pub fn this() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kib_of(&read("/proc/meminfo"), "MemTotal:"),
            processor: processor_of(&read("/proc/cpuinfo")),
        }
    }
}

/// A line such as `MemTotal:  16384 kB`, in bytes.
fn kib_of(text: &str, name: &str) -> Option<u64> {
    let kib = text.lines().find_map(|line| line.strip_prefix(name))?;
    kib.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// The first core's model.
fn processor_of(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    let name = line.split_once(':')?.1.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use rustix::process::getpid;

    use super::*;

    #[test]
    fn both_accounts_of_a_process_grow_with_its_work() {
        let (before, before_seen) = (cpu_time(), cpu_time_of(getpid()));
        let mut sum = 0_u64;
        while cpu_time() < before + Duration::from_millis(50) {
            sum = std::hint::black_box(sum + 1);
        }
        // Ticks lag by less than two of them.
        let grown = |before: Duration, after: Duration| after >= before + Duration::from_millis(30);
        let seen = before_seen.zip(cpu_time_of(getpid()));
        assert!(seen.is_none_or(|(before, after)| grown(before, after)), "{seen:?}");
    }

    #[test]
    fn the_work_of_a_child_counts_once_it_was_waited_for() {
        let Some(before) = cpu_time_of_children() else { return };
        let script = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let ended = std::process::Command::new("sh").args(["-c", script]).status().unwrap();
        assert!(ended.success());
        assert!(cpu_time_of_children().unwrap() > before);
    }

    #[test]
    fn a_machine_is_described_as_far_as_the_kernel_tells() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2.00GHz\nmodel name\t: Some CPU @ 2.00GHz\n";
        assert_eq!(processor_of(text).as_deref(), Some("Some CPU @ 2.00GHz"));
        assert_eq!(processor_of("Hardware : board\n"), None);
        assert_eq!(kib_of("MemFree: 1 kB\nMemTotal:    2048 kB\n", "MemTotal:"), Some(2 << 20));
        assert!(Machine::this().cores >= 1);
    }

    #[test]
    fn the_peak_covers_what_was_held() {
        let held = std::hint::black_box(vec![1_u8; 64 << 20]);
        assert!(peak_memory().is_none_or(|peak| peak > held.len() as u64));
    }
}
