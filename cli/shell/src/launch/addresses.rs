//! The addresses of the roles of `zagros up`: those of the job, as far as one machine has them, otherwise free ports.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};

use crate::Failure;
use zagros_job::Job;

use crate::launch::child::RoleName;
use crate::launch::console::RunConsole;

/// Any free port, reached from this machine only. Several roles share one host here.
pub(crate) const ANY_PORT: &str = "127.0.0.1:0";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleAddresses {
    coordinator: String,
    /// The host and the coordinator's port. The ports of the others follow. Port 0 means a free port for each.
    admin: (String, u16),
    servers: u32,
    workers: u32,
}

impl RoleAddresses {
    pub fn any_ports() -> Self {
        Self { coordinator: ANY_PORT.to_owned(), admin: ("127.0.0.1".to_owned(), 0), servers: 0, workers: 0 }
    }

    /// The addresses of the job. An address of another machine is reported and not used. The coordinator's default is meant
    /// for clusters of machines. If the job does not set it, the coordinator gets a free port, so that a second run can
    /// start here.
    /// Fails when there are fewer ports above `cluster.admin` than roles.
    pub fn from_job(job: &Job, is_coordinator_given: bool, console: &RunConsole) -> Result<Self, Failure> {
        let cluster = &job.cluster;
        // Workers that may join later have ports, too.
        let any = Self { servers: cluster.servers, workers: cluster.most_workers(), ..Self::any_ports() };
        let coordinator = if is_coordinator_given && is_ours("cluster.coordinator", &cluster.coordinator, console) {
            cluster.coordinator.clone()
        } else {
            any.coordinator.clone()
        };
        let admin = match split(&cluster.admin) {
            Some((host, port)) if is_ours("cluster.admin", &cluster.admin, console) => (host.to_owned(), port),
            _ => any.admin.clone(),
        };
        let last = u32::from(admin.1) + any.servers + any.workers;
        if admin.1 > 0 && last > u32::from(u16::MAX) {
            let what =
                format!("cluster.admin is {}: there are fewer than {} ports from there on", cluster.admin, last + 1);
            return Err(Failure::usage(what, "give a lower port, or port 0 for any"));
        }
        Ok(Self { coordinator, admin, ..any })
    }

    pub fn coordinator_address(&self) -> &str {
        &self.coordinator
    }

    /// The address of a role's health, metrics and status. The coordinator has the job's port, embedding server i the (1 +
    /// i)th after it. The dense workers follow. An embedding server that the run gets while it trains has the next port after
    /// these, and any free one if there is none.
    pub fn admin_address(&self, role: RoleName) -> String {
        let (host, first) = &self.admin;
        let place = match role {
            RoleName::Coordinator => 0,
            RoleName::EmbeddingServer(index) if index < self.servers => 1 + index,
            RoleName::EmbeddingServer(index) => 1 + self.workers + index,
            RoleName::DenseWorker(index) => 1 + self.servers + index,
        };
        let port = u16::try_from(u32::from(*first) + place).ok().filter(|_| *first > 0);
        format!("{host}:{}", port.unwrap_or(0))
    }
}

/// The address at which processes of this machine reach a listener.
pub fn reachable_address(address: &str) -> String {
    match address.parse::<SocketAddr>() {
        Ok(all) if all.ip().is_unspecified() => format!("127.0.0.1:{}", all.port()),
        _ => address.to_owned(),
    }
}

/// Whether this machine can listen on the host of `address`.
fn is_ours(key: &str, address: &str, console: &RunConsole) -> bool {
    let host = split(address).map(|(host, _)| format!("{host}:0"));
    let found = host.and_then(|host| host.to_socket_addrs().ok()?.next());
    let is_ours = found.is_some_and(|address| TcpListener::bind(address).is_ok());
    if !is_ours {
        console.print_warning(format!(
            "{key} = \"{address}\" is not an address of this machine; free ports are used instead"
        ));
    }
    is_ours
}

fn split(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    Some((host, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use zagros_job::Overrides;

    use super::*;

    fn addresses(sets: &[&str]) -> Result<(RoleAddresses, Vec<String>), String> {
        let text = "[data]\nformat = 'criteo'\ntrain = 'a'\n[cluster]\nservers = 2\nworkers = 2\n";
        let job = Job::parse(text, Path::new("job.toml"), &Overrides::sets(sets.iter().copied())).unwrap();
        let console = RunConsole::default();
        let is_given = sets.iter().any(|set| set.starts_with("cluster.coordinator="));
        let found = RoleAddresses::from_job(&job, is_given, &console).map_err(|failure| format!("{failure:?}"))?;
        Ok((found, console.said_lines()))
    }

    #[test]
    fn free_ports_where_the_job_gives_none() {
        let (found, said) = addresses(&[]).unwrap();
        assert_eq!(found, RoleAddresses { servers: 2, workers: 2, ..RoleAddresses::any_ports() });
        assert_eq!(found.admin_address(RoleName::DenseWorker(1)), "127.0.0.1:0");
        assert_eq!(said, [""; 0]);
    }

    #[test]
    fn addresses_of_the_job_are_used_and_every_role_has_its_own_port() {
        let sets = ["cluster.coordinator=127.0.0.1:7700", "cluster.admin=0.0.0.0:7780"];
        let (found, _) = addresses(&sets).unwrap();
        assert_eq!(found.coordinator_address(), "127.0.0.1:7700");
        let roles = [
            RoleName::Coordinator,
            RoleName::EmbeddingServer(0),
            RoleName::EmbeddingServer(1),
            RoleName::DenseWorker(0),
            RoleName::DenseWorker(1),
            RoleName::EmbeddingServer(2),
        ];
        let ports = [7780, 7781, 7782, 7783, 7784, 7785].map(|port| format!("0.0.0.0:{port}"));
        assert_eq!(roles.map(|role| found.admin_address(role)), ports);
        assert_eq!(["0.0.0.0:7700", "[::]:7"].map(reachable_address), ["127.0.0.1:7700", "127.0.0.1:7"]);
        assert_eq!(reachable_address("10.0.0.1:7700"), "10.0.0.1:7700");
    }

    /// A job file for containers runs on one machine too.
    #[test]
    fn another_machines_address_is_reported_and_not_used() {
        let (found, said) = addresses(&["cluster.coordinator=192.0.2.1:7700", "cluster.admin=192.0.2.1:7780"]).unwrap();
        assert_eq!(found, RoleAddresses { servers: 2, workers: 2, ..RoleAddresses::any_ports() });
        assert!(said.len() == 2 && said[0].contains("cluster.coordinator = \"192.0.2.1:7700\""), "{said:?}");
    }

    #[test]
    fn too_few_ports_are_reported_with_the_key() {
        let message = addresses(&["cluster.admin=127.0.0.1:65533"]).unwrap_err();
        assert!(message.contains("cluster.admin") && message.contains("lower port"), "{message}");
        let (last, _) = addresses(&["cluster.admin=127.0.0.1:65531"]).unwrap();
        assert_eq!(last.admin_address(RoleName::EmbeddingServer(2)), "127.0.0.1:0", "a server that comes later");
    }
}
