//! Metrics of an embedding server. Children are resolved once, here.

mod figures;
mod recent_lookups;

use std::sync::Arc;

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};
use zagros_plumbing::metrics::{Gauge, Histogram, IntCounter, IntGauge, latency_buckets, register};
use zagros_protocol::{Refusal, RefusalKind, ServerIndex};
use zagros_table::TableSet;

use figures::register_tables;
pub(crate) use figures::{cold_call_metrics, register_cold_store};
pub(crate) use recent_lookups::RecentLookups;

#[derive(Clone, Debug)]
pub(crate) struct ServerMetrics {
    pub(crate) lookup: CallMetrics,
    pub(crate) push: CallMetrics,
    pub(crate) hint: CallMetrics,
    pub(crate) save: CallMetrics,
    pub(crate) load: CallMetrics,
    pub(crate) looked_up: IntCounter,
    /// Rows that do not exist. The answer was their first value.
    pub(crate) missing: IntCounter,
    pub(crate) created: IntCounter,
    pub(crate) updated: IntCounter,
    /// Gradients of an id that occurred earlier in the same push.
    pub(crate) repeated: IntCounter,
    /// Gradients that were skipped because they were not finite or too large.
    pub(crate) skipped: IntCounter,
    /// Ids that are not admitted: lookups answered with zeros, and gradients dropped.
    pub(crate) refused: IntCounter,
    pub(crate) bags_summed: IntCounter,
    /// Bags whose gradient was spread over their rows.
    pub(crate) bags_spread: IntCounter,
    /// For each applied push, the number of earlier batches in flight when its rows were looked up.
    pub(crate) staleness: Histogram,
    pub(crate) duplicates: IntCounter,
    pub(crate) refused_connections: IntCounter,
}

#[derive(Clone, Debug)]
pub(crate) struct CallMetrics {
    requests: IntCounter,
    seconds: Histogram,
    pub(crate) rows: Histogram,
    /// One counter for each kind of refusal, in the order of the kinds.
    refusals: Vec<(RefusalKind, IntCounter)>,
}

impl ServerMetrics {
    pub(crate) fn new(registry: &Registry, index: ServerIndex, tables: &Arc<TableSet>, names: &Arc<[String]>) -> Self {
        let label = ServerLabel::new(registry, index);
        let requests = label.counters("requests_total", "Requests, refused ones included.", &["call"]);
        let refusals = label.counters("refusals_total", "Requests refused, by kind.", &["call", "kind"]);
        let seconds = label.seconds("request_seconds", "Seconds from a decoded request to its answer.", &["call"]);
        let sizes =
            label.histograms("request_rows", "Rows that a served request named.", &["call"], power_buckets(0..20));
        let staleness = "Earlier batches in flight when the rows of a pushed batch were looked up.";
        let staleness = label.histograms("push_staleness_batches", staleness, &[], power_buckets(0..10));
        let rows = label.counters("rows_total", "Rows of requests, by what happened to them.", &["what"]);
        let call = |name: &str| CallMetrics {
            requests: requests.with_label_values(&[name]),
            seconds: seconds.with_label_values(&[name]),
            rows: sizes.with_label_values(&[name]),
            // All series exist from the start. A series that appears with its first count has no rate.
            refusals: RefusalKind::NAMED.map(|(kind, word)| (kind, refusals.with_label_values(&[name, word]))).to_vec(),
        };
        let bags = "Bags that lookups summed, and bags whose gradients pushes brought.";
        let bags = label.counters("bags_total", bags, &["call"]);
        let row = |what: &str| rows.with_label_values(&[what]);
        let refused_connections = "Connections that were refused because their peer gave a false proof of membership.";
        let duplicates = "Pushes that were duplicates, because they had been applied before.";
        register_tables(&label, tables, names);
        Self {
            lookup: call("lookup"),
            push: call("push"),
            hint: call("hint"),
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
            staleness: staleness.with_label_values::<&str>(&[]),
            refused_connections: label.counter("refused_connections_total", refused_connections),
            duplicates: label.counter("duplicates_total", duplicates),
        }
    }

    /// How many requests have started, and how many of them are in progress.
    pub(crate) fn request_counts(&self) -> (u64, u64) {
        let calls = [&self.lookup, &self.push, &self.save, &self.load];
        // The order matters: a request that ends between the two reads counts as in progress, not as never started.
        let ended: u64 = calls.iter().map(|call| call.seconds.get_sample_count()).sum();
        let started: u64 = calls.iter().map(|call| call.requests.get()).sum();
        (started, started.saturating_sub(ended))
    }
}

