//! The status of a run as JSON: what `/status` and `zagros status --json` print.
//!
//! Field names are stable: scripts read them. A number that is not finite is `null`.

use serde::Serialize;
use zagros_coordinator_core::{Role, Seat};
use zagros_protocol::control::{Evaluation, MemberStatus, Progress, ServerLoad, StatusResponse};

/// The run at a glance.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StatusReport {
    /// Name of the job.
    pub job: String,
    /// `waiting`, `training`, `finished`, `interrupted` or `failed`.
    pub state: String,
    /// What is waited for, or why the run ended as it did; empty when there is nothing to say.
    pub reason: String,
    /// Generation of the placement; 0 before every embedding server has joined.
    pub generation: u64,
    /// Pass over the data, counted from 0.
    pub pass: u32,
    /// Passes in all.
    pub passes: u32,
    /// Splits in a pass; 0 before the first worker has joined.
    pub splits: u32,
    /// Splits of this pass that are complete.
    pub splits_done: u32,
    /// Everyone who ever joined: servers first, by index.
    pub members: Vec<MemberReport>,
    /// The last evaluations, oldest first.
    pub evaluations: Vec<EvaluationReport>,
}

/// A member.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemberReport {
    /// `embedding server 1`.
    pub name: String,
    /// `embedding server` or `dense worker`.
    pub role: String,
    /// Position within the role.
    pub index: u32,
    /// `host:port` of its data path; empty for workers.
    pub address: String,
    /// `alive`, `left` or `lost`.
    pub state: String,
    /// How many processes have taken this place.
    pub epoch: u32,
    /// Seconds since it was last heard.
    pub silent_seconds: f64,
    /// Splits it is working on.
    pub splits_held: u32,
    /// What a worker tells.
    pub progress: Option<ProgressReport>,
    /// What an embedding server tells.
    pub load: Option<LoadReport>,
}

/// A worker's training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ProgressReport {
    /// Batches trained.
    pub step: u64,
    /// Pass over the data, counted from 0.
    pub pass: u32,
    /// Samples trained.
    pub samples: u64,
    /// Samples per second.
    pub samples_per_second: f64,
    /// Smoothed loss, nats.
    pub loss: f64,
    /// Unacknowledged batches at the last lookup.
    pub staleness: u32,
    /// Step of the newest checkpoint that is complete; 0 before the first.
    pub checkpoint_step: u64,
}

/// What an embedding server holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LoadReport {
    /// Rows.
    pub rows: u64,
    /// Bytes of rows, optimiser state and index.
    pub bytes: u64,
}

/// Measures on the held-out part.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EvaluationReport {
    /// Batches trained before it.
    pub step: u64,
    /// Pass over the data, counted from 0.
    pub pass: u32,
    /// Samples scored.
    pub samples: u64,
    /// Area under the ROC curve.
    pub auc: f64,
    /// Mean log loss, nats.
    pub logloss: f64,
}

