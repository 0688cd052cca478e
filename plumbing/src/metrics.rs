//! Prometheus metrics. The registry is an argument and never a global, so that several roles can run in one process.

mod disk;
mod own_process;

use prometheus::TextEncoder;
use prometheus::core::Collector;

pub use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

use own_process::ProcessMetrics;

pub use disk::{DiskSpace, watch_disk};

/// Latency buckets in seconds: 50 µs to 26 s, factor 2.
#[must_use]
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

#[must_use]
pub fn render_text(registry: &Registry) -> String {
    TextEncoder::new().encode_to_string(&registry.gather()).unwrap_or_else(|error| format!("# {error}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_reports_its_release_and_its_start() {
        let registry = Registry::new();
        describe_process(&registry, "1.2.3");
        let reported = render_text(&registry);
        for metric in
            ["zagros_build_info{release=\"1.2.3\"} 1", "process_start_time_seconds", "process_resident_memory_bytes"]
        {
            assert!(reported.contains(metric), "{metric} is not in\n{reported}");
        }
    }
}
