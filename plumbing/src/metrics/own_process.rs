//! What Linux counts of this process: processor time, memory, threads and open files. Read when someone asks.

use std::fs;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, IntGauge, Opts};
use rustix::param::{clock_ticks_per_second, page_size};

use crate::process::{cpu_time, file_limit, stat_field};

type ProcessFigure = fn() -> Option<u64>;

/// The metrics that Prometheus' own clients have, under the same names. Fields are those of proc_pid_stat(5).
const FIGURES: [(&str, &str, ProcessFigure); 6] = [
    ("process_open_fds", "Number of open file descriptors.", open_files),
    ("process_max_fds", "Maximum number of open file descriptors.", file_limit),
    ("process_virtual_memory_bytes", "Virtual memory size in bytes.", || stat_field("self", 23)),
    ("process_resident_memory_bytes", "Resident memory size in bytes.", resident_bytes),
    ("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", start_seconds),
    ("process_threads", "Number of OS threads in the process.", || stat_field("self", 20)),
];

#[derive(Clone)]
pub(super) struct ProcessMetrics {
    cpu_seconds: Counter,
    figures: Vec<(IntGauge, ProcessFigure)>,
}

impl ProcessMetrics {
    pub(super) fn new() -> prometheus::Result<Self> {
        let cpu = Opts::new("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.");
        let mut figures = Vec::new();
        for (name, help, figure) in FIGURES {
            figures.push((IntGauge::new(name, help)?, figure));
        }
        Ok(Self { cpu_seconds: Counter::with_opts(cpu)?, figures })
    }
}

impl Collector for ProcessMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.figures.iter().flat_map(|(gauge, _)| gauge.desc()).chain(self.cpu_seconds.desc()).collect()
    }

    /// A figure that the system does not give stays what it was.
    fn collect(&self) -> Vec<MetricFamily> {
        for (gauge, figure) in &self.figures {
            if let Some(figure) = figure() {
                gauge.set(i64::try_from(figure).unwrap_or(i64::MAX));
            }
        }
        self.cpu_seconds.inc_by((cpu_time().as_secs_f64() - self.cpu_seconds.get()).max(0.0));
        self.figures.iter().flat_map(|(gauge, _)| gauge.collect()).chain(self.cpu_seconds.collect()).collect()
    }
}

fn open_files() -> Option<u64> {
    let entries = fs::read_dir("/proc/self/fd").ok()?;
    // One of them reads the folder.
    Some(entries.count().saturating_sub(1) as u64)
}

fn resident_bytes() -> Option<u64> {
    stat_field("self", 24).map(|pages| pages.saturating_mul(page_size() as u64))
}

fn start_seconds() -> Option<u64> {
    let boot = boot_seconds(&fs::read_to_string("/proc/stat").ok()?)?;
    Some(boot + stat_field("self", 22)? / clock_ticks_per_second().max(1))
}

/// When the machine started, in seconds since the epoch of Unix.
fn boot_seconds(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn figures_of_this_process_are_plausible_and_processor_time_grows() {
        let metrics = ProcessMetrics::new().unwrap();
        assert_eq!(metrics.collect().len(), FIGURES.len() + 1);
        let start = metrics.cpu_seconds.get();
        let kept = vec![1_u8; 64 << 20];
        let mut sum = 0_u64;
        while metrics.cpu_seconds.get() - start < 0.02 {
            sum = kept.iter().fold(sum, |sum, byte| std::hint::black_box(sum + u64::from(*byte)));
            metrics.collect();
        }
        let figure = |name: &str| FIGURES.iter().find(|(known, ..)| *known == name).unwrap().2().unwrap();
        let resident = figure("process_resident_memory_bytes");
        assert!(resident > 64 << 20 && sum > 0 && figure("process_virtual_memory_bytes") >= resident);
        assert!(figure("process_threads") >= 1 && figure("process_open_fds") >= 3);
        assert!(figure("process_max_fds") >= figure("process_open_fds"));
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let age = now as i64 - figure("process_start_time_seconds") as i64;
        assert!((-2..24 * 3600).contains(&age), "started {age} s ago");
        assert_eq!((boot_seconds("cpu 1 2\nbtime 1700000000\n"), boot_seconds("cpu 1")), (Some(1_700_000_000), None));
    }
}
