//! The coordinator's metrics.

use prometheus::{IntGaugeVec, Opts, Registry};
use zagros_coordinator_core::{Role, RunEvent};
use zagros_plumbing::metrics::{Gauge, IntCounter, IntGauge, register};
use zagros_protocol::control::StatusResponse;

/// Member states, as in `MemberStatus.state`.
const STATES: [&str; 5] = ["alive", "left", "lost", "away", "given up"];

/// Metric children, resolved once.
#[derive(Clone, Debug)]
pub(crate) struct CoordinatorMetrics {
    pub(crate) heartbeats: IntCounter,
    expired_leases: IntCounter,
    recovered_servers: IntCounter,
    recoveries: IntCounter,
    /// Role, state, gauge.
    members: Vec<(i32, &'static str, IntGauge)>,
    generation: IntGauge,
    epoch: IntGauge,
    splits: IntGauge,
    splits_done: IntGauge,
    auc: Gauge,
    logloss: Gauge,
}

impl CoordinatorMetrics {
    /// The metrics of a run with so many servers and workers.
    pub(crate) fn new(registry: &Registry, servers: u32, workers: u32) -> Self {
        expected(registry, servers, workers);
        let counter = |name, help| register(registry, IntCounter::new(name, help));
        let int_gauge = |name, help| register(registry, IntGauge::new(name, help));
        let gauge = |name, help| register(registry, Gauge::new(name, help));
        let metrics = Self {
            heartbeats: counter("zagros_coordinator_heartbeats_total", "Heartbeats received."),
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
            auc: gauge("zagros_coordinator_auc", "Area under the ROC curve of the last evaluation; NaN before it."),
            logloss: gauge("zagros_coordinator_logloss", "Mean log loss (nats) of the last evaluation; NaN before it."),
        };
        // NaN until the first evaluation: 0 would look like a bad result.
        metrics.auc.set(f64::NAN);
        metrics.logloss.set(f64::NAN);
        metrics
    }

    /// Sets the gauges.
    pub(crate) fn show(&self, status: &StatusResponse) {
        for (role, state, gauge) in &self.members {
            let count = status.members.iter().filter(|member| member.role == *role && member.state == *state).count();
            gauge.set(count as i64);
        }
        self.generation.set(status.generation as i64);
        self.epoch.set(i64::from(status.epoch));
        self.splits.set(i64::from(status.splits));
        self.splits_done.set(i64::from(status.splits_done));
        if let Some(last) = status.evaluations.last() {
            self.auc.set(last.auc);
            self.logloss.set(last.logloss);
        }
    }

    /// Counts an event.
    pub(crate) fn count(&self, event: &RunEvent) {
        match event {
            RunEvent::MemberLost { .. } | RunEvent::ServerAway { .. } => self.expired_leases.inc(),
            RunEvent::CoordinatorRecovered { .. } => self.recoveries.inc(),
            RunEvent::ServerRecovered { .. } => self.recovered_servers.inc(),
            _ => {}
        }
    }
}

/// Sets the numbers of members that the job asks for. Alerts compare with them.
fn expected(registry: &Registry, servers: u32, workers: u32) {
    let options = Opts::new("zagros_coordinator_members_expected", "Members that the job asks for, by role.");
    let gauges = register(registry, IntGaugeVec::new(options, &["member_role"]));
    for (role, count) in [(Role::EmbeddingServer, servers), (Role::DenseWorker, workers)] {
        gauges.with_label_values(&[&*role.to_string()]).set(i64::from(count));
    }
}

fn members(registry: &Registry) -> Vec<(i32, &'static str, IntGauge)> {
    let options = Opts::new("zagros_coordinator_members", "Members by role and state.");
    let gauges = register(registry, IntGaugeVec::new(options, &["member_role", "state"]));
    let child = |role: Role, state| (role.to_wire(), state, gauges.with_label_values(&[&*role.to_string(), state]));
    let of_role = |role| STATES.map(|state| child(role, state));
    [Role::EmbeddingServer, Role::DenseWorker].into_iter().flat_map(of_role).collect()
}
