//! Metrics of the cold tier.

use std::path::Path;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntCounterVec, IntGauge};
use zagros_plumbing::metrics::{register, watch_disk};
use zagros_rows::cold::{LogCounts, LogStore};
use zagros_table::{ColdSize, ColdStore};
use zagros_zip::ZipEq;

use super::ServerLabel;
use crate::tier::{StoreCalls, WatchedStore};

/// The metrics of reads and of writes.
pub(crate) fn cold_call_metrics(label: &ServerLabel<'_>) -> (StoreCalls, StoreCalls) {
    let seconds = label.seconds("cold_call_seconds", "Seconds of a batched call of the cold tier.", &["call"]);
    let rows = label.counters("cold_rows_total", "Rows asked from and written to the cold tier.", &["call"]);
    let calls = |call: &str| StoreCalls::new(seconds.with_label_values(&[call]), rows.with_label_values(&[call]));
    (calls("read"), calls("write"))
}

/// Registers the store's size, what it reads and writes, and the free space on the disk of its folder.
pub(crate) fn register_cold_store(label: &ServerLabel<'_>, store: &Arc<WatchedStore<LogStore>>, folder: &Path) {
    watch_disk(label.registry, &label.options("cold_disk", "the cold tier"), folder);
    register(label.registry, ColdCollector::new(label, store));
}

/// What the store says of itself when metrics are collected.
struct StoreFigures {
    size: ColdSize,
    index: usize,
    counts: LogCounts,
}

type FigureOf = fn(&StoreFigures) -> u64;

const GAUGES: [(&str, &str, FigureOf); 5] = [
    ("cold_rows", "Number of rows in the cold tier, with void copies of rows that are in memory.", |store| {
        store.size.rows
    }),
    ("cold_bytes", "Bytes of the cold tier's files.", |store| store.size.bytes),
    ("cold_index_bytes", "Bytes in memory of the cold tier's index, a part of `cluster.memory`.", |store| {
        store.index as u64
    }),
    (
        "cold_reads_under_way",
        "Pieces of the cold tier's files that requests have asked for and the disk has not yet answered.",
        |store| store.counts.reads_under_way,
    ),
    (
        "cold_dead_bytes",
        "Bytes of records in the cold tier's files that are no rows any more, until compaction deletes them.",
        |store| store.counts.dead_bytes,
    ),
];

const COUNTERS: [(&str, &str, FigureOf); 3] = [
    ("cold_reads_total", "Pieces of the cold tier's files that were read. One piece may have several rows.", |store| {
        store.counts.reads
    }),
    (
        "cold_assisted_bytes_total",
        "Bytes of old records that writers to the cold tier compacted themselves, because compaction was behind.",
        |store| store.counts.assisted_bytes,
    ),
    (
        "cold_compaction_failures_total",
        "Attempts to compact the cold tier that failed. The server's log says why.",
        |store| store.counts.compaction_failures,
    ),
];

const WRITTEN: [(&str, FigureOf); 3] = [
    ("row", |store| store.counts.row_bytes),
    ("appended", |store| store.counts.appended_bytes),
    ("moved", |store| store.counts.moved_bytes),
];

/// Figures of the store, which are read when metrics are collected.
#[derive(Clone)]
struct ColdCollector {
    /// Weak, so that a registry that outlives the server does not keep the store alive.
    store: Weak<WatchedStore<LogStore>>,
    gauges: Vec<IntGauge>,
    counters: Vec<IntCounter>,
    written: IntCounterVec,
    /// Bytes by kind, in the order of [`WRITTEN`]. Locked while the counters are updated.
    kinds: Arc<Mutex<[IntCounter; 3]>>,
}

impl ColdCollector {
    fn new(of: &ServerLabel<'_>, store: &Arc<WatchedStore<LogStore>>) -> prometheus::Result<Self> {
        let written = "Bytes of rows written to the cold tier, of records appended for them, and of records that compaction moved. \
                       Appended and moved bytes for each byte of rows are the write amplification.";
        let written = IntCounterVec::new(of.options("cold_written_bytes_total", written), &["what"])?;
        let kinds = WRITTEN.map(|(what, _)| written.with_label_values(&[what]));
        let gauges = GAUGES.iter().map(|(name, help, _)| IntGauge::with_opts(of.options(name, help)));
        let counters = COUNTERS.iter().map(|(name, help, _)| IntCounter::with_opts(of.options(name, help)));
        let (gauges, counters) = (gauges.collect::<Result<_, _>>()?, counters.collect::<Result<_, _>>()?);
        Ok(Self { store: Arc::downgrade(store), gauges, counters, written, kinds: Arc::new(Mutex::new(kinds)) })
    }

    fn all_metrics(&self) -> Vec<&dyn Collector> {
        let gauges = self.gauges.iter().map(|gauge| gauge as &dyn Collector);
        let counters = self.counters.iter().map(|counter| counter as &dyn Collector);
        gauges.chain(counters).chain([&self.written as &dyn Collector]).collect()
    }
}

impl Collector for ColdCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.all_metrics().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Some(store) = self.store.upgrade() else { return Vec::new() };
        let (size, index, counts) = (store.size(), store.store.index_bytes(), store.store.io_counts());
        let figures = StoreFigures { size, index, counts };
        let kinds = self.kinds.lock();
        let raise = |counter: &IntCounter, to: u64| counter.inc_by(to.saturating_sub(counter.get()));
        for (gauge, (_, _, figure)) in self.gauges.iter().zip_eq(GAUGES) {
            gauge.set(figure(&figures) as i64);
        }
        for (counter, (_, _, figure)) in self.counters.iter().zip_eq(COUNTERS) {
            raise(counter, figure(&figures));
        }
        for (counter, (_, figure)) in kinds.iter().zip_eq(WRITTEN) {
            raise(counter, figure(&figures));
        }
        drop(kinds);
        self.all_metrics().into_iter().flat_map(Collector::collect).collect()
    }
}
