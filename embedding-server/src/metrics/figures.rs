//! Figures of the tables and of the cold tier. They are read when metrics are collected.

use std::path::Path;
use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{CounterVec, GaugeVec, Opts};
use zagros_plumbing::metrics::{register, watch_disk};
use zagros_rows::cold::{LogCounts, LogStore};
use zagros_table::{ColdSize, ColdStore, SnapshotCopies, TableCounts, TableSet};
use zagros_zip::ZipEq;

use super::ServerLabel;
use crate::tier::{StoreCalls, WatchedStore};

/// Name, help and figure of a metric. It is a counter if its name ends with `_total`, else a gauge.
type FigureFamily<T> = (&'static str, &'static str, fn(&T) -> f64);

/// What figures are read from, with the values of its labels.
type LabelledSources<T> = Vec<(Vec<String>, T)>;

#[derive(Clone)]
struct FigureCollector<T: 'static> {
    labels: &'static [&'static str],
    families: &'static [FigureFamily<T>],
    options: Vec<Opts>,
    descs: Vec<Desc>,
    /// `None` once the server has gone: a registry that outlives it does not keep its rows alive.
    sources: Arc<dyn Fn() -> Option<LabelledSources<T>> + Send + Sync>,
}

impl<T: Clone + 'static> FigureCollector<T> {
    fn register(
        server: &ServerLabel<'_>,
        labels: &'static [&'static str],
        families: &'static [FigureFamily<T>],
        sources: impl Fn() -> Option<LabelledSources<T>> + Send + Sync + 'static,
    ) {
        let options: Vec<Opts> = families.iter().map(|(name, help, _)| server.options(name, help)).collect();
        let described = options.iter().map(|options| GaugeVec::new(options.clone(), labels));
        let made = described.collect::<prometheus::Result<Vec<_>>>().map(|described| {
            let descs = described.iter().flat_map(Collector::desc).cloned().collect();
            Self { labels, families, options, descs, sources: Arc::new(sources) }
        });
        register(server.registry, made);
    }
}

impl<T: 'static> FigureCollector<T> {
    fn collect_family(
        &self,
        (name, _, figure): &FigureFamily<T>,
        options: Opts,
        sources: &LabelledSources<T>,
    ) -> prometheus::Result<Vec<MetricFamily>> {
        if name.ends_with("_total") {
            let totals = CounterVec::new(options, self.labels)?;
            sources.iter().for_each(|(labels, source)| totals.with_label_values(labels).inc_by(figure(source)));
            return Ok(totals.collect());
        }
        let gauges = GaugeVec::new(options, self.labels)?;
        sources.iter().for_each(|(labels, source)| gauges.with_label_values(labels).set(figure(source)));
        Ok(gauges.collect())
    }
}

impl<T: 'static> Collector for FigureCollector<T> {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Some(sources) = (self.sources)() else { return Vec::new() };
        let families = self.families.iter().zip_eq(&self.options);
        let collected =
            families.filter_map(|(family, options)| self.collect_family(family, options.clone(), &sources).ok());
        collected.flatten().collect()
    }
}

#[derive(Clone)]
struct TableFigures {
    rows: usize,
    bytes: usize,
    counts: TableCounts,
}

static TABLES: [FigureFamily<TableFigures>; 4] = [
    ("table_rows", "Rows in memory.", |table| table.rows as f64),
    ("table_bytes", "Bytes of weights, optimiser state and index.", |table| table.bytes as f64),
    ("table_lock_waits_total", "How often a request found a stripe of a table locked.", |table| {
        table.counts.contended as f64
    }),
    ("table_lock_wait_seconds_total", "Seconds that requests waited for locked stripes of a table.", |table| {
        table.counts.waited_nanos as f64 / 1e9
    }),
];

static EVENTS: [FigureFamily<u64>; 1] =
    [("table_ids_total", "Ids of requests, and rows created and removed, by event.", |ids| *ids as f64)];

static COPIES: [FigureFamily<SnapshotCopies>; 4] = [
    ("save_copies_bytes", "Bytes of copies of rows that changed while a save has not read them yet.", |copies| {
        copies.held as f64
    }),
    ("save_copies_limit_bytes", "The most bytes of such copies in the newest save. 0 while there is none.", |copies| {
        copies.limit as f64
    }),
    ("save_copies_waits_total", "Requests that waited because these copies were at their limit.", |copies| {
        copies.waits as f64
    }),
    (
        "saves_given_up_total",
        "Saves that were given up because these copies were at their limit and nothing was written.",
        |copies| copies.given_up as f64,
    ),
];

