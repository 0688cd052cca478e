//! Names, labels, ports, addresses and paths of the objects of a run.
//!
//! The names of an attempt's objects contain its number, so its members never meet those of an old one, even if a lost
//! node keeps an old pod for hours.

use std::collections::BTreeMap;
use std::fmt;

use kube::ResourceExt;

use crate::crd::{HybridJob, HybridJobSpec};

/// Field manager, and value of `app.kubernetes.io/managed-by`.
pub const MANAGER: &str = "zagros-operator";
pub const JOB_LABEL: &str = "zagros.dev/job";
pub const ATTEMPT_LABEL: &str = "zagros.dev/attempt";
/// Label of claims that outlive their HybridJob, with the value `true`.
pub const RETAIN_LABEL: &str = "zagros.dev/retain";
pub const ROLE_LABEL: &str = "zagros.dev/role";
/// Annotation of the servers' StatefulSet with the hash of its template as the operator made it.
pub const TEMPLATE_ANNOTATION: &str = "zagros.dev/template";
/// The finalizer that keeps a HybridJob until its workers have ended.
pub const FINALIZER: &str = "zagros.dev/pods";
/// Ends the name of the coordinator's StatefulSet.
pub const COORDINATOR_SUFFIX: &str = "-coord";
pub const COORDINATOR_PORT: u16 = 7700;
pub const SERVER_PORT: u16 = 7701;
/// Port at which a dense worker accepts the connections of other workers.
pub const WORKER_PORT: u16 = 7702;
/// HTTP of every role: health, metrics, and the coordinator's status.
pub const ADMIN_PORT: u16 = 7780;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PodRole {
    /// Decides which server owns which rows.
    Coordinator,
    Server,
    Worker,
}

impl PodRole {
    pub const ALL: [Self; 3] = [Self::Coordinator, Self::Server, Self::Worker];

    /// The short name, the command, the members in words, and the port of the data path.
    const fn facts(self) -> (&'static str, &'static str, &'static str, u16) {
        match self {
            Self::Coordinator => ("coordinator", "coordinator", "coordinator", COORDINATOR_PORT),
            Self::Server => ("server", "embedding-server", "embedding servers", SERVER_PORT),
            Self::Worker => ("worker", "dense-worker", "dense workers", WORKER_PORT),
        }
    }

    /// The role in names of objects, in the role's label, and as the container's name.
    pub fn short_name(self) -> &'static str {
        self.facts().0
    }

    pub fn from_short_name(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.short_name() == word)
    }

    pub fn replicas(self, spec: &HybridJobSpec) -> i32 {
        match self {
            Self::Coordinator => 1,
            Self::Server => spec.embedding_servers.replicas,
            Self::Worker => spec.dense_workers.replicas,
        }
    }

    pub fn command(self) -> &'static str {
        self.facts().1
    }

    pub fn data_port(self) -> u16 {
        self.facts().3
    }
}

impl fmt::Display for PodRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.facts().2)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunAttempt {
    pub job: String,
    pub namespace: String,
    /// From 1.
    pub number: i32,
}

impl RunAttempt {
    /// The attempt that a HybridJob's status names, or its first one.
    pub fn recorded(owner: &HybridJob) -> Self {
        let number = owner.status.as_ref().map_or(1, |status| status.attempt.max(1));
        Self { job: owner.name_any(), namespace: owner.namespace().unwrap_or_default(), number }
    }

    pub fn service_name(&self, role: PodRole) -> String {
        format!("{}-{}-{}", self.job, self.number, role.short_name())
    }

    /// Pods are named after it. Kubernetes labels the pods of a StatefulSet with its name and eleven more characters,
    /// and a label has at most 63: so the coordinator's is short.
    pub fn workload_name(&self, role: PodRole) -> String {
        match role {
            PodRole::Coordinator => format!("{}-{}{COORDINATOR_SUFFIX}", self.job, self.number),
            PodRole::Server | PodRole::Worker => self.service_name(role),
        }
    }

    pub fn config_name(&self) -> String {
        format!("{}-{}-job", self.job, self.number)
    }

