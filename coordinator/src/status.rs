//! The status of a run as JSON: what `/status` and `zagros status --json` print.
//!
//! Field names are stable: scripts read them. A number that is not finite is `null`.

mod member;
mod scale;

use serde::Serialize;
use zagros_coordinator_core::doctor::{Diagnosis, Observation, diagnose_run};
use zagros_protocol::control::{Evaluation, HeldOutPart, StatusResponse};

pub use member::{DiskReport, LoadReport, MemberReport, ProgressReport, StageReport, WaitReport};
pub use scale::ScaleReport;
/// What the coordinator answers of these is shown as it is.
pub use zagros_protocol::control::{CheckpointMark as CheckpointReport, HistoryPoint as HistoryReport};

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StatusReport {
    pub job: String,
    /// `waiting`, `training`, `finished`, `interrupted` or `failed`.
    pub state: String,
    /// What the run waits for, or why it ended; empty when there is nothing to say.
    pub reason: String,
    /// Generation of the placement; 0 before every embedding server has joined.
    pub generation: u64,
    /// Epoch over the data, counted from 0.
    pub epoch: u32,
    pub epochs: u32,
    /// Splits in an epoch; 0 before the first worker has joined.
    pub splits: u32,
    pub splits_done: u32,
    /// Everyone who ever joined: servers first, by index.
    pub members: Vec<MemberReport>,
    /// The last evaluations, oldest first.
    pub evaluations: Vec<EvaluationReport>,
    /// What a person should look at, worst first.
    pub warnings: Vec<String>,
    /// Who waits for whom, and what to do: what `zagros doctor` says without a look at the processes.
    pub diagnosis: Diagnosis,
    /// The change of the numbers of embedding servers and dense workers; `null` until a scale request asks for one.
    pub scale: Option<ScaleReport>,
    /// Seconds since the coordinator started.
    pub elapsed_seconds: f64,
    /// Splits of this epoch that workers are reading.
    pub splits_held: u32,
    /// Batches trained by all workers. A step of a process group counts once.
    pub step: u64,
    pub samples: u64,
    /// Samples per second of all workers; 0 while none makes a step.
    pub samples_per_second: f64,
    /// The largest staleness that the job allows, batches.
    pub staleness_bound: u32,
    /// Seconds between checkpoints that the job asks for; `null` where it asks for none by time.
    pub checkpoint_every_seconds: Option<f64>,
    /// The newest checkpoints, oldest first.
    pub checkpoints: Vec<CheckpointReport>,
    /// The curve of training, oldest first: at most 600 points. Each point covers more time as the run gets longer.
    pub history: Vec<HistoryReport>,
}

