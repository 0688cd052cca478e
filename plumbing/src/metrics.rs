//! Prometheus metrics: the registry is passed in, never a global, so that several roles can live in one process.

use prometheus::TextEncoder;
use prometheus::core::Collector;

pub use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

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

/// The registry in Prometheus' text format.
#[must_use]
pub fn render(registry: &Registry) -> String {
    TextEncoder::new().encode_to_string(&registry.gather()).unwrap_or_else(|error| format!("# {error}\n"))
}
