//! What the coordinator knows of a run before any member joins.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use zagros_protocol::RunId;

use crate::{Role, SplitOrder};

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CoreConfig {
    pub run: RunId,
    pub job: String,
    /// Embedding servers. A change of their number changes this value.
    pub servers: u32,
    /// Dense workers that the first process group waits for. A run that is to have fewer lowers this value.
    pub workers: u32,
    /// Dense workers that the run takes at most.
    pub max_workers: u32,
    /// Why the number of dense workers cannot change, if it cannot.
    pub fixed_workers: Option<String>,
    /// The run goes on without a lost worker while at least this many workers are left.
    pub min_workers: u32,
    /// Buckets that rows are placed by; at least one per server.
    pub buckets: u32,
    pub epochs: u32,
    /// Whether each split belongs to one worker, so that a worker reads the same data in every run.
    pub fixed_splits: bool,
    /// In which order the splits of an epoch are dealt out.
    pub order: SplitOrder,
    /// Whether the workers are asynchronous: each makes its own steps, and steps and samples add up.
    pub asynchronous: bool,
    /// In batches.
    pub staleness: u32,
    /// The interval of checkpoints, where the job asks for them by time.
    pub checkpoint_every: Option<Duration>,
    pub lease: Duration,
    /// How long the run waits for another process in the slot of a lost worker.
    pub timeout: Duration,
    /// Fingerprint of what every role must agree on.
    pub fingerprint: u64,
}

impl CoreConfig {
    /// Whether workers form process groups: there are several, or there may be.
    pub(crate) fn has_groups(&self) -> bool {
        self.slot_count(Role::DenseWorker) > 1
    }

    pub(crate) fn slot_count(&self, role: Role) -> u32 {
        match role {
            Role::EmbeddingServer => self.servers,
            Role::DenseWorker => self.max_workers.max(self.workers),
        }
    }
}