impl MemberReport {
    /// What the member does now, in words.
    #[must_use]
    pub fn detail(&self) -> String {
        let address = (!self.address.is_empty()).then(|| self.address.clone());
        let load = self.load.map(|load| format!("{} rows, {:.1} MiB", load.rows, load.bytes as f64 / (1 << 20) as f64));
        let progress = self.progress.map(|progress| {
            let ProgressReport { step, samples_per_second, loss, .. } = progress;
            format!("step {step}, {samples_per_second:.0} samples/s, loss {loss:.4}, {} splits held", self.splits_held)
        });
        let silence = (self.state != "left").then(|| format!("heard {:.1} s ago", self.silent_seconds));
        [address, load, progress, silence].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

impl From<StatusResponse> for StatusReport {
    fn from(status: StatusResponse) -> Self {
        Self {
            job: status.job,
            state: status.state,
            reason: status.reason,
            generation: status.generation,
            pass: status.pass,
            passes: status.passes,
            splits: status.splits,
            splits_done: status.splits_done,
            members: status.members.into_iter().map(MemberReport::from).collect(),
            evaluations: status.evaluations.into_iter().map(EvaluationReport::from).collect(),
        }
    }
}

impl From<MemberStatus> for MemberReport {
    fn from(member: MemberStatus) -> Self {
        let role = Role::from_wire(member.role);
        let unknown = || format!("role {}", member.role);
        Self {
            name: role.map_or_else(unknown, |role| Seat { role, index: member.index }.to_string()),
            role: role.map_or_else(unknown, |role| role.to_string()),
            index: member.index,
            address: member.address,
            state: member.state,
            epoch: member.epoch,
            silent_seconds: member.silent_ms as f64 / 1e3,
            splits_held: member.splits_held,
            progress: member.progress.map(ProgressReport::from),
            load: member.load.map(LoadReport::from),
        }
    }
}

impl From<Progress> for ProgressReport {
    fn from(progress: Progress) -> Self {
        let Progress { step, pass, samples, samples_per_second, loss, staleness, checkpoint_step, .. } = progress;
        Self { step, pass, samples, samples_per_second, loss, staleness, checkpoint_step }
    }
}

impl From<ServerLoad> for LoadReport {
    fn from(ServerLoad { rows, bytes }: ServerLoad) -> Self {
        Self { rows, bytes }
    }
}

impl From<Evaluation> for EvaluationReport {
    fn from(Evaluation { step, pass, samples, auc, logloss }: Evaluation) -> Self {
        Self { step, pass, samples, auc, logloss }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response() -> StatusResponse {
        let worker = MemberStatus {
            role: Role::DenseWorker.to_wire(),
            state: "alive".to_owned(),
            epoch: 1,
            silent_ms: 1500,
            progress: Some(Progress { step: 9, loss: f64::NAN, samples_per_second: 1234.5, ..Progress::default() }),
            splits_held: 2,
            ..MemberStatus::default()
        };
        let server = MemberStatus {
            role: Role::EmbeddingServer.to_wire(),
            index: 1,
            address: "127.0.0.1:7701".to_owned(),
            state: "left".to_owned(),
            load: Some(ServerLoad { rows: 10, bytes: 3 << 20 }),
            ..MemberStatus::default()
        };
        let evaluations = vec![Evaluation { step: 9, pass: 0, samples: 100, auc: 0.75, logloss: 0.5 }];
        let (job, state) = ("quickstart".to_owned(), "training".to_owned());
        StatusResponse { job, state, members: vec![server, worker], evaluations, ..StatusResponse::default() }
    }

    #[test]
    fn the_json_has_the_documented_fields() {
        let json = serde_json::to_value(StatusReport::from(response())).unwrap();
        let expected = serde_json::json!({
            "job": "quickstart", "state": "training", "reason": "", "generation": 0, "pass": 0, "passes": 0,
            "splits": 0, "splits_done": 0,
            "members": [
                {
                    "name": "embedding server 1", "role": "embedding server", "index": 1, "address": "127.0.0.1:7701",
                    "state": "left", "epoch": 0, "silent_seconds": 0.0, "splits_held": 0, "progress": null,
                    "load": { "rows": 10, "bytes": 3 << 20 },
                },
                {
                    "name": "dense worker 0", "role": "dense worker", "index": 0, "address": "", "state": "alive",
                    "epoch": 1, "silent_seconds": 1.5, "splits_held": 2, "load": null,
                    "progress": {
                        "step": 9, "pass": 0, "samples": 0, "samples_per_second": 1234.5, "loss": null, "staleness": 0, "checkpoint_step": 0,
                    },
                },
            ],
            "evaluations": [{ "step": 9, "pass": 0, "samples": 100, "auc": 0.75, "logloss": 0.5 }],
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn a_member_is_told_in_words() {
        let report = StatusReport::from(response());
        assert_eq!(report.members[0].detail(), "127.0.0.1:7701, 10 rows, 3.0 MiB");
        assert_eq!(report.members[1].detail(), "step 9, 1234 samples/s, loss NaN, 2 splits held, heard 1.5 s ago");
    }
}
