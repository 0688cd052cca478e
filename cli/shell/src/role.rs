//! A role in this process: the parts that every role has.

use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use zagros_coordinator_client::{ControlPlane, GrpcControlPlane};
use zagros_job::Job;
use zagros_plumbing::admin::{PageAccess, PageToken};
use zagros_plumbing::lifecycle::{Shutdown, StopSignals};
use zagros_plumbing::metrics;
use zagros_plumbing::process::raise_file_limit;
use zagros_transport::Credentials;

use crate::args::ConfigArgs;
use crate::credentials;
use crate::exit::{Exit, Failure, OrFailure};
use crate::port::{PortExposure, RolePort};
use crate::process_record::Announcement;
use crate::start::{load_job, watch_signals};

#[derive(Debug)]
pub struct Role {
    /// The job, with the changes of the command line.
    pub job: Arc<Job>,
    /// The name for people: `embedding server 1`.
    pub name: String,
    /// Requested by a signal, or when the parent dies.
    pub shutdown: Shutdown,
    /// The signal that came, if any.
    pub signals: StopSignals,
    /// What it proves to others, and asks of others.
    pub credentials: Credentials,
    pub registry: metrics::Registry,
}

impl Role {
    pub fn start(config: &ConfigArgs, name: String) -> Result<Self, Failure> {
        let job = Arc::new(load_job(config.job_file(), &config.sets)?);
        check_counted(&job)?;
        let credentials = credentials::from_environment()?;
        raise_file_limit();
        let shutdown = Shutdown::new();
        let signals = watch_signals(&shutdown)?;
        if config.exit_with_parent {
            exit_with_parent(shutdown.clone());
        }
        let registry = metrics::Registry::new();
        metrics::describe_process(&registry, env!("CARGO_PKG_VERSION"));
        Ok(Self { job, name, shutdown, signals, credentials, registry })
    }

    /// Listens on the address that the job file gives for a port. Warns of a port that other machines reach and that has no
    /// proof. Refuses one that other machines reach where the role would ask no peer for proof.
    pub async fn bind(&self, port: RolePort, address: &str) -> Result<TcpListener, Failure> {
        let key = port.address_key();
        let listener = TcpListener::bind(address).await.map_err(|error| {
            let what = format!("{} cannot listen on {address} ({key}): {error}", self.name);
            let help = format!("stop what uses that port, or choose another: --set {key}=HOST:PORT");
            Failure::with_help(Exit::Cluster, what, help)
        })?;
        let address = listener.local_addr().or_internal()?;
        match port.exposure(address, self.credentials.is_checked(), self.job.cluster.insecure) {
            PortExposure::Guarded => {}
            PortExposure::Warned(warning) => tracing::warn!(key, %address, "{warning}"),
            PortExposure::Refused => {
                let what = format!(
                    "{} would listen on {address} ({key}), which other machines reach, without asking anyone for proof",
                    self.name
                );
                let help = "give all processes of the run one secret: `zagros secret new FOLDER` makes it, and \
                            ZAGROS_RUN_SECRET_FILE names it; or listen on 127.0.0.1; or, in a network where every machine is \
                            trusted, set cluster.insecure = true (docs/security.md)";
                return Err(Failure::usage(what, help));
            }
        }
        Ok(listener)
    }

    /// Announces its addresses in the log, and in a file if one was asked for.
    pub fn announce_addresses(
        &self,
        config: &ConfigArgs,
        grpc: Option<&TcpListener>,
        http: &TcpListener,
    ) -> Result<(), Failure> {
        let address = grpc.map(TcpListener::local_addr).transpose().or_internal()?;
        let address = address.map(|address| address.to_string());
        let admin = http.local_addr().or_internal()?.to_string();
        // A worker has no gRPC address, so its log line has no such field.
        tracing::info!(address = address.as_deref(), admin, "listening");
        let address = address.unwrap_or_default();
        let Some(path) = &config.announce else { return Ok(()) };
        let role = self.name.replace(' ', "-");
        Announcement { role, pid: std::process::id(), address, admin }.write(path).or_internal()?;
        tracing::info!(file = %path.display(), "announced");
        Ok(())
    }

