//! Why a worker stopped before its work was done.

use std::io;
use std::time::Duration;

use zagros_collective::{CollectiveError, renumber_all};
use zagros_coordinator_client::MemberError;
use zagros_embedding_client::ClientError;
use zagros_ingest::IngestError;
use zagros_model::ModelError;
use zagros_protocol::{Refusal, RefusalKind};
use zagros_rows::snapshot::SnapshotError;
use zagros_scoring::ScoringError;
use zagros_store::{StoreError, StoreFault};

#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    #[error(transparent)]
    Ingest(#[from] IngestError),
    #[error(transparent)]
    Member(#[from] MemberError),
    #[error("batch {batch}: {source}")]
    Embedding {
        /// Number of the batch since this worker started.
        batch: u64,
        source: ClientError,
    },
    #[error(transparent)]
    Servers(ClientError),
    #[error("step {step}: {source}")]
    Step {
        /// The step, counted from 1.
        step: u64,
        source: ModelError,
    },
    #[error("{}{_0}; see their logs (a longer `cluster.timeout_seconds` waits longer)", lost_workers(_0.missing_ranks()))]
    Peers(#[from] CollectiveError),
    #[error("{}{reason}; see their logs (a longer `cluster.timeout_seconds` waits longer)", lost_workers(workers))]
    BarrierMissed {
        /// Which workers, by index.
        workers: Vec<usize>,
        /// In the coordinator's words.
        reason: String,
    },
    /// Loss or gradients of another worker's batch are not finite. No worker applied anything of the step.
    #[error(
        "step {step}: loss or gradients of {} are not finite; likely a learning rate that is too high, or numeric \
         columns of large values that are neither logged nor standardised",
        worker_names(workers)
    )]
    PeerDiverged {
        /// The step, counted from 1.
        step: u64,
        /// Which workers', by index.
        workers: Vec<usize>,
    },
    /// The loss is finite, but so large that nothing is left to train.
    #[error(
        "step {step}: {what} is {loss:.1}, where a network that knows nothing has 0.7: training has diverged, and no model is \
         saved; lower the learning rates, or look at the numeric columns with `zagros data inspect JOB`, and start anew \
         (--fresh)"
    )]
    LossWithoutSense {
        /// The step, counted from 1.
        step: u64,
        what: &'static str,
        /// Its value, nats.
        loss: f64,
    },
    /// Training has diverged, and an earlier state was better.
    #[error("{source}; {best}")]
    DivergedFrom { source: Box<WorkerError>, best: String },
    #[error("step {step}: loss or gradients of {} are not finite; all workers skip the step", worker_names(workers))]
    Skipped {
        /// The step, counted from 1.
        step: u64,
        /// Which workers', by index.
        workers: Vec<usize>,
    },
    #[error(
        "{} start with other weights or transforms than dense worker 0; give every worker the same job, data and release",
        worker_names(workers)
    )]
    Unequal {
        /// Which workers, by index.
        workers: Vec<usize>,
    },
    #[error("another dense worker joins")]
    AnotherJoins,
    #[error(
        "all workers that trained in this run are lost, and the dense network with them; start the run \
         again; it resumes from its newest checkpoint"
    )]
    NobodyLeft,
    #[error("the job has {workers} dense workers, but this one cannot reach others; start the run with `zagros up`")]
    Unreachable {
        /// Those that it may have.
        workers: u32,
    },
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("{}", describe_control(coordinator, what, *waited, refusal))]
    Control { coordinator: String, what: &'static str, waited: Duration, refusal: Refusal },
    /// The coordinator was silent for so long that another worker may hold this worker's splits by now.
    #[error(
        "{coordinator} has not answered for {silence:.1?}, so this worker cannot prove that its splits are still its own, \
         and has made no step; see whether it still runs and what its log says (a longer `cluster.timeout_seconds` waits \
         longer)"
    )]
    LeaseUnproven {
        coordinator: String,
        /// Time since the last answered heartbeat.
        silence: Duration,
    },
    /// The rows that were trained on are not those that the coordinator dealt out.
    #[error(
        "epoch {epoch}: {reason}; another process may use the member slot of this one: see `zagros status`; start the run again, and it \
         resumes from its newest checkpoint"
    )]
    Books {
        /// Epoch over the data, counted from 1.
        epoch: u32,
        reason: String,
    },
    #[error("this worker is no longer part of the run: {reason}; start it again")]
    Fenced {
        /// In the coordinator's words.
        reason: String,
    },
    #[error("stopped by the coordinator: {reason}")]
    Stopped { reason: String },
    #[error("{server} could not {what}: {refusal}")]
    Storage { server: String, what: &'static str, refusal: Refusal },
    #[error(transparent)]
    Scoring(#[from] ScoringError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("batch {batch}: {reason}; this is a bug, please report it")]
    Inconsistent {
        /// Number of the batch since this worker started.
        batch: u64,
        reason: String,
    },
    #[error("the {thread} thread {reason}")]
    Thread { thread: &'static str, reason: String },
    #[error("interrupted")]
    Interrupted,
}

const PUSH: &str = "push gradients to";

/// The class of a failure. The CLI gives each class an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitClass {
    /// The data or a saved model is wrong or missing.
    Data,
    /// Another process is gone, late, or of another release.
    Cluster,
    /// This process was silent for too long, and others got its work.
    Fenced,
    /// Loss or gradients are not finite, or the loss is far too large.
    Diverged,
    /// A signal or the coordinator asked to stop.
    Interrupted,
    /// Names or credentials are wrong.
    Usage,
    /// A disk is full, or a folder or file cannot be written or read.
    Storage,
    /// A bug, or a fault of the machine.
    Internal,
    /// Nothing failed: there was nothing left to do.
    NothingLeft,
}

impl WorkerError {
    pub fn exit_class(&self) -> ExitClass {
        match self {
            Self::Ingest(error) => ingest_class(error),
            Self::Storage { refusal, .. } => storage_class(refusal.kind),
            Self::Member(MemberError::Stopped { .. }) | Self::Interrupted => ExitClass::Interrupted,
            Self::Member(MemberError::Over { .. }) => ExitClass::NothingLeft,
            Self::Step { source: error, .. } | Self::Model(error) => model_class(error),
            Self::Fenced { .. } => ExitClass::Fenced,
            Self::Embedding { source, .. } => client_class(source),
            Self::PeerDiverged { .. }
            | Self::Skipped { .. }
            | Self::LossWithoutSense { .. }
            | Self::DivergedFrom { .. } => ExitClass::Diverged,
            Self::Scoring(error) => scoring_class(error),
            Self::Store(error) => store_class(error),
            Self::Inconsistent { .. } | Self::Thread { .. } => ExitClass::Internal,
            _ => ExitClass::Cluster,
        }
    }

    /// Replaces ranks by indices: the worker of rank r has the index `indices[r]`.
    pub(crate) fn by_index(mut self, indices: &[u32]) -> Self {
        match &mut self {
            Self::Peers(error) => error.renumber_ranks(indices),
            Self::PeerDiverged { workers, .. } | Self::Skipped { workers, .. } | Self::Unequal { workers } => {
                renumber_all(workers, indices);
            }
            _ => {}
        }
        self
    }
}

fn client_class(error: &ClientError) -> ExitClass {
    match error {
        ClientError::Refused { refusal, .. } if refusal.kind == RefusalKind::Fenced => ExitClass::Fenced,
        ClientError::Unreachable { last, .. } if last.kind == RefusalKind::Disk => ExitClass::Storage,
        // A server refuses a push that fits the job only because its gradients are not finite or too large for a row.
        ClientError::Refused { what: PUSH, refusal, .. } if refusal.kind == RefusalKind::Invalid => ExitClass::Diverged,
        _ => ExitClass::Cluster,
    }
}

fn scoring_class(error: &ScoringError) -> ExitClass {
    match error {
        ScoringError::Model(error) => model_class(error),
        ScoringError::Store(error) => store_class(error),
        ScoringError::RowFile(SnapshotError::Read { source, .. }) => match source.kind() {
            io::ErrorKind::NotConnected => ExitClass::Cluster,
            io::ErrorKind::NotFound | io::ErrorKind::InvalidInput | io::ErrorKind::NotADirectory => ExitClass::Data,
            _ => ExitClass::Storage,
        },
        ScoringError::ColdTier(_) | ScoringError::Table { .. } => ExitClass::Storage,
        ScoringError::Batch { .. } => ExitClass::Internal,
        ScoringError::SavedModel { .. } | ScoringError::RowFile(_) => ExitClass::Data,
    }
}

fn store_class(error: &StoreError) -> ExitClass {
    match error.fault() {
        StoreFault::Setting => ExitClass::Usage,
        StoreFault::Missing => ExitClass::Data,
        StoreFault::Away => ExitClass::Cluster,
        StoreFault::Machine => ExitClass::Storage,
    }
}

fn storage_class(kind: RefusalKind) -> ExitClass {
    match kind {
        RefusalKind::Internal => ExitClass::Internal,
        RefusalKind::Storage | RefusalKind::Disk => ExitClass::Storage,
        // A retry would be refused with the same files.
        RefusalKind::Invalid => ExitClass::Data,
        _ => ExitClass::Cluster,
    }
}

pub(crate) fn worker_names(workers: &[usize]) -> String {
    let names: Vec<String> = workers.iter().map(|index| format!("dense worker {index}")).collect();
    names.join(", ")
}

fn lost_workers(missing: &[usize]) -> String {
    match missing {
        [] => "the process group failed: ".to_owned(),
        workers => format!("{} gone or late: ", worker_names(workers)),
    }
}

fn describe_control(coordinator: &str, what: &str, waited: Duration, refusal: &Refusal) -> String {
    if !refusal.kind.is_retryable() {
        return format!("{coordinator} refused to {what} after {waited:.1?}: {refusal}");
    }
    // A call that did not get through already names the coordinator.
    let why = refusal.message.strip_prefix(&format!("{coordinator}: ")).unwrap_or(&refusal.message);
    format!(
        "{coordinator} did not {what} for {waited:.1?}: {why}; see whether it still runs and what its log says \
         (a longer `cluster.timeout_seconds` waits longer)"
    )
}

fn ingest_class(error: &IngestError) -> ExitClass {
    match error {
        IngestError::Cancelled => ExitClass::Interrupted,
        IngestError::Source { .. } => ExitClass::Cluster,
        IngestError::Unwritable { .. } => ExitClass::Storage,
        IngestError::ThreadDied { .. } | IngestError::Spawn { .. } => ExitClass::Internal,
        _ => ExitClass::Data,
    }
}

fn model_class(error: &ModelError) -> ExitClass {
    match error {
        ModelError::NotFinite { .. } | ModelError::Skipped { .. } | ModelError::LayerNotFinite { .. } => {
            ExitClass::Diverged
        }
        ModelError::Layer { .. } | ModelError::Workers(_) => ExitClass::Cluster,
        ModelError::Device { .. } | ModelError::NoAutograd { .. } => ExitClass::Usage,
        ModelError::Length { .. } | ModelError::Thread | ModelError::Library(_) => ExitClass::Internal,
        _ => ExitClass::Data,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_named_with_what_to_do_and_have_a_class() {
        let (call, waited) = ("an all-reduce", Duration::from_secs(2));
        let missing = CollectiveError::Missing { ranks: vec![1, 2], call, waited, reason: "closed".to_owned() };
        let not_finite = WorkerError::Step { step: 12, source: ModelError::NotFinite { what: "the loss" } };
        let diverged = WorkerError::PeerDiverged { step: 7, workers: vec![1] };
        let control = |refusal| {
            let (coordinator, waited) = ("coordinator (h:1)".to_owned(), Duration::from_secs(5));
            WorkerError::Control { coordinator, what: "complete splits", waited, refusal }
        };
        let gone = Refusal::new(RefusalKind::Unavailable, "coordinator (h:1): tcp connect error");
        for (error, start) in [
            (&not_finite, "step 12: the loss is not finite; likely a learning rate"),
            (&WorkerError::from(missing), "dense worker 1, dense worker 2 gone or late: ranks 1, 2 did"),
            (&diverged, "step 7: loss or gradients of dense worker 1 are"),
            (&control(gone), "coordinator (h:1) did not complete splits for 5.0s: tcp connect error; see"),
        ] {
            let class = if start.starts_with("step") { ExitClass::Diverged } else { ExitClass::Cluster };
            assert!(error.exit_class() == class && error.to_string().starts_with(start), "{start}: {error}");
        }
        let refused = control(Refusal::invalid("no such split")).to_string();
        assert_eq!(refused, "coordinator (h:1) refused to complete splits after 5.0s: no such split");
    }

    #[test]
    fn a_full_disk_of_a_server_is_a_storage_failure_and_its_silence_a_cluster_failure() {
        let class = |kind| {
            let refusal = Refusal::new(kind, "as it says");
            WorkerError::Storage { server: "embedding server 0".to_owned(), what: "save its rows", refusal }
                .exit_class()
        };
        use RefusalKind::{Disk, Internal, Invalid, Storage, Unavailable};
        let expected =
            [ExitClass::Storage, ExitClass::Storage, ExitClass::Internal, ExitClass::Data, ExitClass::Cluster];
        assert_eq!([Storage, Disk, Internal, Invalid, Unavailable].map(class), expected);
        let pushed = |kind| {
            let last = Refusal::new(kind, "the log cannot be written: /disk/spare: No space left on device");
            let server = "embedding server 0 (h:1)".to_owned();
            let source = ClientError::Unreachable { server, what: PUSH, waited: Duration::from_secs(30), last };
            let error = WorkerError::Embedding { batch: 7, source };
            assert!(error.to_string().contains("/disk/spare"), "{error}");
            error.exit_class()
        };
        assert_eq!(pushed(RefusalKind::Disk), ExitClass::Storage);
        assert_eq!(pushed(RefusalKind::Unavailable), ExitClass::Cluster);
    }

    #[test]
    fn a_full_disk_is_reported_once_with_what_to_do() {
        let path = std::path::PathBuf::from("runs/ads/summary.json");
        let source = io::Error::from(io::ErrorKind::StorageFull);
        let error = WorkerError::from(StoreError::Disk { what: "write", path, source });
        assert_eq!(error.exit_class(), ExitClass::Storage);
        let reported = error.to_string();
        assert!(reported.starts_with("cannot write runs/ads/summary.json: "), "{reported}");
        assert!(reported.contains("make room"), "{reported}");
        assert_eq!(reported.matches("summary.json").count(), 1);
    }

    #[test]
    fn each_failure_has_its_class() {
        let class = |error: IngestError| WorkerError::from(error).exit_class();
        assert_eq!(class(IngestError::NoFiles { key: "train" }), ExitClass::Data);
        assert_eq!(class(IngestError::Source { reason: "gone".to_owned() }), ExitClass::Cluster);
        assert_eq!(class(IngestError::Cancelled), ExitClass::Interrupted);
        let stopped = MemberError::Stopped { coordinator: "coordinator".to_owned(), what: "join the run" };
        assert_eq!(WorkerError::from(stopped).exit_class(), ExitClass::Interrupted);
    }
}
