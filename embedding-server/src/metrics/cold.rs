//! Metrics of the cold tier.

use std::path::Path;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntCounterVec, IntGauge, Registry};
use zagros_cold::RocksStore;
use zagros_plumbing::metrics::{register, watch_disk};
use zagros_protocol::ServerIndex;
use zagros_table::ColdStore;

use super::ServerLabel;
use crate::tier::{StoreCalls, WatchedStore};

/// The metrics of a server's cold tier.
pub(crate) struct ColdMetrics<'a> {
    of: ServerLabel<'a>,
}

impl<'a> ColdMetrics<'a> {
    pub(crate) fn new(registry: &'a Registry, index: ServerIndex) -> Self {
        Self { of: ServerLabel::new(registry, index) }
    }

    /// The metrics of reads and of writes.
    pub(crate) fn calls(&self) -> (StoreCalls, StoreCalls) {
        let seconds = self.of.seconds("cold_call_seconds", "Seconds of a batched call of the cold tier.", &["call"]);
        let rows = self.of.counters("cold_rows_total", "Rows asked from and written to the cold tier.", &["call"]);
        let calls = |call: &str| StoreCalls::new(seconds.with_label_values(&[call]), rows.with_label_values(&[call]));
        (calls("read"), calls("write"))
    }

    /// Registers the store's size, the hits of its cache, and the free space on the disk of its folder.
    pub(crate) fn register(&self, store: &Arc<WatchedStore<RocksStore>>, folder: &Path) {
        watch_disk(self.of.registry, &self.of.options("cold_disk", "the cold tier"), folder);
        register(self.of.registry, ColdCollector::new(&self.of, store));
    }
}

/// Figures of the store, which are read when metrics are collected.
#[derive(Clone)]
struct ColdCollector {
    /// Weak, so that a registry that outlives the server does not keep the store alive.
    store: Weak<WatchedStore<RocksStore>>,
    rows: IntGauge,
    bytes: IntGauge,
    blocks: IntCounterVec,
    /// Blocks found in the cache, and blocks read from files. Locked while the counters are updated.
    found: Arc<Mutex<[IntCounter; 2]>>,
}

impl ColdCollector {
    fn new(of: &ServerLabel<'_>, store: &Arc<WatchedStore<RocksStore>>) -> prometheus::Result<Self> {
        let rows = "Approximate number of rows in the cold tier, with void copies of rows that are in memory.";
        let blocks = "Blocks of the cold tier that reads needed, by where they were found.";
        let blocks = IntCounterVec::new(of.options("cold_blocks_total", blocks), &["found"])?;
        let found = ["cache", "file"].map(|found| blocks.with_label_values(&[found]));
        Ok(Self {
            store: Arc::downgrade(store),
            rows: IntGauge::with_opts(of.options("cold_rows", rows))?,
            bytes: IntGauge::with_opts(of.options("cold_bytes", "Bytes of the cold tier's files."))?,
            blocks,
            found: Arc::new(Mutex::new(found)),
        })
    }

    fn all(&self) -> [&dyn Collector; 3] {
        [&self.rows, &self.bytes, &self.blocks]
    }
}

impl Collector for ColdCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.all().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Some(store) = self.store.upgrade() else { return Vec::new() };
        let (size, reads) = (store.size(), store.store().reads());
        self.rows.set(size.rows as i64);
        self.bytes.set(size.bytes as i64);
        let [cache, file] = &*self.found.lock();
        cache.inc_by(reads.hits.saturating_sub(cache.get()));
        file.inc_by(reads.misses.saturating_sub(file.get()));
        self.all().into_iter().flat_map(Collector::collect).collect()
    }
}
