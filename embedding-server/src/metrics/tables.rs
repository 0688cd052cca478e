//! Metrics of each table: its size, and what happened to its rows. They are read when metrics are collected.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, CounterVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
use zagros_plumbing::metrics::register;
use zagros_table::{SnapshotCopies, Table, TableCounts, TableSet};
use zagros_zip::ZipEq;

use super::ServerLabel;

type CountOf = fn(&TableCounts) -> u64;

const EVENTS: [(&str, CountOf); 14] = [
    ("hit", |counts| counts.hits),
    ("miss", |counts| counts.misses),
    ("created", |counts| counts.created),
    ("admitted", |counts| counts.admitted),
    ("refused", |counts| counts.refused),
    ("evicted", |counts| counts.evicted),
    ("dropped", |counts| counts.dropped),
    ("expired", |counts| counts.expired),
    ("cold_read", |counts| counts.cold_reads),
    ("promoted", |counts| counts.promoted),
    ("hinted", |counts| counts.hinted),
    ("ready", |counts| counts.ready),
    ("late", |counts| counts.late),
    ("late_gradient", |counts| counts.late_gradients),
];

#[derive(Clone)]
pub(crate) struct TableCollector {
    /// Weak, so that a registry that outlives the server does not keep the tables alive.
    tables: Weak<TableSet>,
    families: TableFamilies,
    /// One per table, in order. Locked while the counters are updated, so that two collections count nothing twice.
    children: Arc<Mutex<Vec<TableChildren>>>,
}

#[derive(Clone)]
struct TableFamilies {
    rows: IntGaugeVec,
    bytes: IntGaugeVec,
    events: IntCounterVec,
    waits: IntCounterVec,
    waited: CounterVec,
    copies: IntGauge,
    copies_limit: IntGauge,
    copies_waits: IntCounter,
    given_up: IntCounter,
}

struct TableChildren {
    rows: IntGauge,
    bytes: IntGauge,
    events: Vec<IntCounter>,
    waits: IntCounter,
    waited: Counter,
}

impl TableCollector {
    pub(crate) fn register(of: &ServerLabel<'_>, tables: &Arc<TableSet>, names: &[String]) {
        let made = TableFamilies::new(of).map(|families| {
            let children = names.iter().map(|name| families.table_children(name)).collect();
            Self { tables: Arc::downgrade(tables), families, children: Arc::new(Mutex::new(children)) }
        });
        register(of.registry, made);
    }
}

impl TableFamilies {
    fn new(of: &ServerLabel<'_>) -> prometheus::Result<Self> {
        let bytes = "Bytes of weights, optimiser state and index.";
        let events = "Ids of requests, and rows created and removed, by event.";
        let waits = "How often a request found a stripe of a table locked.";
        let waited = "Seconds that requests waited for locked stripes of a table.";
        let copies = "Bytes of copies of rows that changed while a save has not read them yet.";
        let copies_limit = "The most bytes of such copies in the newest save. 0 while there is none.";
        let copies_waits = "Requests that waited because these copies were at their limit.";
        let given_up = "Saves that were given up because these copies were at their limit and nothing was written.";
        Ok(Self {
            rows: IntGaugeVec::new(of.options("table_rows", "Rows in memory."), &["table"])?,
            bytes: IntGaugeVec::new(of.options("table_bytes", bytes), &["table"])?,
            events: IntCounterVec::new(of.options("table_ids_total", events), &["table", "what"])?,
            waits: IntCounterVec::new(of.options("table_lock_waits_total", waits), &["table"])?,
            waited: CounterVec::new(of.options("table_lock_wait_seconds_total", waited), &["table"])?,
            copies: IntGauge::with_opts(of.options("save_copies_bytes", copies))?,
            copies_limit: IntGauge::with_opts(of.options("save_copies_limit_bytes", copies_limit))?,
            copies_waits: IntCounter::with_opts(of.options("save_copies_waits_total", copies_waits))?,
            given_up: IntCounter::with_opts(of.options("saves_given_up_total", given_up))?,
        })
    }

    fn table_children(&self, table: &str) -> TableChildren {
        TableChildren {
            rows: self.rows.with_label_values(&[table]),
            bytes: self.bytes.with_label_values(&[table]),
            events: EVENTS.iter().map(|(what, _)| self.events.with_label_values(&[table, what])).collect(),
            waits: self.waits.with_label_values(&[table]),
            waited: self.waited.with_label_values(&[table]),
        }
    }

    fn all_families(&self) -> [&dyn Collector; 9] {
        let of_tables: [&dyn Collector; 5] = [&self.rows, &self.bytes, &self.events, &self.waits, &self.waited];
        let [rows, bytes, events, waits, waited] = of_tables;
        [rows, bytes, events, waits, waited, &self.copies, &self.copies_limit, &self.copies_waits, &self.given_up]
    }

    fn catch_up(&self, copies: SnapshotCopies) {
        self.copies.set(copies.held as i64);
        self.copies_limit.set(copies.limit as i64);
        self.copies_waits.inc_by(copies.waits.saturating_sub(self.copies_waits.get()));
        self.given_up.inc_by(copies.given_up.saturating_sub(self.given_up.get()));
    }
}

impl TableChildren {
    fn catch_up(&self, table: &Table) {
        let counts = table.event_counts();
        self.rows.set(table.row_count() as i64);
        self.bytes.set(table.memory_bytes() as i64);
        for (counter, (_, of)) in self.events.iter().zip_eq(EVENTS) {
            counter.inc_by(of(&counts).saturating_sub(counter.get()));
        }
        self.waits.inc_by(counts.contended.saturating_sub(self.waits.get()));
        self.waited.inc_by((counts.waited_nanos as f64 / 1e9 - self.waited.get()).max(0.0));
    }
}

impl Collector for TableCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.families.all_families().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Some(tables) = self.tables.upgrade() else { return Vec::new() };
        let children = self.children.lock();
        for (children, table) in children.iter().zip_eq(tables.iter()) {
            children.catch_up(table);
        }
        self.families.catch_up(tables.snapshot_copies());
        self.families.all_families().into_iter().flat_map(Collector::collect).collect()
    }
}
