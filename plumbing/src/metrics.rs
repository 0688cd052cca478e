//! Prometheus metrics. The registry is an argument and never a global, so that several roles can run in one process.

mod own_process;

use std::io;
use std::path::{Path, PathBuf};

use prometheus::TextEncoder;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;

use own_process::ProcessMetrics;

pub use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

/// Latency buckets in seconds: 50 µs to 26 s, factor 2.
pub fn latency_buckets() -> Vec<f64> {
    (0..20).map(|power| 50e-6 * f64::from(1 << power)).collect()
}

/// Panics if the name is taken or malformed. Names are constants, so a test of the role finds this.
pub fn register<C: Collector + Clone + 'static>(registry: &Registry, metric: prometheus::Result<C>) -> C {
    let registered = metric.and_then(|metric| registry.register(Box::new(metric.clone())).map(|()| metric));
    registered.unwrap_or_else(|error| panic!("metric cannot be registered: {error}"))
}

/// Registers the metrics of the process: its release (`zagros_build_info`), and its CPU time, memory, threads and open
/// files (`process_…`, on Linux).
pub fn describe_process(registry: &Registry, release: &str) {
    let options = Opts::new("zagros_build_info", "1, with the release of the process as label.");
    register(registry, IntGaugeVec::new(options, &["release"])).with_label_values(&[release]).set(1);
    register(registry, ProcessMetrics::new());
}

pub fn render_text(registry: &Registry) -> String {
    TextEncoder::new().encode_to_string(&registry.gather()).unwrap_or_else(|error| format!("# {error}\n"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// Bytes that this process may still write.
    pub free: u64,
    /// Bytes of the whole file system.
    pub size: u64,
}

impl DiskSpace {
    /// Space of the file system that holds `path`. If `path` does not exist yet, the nearest existing folder above it
    /// counts.
    pub fn measure(path: &Path) -> io::Result<Self> {
        let existing = path.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("."));
        let reported = rustix::fs::statvfs(existing)?;
        Ok(Self { free: reported.f_bavail * reported.f_frsize, size: reported.f_blocks * reported.f_frsize })
    }
}

/// Registers two gauges with the space at `path`. Their names are the name in `options` with `_free_bytes` and
/// `_size_bytes` appended. The help in `options` says what is stored there.
pub fn watch_disk(registry: &Registry, options: &Opts, path: &Path) {
    register(registry, DiskMetrics::new(options, path));
}

#[derive(Clone)]
struct DiskMetrics {
    path: PathBuf,
    free: Gauge,
    size: Gauge,
}

impl DiskMetrics {
    fn new(options: &Opts, path: &Path) -> prometheus::Result<Self> {
        let gauge = |unit: &str, what: &str| {
            let mut options = options.clone();
            options.name = format!("{}_{unit}", options.name);
            options.help = format!("{what} of the file system that holds {}.", options.help);
            Gauge::with_opts(options)
        };
        let (free, size) = (gauge("free_bytes", "Free bytes")?, gauge("size_bytes", "Bytes")?);
        Ok(Self { path: path.to_owned(), free, size })
    }
}

impl Collector for DiskMetrics {
    fn desc(&self) -> Vec<&Desc> {
        [self.free.desc(), self.size.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // No figure is better than an old one: an alert can detect a missing figure, but not a wrong one.
        let Ok(space) = DiskSpace::measure(&self.path) else { return Vec::new() };
        self.free.set(space.free as f64);
        self.size.set(space.size as f64);
        [self.free.collect(), self.size.collect()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_reports_its_release_and_its_start() {
        let registry = Registry::new();
        describe_process(&registry, "1.2.3");
        let reported = render_text(&registry);
        let metrics =
            ["zagros_build_info{release=\"1.2.3\"} 1", "process_start_time_seconds", "process_resident_memory_bytes"];
        assert!(metrics.iter().all(|metric| reported.contains(metric)), "{reported}");
    }

    #[test]
    fn a_folder_that_does_not_exist_has_the_space_of_the_folder_above() {
        let folder = tempfile::tempdir().unwrap();
        let [above, below] = ["", "a/b"].map(|below| DiskSpace::measure(&folder.path().join(below)).unwrap());
        assert_eq!(above.size, below.size);
        assert!(above.size > 0 && above.free <= above.size, "{above:?}");
    }

    #[test]
    fn space_is_reported_in_bytes_under_the_given_name() {
        let (registry, folder) = (Registry::new(), tempfile::tempdir().unwrap());
        watch_disk(&registry, &Opts::new("zagros_test_disk", "a test").const_label("server", "3"), folder.path());
        let reported = render_text(&registry);
        let size = DiskSpace::measure(folder.path()).unwrap().size as f64;
        assert!(reported.contains(&format!("zagros_test_disk_size_bytes{{server=\"3\"}} {size}")), "{reported}");
        let help = "# HELP zagros_test_disk_free_bytes Free bytes of the file system that holds a test.";
        assert!(reported.contains(help), "{reported}");
    }
}
