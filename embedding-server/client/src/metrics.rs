//! What the client measures of its traffic.

use prometheus::{HistogramOpts, IntCounterVec, Opts, Registry};
use zagros_plumbing::metrics::{Histogram, IntCounter, latency_buckets, register};

/// Metric children, resolved once.
#[derive(Clone, Debug)]
pub(crate) struct ClientMetrics {
    pub(crate) lookup: CallMetrics,
    pub(crate) push: CallMetrics,
}

/// One kind of call.
#[derive(Clone, Debug)]
pub(crate) struct CallMetrics {
    /// From the first request until every server has answered.
    pub(crate) seconds: Histogram,
    /// Requests sent again, after whatever refusal.
    pub(crate) retries: IntCounter,
    /// Bytes of rows or gradients.
    pub(crate) bytes: IntCounter,
}

impl ClientMetrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        let counter = |name, help| register(registry, IntCounterVec::new(Opts::new(name, help), &["call"]));
        let retries = counter("zagros_client_retries_total", "Requests to embedding servers that were sent again.");
        let bytes = counter("zagros_client_bytes_total", "Bytes of rows received (lookup) and gradients sent (push).");
        let call = |name: &str, help: &str| CallMetrics {
            seconds: seconds(registry, name, help),
            retries: retries.with_label_values(&[name]),
            bytes: bytes.with_label_values(&[name]),
        };
        Self {
            lookup: call("lookup", "Seconds from asking for a batch's rows until every server has answered."),
            push: call("push", "Seconds from pushing a batch's gradients until every server has acknowledged."),
        }
    }
}

fn seconds(registry: &Registry, call: &str, help: &str) -> Histogram {
    let options = HistogramOpts::new(format!("zagros_client_{call}_seconds"), help).buckets(latency_buckets());
    register(registry, Histogram::with_opts(options))
}
