//! Prometheus metrics: the registry is passed in, never a global, so that several roles can live in one process.

mod disk;
mod own_process;

use prometheus::TextEncoder;
use prometheus::core::Collector;

pub use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

use own_process::ProcessMetrics;

pub use disk::{Space, watch_disk};

/// Latency buckets in seconds: 50 µs to 26 s, factor 2.
#[must_use]
pub fn latency_buckets() -> Vec<f64> {
    (0..20).map(|power| 50e-6 * f64::from(1 << power)).collect()
}

/// Registers a metric and hands it back.
///
/// # Panics
/// When the name is taken or malformed: names are constants, so a test of the role finds it.
pub fn register<C: Collector + Clone + 'static>(registry: &Registry, metric: prometheus::Result<C>) -> C {
    let registered = metric.and_then(|metric| registry.register(Box::new(metric.clone())).map(|()| metric));
    registered.unwrap_or_else(|error| panic!("metric cannot be registered: {error}"))
}

/// What any process tells of itself: which release it is (`zagros_build_info`), its processor time, memory, threads and
/// open files (`process_…`, on Linux).
///
/// # Panics
/// When the registry has them already: a process has one registry that tells of it.
pub fn describe_process(registry: &Registry, release: &str) {
    let options = Opts::new("zagros_build_info", "1, with the release of the process as label.");
    register(registry, IntGaugeVec::new(options, &["release"])).with_label_values(&[release]).set(1);
    register(registry, ProcessMetrics::new());
}

/// The registry in Prometheus' text format.
#[must_use]
pub fn render(registry: &Registry) -> String {
    TextEncoder::new().encode_to_string(&registry.gather()).unwrap_or_else(|error| format!("# {error}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_tells_its_release_and_when_it_started() {
        let registry = Registry::new();
        describe_process(&registry, "1.2.3");
        let reported = render(&registry);
        for metric in
            ["zagros_build_info{release=\"1.2.3\"} 1", "process_start_time_seconds", "process_resident_memory_bytes"]
        {
            assert!(reported.contains(metric), "{metric} is not in\n{reported}");
        }
    }
}