    /// A client of the coordinator, which need not answer yet.
    pub fn control_client(&self) -> Result<Arc<dyn ControlPlane>, Failure> {
        let cluster = &self.job.cluster;
        let control = GrpcControlPlane::connect(&cluster.coordinator, cluster.timeout, &self.credentials);
        Ok(Arc::new(control.or_exit(Exit::Usage)?))
    }

    pub fn page_access(&self, listener: &TcpListener) -> Result<PageAccess, Failure> {
        let address = listener.local_addr().or_internal()?;
        Ok(page_access(address, &self.credentials))
    }

    /// The address at which others reach this role: the given one, or the one that it listens on. Fails where it listens on
    /// all addresses of the machine and none was given.
    pub fn advertised_address(&self, given: Option<String>, listener: &TcpListener) -> Result<String, Failure> {
        if let Some(given) = given {
            return Ok(given);
        }
        let address = listener.local_addr().or_internal()?;
        if address.ip().is_unspecified() {
            let what = format!("{} listens on {address}, to which no worker can connect", self.name);
            return Err(Failure::usage(what, "give the address at which workers reach it: --advertise HOST:PORT"));
        }
        Ok(address.to_string())
    }

    /// Success, unless a signal asked for the end.
    pub fn exit_status(&self) -> Exit {
        self.signals.exit_code().map_or(Exit::Success, |code| Exit::Signal(code as u8))
    }
}

/// Requests the end when standard input closes. Uses a plain thread, because a read of a pipe cannot be cancelled.
pub fn exit_with_parent(shutdown: Shutdown) {
    std::thread::spawn(move || {
        let mut rest = Vec::new();
        // Nothing is ever written to the pipe: the read returns when the parent is gone.
        let _ = std::io::stdin().read_to_end(&mut rest);
        // This comes first: the log went to the parent too, so a later line may fail.
        shutdown.request();
        tracing::warn!("the parent process is gone; stopping");
    });
}

/// Refuses a job in epochs that does not say how many steps an epoch has: each role would have to count the same.
fn check_counted(job: &Job) -> Result<(), Failure> {
    let Some(key) = job.uncounted_keys().into_iter().next() else { return Ok(()) };
    let what = format!("{key} is in epochs, and `train.epoch_steps` does not say how many steps one has");
    let help = "set train.epoch_steps for all roles (`zagros train JOB --dry-run` shows the steps of an epoch); `zagros up` counts them itself";
    Err(Failure::usage(what, help))
}

/// Who may read the HTTP port of a role at this address. On an address that other machines reach, a reader needs the
/// token of the run's secret.
fn page_access(address: SocketAddr, credentials: &Credentials) -> PageAccess {
    let token = credentials.page_token().filter(|_| !address.ip().is_loopback());
    match token.and_then(|token| PageToken::parse(&token)) {
        // The job asks for no proof: `cluster.insecure`.
        None if !address.ip().is_loopback() => PageAccess::Anyone,
        token => PageAccess::new(address, token),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_other_machines_reach_has_the_token_of_the_runs_secret() {
        let (here, all) = ("127.0.0.1:1".parse().unwrap(), "0.0.0.0:1".parse().unwrap());
        let secret = Credentials::Secret(zagros_transport::RoleKey::random());
        let token = |address, credentials| match page_access(address, credentials) {
            PageAccess::Token { token, .. } => Ok(token.expose_secret().to_owned()),
            other => Err(format!("{other:?}")),
        };
        assert_eq!(token(here, &secret), Err("ThisMachine".to_owned()));
        assert_eq!(token(all, &secret), Ok(secret.page_token().unwrap()));
        assert_eq!(token(all, &Credentials::Open), Err("Anyone".to_owned()));
    }
}
