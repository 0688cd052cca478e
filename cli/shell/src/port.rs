//! The ports of roles, what guards each, and what a stranger can do at a port that nothing guards.

use std::net::SocketAddr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RolePort {
    Coordinator,
    EmbeddingServer,
    /// A dense worker's store and sums, for the other workers.
    DenseWorker,
    /// HTTP: health, metrics, the coordinator's status and page.
    Admin,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PortExposure {
    /// No other machine reaches it, or its peers prove that they belong to the run.
    Guarded,
    /// It may, with a warning.
    Warned(String),
    /// It may not: other machines reach it, and the role would ask no peer for proof.
    Refused,
}

impl RolePort {
    /// The key of the job file that sets its address.
    pub fn address_key(self) -> &'static str {
        match self {
            Self::Coordinator => "cluster.coordinator",
            Self::EmbeddingServer => "cluster.server_addresses",
            Self::DenseWorker => "cluster.worker_address",
            Self::Admin => "cluster.admin",
        }
    }

    /// What anyone who reaches the port can do if no peer proves that it is a member of the run.
    fn admits(self) -> &'static str {
        match self {
            Self::Coordinator => "join the run, take its work and end it",
            Self::EmbeddingServer => "read, change and save the rows of this server",
            Self::DenseWorker => "take part in the sums of gradients",
            Self::Admin => "read this role's health and metrics, and the coordinator's status",
        }
    }

    /// Whether peers of this port can prove that they belong to the run. The connections of the workers' sums have no proof.
    fn can_be_proven(self) -> bool {
        self != Self::DenseWorker
    }

    /// What is to be done about a port at this address, in a process that asks for proof or does not.
    pub(crate) fn exposure(self, address: SocketAddr, is_checked: bool, is_insecure: bool) -> PortExposure {
        if address.ip().is_loopback() || (is_checked && self.can_be_proven()) {
            return PortExposure::Guarded;
        }
        let what = format!("this port is open to other machines, and a process that reaches it may {}", self.admits());
        if is_insecure || !self.can_be_proven() {
            let inside = "keep it inside a network of the run's own members, or listen on 127.0.0.1";
            return PortExposure::Warned(format!("{what}; {inside}"));
        }
        PortExposure::Refused
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use zagros_job::{Job, Overrides};

    use super::*;

    #[test]
    fn a_port_that_other_machines_reach_needs_proof_or_the_wish_of_the_job() {
        for quiet in ["127.0.0.1:7700", "127.8.8.8:1", "[::1]:7700"] {
            let exposure = RolePort::Coordinator.exposure(quiet.parse().unwrap(), false, false);
            assert_eq!(exposure, PortExposure::Guarded, "{quiet}");
        }
        for open in ["0.0.0.0:7700", "[::]:7700", "10.0.0.7:7700"] {
            let exposure =
                |port: RolePort, is_checked, is_insecure| port.exposure(open.parse().unwrap(), is_checked, is_insecure);
            for port in [RolePort::Coordinator, RolePort::EmbeddingServer, RolePort::Admin] {
                assert_eq!(exposure(port, true, false), PortExposure::Guarded);
                assert_eq!(exposure(port, false, false), PortExposure::Refused);
            }
            let PortExposure::Warned(warning) = exposure(RolePort::EmbeddingServer, false, true) else {
                panic!("no warning")
            };
            assert!(warning.contains("a process that reaches it may read, change and save the rows"), "{warning}");
            assert!(matches!(exposure(RolePort::DenseWorker, true, false), PortExposure::Warned(_)), "it has no proof");
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