    pub fn pod_group_name(&self) -> String {
        format!("{}-{}", self.job, self.number)
    }

    pub fn service_host(&self, role: PodRole) -> String {
        format!("{}.{}.svc", self.service_name(role), self.namespace)
    }

    pub fn coordinator_address(&self) -> String {
        format!("{}:{COORDINATOR_PORT}", self.service_host(PodRole::Coordinator))
    }

    pub fn status_address(&self) -> String {
        format!("{}:{ADMIN_PORT}", self.service_host(PodRole::Coordinator))
    }

    /// Parent of the run folder. All attempts share it, so that each continues from the checkpoints of the earlier ones.
    pub fn output_folder(&self) -> String {
        format!("{}/{}", OUTPUT_PATH, self.job)
    }

    pub fn object_labels(&self) -> BTreeMap<String, String> {
        let mut labels = job_labels(&self.job);
        labels.insert(ATTEMPT_LABEL.to_owned(), self.number.to_string());
        labels
    }

    /// Labels of a role's pods. They are also the selector.
    pub fn role_labels(&self, role: PodRole) -> BTreeMap<String, String> {
        let mut labels = self.object_labels();
        labels.insert(ROLE_LABEL.to_owned(), role.short_name().to_owned());
        labels
    }
}

pub fn job_labels(job: &str) -> BTreeMap<String, String> {
    let pairs = [("app.kubernetes.io/name", "zagros"), ("app.kubernetes.io/managed-by", MANAGER), (JOB_LABEL, job)];
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

pub fn label_selector(labels: &BTreeMap<String, String>) -> String {
    labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

// Paths in every container of a run.

/// Relative paths in the job file start here: the examples' `../data/train.txt` is on the volume that is mounted at
/// `/data`.
pub const JOB_FOLDER: &str = "/zagros";
pub const SECRET_FOLDER: &str = "/run/zagros";
pub const SECRET_FILE: &str = "/run/zagros/key";
pub const JOB_FILE: &str = "/zagros/job.toml";
pub const OUTPUT_PATH: &str = "/output";
/// Where a server keeps its log and rows beyond its memory, and the coordinator its journal.
pub const STATE_PATH: &str = "/var/lib/zagros";
/// What a container writes here, Kubernetes keeps as the message of its end: 4096 bytes at most.
pub const TERMINATION_MESSAGE: &str = "/dev/termination-log";
pub const JOURNAL_FOLDER: &str = "/var/lib/zagros/journal";
pub const SHARED_MEMORY_PATH: &str = "/dev/shm";

// Names of a HybridJob's Secret and of its entries ([`crate::run_secret`]). The key of a role has the role's short name.

/// Key of the token that opens `/metrics`, `/status` and the live page, in a HybridJob's Secret.
pub const SECRET_TOKEN: &str = "token";
/// Characters of the owner's uid in the name of its Secret.
const UID_CHARACTERS: usize = 8;

pub fn is_held(owner: &HybridJob) -> bool {
    owner.finalizers().iter().any(|one| one == FINALIZER)
}

/// Name of a HybridJob's Secret. The name of a HybridJob has no dot, so this is no other HybridJob's.
pub fn secret_name(owner: &HybridJob) -> String {
    let uid: String = owner.uid().unwrap_or_default().chars().take(UID_CHARACTERS).collect();
    format!("{}.run.{uid}", owner.name_any()).trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_too_long_for_a_host() {
        let attempt = RunAttempt { job: "j".repeat(40), namespace: "ads".to_owned(), number: 1001 };
        for role in PodRole::ALL {
            // The longest pod: <name>-<index>, up to 1023.
            assert!(attempt.workload_name(role).len() + "-1023".len() <= 63, "{}", attempt.workload_name(role));
            assert!(attempt.service_name(role).len() <= 63, "{}", attempt.service_name(role));
        }
        // The value of the label controller-revision-hash: <StatefulSet>-<hash of at most ten characters>.
        for role in [PodRole::Coordinator, PodRole::Server] {
            assert!(attempt.workload_name(role).len() + "-0123456789".len() <= 63, "{}", attempt.workload_name(role));
        }
    }
}
