//! Figures of the tables and of the cold tier. They are read when metrics are collected.

use std::path::Path;
use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{CounterVec, GaugeVec, Opts};
use zagros_plumbing::metrics::{register, watch_disk};
use zagros_rows::cold::{LogCounts, LogStore};
use zagros_table::{ColdSize, ColdStore, SnapshotCopies, Table, TableCounts, TableSet};
use zagros_zip::ZipEq;

use super::ServerLabel;
use crate::tier::{StoreCalls, WatchedStore};

/// Name and help of a metric. It is a counter if its name ends with `_total`, else a gauge.
type FigureFamily = (&'static str, &'static str);

/// The values of the labels, and a figure of each family in the order of the families.
type LabelledFigures = Vec<(Vec<String>, Vec<f64>)>;

type ReadFigures = dyn Fn() -> Option<LabelledFigures> + Send + Sync;

#[derive(Clone)]
struct FigureCollector {
    labels: &'static [&'static str],
    options: Opts,
    descs: Vec<Desc>,
    /// Where its figure is among those that are read together.
    place: usize,
    /// `None` once the server has gone: a registry that outlives it does not keep its rows alive.
    read: Arc<ReadFigures>,
}

impl FigureCollector {
    /// Registers a collector for each family. The registry tells collectors apart by the sum of their families' hashes, and those of
    /// several families have been equal for two servers of one process.
    fn register(
        server: &ServerLabel<'_>,
        labels: &'static [&'static str],
        families: &[FigureFamily],
        read: impl Fn() -> Option<LabelledFigures> + Send + Sync + 'static,
    ) {
        let read: Arc<ReadFigures> = Arc::new(read);
        for (place, (name, help)) in families.iter().enumerate() {
            let options = server.options(name, help);
            let made = GaugeVec::new(options.clone(), labels).map(|described| {
                let descs = described.desc().into_iter().cloned().collect();
                Self { labels, options, descs, place, read: Arc::clone(&read) }
            });
            register(server.registry, made);
        }
    }

    fn collect_figures(&self, figures: &LabelledFigures) -> prometheus::Result<Vec<MetricFamily>> {
        let (options, place) = (self.options.clone(), self.place);
        if options.name.ends_with("_total") {
            let totals = CounterVec::new(options, self.labels)?;
            figures.iter().for_each(|(labels, values)| totals.with_label_values(labels).inc_by(values[place]));
            return Ok(totals.collect());
        }
        let gauges = GaugeVec::new(options, self.labels)?;
        figures.iter().for_each(|(labels, values)| gauges.with_label_values(labels).set(values[place]));
        Ok(gauges.collect())
    }
}

impl Collector for FigureCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        (self.read)().and_then(|figures| self.collect_figures(&figures).ok()).unwrap_or_default()
    }
}

const TABLES: [FigureFamily; 4] = [
    ("table_rows", "Rows in memory."),
    ("table_bytes", "Bytes of weights, optimiser state and index."),
    ("table_lock_waits_total", "How often a request found a stripe of a table locked."),
    ("table_lock_wait_seconds_total", "Seconds that requests waited for locked stripes of a table."),
];

fn table_figures(table: &Table) -> Vec<f64> {
    let TableCounts { contended, waited_nanos, .. } = table.event_counts();
    vec![table.row_count() as f64, table.memory_bytes() as f64, contended as f64, waited_nanos as f64 / 1e9]
}

const EVENTS: [FigureFamily; 1] = [("table_ids_total", "Ids of requests, and rows created and removed, by event.")];

const COPIES: [FigureFamily; 4] = [
    ("save_copies_bytes", "Bytes of copies of rows that changed while a save has not read them yet."),
    ("save_copies_limit_bytes", "The most bytes of such copies in the newest save. 0 while there is none."),
    ("save_copies_waits_total", "Requests that waited because these copies were at their limit."),
    (
        "saves_given_up_total",
        "Saves that were given up because these copies were at their limit and nothing was written.",
    ),
];

