//! What Linux counts of this process: processor time, memory, threads and open files. Read when someone asks.

use std::fs;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, IntGauge, Opts};

use crate::process::file_limit;

/// The metrics that Prometheus' own clients have, under the same names.
#[derive(Clone)]
pub(super) struct ProcessMetrics {
    cpu_seconds: Counter,
    open_files: IntGauge,
    most_files: IntGauge,
    virtual_bytes: IntGauge,
    resident_bytes: IntGauge,
    start_seconds: IntGauge,
    threads: IntGauge,
}

impl ProcessMetrics {
    pub(super) fn new() -> prometheus::Result<Self> {
        let cpu = Opts::new("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.");
        Ok(Self {
            cpu_seconds: Counter::with_opts(cpu)?,
            open_files: IntGauge::new("process_open_fds", "Number of open file descriptors.")?,
            most_files: IntGauge::new("process_max_fds", "Maximum number of open file descriptors.")?,
            virtual_bytes: IntGauge::new("process_virtual_memory_bytes", "Virtual memory size in bytes.")?,
            resident_bytes: IntGauge::new("process_resident_memory_bytes", "Resident memory size in bytes.")?,
            start_seconds: IntGauge::new(
                "process_start_time_seconds",
                "Start time of the process since unix epoch in seconds.",
            )?,
            threads: IntGauge::new("process_threads", "Number of OS threads in the process.")?,
        })
    }

    fn all(&self) -> [&dyn Collector; 7] {
        [
            &self.cpu_seconds,
            &self.open_files,
            &self.most_files,
            &self.virtual_bytes,
            &self.resident_bytes,
            &self.start_seconds,
            &self.threads,
        ]
    }

    /// A figure that the system does not give stays what it was.
    fn read(&self) {
        if let Ok(entries) = fs::read_dir("/proc/self/fd") {
            // One of them reads the folder.
            self.open_files.set(whole(entries.count().saturating_sub(1)));
        }
        if let Some(most) = file_limit() {
            self.most_files.set(whole(most));
        }
        let Some(counts) = fs::read_to_string("/proc/self/stat").ok().as_deref().and_then(ProcessCounts::parse) else {
            return;
        };
        let (page, ticks) = (rustix::param::page_size(), rustix::param::clock_ticks_per_second().max(1));
        let seconds = counts.cpu_ticks as f64 / ticks as f64;
        self.cpu_seconds.inc_by((seconds - self.cpu_seconds.get()).max(0.0));
        self.virtual_bytes.set(whole(counts.virtual_bytes));
        self.resident_bytes.set(whole(counts.resident_pages.saturating_mul(page as u64)));
        self.threads.set(whole(counts.threads));
        if let Some(boot) = fs::read_to_string("/proc/stat").ok().as_deref().and_then(boot_seconds) {
            self.start_seconds.set(whole(boot + counts.start_ticks / ticks));
        }
    }
}

impl Collector for ProcessMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.all().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.read();
        self.all().into_iter().flat_map(Collector::collect).collect()
    }
}

fn whole(value: impl TryInto<i64>) -> i64 {
    value.try_into().unwrap_or(i64::MAX)
}

/// A line of `/proc/self/stat`, see proc_pid_stat(5).
#[derive(Debug, PartialEq, Eq)]
struct ProcessCounts {
    cpu_ticks: u64,
    threads: u64,
    /// After the machine's start.
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl ProcessCounts {
    fn parse(line: &str) -> Option<Self> {
        // The second field is the program's name in parentheses, which can hold anything.
        let fields: Vec<&str> = line.rsplit_once(')')?.1.split_whitespace().collect();
        // The manual counts from 1, and the first field after the name is the third.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            cpu_ticks: field(14)? + field(15)?,
            threads: field(20)?,
            start_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
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
    fn the_systems_line_is_read_whatever_the_programs_name() {
        let line = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 150 50 13 14 15 16 9 18 777 4096000 1000 20 21";
        let (cpu_ticks, threads, start_ticks, virtual_bytes, resident_pages) = (200, 9, 777, 4_096_000, 1000);
        let expected = ProcessCounts { cpu_ticks, threads, start_ticks, virtual_bytes, resident_pages };
        assert_eq!(ProcessCounts::parse(line), Some(expected));
        assert_eq!((ProcessCounts::parse("42 (a) S 1 2"), ProcessCounts::parse("")), (None, None));
        assert_eq!((boot_seconds("cpu 1 2\nbtime 1700000000\n"), boot_seconds("cpu 1")), (Some(1_700_000_000), None));
    }

    #[test]
    fn figures_of_this_process_are_plausible_and_processor_time_grows() {
        let metrics = ProcessMetrics::new().unwrap();
        metrics.read();
        let start = metrics.cpu_seconds.get();
        let kept = vec![1_u8; 64 << 20];
        let mut sum = 0_u64;
        while metrics.cpu_seconds.get() - start < 0.02 {
            sum = kept.iter().fold(sum, |sum, byte| std::hint::black_box(sum + u64::from(*byte)));
            metrics.read();
        }
        assert!(metrics.resident_bytes.get() > 64 << 20 && sum > 0);
        assert!(metrics.virtual_bytes.get() >= metrics.resident_bytes.get());
        assert!(metrics.threads.get() >= 1 && metrics.open_files.get() >= 3);
        assert!(metrics.most_files.get() >= metrics.open_files.get());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let age = now as i64 - metrics.start_seconds.get();
        assert!((-2..24 * 3600).contains(&age), "started {age} s ago");
    }
}
