//! Figures of the kernel about this process and about others, and which start of which machine it runs on.

use std::time::Duration;

use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Largest resident memory of this process so far, in bytes. `None` where the kernel does not report it (`/proc` exists
/// on Linux only).
pub fn peak_memory() -> Option<u64> {
    kib_of(&std::fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

/// Largest number of file descriptors that this process may have open. `None` without a limit.
pub fn file_limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Raises [`file_limit`] to the system's maximum, at most 65,536. Shells start programs with 1024, which is too few for
/// a server with many connections and files.
pub fn raise_file_limit() {
    const ENOUGH: u64 = 1 << 16;
    let limits = getrlimit(Resource::Nofile);
    let wanted = limits.maximum.map_or(ENOUGH, |most| most.min(ENOUGH));
    if limits.current.is_some_and(|current| current < wanted) {
        // If it fails, the process works with fewer descriptors.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limits });
    }
}

/// User and system time of all threads of this process since its start.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// User and system time of another process, including ended threads, in ticks of the kernel (usually 10 ms). `None` if
/// there is no such process, or where the kernel does not report it (`/proc` exists on Linux only).
pub fn cpu_time_of(process: Pid) -> Option<Duration> {
    // `utime` and `stime`.
    ticks(&process.as_raw_nonzero().to_string(), 14)
}

/// User and system time of child processes that have ended and been waited for, and of their children, in ticks of the
/// kernel. `None` where the kernel does not report it.
pub fn cpu_time_of_children() -> Option<Duration> {
    // `cutime` and `cstime`.
    ticks("self", 16)
}

/// The sum of two consecutive fields of a process's `stat` file.
fn ticks(process: &str, field: usize) -> Option<Duration> {
    let ticks = stat_field(process, field)? + stat_field(process, field + 1)?;
    Some(Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64))
}

/// A field of a process's `stat` file. Fields count from 1.
pub(crate) fn stat_field(process: &str, field: usize) -> Option<u64> {
    field_of(&std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?, field)
}

fn field_of(stat: &str, field: usize) -> Option<u64> {
    // The second field is the program's name in parentheses. The name may contain any character.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(field - 3)?.parse().ok()
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineInfo {
    /// Cores that this process may use.
    pub cores: usize,
    /// Memory in bytes. `None` where the kernel does not report it.
    pub memory_bytes: Option<u64>,
    /// Model of the processor. `None` where the kernel does not report it.
    pub processor: Option<String>,
}

impl MachineInfo {
    pub fn of_this_machine() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kib_of(&read("/proc/meminfo"), "MemTotal:"),
            processor: processor_of(&read("/proc/cpuinfo")),
        }
    }
}

/// The value of a line such as `MemTotal:  16384 kB`, in bytes.
fn kib_of(text: &str, name: &str) -> Option<u64> {
    let kib = text.lines().find_map(|line| line.strip_prefix(name))?;
    kib.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

fn processor_of(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    let name = line.split_once(':')?.1.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

/// The kernel's random number of this start of this machine. What a process has written is in the cache of the machine until it is
/// on the disk, so after another start of the machine it may be gone. `None` where it cannot be read: then no start is known to be
/// the same as another.
pub fn boot_id() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
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
        // Ticks lag behind by less than two ticks.
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
    fn the_systems_line_is_read_whatever_the_programs_name() {
        let line = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 150 50 13";
        assert_eq!([field_of(line, 14), field_of(line, 15), field_of(line, 17)], [Some(150), Some(50), None]);
        assert_eq!(field_of("", 14), None);
    }

    #[test]
    fn a_machine_is_described_as_far_as_the_kernel_reports_it() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2.00GHz\nmodel name\t: Some CPU @ 2.00GHz\n";
        assert_eq!(processor_of(text).as_deref(), Some("Some CPU @ 2.00GHz"));
        assert_eq!(processor_of("Hardware : board\n"), None);
        assert_eq!(kib_of("MemFree: 1 kB\nMemTotal:    2048 kB\n", "MemTotal:"), Some(2 << 20));
        assert!(MachineInfo::of_this_machine().cores >= 1);
    }

    #[test]
    fn the_peak_covers_what_was_held() {
        let held = std::hint::black_box(vec![1_u8; 64 << 20]);
        assert!(peak_memory().is_none_or(|peak| peak > held.len() as u64));
    }

    #[test]
    fn a_start_of_the_machine_has_one_number() {
        let id = boot_id();
        assert_eq!(id, boot_id());
        assert!(id.is_none_or(|id| id.len() == 36 && !id.contains(char::is_whitespace)));
    }
}
