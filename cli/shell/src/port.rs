//! The ports of roles, and what a stranger can do at each.

use std::net::SocketAddr;

/// A port that a role listens on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// The coordinator's gRPC.
    Coordinator,
    /// An embedding server's gRPC.
    EmbeddingServer,
    /// A dense worker's store and sums, for the other workers.
    DenseWorker,
    /// HTTP: health, metrics, the coordinator's status and page.
    Admin,
}

impl Port {
    /// The key of the job file that sets its address.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Coordinator => "cluster.coordinator",
            Self::EmbeddingServer => "cluster.server_addresses",
            Self::DenseWorker => "cluster.worker_address",
            Self::Admin => "cluster.admin",
        }
    }

    /// What anyone who reaches the port can do, because no peer proves that it is a member of the run.
    fn admits(self) -> &'static str {
        match self {
            Self::Coordinator => "join the run, take its work and end it",
            Self::EmbeddingServer => "read, change and save the rows of this server",
            Self::DenseWorker => "take part in the sums of gradients",
            Self::Admin => "read this role's health and metrics, and the coordinator's status",
        }
    }

    /// A warning, if other machines may reach the address.
    pub(crate) fn exposure(self, address: SocketAddr) -> Option<String> {
        (!address.ip().is_loopback()).then(|| {
            format!(
                "this port is open to other machines, and whoever reaches it may {}; keep it inside a network of the \
                 run's own members, or listen on 127.0.0.1",
                self.admits()
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use zagros_job::{Job, Overrides};

    use super::*;

    #[test]
    fn only_a_port_that_other_machines_reach_has_a_warning() {
        for quiet in ["127.0.0.1:7700", "127.8.8.8:1", "[::1]:7700"] {
            assert_eq!(Port::Coordinator.exposure(quiet.parse().unwrap()), None, "{quiet}");
        }
        for open in ["0.0.0.0:7700", "[::]:7700", "10.0.0.7:7700"] {
            let warning = Port::EmbeddingServer.exposure(open.parse().unwrap()).expect(open);
            assert!(warning.contains("whoever reaches it may read, change and save the rows"), "{warning}");
        }
    }

    /// The addresses of a job that sets none.
    #[test]
    fn every_default_is_a_loopback_address() {
        let text = "[data]\nformat = 'criteo'\ntrain = 'a'\n[cluster]\nservers = 2\nworkers = 2\n";
        let job = Job::parse(text, Path::new("job.toml"), &Overrides::default()).unwrap();
        let cluster = &job.cluster;
        let mut defaults = vec![&cluster.coordinator, &cluster.worker_address, &cluster.admin];
        defaults.extend(&cluster.server_addresses);
        assert_eq!(defaults.len(), 4);
        for address in defaults {
            let parsed: SocketAddr = address.parse().unwrap();
            assert!(parsed.ip().is_loopback(), "{address}");
        }
    }
}
