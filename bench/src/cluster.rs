//! Coordinator and embedding servers of a benchmark: in this process, or as processes over loopback.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Pid;
use tempfile::TempDir;
use zagros_coordinator_client::{ControlPlane, GrpcControlPlane};
use zagros_embedding_client::{Connect, GrpcShard};
use zagros_job::Job;
use zagros_plumbing::process::{cpu_time, cpu_time_of};
use zagros_shell::launch::{ChildOutput, EmbeddedCluster, LaunchPlan, RoleAddresses, RowFolders, Supervisor};
use zagros_shell::{Exit, Failure, Logging, OrFailure};
use zagros_transport::RoleKey;

/// Embedding servers, and the client's connection to them.
pub struct ServerSide {
    pub control: Arc<dyn ControlPlane>,
    /// Reaches a server.
    pub connect: Connect,
    /// Of the job's requests.
    pub timeout: Duration,
    pub fingerprint: u64,
    servers: Vec<Pid>,
    children: Option<ServerProcesses>,
}

/// Coordinator and servers as processes, and the folder with their job.
struct ServerProcesses {
    supervisor: Supervisor,
    _folder: TempDir,
}

/// User and system time since the processes started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuTimes {
    /// Of this process.
    pub client: Duration,
    /// CPU time of all server processes; zero if the servers are in this process.
    pub server: Duration,
}

impl ServerSide {
    /// Servers in this process, called without a socket.
    pub async fn start_embedded(job: &Job) -> Result<Self, Failure> {
        let EmbeddedCluster { control, connect, .. } = EmbeddedCluster::start(job).await?;
        let (timeout, fingerprint) = (job.cluster.timeout, job.fingerprint());
        Ok(Self { control, connect, timeout, fingerprint, servers: Vec::new(), children: None })
    }

    /// Servers and their coordinator, started as by `zagros up`: processes of `program`, which is `zagros`. `text` is the job file.
    pub async fn start_processes(program: &Path, text: &str, job: &Job) -> Result<Self, Failure> {
        let folder = TempDir::new().or_internal()?;
        let job_file = folder.path().join("job.toml");
        std::fs::write(&job_file, text).or_internal()?;
        let timeout = job.cluster.timeout;
        let plan = plan_launch(program, &job_file, folder.path(), job);
        let mut supervisor = Supervisor::new(timeout);
        let coordinator = plan.start_servers(job, &mut supervisor).await?;
        let credentials = plan.credentials();
        let control = GrpcControlPlane::connect(&coordinator, timeout, &credentials).or_internal()?;
        Ok(Self {
            control: Arc::new(control),
            connect: Arc::new(move |entry| GrpcShard::connect(entry, timeout, &credentials)),
            timeout,
            fingerprint: job.fingerprint(),
            servers: supervisor.server_pids(),
            children: Some(ServerProcesses { supervisor, _folder: folder }),
        })
    }

    /// The CPU time of all processes, without the coordinator's.
    pub fn cpu_times(&self) -> Result<CpuTimes, Failure> {
        let times: Option<Vec<Duration>> = self.servers.iter().map(|server| cpu_time_of(*server)).collect();
        let server = times.ok_or_else(|| {
            let what = "the kernel does not report the CPU time of a server process";
            Failure::with_help(Exit::Internal, what, "check above whether it ended; /proc must be mounted")
        })?;
        Ok(CpuTimes { client: cpu_time(), server: server.iter().sum() })
    }

    pub async fn stop_processes(self) {
        if let Some(mut children) = self.children {
            children.supervisor.stop_all().await;
        }
    }
}

/// The processes of a job in this folder, on any free ports.
#[must_use]
pub fn plan_launch<'a>(program: &'a Path, job_file: &'a Path, folder: &'a Path, job: &Job) -> LaunchPlan<'a> {
    LaunchPlan {
        program,
        job_file,
        sets: &[],
        folder,
        timeout: job.cluster.timeout,
        logging: Logging::quiet(),
        resume: false,
        output: ChildOutput { silent: true, ..ChildOutput::default() },
        addresses: RoleAddresses::any_ports(),
        row_folders: RowFolders::new(job, folder),
        secret: RoleKey::random(),
    }
}

impl CpuTimes {
    pub fn since(self, earlier: Self) -> Self {
        Self { client: self.client - earlier.client, server: self.server - earlier.server }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload;

    #[tokio::test]
    async fn an_embedded_side_spends_its_time_in_this_process() {
        let job = workload::parse_job(&workload::job_text(4, "kind = \"ffnn\"", "", "")).unwrap();
        let side = ServerSide::start_embedded(&job).await.unwrap();
        let start = side.cpu_times().unwrap();
        while cpu_time() < start.client + Duration::from_millis(1) {
            std::hint::spin_loop();
        }
        let spent = side.cpu_times().unwrap().since(start);
        assert!(spent.client >= Duration::from_millis(1) && spent.server == Duration::ZERO, "{spent:?}");
        side.stop_processes().await;
    }
}
