//! Metrics of the cold tier.

use std::path::Path;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntCounterVec, IntGauge, Registry};
use zagros_plumbing::metrics::{register, watch_disk};
use zagros_protocol::ServerIndex;
use zagros_rows::cold::LogStore;
use zagros_table::ColdStore;
use zagros_zip::ZipEq;

use super::ServerLabel;
use crate::tier::{StoreCalls, WatchedStore};

pub(crate) struct ColdMetrics<'a> {
    of: ServerLabel<'a>,
}

impl<'a> ColdMetrics<'a> {
    pub(crate) fn new(registry: &'a Registry, index: ServerIndex) -> Self {
        Self { of: ServerLabel::new(registry, index) }
    }

    /// The metrics of reads and of writes.
    pub(crate) fn call_metrics(&self) -> (StoreCalls, StoreCalls) {
        let seconds = self.of.seconds("cold_call_seconds", "Seconds of a batched call of the cold tier.", &["call"]);
        let rows = self.of.counters("cold_rows_total", "Rows asked from and written to the cold tier.", &["call"]);
        let calls = |call: &str| StoreCalls::new(seconds.with_label_values(&[call]), rows.with_label_values(&[call]));
        (calls("read"), calls("write"))
    }

    /// Registers the store's size, what it reads and writes, and the free space on the disk of its folder.
    pub(crate) fn register_store(&self, store: &Arc<WatchedStore<LogStore>>, folder: &Path) {
        watch_disk(self.of.registry, &self.of.options("cold_disk", "the cold tier"), folder);
        register(self.of.registry, ColdCollector::new(&self.of, store));
    }
}

/// Figures of the store, which are read when metrics are collected.
#[derive(Clone)]
struct ColdCollector {
    /// Weak, so that a registry that outlives the server does not keep the store alive.
    store: Weak<WatchedStore<LogStore>>,
    rows: IntGauge,
    bytes: IntGauge,
    index: IntGauge,
    reads: IntCounter,
    under_way: IntGauge,
    written: IntCounterVec,
    dead: IntGauge,
    assisted: IntCounter,
    failures: IntCounter,
    /// Bytes by kind, in the order of [`WRITTEN`]. Locked while the counters are updated.
    kinds: Arc<Mutex<[IntCounter; 3]>>,
}

const WRITTEN: [&str; 3] = ["row", "appended", "moved"];

impl ColdCollector {
    fn new(of: &ServerLabel<'_>, store: &Arc<WatchedStore<LogStore>>) -> prometheus::Result<Self> {
        let rows = "Number of rows in the cold tier, with void copies of rows that are in memory.";
        let index = "Bytes in memory of the cold tier's index, a part of `cluster.memory`.";
        let reads = "Pieces of the cold tier's files that were read. One piece may have several rows.";
        let under_way =
            "Pieces of the cold tier's files that requests have asked for and the disk has not yet answered.";
        let written = "Bytes of rows written to the cold tier, of records appended for them, and of records that compaction moved. \
                       Appended and moved bytes for each byte of rows are the write amplification.";
        let written = IntCounterVec::new(of.options("cold_written_bytes_total", written), &["what"])?;
        let dead =
            "Bytes of records in the cold tier's files that are no rows any more, until compaction deletes them.";
        let assisted =
            "Bytes of old records that writers to the cold tier compacted themselves, because compaction was behind.";
        let failures = "Attempts to compact the cold tier that failed. The server's log says why.";
        let kinds = WRITTEN.map(|what| written.with_label_values(&[what]));
        Ok(Self {
            store: Arc::downgrade(store),
            rows: IntGauge::with_opts(of.options("cold_rows", rows))?,
            bytes: IntGauge::with_opts(of.options("cold_bytes", "Bytes of the cold tier's files."))?,
            index: IntGauge::with_opts(of.options("cold_index_bytes", index))?,
            reads: IntCounter::with_opts(of.options("cold_reads_total", reads))?,
            under_way: IntGauge::with_opts(of.options("cold_reads_under_way", under_way))?,
            written,
            dead: IntGauge::with_opts(of.options("cold_dead_bytes", dead))?,
            assisted: IntCounter::with_opts(of.options("cold_assisted_bytes_total", assisted))?,
            failures: IntCounter::with_opts(of.options("cold_compaction_failures_total", failures))?,
            kinds: Arc::new(Mutex::new(kinds)),
        })
    }

    fn all_metrics(&self) -> [&dyn Collector; 9] {
        [
            &self.rows,
            &self.bytes,
            &self.index,
            &self.reads,
            &self.under_way,
            &self.written,
            &self.dead,
            &self.assisted,
            &self.failures,
        ]
    }
}

impl Collector for ColdCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.all_metrics().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Some(store) = self.store.upgrade() else { return Vec::new() };
        let (size, counts) = (store.size(), store.store.io_counts());
        self.rows.set(size.rows as i64);
        self.bytes.set(size.bytes as i64);
        self.index.set(store.store.memory() as i64);
        let kinds = self.kinds.lock();
        let raise = |counter: &IntCounter, to: u64| counter.inc_by(to.saturating_sub(counter.get()));
        raise(&self.reads, counts.reads);
        self.dead.set(counts.dead_bytes as i64);
        raise(&self.assisted, counts.assisted_bytes);
        raise(&self.failures, counts.compaction_failures);
        self.under_way.set(counts.reads_under_way as i64);
        for (counter, to) in kinds.iter().zip_eq([counts.row_bytes, counts.appended_bytes, counts.moved_bytes]) {
            raise(counter, to);
        }
        drop(kinds);
        self.all_metrics().into_iter().flat_map(Collector::collect).collect()
    }
}
