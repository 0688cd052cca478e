//! What an embedding server counts. Children are resolved once, here.

use std::sync::{Arc, Weak};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry};
use zagros_plumbing::metrics::{Histogram, IntCounter, latency_buckets, register};
use zagros_protocol::{Refusal, ServerIndex};
use zagros_table::TableSet;

/// Metric children of one server.
#[derive(Clone, Debug)]
pub(crate) struct ServerMetrics {
    pub(crate) lookup: CallMetrics,
    pub(crate) push: CallMetrics,
    pub(crate) save: CallMetrics,
    pub(crate) load: CallMetrics,
    pub(crate) looked_up: IntCounter,
    /// Answered with their first value because they do not exist.
    pub(crate) missing: IntCounter,
    pub(crate) created: IntCounter,
    pub(crate) updated: IntCounter,
    /// Gradients of an id that occurred before in the same push.
    pub(crate) repeated: IntCounter,
    /// Gradients left out because they were not finite.
    pub(crate) skipped: IntCounter,
    /// Rows of ids that are not admitted: lookups answered with zeros, gradients dropped.
    pub(crate) refused: IntCounter,
    /// Bags whose rows were summed for an answer.
    pub(crate) bags_summed: IntCounter,
    /// Bags whose gradient was spread over their rows.
    pub(crate) bags_spread: IntCounter,
    /// Pushes answered as applied before.
    pub(crate) duplicates: IntCounter,
}

/// One kind of call.
#[derive(Clone, Debug)]
pub(crate) struct CallMetrics {
    name: &'static str,
    requests: IntCounter,
    seconds: Histogram,
    refusals: IntCounterVec,
}

impl ServerMetrics {
    pub(crate) fn new(registry: &Registry, index: ServerIndex, tables: &Arc<TableSet>, names: &Arc<[String]>) -> Self {
        let of = Labelled { registry, server: index.to_string() };
        let requests = of.counters("requests_total", "Requests, refused ones included.", &["call"]);
        let refusals = of.counters("refusals_total", "Requests refused, by kind.", &["call", "kind"]);
        let seconds = of.histograms("request_seconds", "Seconds from a decoded request to its answer.", &["call"]);
        let rows = of.counters("rows_total", "Rows that requests met, by what became of them.", &["what"]);
        let call = |name: &'static str| CallMetrics {
            name,
            requests: requests.with_label_values(&[name]),
            seconds: seconds.with_label_values(&[name]),
            refusals: refusals.clone(),
        };
        let bags =
            of.counters("bags_total", "Bags of rows summed at lookups, and whose gradients pushes brought.", &["call"]);
        let row = |what: &str| rows.with_label_values(&[what]);
        register(registry, TableCollector::new(&of, tables, names));
        Self {
            lookup: call("lookup"),
            push: call("push"),
            save: call("save"),
            load: call("load"),
            looked_up: row("looked_up"),
            missing: row("missing"),
            created: row("created"),
            updated: row("updated"),
            repeated: row("repeated"),
            skipped: row("skipped"),
            refused: row("refused"),
            bags_summed: bags.with_label_values(&["lookup"]),
            bags_spread: bags.with_label_values(&["push"]),
            duplicates: of
                .counters("duplicates_total", "Pushes that had been applied before.", &[])
                .with_label_values::<&str>(&[]),
        }
    }
}

impl ServerMetrics {
    /// How many requests have begun, and whether one is under way.
    pub(crate) fn requests(&self) -> (u64, bool) {
        let calls = [&self.lookup, &self.push, &self.save, &self.load];
        // In this order: a request that ends in between is still under way, not one that never began.
        let ended: u64 = calls.iter().map(|call| call.seconds.get_sample_count()).sum();
        let begun = calls.iter().map(|call| call.requests.get()).sum();
        (begun, begun > ended)
    }
}

impl CallMetrics {
    /// Counts and times one request.
    pub(crate) fn observe<T>(&self, work: impl FnOnce() -> Result<T, Refusal>) -> Result<T, Refusal> {
        self.requests.inc();
        let _timer = self.seconds.start_timer();
        work().inspect_err(|refusal| self.refusals.with_label_values(&[self.name, refusal.kind.name()]).inc())
    }
}