/// Registers the size of each table, what happened to its rows, and the copies for saves.
pub(crate) fn register_tables(server: &ServerLabel<'_>, tables: &Arc<TableSet>, names: &Arc<[String]>) {
    let weak = Arc::downgrade(tables);
    FigureCollector::register(server, &[], &COPIES, move || {
        let SnapshotCopies { held, limit, waits, given_up, .. } = weak.upgrade()?.snapshot_copies();
        Some(vec![(Vec::new(), vec![held as f64, limit as f64, waits as f64, given_up as f64])])
    });
    let (weak, own) = (Arc::downgrade(tables), Arc::clone(names));
    FigureCollector::register(server, &["table", "what"], &EVENTS, move || {
        let tables = weak.upgrade()?;
        let events = |(name, table): (&String, &Table)| {
            let counts = events_of(&table.event_counts());
            counts.map(|(what, ids)| (vec![name.clone(), what.to_owned()], vec![ids as f64]))
        };
        Some(own.iter().zip_eq(tables.iter()).flat_map(events).collect())
    });
    let (weak, own) = (Arc::downgrade(tables), Arc::clone(names));
    FigureCollector::register(server, &["table"], &TABLES, move || {
        let tables = weak.upgrade()?;
        let figures = |(name, table): (&String, &Table)| (vec![name.clone()], table_figures(table));
        Some(own.iter().zip_eq(tables.iter()).map(figures).collect())
    });
}

fn events_of(counts: &TableCounts) -> [(&'static str, u64); 14] {
    [
        ("hit", counts.hits),
        ("miss", counts.misses),
        ("created", counts.created),
        ("admitted", counts.admitted),
        ("refused", counts.refused),
        ("evicted", counts.evicted),
        ("dropped", counts.dropped),
        ("expired", counts.expired),
        ("cold_read", counts.cold_reads),
        ("promoted", counts.promoted),
        ("hinted", counts.hinted),
        ("ready", counts.ready),
        ("late", counts.late),
        ("late_gradient", counts.late_gradients),
    ]
}

/// The metrics of reads and of writes of the cold tier.
pub(crate) fn cold_call_metrics(server: &ServerLabel<'_>) -> (StoreCalls, StoreCalls) {
    let seconds = server.seconds("cold_call_seconds", "Seconds of a batched call of the cold tier.", &["call"]);
    let rows = server.counters("cold_rows_total", "Rows asked from and written to the cold tier.", &["call"]);
    let calls = |call: &str| StoreCalls::new(seconds.with_label_values(&[call]), rows.with_label_values(&[call]));
    (calls("read"), calls("write"))
}

const STORE: [FigureFamily; 8] = [
    ("cold_rows", "Number of rows in the cold tier, with void copies of rows that are in memory."),
    ("cold_bytes", "Bytes of the cold tier's files."),
    ("cold_index_bytes", "Bytes in memory of the cold tier's index, a part of `cluster.memory`."),
    (
        "cold_reads_under_way",
        "Pieces of the cold tier's files that requests have asked for and the disk has not yet answered.",
    ),
    (
        "cold_dead_bytes",
        "Bytes of records in the cold tier's files that are no rows any more, until compaction deletes them.",
    ),
    ("cold_reads_total", "Pieces of the cold tier's files that were read. One piece may have several rows."),
    (
        "cold_assisted_bytes_total",
        "Bytes of old records that writers to the cold tier compacted themselves, because compaction was behind.",
    ),
    ("cold_compaction_failures_total", "Attempts to compact the cold tier that failed. The server's log says why."),
];

fn store_figures(store: &WatchedStore<LogStore>) -> Vec<f64> {
    let ColdSize { rows, bytes } = store.size();
    let counts = store.store.io_counts();
    let figures = [
        rows,
        bytes,
        store.store.index_bytes() as u64,
        counts.reads_under_way,
        counts.dead_bytes,
        counts.reads,
        counts.assisted_bytes,
        counts.compaction_failures,
    ];
    figures.map(|figure| figure as f64).to_vec()
}

const WRITTEN: [FigureFamily; 1] = [(
    "cold_written_bytes_total",
    "Bytes of rows written to the cold tier, of records appended for them, and of records that compaction moved. \
     Appended and moved bytes for each byte of rows are the write amplification.",
)];

/// Registers the store's size, what it reads and writes, and the free space on the disk of its folder.
pub(crate) fn register_cold_store(server: &ServerLabel<'_>, store: &Arc<WatchedStore<LogStore>>, folder: &Path) {
    watch_disk(server.registry, &server.options("cold_disk", "the cold tier"), folder);
    let weak = Arc::downgrade(store);
    FigureCollector::register(server, &[], &STORE, move || {
        let store = weak.upgrade()?;
        Some(vec![(Vec::new(), store_figures(&store))])
    });
    let weak = Arc::downgrade(store);
    FigureCollector::register(server, &["what"], &WRITTEN, move || {
        let LogCounts { row_bytes, appended_bytes, moved_bytes, .. } = weak.upgrade()?.store.io_counts();
        let written = [("row", row_bytes), ("appended", appended_bytes), ("moved", moved_bytes)];
        Some(written.map(|(what, bytes)| (vec![what.to_owned()], vec![bytes as f64])).into())
    });
}
