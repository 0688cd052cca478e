//! Metrics of the log.

use prometheus::{IntCounter, IntGauge, Registry};
use zagros_plumbing::metrics::{Gauge, Histogram};
use zagros_protocol::ServerIndex;

use crate::metrics::ServerLabel;

#[derive(Clone, Debug)]
pub(crate) struct LogMetrics {
    pub(crate) appended: IntCounter,
    pub(crate) tail: IntGauge,
    pub(crate) segments: IntGauge,
    pub(crate) flushes: Histogram,
    pub(crate) stopped: IntGauge,
    pub(crate) bases: IntCounter,
    pub(crate) recovery: Gauge,
    pub(crate) recovered_rows: IntGauge,
}

impl LogMetrics {
    pub(crate) fn new(registry: &Registry, index: ServerIndex) -> Self {
        let label = ServerLabel::new(registry, index);
        let flushes = "Seconds for which a push waits until it is durable.";
        Self {
            appended: label.counter("log_bytes_total", "Bytes that were appended to the log and are durable."),
            tail: label.gauge("log_tail_bytes", "Bytes of the log that recovery would read besides the base."),
            segments: label.gauge("log_segments", "Files of the log's tail."),
            flushes: label.seconds("log_flush_seconds", flushes, &[]).with_label_values::<&str>(&[]),
            stopped: label
                .gauge("log_stopped", "1 while the log cannot be written, so that pushes are refused; 0 otherwise."),
            bases: label.counter("log_bases_total", "Bases that were written."),
            recovery: label
                .seconds_gauge("log_recovery_seconds", "Seconds that recovery took at the start of this process."),
            recovered_rows: label
                .gauge("log_recovered_rows", "Rows in memory after recovery at the start of this process."),
        }
    }
}