impl CallMetrics {
    pub(crate) fn observe<T>(&self, work: impl FnOnce() -> Result<T, Refusal>) -> Result<T, Refusal> {
        self.requests.inc();
        let _timer = self.seconds.start_timer();
        work().inspect_err(|refusal| {
            self.refusals.iter().filter(|(kind, _)| *kind == refusal.kind).for_each(|(_, count)| count.inc());
        })
    }
}

/// Histogram buckets for counts: 0 and powers of two.
fn power_buckets(of: std::ops::Range<i32>) -> Vec<f64> {
    std::iter::once(0.0).chain(of.map(|power| 2_f64.powi(power))).collect()
}

/// Makes metrics with the server's index as a label, so that servers in one process can share a registry.
pub(crate) struct ServerLabel<'a> {
    registry: &'a Registry,
    server: String,
}

impl<'a> ServerLabel<'a> {
    pub(crate) fn new(registry: &'a Registry, index: ServerIndex) -> Self {
        Self { registry, server: index.to_string() }
    }

    fn options(&self, name: &str, help: &str) -> Opts {
        Opts::new(format!("zagros_embedding_{name}"), help).const_label("server", &self.server)
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        register(self.registry, IntCounterVec::new(self.options(name, help), labels))
    }

    /// A counter without labels of its own.
    pub(crate) fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.counters(name, help, &[]).with_label_values::<&str>(&[])
    }

    pub(crate) fn gauge(&self, name: &str, help: &str) -> IntGauge {
        register(self.registry, IntGauge::with_opts(self.options(name, help)))
    }

    pub(crate) fn seconds_gauge(&self, name: &str, help: &str) -> Gauge {
        register(self.registry, Gauge::with_opts(self.options(name, help)))
    }

    pub(crate) fn seconds(&self, name: &str, help: &str, labels: &[&str]) -> HistogramVec {
        self.histograms(name, help, labels, latency_buckets())
    }

    fn histograms(&self, name: &str, help: &str, labels: &[&str], buckets: Vec<f64>) -> HistogramVec {
        let options = HistogramOpts::from(self.options(name, help)).buckets(buckets);
        register(self.registry, HistogramVec::new(options, labels))
    }
}

#[cfg(test)]
mod tests {
    use zagros_embedding_client::Shard;
    use zagros_plumbing::metrics::render_text;
    use zagros_protocol::datapath::Access;

    use super::*;
    use crate::testing::{even_map, job, later, lookup_of, push_of};
    use crate::{EmbeddingService, LocalShard};

    #[tokio::test]
    async fn servers_share_a_registry_and_each_reports_its_own_figures() {
        let registry = Registry::new();
        let services = [0, 1].map(|index| EmbeddingService::new(&job(2), ServerIndex(index), &registry).unwrap());
        services.iter().for_each(|service| service.set_placement(even_map(1)));
        let shards = services.map(LocalShard::new);
        shards[0].lookup(lookup_of(&[(0, &[1, 2])], Access::Train), later()).await.unwrap();
        shards[0].push(push_of(&[(0, &[1, 2])], 1, 0.5), later()).await.unwrap();
        shards[1].lookup(lookup_of(&[(0, &[1, 2])], Access::Train), later()).await.unwrap_err();
        let text = render_text(&registry);
        for line in [
            r#"zagros_embedding_requests_total{call="lookup",server="0"} 1"#,
            r#"zagros_embedding_request_seconds_count{call="push",server="0"} 1"#,
            r#"zagros_embedding_request_rows_sum{call="lookup",server="0"} 2"#,
            r#"zagros_embedding_push_staleness_batches_bucket{server="0",le="0"} 1"#,
            r#"zagros_embedding_rows_total{server="0",what="created"} 2"#,
            r#"zagros_embedding_rows_total{server="0",what="updated"} 2"#,
            r#"zagros_embedding_refusals_total{call="lookup",kind="moved",server="1"} 1"#,
            r#"zagros_embedding_refusals_total{call="push",kind="invalid",server="1"} 0"#,
            r#"zagros_embedding_table_rows{server="0",table="user"} 2"#,
            r#"zagros_embedding_table_rows{server="1",table="user"} 0"#,
            r#"zagros_embedding_table_ids_total{server="0",table="user",what="evicted"} 0"#,
            r#"zagros_embedding_table_lock_waits_total{server="0",table="user"} 0"#,
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn a_registry_does_not_keep_the_rows_of_a_server_alive() {
        let registry = Registry::new();
        drop(EmbeddingService::new(&job(1), ServerIndex(0), &registry).unwrap());
        assert!(!render_text(&registry).contains("table_rows{"));
    }
}
