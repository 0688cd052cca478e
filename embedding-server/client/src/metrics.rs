//! Metrics of the client's traffic.

use prometheus::{GaugeVec, HistogramOpts, IntCounterVec, Opts, Registry};
use serde::{Deserialize, Serialize};
use zagros_plumbing::metrics::{Gauge, Histogram, IntCounter, latency_buckets, register};
use zagros_protocol::datapath::Encoding;
use zagros_protocol::packed::value_bytes;

use crate::datapath::{RoutePart, UniqueIds};

/// Children are resolved once.
#[derive(Clone, Debug)]
pub(crate) struct ClientMetrics {
    pub(crate) lookup: ClientCallMetrics,
    pub(crate) push: ClientCallMetrics,
    pub(crate) hints: HintMetrics,
}

#[derive(Clone, Debug)]
pub(crate) struct HintMetrics {
    pub(crate) hinted: IntCounter,
    pub(crate) ready: IntCounter,
    pub(crate) late: IntCounter,
    pub(crate) lost: IntCounter,
}

/// Rows by what look-ahead did for them, since the client was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookAheadCounts {
    /// Ids in hints that servers answered.
    pub hinted: u64,
    /// Rows that hints brought from the cold tier to memory.
    pub ready: u64,
    /// Rows that a lookup had to wait for, because they were in the cold tier.
    pub late: u64,
    /// Ids in hints that were refused or not answered.
    pub lost: u64,
}

impl HintMetrics {
    fn new(registry: &Registry) -> Self {
        let help = "Ids of hints that servers answered (hinted), and of hints that they did not take (lost). Rows that hints brought from the \
                    cold tier (ready), and rows that a lookup in training had to read from it (late).";
        let rows =
            register(registry, IntCounterVec::new(Opts::new("zagros_client_lookahead_rows_total", help), &["what"]));
        let counter = |what: &str| rows.with_label_values(&[what]);
        Self { hinted: counter("hinted"), ready: counter("ready"), late: counter("late"), lost: counter("lost") }
    }

    pub(crate) fn row_counts(&self) -> LookAheadCounts {
        let Self { hinted, ready, late, lost } = self;
        LookAheadCounts { hinted: hinted.get(), ready: ready.get(), late: late.get(), lost: lost.get() }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ClientCallMetrics {
    /// Time until every server has answered.
    pub(crate) seconds: Histogram,
    pub(crate) retries: IntCounter,
    /// Bytes of rows or gradients.
    pub(crate) bytes: IntCounter,
    /// Sums that servers returned, or whose gradients they took.
    bags: IntCounter,
    /// Bytes that these sums saved.
    spared: Gauge,
}

impl ClientMetrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        let counter = |name, help| register(registry, IntCounterVec::new(Opts::new(name, help), &["call"]));
        let retries = counter("zagros_client_retries_total", "Requests to embedding servers that were sent again.");
        let bytes = counter("zagros_client_bytes_total", "Bytes of rows received (lookup) and gradients sent (push).");
        let bags = "Bags that embedding servers summed (lookup), and bags whose gradients they took (push).";
        let bags = counter("zagros_client_bags_total", bags);
        let help = "Bytes on the wire that the sums of bags saved. Negative if the sums cost more than rows.";
        let spared = Opts::new("zagros_client_bags_spared_bytes", help);
        let spared = register(registry, GaugeVec::new(spared, &["call"]));
        let call = |name: &str, help: &str| ClientCallMetrics {
            seconds: seconds_histogram(registry, name, help),
            retries: retries.with_label_values(&[name]),
            bytes: bytes.with_label_values(&[name]),
            bags: bags.with_label_values(&[name]),
            spared: spared.with_label_values(&[name]),
        };
        Self {
            lookup: call("lookup", "Seconds of a lookup, until every server has answered."),
            push: call("push", "Seconds of a push, until every server has acknowledged."),
            hints: HintMetrics::new(registry),
        }
    }
}

impl ClientCallMetrics {
    /// Counts the bags of a batch, and the bytes of their rows minus the bytes that were sent instead.
    pub(crate) fn count_bags<'a>(
        &self,
        unique: &UniqueIds,
        parts: impl Iterator<Item = &'a RoutePart> + Clone,
        wire: Encoding,
    ) {
        let Ok(width) = value_bytes(wire as i32) else { return };
        let sums: usize = parts.clone().map(RoutePart::sum_count).sum();
        if sums == 0 {
            return;
        }
        let rows: usize = unique.tables.iter().map(|table| table.ids.len() * table.dim as usize * width).sum();
        let sent: usize = parts.map(|part| part.value_count() * width + part.bags.len()).sum();
        self.bags.inc_by(sums as u64);
        self.spared.add(rows as f64 - sent as f64);
    }
}

fn seconds_histogram(registry: &Registry, call: &str, help: &str) -> Histogram {
    let options = HistogramOpts::new(format!("zagros_client_{call}_seconds"), help).buckets(latency_buckets());
    register(registry, Histogram::with_opts(options))
}
