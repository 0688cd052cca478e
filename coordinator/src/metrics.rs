//! The coordinator's metrics.

use prometheus::{IntGaugeVec, Opts, Registry};
use zagros_coordinator_core::{Role, RunEvent};
use zagros_plumbing::metrics::{Gauge, Histogram, HistogramOpts, IntCounter, IntGauge, latency_buckets, register};
use zagros_protocol::control::StatusResponse;

/// Member states, as in `MemberStatus.state`.
const STATES: [&str; 5] = ["alive", "left", "lost", "away", "given up"];

/// Metric children, resolved once.
#[derive(Clone, Debug)]
pub(crate) struct CoordinatorMetrics {
    pub(crate) heartbeats: IntCounter,
    pub(crate) refused_connections: IntCounter,
    expired_leases: IntCounter,
    recovered_servers: IntCounter,
    recoveries: IntCounter,
    /// Role, state, gauge.
    members: Vec<(i32, &'static str, IntGauge)>,
    generation: IntGauge,
    epoch: IntGauge,
    splits: IntGauge,
    splits_done: IntGauge,
    moves_committed: IntCounter,
    moves_abandoned: IntCounter,
    moved_buckets: IntCounter,
    moved_rows: IntCounter,
    moved_bytes: IntCounter,
    frozen: Histogram,
    buckets_left: IntGauge,
    expected_servers: IntGauge,
    auc: Gauge,
    logloss: Gauge,
}

impl CoordinatorMetrics {
    pub(crate) fn new(registry: &Registry, servers: u32, workers: u32) -> Self {
        let expected_servers = expected(registry, servers, workers);
        let counter = |name, help| register(registry, IntCounter::new(name, help));
        let int_gauge = |name, help| register(registry, IntGauge::new(name, help));
        let gauge = |name, help| register(registry, Gauge::new(name, help));
        let frozen = HistogramOpts::new(
            "zagros_coordinator_move_frozen_seconds",
            "Seconds for which the source of a move served nothing, up to the coordinator's decision.",
        );
        let metrics = Self {
            heartbeats: counter("zagros_coordinator_heartbeats_total", "Heartbeats received."),
            refused_connections: counter(
                "zagros_coordinator_refused_connections_total",
                "Connections that were refused because their peer gave a false proof of membership.",
            ),
            expired_leases: counter(
                "zagros_coordinator_expired_leases_total",
                "Members lost after a lease of silence.",
            ),
            recoveries: counter(
                "zagros_coordinator_recoveries_total",
                "Starts of this process with the state of the coordinator process before.",
            ),
            recovered_servers: counter(
                "zagros_coordinator_recovered_servers_total",
                "Embedding servers that came back as another process with the rows that they held.",
            ),
            members: members(registry),
            generation: int_gauge("zagros_coordinator_generation", "Generation of the placement; 0 before the first."),
            epoch: int_gauge("zagros_coordinator_epoch", "Epoch over the data, counted from 0."),
            splits: int_gauge("zagros_coordinator_splits", "Splits in an epoch."),
            splits_done: int_gauge("zagros_coordinator_splits_done", "Splits of this epoch that are complete."),
            moves_committed: counter("zagros_coordinator_bucket_moves_total", "Moves of buckets to another server."),
            moves_abandoned: counter(
                "zagros_coordinator_abandoned_moves_total",
                "Moves of buckets that were given up. Each is tried again.",
            ),
            moved_buckets: counter("zagros_coordinator_moved_buckets_total", "Buckets that have moved."),
            moved_rows: counter(
                "zagros_coordinator_moved_rows_total",
                "Rows that were copied for moves, a row that changed meanwhile once for each time.",
            ),
            moved_bytes: counter("zagros_coordinator_moved_bytes_total", "Bytes of these rows."),
            frozen: register(registry, Histogram::with_opts(frozen.buckets(latency_buckets()))),
            buckets_left: int_gauge("zagros_coordinator_buckets_to_move", "Buckets that still have to move."),
            expected_servers,
            auc: gauge("zagros_coordinator_auc", "Area under the ROC curve of the last evaluation; NaN before it."),
            logloss: gauge("zagros_coordinator_logloss", "Mean log loss (nats) of the last evaluation; NaN before it."),
        };
        // NaN until the first evaluation: 0 would look like a bad result.
        metrics.auc.set(f64::NAN);
        metrics.logloss.set(f64::NAN);
        metrics
    }

    pub(crate) fn set_gauges(&self, status: &StatusResponse) {
        for (role, state, gauge) in &self.members {
            let count = status.members.iter().filter(|member| member.role == *role && member.state == *state).count();
            gauge.set(count as i64);
        }
        self.generation.set(status.generation as i64);
        self.epoch.set(i64::from(status.epoch));
        self.splits.set(i64::from(status.splits));
        self.splits_done.set(i64::from(status.splits_done));
        if let Some(scale) = &status.scale {
            self.buckets_left.set(i64::from(scale.buckets_left));
            self.expected_servers.set(i64::from(scale.servers));
        }
        if let Some(last) = status.evaluations.last() {
            self.auc.set(last.auc);
            self.logloss.set(last.logloss);
        }
    }

    pub(crate) fn count_event(&self, event: &RunEvent) {
        match event {
            RunEvent::MemberLost { .. } | RunEvent::ServerAway { .. } => self.expired_leases.inc(),
            RunEvent::CoordinatorRecovered { .. } => self.recoveries.inc(),
            RunEvent::ServerRecovered { .. } => self.recovered_servers.inc(),
            RunEvent::MoveAbandoned { .. } => self.moves_abandoned.inc(),
            RunEvent::MoveCommitted { buckets, rows, bytes, frozen, .. } => {
                self.moves_committed.inc();
                self.moved_buckets.inc_by(u64::from(*buckets));
                self.moved_rows.inc_by(*rows);
                self.moved_bytes.inc_by(*bytes);
                self.frozen.observe(frozen.as_secs_f64());
            }
            _ => {}
        }
    }
}

/// Sets the numbers of members that the job asks for. Alerts compare with them. Returns that of the servers, which may change.
fn expected(registry: &Registry, servers: u32, workers: u32) -> IntGauge {
    let options = Opts::new("zagros_coordinator_members_expected", "Members that the job asks for, by role.");
    let gauges = register(registry, IntGaugeVec::new(options, &["member_role"]));
    for (role, count) in [(Role::EmbeddingServer, servers), (Role::DenseWorker, workers)] {
        gauges.with_label_values(&[&*role.to_string()]).set(i64::from(count));
    }
    gauges.with_label_values(&[&*Role::EmbeddingServer.to_string()])
}

fn members(registry: &Registry) -> Vec<(i32, &'static str, IntGauge)> {
    let options = Opts::new("zagros_coordinator_members", "Members by role and state.");
    let gauges = register(registry, IntGaugeVec::new(options, &["member_role", "state"]));
    let child = |role: Role, state| (role.to_wire(), state, gauges.with_label_values(&[&*role.to_string(), state]));
    let of_role = |role| STATES.map(|state| child(role, state));
    [Role::EmbeddingServer, Role::DenseWorker].into_iter().flat_map(of_role).collect()
}