/// Makes metrics that carry the server's number, so that servers of one process can share a registry.
struct Labelled<'a> {
    registry: &'a Registry,
    server: String,
}

impl Labelled<'_> {
    fn options(&self, name: &str, help: &str) -> Opts {
        Opts::new(format!("zagros_embedding_{name}"), help).const_label("server", &self.server)
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        register(self.registry, IntCounterVec::new(self.options(name, help), labels))
    }

    fn histograms(&self, name: &str, help: &str, labels: &[&str]) -> HistogramVec {
        let options = HistogramOpts::from(self.options(name, help)).buckets(latency_buckets());
        register(self.registry, HistogramVec::new(options, labels))
    }
}

/// Rows and bytes per table, asked from the tables when someone looks.
#[derive(Clone)]
struct TableCollector {
    /// Not kept alive by a registry that outlives the server.
    tables: Weak<TableSet>,
    names: Arc<[String]>,
    rows: IntGaugeVec,
    bytes: IntGaugeVec,
}

impl TableCollector {
    fn new(of: &Labelled<'_>, tables: &Arc<TableSet>, names: &Arc<[String]>) -> prometheus::Result<Self> {
        let bytes = "Bytes held by weights, optimiser state and index.";
        Ok(Self {
            tables: Arc::downgrade(tables),
            names: Arc::clone(names),
            rows: IntGaugeVec::new(of.options("table_rows", "Rows held."), &["table"])?,
            bytes: IntGaugeVec::new(of.options("table_bytes", bytes), &["table"])?,
        })
    }
}

impl Collector for TableCollector {
    fn desc(&self) -> Vec<&Desc> {
        [self.rows.desc(), self.bytes.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Some(tables) = self.tables.upgrade() else { return Vec::new() };
        for (name, table) in self.names.iter().zip(tables.iter()) {
            self.rows.with_label_values(&[name]).set(table.rows() as i64);
            self.bytes.with_label_values(&[name]).set(table.bytes() as i64);
        }
        [self.rows.collect(), self.bytes.collect()].concat()
    }
}

#[cfg(test)]
mod tests {
    use zagros_embedding_client::Shard;
    use zagros_plumbing::metrics::render;
    use zagros_protocol::datapath::Access;
    use zagros_protocol::{BucketMap, Generation};

    use super::*;
    use crate::testing::{job, lookup_of, push_of};
    use crate::{EmbeddingService, LocalShard};

    #[tokio::test]
    async fn servers_share_a_registry_and_each_tells_its_own() {
        let registry = Registry::new();
        let services = [0, 1].map(|index| EmbeddingService::new(&job(2), ServerIndex(index), &registry).unwrap());
        let map = Arc::new(BucketMap::even(Generation(1), 64, 1));
        services[0].set_placement(Arc::clone(&map));
        services[1].set_placement(map);
        let shards = services.map(LocalShard::new);
        shards[0].lookup(lookup_of(&[(0, &[1, 2])], Access::Train)).await.unwrap();
        shards[0].push(push_of(&[(0, &[1, 2])], 1, 0.5)).await.unwrap();
        shards[1].lookup(lookup_of(&[(0, &[1, 2])], Access::Train)).await.unwrap_err();
        let text = render(&registry);
        for line in [
            r#"zagros_embedding_requests_total{call="lookup",server="0"} 1"#,
            r#"zagros_embedding_request_seconds_count{call="push",server="0"} 1"#,
            r#"zagros_embedding_rows_total{server="0",what="created"} 2"#,
            r#"zagros_embedding_rows_total{server="0",what="updated"} 2"#,
            r#"zagros_embedding_refusals_total{call="lookup",kind="moved",server="1"} 1"#,
            r#"zagros_embedding_table_rows{server="0",table="user"} 2"#,
            r#"zagros_embedding_table_rows{server="1",table="user"} 0"#,
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn a_registry_does_not_keep_the_rows_of_a_server_alive() {
        let registry = Registry::new();
        drop(EmbeddingService::new(&job(1), ServerIndex(0), &registry).unwrap());
        assert!(!render(&registry).contains("table_rows{"));
    }
}