impl StatusReport {
    /// The same in fewer than 4096 bytes, which is what Kubernetes keeps of the end of a container: the newest numbers only, and
    /// of the members only the worker with the most steps.
    #[must_use]
    pub fn in_brief(self) -> Self {
        let workers = self.members.into_iter().filter(|member| member.progress.is_some());
        let foremost = workers.max_by_key(|member| member.progress.map_or(0, |progress| progress.step));
        Self {
            members: foremost.into_iter().collect(),
            evaluations: self.evaluations.last().copied().into_iter().collect(),
            checkpoints: self.checkpoints.last().copied().into_iter().collect(),
            history: Vec::new(),
            warnings: Vec::new(),
            diagnosis: Diagnosis::default(),
            ..self
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct EvaluationReport {
    pub step: u64,
    /// Epoch over the data, counted from 0.
    pub epoch: u32,
    pub samples: u64,
    pub auc: f64,
    /// Mean log loss, nats.
    pub logloss: f64,
    /// `validation` or `test`; empty where the worker did not say.
    pub part: &'static str,
}

impl From<StatusResponse> for StatusReport {
    fn from(status: StatusResponse) -> Self {
        Self {
            diagnosis: diagnose_run(&Observation::from(&status)),
            job: status.job,
            state: status.state,
            reason: status.reason,
            generation: status.generation,
            epoch: status.epoch,
            epochs: status.epochs,
            splits: status.splits,
            splits_done: status.splits_done,
            members: status.members.into_iter().map(MemberReport::from).collect(),
            evaluations: status.evaluations.into_iter().map(EvaluationReport::from).collect(),
            warnings: status.warnings,
            scale: status.scale.map(ScaleReport::from),
            elapsed_seconds: status.elapsed_ms as f64 / 1e3,
            splits_held: status.splits_held,
            step: status.step,
            samples: status.samples,
            samples_per_second: status.samples_per_second,
            staleness_bound: status.staleness_bound,
            checkpoint_every_seconds: Some(status.checkpoint_every_ms as f64 / 1e3).filter(|every| *every > 0.0),
            checkpoints: status.checkpoints,
            history: status.history,
        }
    }
}

impl From<Evaluation> for EvaluationReport {
    fn from(evaluation: Evaluation) -> Self {
        let part = match evaluation.part() {
            HeldOutPart::Validation => "validation",
            HeldOutPart::Test => "test",
            HeldOutPart::Unspecified => "",
        };
        let Evaluation { step, epoch, samples, auc, logloss, .. } = evaluation;
        Self { step, epoch, samples, auc, logloss, part }
    }
}

#[cfg(test)]
mod tests {
    use zagros_coordinator_core::Role;
    use zagros_protocol::control::{MemberStatus, Progress, ServerLoad, ServerWait, StageSeconds};

    use super::*;

    fn response() -> StatusResponse {
        let (loss, samples_per_second, auc) = (f64::NAN, 1234.5, Some(0.75));
        let stages = Some(StageSeconds { dense: 2.5, ..StageSeconds::default() });
        let progress = Progress { step: 9, loss, samples_per_second, auc, stages, ..Progress::default() };
        let worker = MemberStatus {
            role: Role::DenseWorker.to_wire(),
            state: "alive".to_owned(),
            incarnation: 1,
            silent_ms: 1500,
            progress: Some(progress),
            splits_held: 2,
            waits: vec![ServerWait { server: 1, lookups: 1, pushes: 2, oldest_ms: 3200 }],
            still_ms: Some(250),
            ..MemberStatus::default()
        };
        let load = ServerLoad { rows: 10, bytes: 3 << 20, hit_rate: Some(0.5), ..ServerLoad::default() };
        let server = MemberStatus {
            role: Role::EmbeddingServer.to_wire(),
            index: 1,
            address: "127.0.0.1:7701".to_owned(),
            state: "left".to_owned(),
            load: Some(load),
            buckets: 512,
            ..MemberStatus::default()
        };
        let part = HeldOutPart::Test.into();
        let point = HistoryReport { seconds: 2.0, step: 9, loss: Some(f64::NAN), ..HistoryReport::default() };
        StatusResponse {
            job: "quickstart".to_owned(),
            state: "training".to_owned(),
            members: vec![server, worker],
            evaluations: vec![Evaluation { step: 9, epoch: 0, samples: 100, auc: 0.75, logloss: 0.5, part }],
            history: vec![point],
            checkpoints: vec![CheckpointReport { step: 8, age_seconds: 0.5 }],
            warnings: vec!["look".to_owned()],
            ..StatusResponse::default()
        }
    }

    #[test]
    fn the_json_has_the_documented_fields() {
        let mut json = serde_json::to_value(StatusReport::from(response())).unwrap();
        let diagnosis = json["diagnosis"].take();
        assert_eq!(diagnosis["healthy"], false);
        let finding = &diagnosis["findings"][0];
        assert_eq!((&finding["kind"], &finding["severity"]), (&"member_silent".into(), &"trouble".into()));
        assert_eq!(finding["what"], diagnosis["verdict"]);
        assert!(finding["since_seconds"] == 3.2, "{finding}");
        assert!(finding["why"].is_array(), "{finding}");
        assert!(finding["next"].is_string(), "{finding}");
        let stages = serde_json::json!({
            "parse": 0.0, "dedup": 0.0, "lookup": 0.0, "gather": 0.0, "dense": 2.5, "scatter": 0.0, "push": 0.0,
            "waiting": 0.0, "reduce": 0.0,
        });
        let expected = serde_json::json!({
            "job": "quickstart", "state": "training", "reason": "", "generation": 0, "epoch": 0, "epochs": 0,
            "splits": 0, "splits_done": 0,
            "members": [
                {
                    "name": "embedding server 1", "role": "embedding server", "index": 1, "address": "127.0.0.1:7701",
                    "state": "left", "incarnation": 0, "silent_seconds": 0.0, "splits_held": 0, "progress": null,
                    "load": {
                        "rows": 10, "bytes": 3 << 20, "requests": 0, "under_way": 0, "hit_rate": 0.5,
                        "lookup_seconds_mean": null, "lookup_seconds_p99": null,
                    },
                    "buckets": 512, "waits": [], "disk": null, "still_seconds": null,
                },
                {
                    "name": "dense worker 0", "role": "dense worker", "index": 0, "address": "", "state": "alive",
                    "incarnation": 1, "silent_seconds": 1.5, "splits_held": 2, "load": null,
                    "progress": {
                        "step": 9, "epoch": 0, "samples": 0, "samples_per_second": 1234.5, "loss": null, "staleness": 0,
                        "checkpoint_step": 0, "staleness_max": 0, "auc": 0.75, "stages": stages, "batch": 0, "trained": false,
                    },
                    "buckets": 0, "waits": [{ "server": 1, "lookups": 1, "pushes": 2, "oldest_seconds": 3.2 }],
                    "disk": null, "still_seconds": 0.25,
                },
            ],
            "evaluations": [{ "step": 9, "epoch": 0, "samples": 100, "auc": 0.75, "logloss": 0.5, "part": "test" }],
            "warnings": ["look"],
            "diagnosis": null,
            "scale": null,
            "elapsed_seconds": 0.0, "splits_held": 0, "step": 0, "samples": 0,
            "samples_per_second": 0.0, "staleness_bound": 0, "checkpoint_every_seconds": null,
            "checkpoints": [{ "step": 8, "age_seconds": 0.5 }],
            "history": [{
                "seconds": 2.0, "step": 9, "samples_per_second": 0.0, "loss": null, "staleness": 0, "auc": null,
            }],
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn the_report_of_the_end_is_short_and_has_the_newest_numbers() {
        let mut full = StatusReport::from(response());
        let worker = |index: u32, step: u64| MemberReport {
            index,
            progress: Some(ProgressReport { step, ..ProgressReport::default() }),
            ..full.members[1].clone()
        };
        full.members = (0..1024).map(|index| worker(index, if index == 7 { 12 } else { 11 })).collect();
        full.evaluations = (1..1000).map(|step| EvaluationReport { step, ..full.evaluations[0] }).collect();
        full.checkpoints.push(CheckpointReport { step: 12, age_seconds: 0.1 });
        full.history = vec![full.history[0]; 600];
        let brief = full.in_brief();
        assert_eq!((brief.members.len(), brief.members[0].index), (1, 7));
        assert_eq!((brief.evaluations[0].step, brief.evaluations.len()), (999, 1));
        assert_eq!((brief.checkpoints[0].step, brief.checkpoints.len()), (12, 1));
        let bytes = serde_json::to_vec(&brief).unwrap().len();
        assert!(bytes < 4096, "{bytes}");
    }

    #[test]
    fn a_member_is_reported_in_words() {
        let report = StatusReport::from(response());
        assert_eq!(report.members[0].activity_in_words(), "127.0.0.1:7701, 512 buckets, 10 rows, 3.0 MiB, 50 % hits");
        let worker = "step 9, 1234 samples/s, loss NaN, 2 splits held, waits for server 1 (3.2 s), heard 1.5 s ago";
        assert_eq!(report.members[1].activity_in_words(), worker);
    }
}