/// Registers the size of each table, what happened to its rows, and the copies for saves.
pub(crate) fn register_tables(server: &ServerLabel<'_>, tables: &Arc<TableSet>, names: &Arc<[String]>) {
    let weak = Arc::downgrade(tables);
    FigureCollector::register(server, &[], &COPIES, move || {
        Some(vec![(Vec::new(), weak.upgrade()?.snapshot_copies())])
    });
    let (weak, own) = (Arc::downgrade(tables), Arc::clone(names));
    FigureCollector::register(server, &["table", "what"], &EVENTS, move || {
        let tables = weak.upgrade()?;
        let events = |(name, table): (&String, &zagros_table::Table)| {
            events_of(&table.event_counts()).map(|(what, ids)| (vec![name.clone(), what.to_owned()], ids))
        };
        Some(own.iter().zip_eq(tables.iter()).flat_map(events).collect())
    });
    let (weak, own) = (Arc::downgrade(tables), Arc::clone(names));
    FigureCollector::register(server, &["table"], &TABLES, move || {
        let tables = weak.upgrade()?;
        let figures = |(name, table): (&String, &zagros_table::Table)| {
            let (rows, bytes, counts) = (table.row_count(), table.memory_bytes(), table.event_counts());
            (vec![name.clone()], TableFigures { rows, bytes, counts })
        };
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

#[derive(Clone)]
struct StoreFigures {
    size: ColdSize,
    index: usize,
    counts: LogCounts,
}

static STORE: [FigureFamily<StoreFigures>; 8] = [
    ("cold_rows", "Number of rows in the cold tier, with void copies of rows that are in memory.", |store| {
        store.size.rows as f64
    }),
    ("cold_bytes", "Bytes of the cold tier's files.", |store| store.size.bytes as f64),
    ("cold_index_bytes", "Bytes in memory of the cold tier's index, a part of `cluster.memory`.", |store| {
        store.index as f64
    }),
    (
        "cold_reads_under_way",
        "Pieces of the cold tier's files that requests have asked for and the disk has not yet answered.",
        |store| store.counts.reads_under_way as f64,
    ),
    (
        "cold_dead_bytes",
        "Bytes of records in the cold tier's files that are no rows any more, until compaction deletes them.",
        |store| store.counts.dead_bytes as f64,
    ),
    ("cold_reads_total", "Pieces of the cold tier's files that were read. One piece may have several rows.", |store| {
        store.counts.reads as f64
    }),
    (
        "cold_assisted_bytes_total",
        "Bytes of old records that writers to the cold tier compacted themselves, because compaction was behind.",
        |store| store.counts.assisted_bytes as f64,
    ),
    (
        "cold_compaction_failures_total",
        "Attempts to compact the cold tier that failed. The server's log says why.",
        |store| store.counts.compaction_failures as f64,
    ),
];

static WRITTEN: [FigureFamily<u64>; 1] = [(
    "cold_written_bytes_total",
    "Bytes of rows written to the cold tier, of records appended for them, and of records that compaction moved. \
     Appended and moved bytes for each byte of rows are the write amplification.",
    |bytes| *bytes as f64,
)];

/// Registers the store's size, what it reads and writes, and the free space on the disk of its folder.
pub(crate) fn register_cold_store(server: &ServerLabel<'_>, store: &Arc<WatchedStore<LogStore>>, folder: &Path) {
    watch_disk(server.registry, &server.options("cold_disk", "the cold tier"), folder);
    let weak = Arc::downgrade(store);
    FigureCollector::register(server, &[], &STORE, move || {
        let store = weak.upgrade()?;
        let (size, index, counts) = (store.size(), store.store.index_bytes(), store.store.io_counts());
        Some(vec![(Vec::new(), StoreFigures { size, index, counts })])
    });
    let weak = Arc::downgrade(store);
    FigureCollector::register(server, &["what"], &WRITTEN, move || {
        let LogCounts { row_bytes, appended_bytes, moved_bytes, .. } = weak.upgrade()?.store.io_counts();
        let written = [("row", row_bytes), ("appended", appended_bytes), ("moved", moved_bytes)];
        Some(written.map(|(what, bytes)| (vec![what.to_owned()], bytes)).into())
    });
}
