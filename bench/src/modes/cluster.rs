//! One run: coordinator, servers behind their lines, workers, each a process; and its result.

use std::time::Duration;

use serde::Serialize;
use tempfile::TempDir;
use zagros_dense_worker::{RunFolder, RunSummary};
use zagros_job::Job;
use zagros_plumbing::process::cpu_time_of_children;
use zagros_shell::{Exit, Failure, Logging, OrFailure};
use zagros_transport::RoleKey;

use super::proxy::{LineProxy, NetworkLine, RunningProxy};
use crate::program;
use zagros_shell::launch::{ChildOutput, LaunchPlan, RoleAddresses, RoleName, RowFolders, RunConsole, Supervisor};

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct RunResult {
    pub(super) samples_per_second: f64,
    /// User and system time of all processes, from start to end, microseconds per trained sample.
    pub(super) cpu_us_per_sample: f64,
    /// AUC of the test part, if there is one.
    pub(super) auc: Option<f64>,
    pub(super) staleness_max: u32,
    pub(super) staleness_mean: f64,
    pub(super) samples: u64,
}

pub(super) async fn run_mode(job: &Job, line: NetworkLine) -> Result<RunResult, Failure> {
    let folder = TempDir::new().or_internal()?;
    let mut job = job.clone();
    job.output.folder = folder.path().join("runs");
    let job_file = folder.path().join("job.toml");
    std::fs::write(&job_file, job.to_toml()).or_internal()?;
    let run = RunFolder::create(&job).or_internal()?;
    let timeout = job.cluster.timeout;
    let output = ChildOutput { console: RunConsole::silent(), logs: None };
    let program = program::zagros_program()?;
    let plan = LaunchPlan {
        program: &program,
        job_file: &job_file,
        sets: &[],
        folder: run.path(),
        timeout,
        resume: false,
        logging: Logging::quiet(),
        output,
        addresses: RoleAddresses::any_ports(),
        row_folders: RowFolders::new(&job, run.path()),
        secret: RoleKey::random(),
    };
    let cpu_before = cpu_time_of_children();
    let mut supervisor = Supervisor::new(timeout);
    let ended = train(&plan, &job, line, &mut supervisor).await;
    supervisor.end_all().await;
    ended?;
    let spent = cpu_time_of_children().zip(cpu_before).map(|(after, before)| after - before);
    let spent = spent.ok_or_else(|| {
        let what = "the kernel does not report the CPU time of processes that have ended";
        Failure::with_help(Exit::Internal, what, "/proc must be mounted")
    })?;
    let summary = std::fs::read(run.summary_file()).or_internal()?;
    let summary: RunSummary = serde_json::from_slice(&summary).or_internal()?;
    Ok(RunResult::new(&summary, spent))
}

async fn train(
    plan: &LaunchPlan<'_>,
    job: &Job,
    line: NetworkLine,
    supervisor: &mut Supervisor,
) -> Result<(), Failure> {
    let coordinator = plan.start_coordinator(supervisor).await?;
    let mut lines: Vec<RunningProxy> = Vec::new();
    for index in 0..job.cluster.servers {
        let proxy = LineProxy::listen(line).or_internal()?;
        let address = proxy.listen_address().or_internal()?.to_string();
        let mut server = plan.start_role(RoleName::EmbeddingServer(index), &coordinator, &["--advertise", &address])?;
        let announced = server.wait_announced(plan.timeout).await;
        supervisor.add_child(server);
        lines.push(proxy.run(announced?.address).or_internal()?);
    }
    plan.start_workers(job, &coordinator, supervisor)?;
    supervisor.watch().await
}

impl RunResult {
    fn new(summary: &RunSummary, spent: Duration) -> Self {
        Self {
            samples_per_second: summary.samples_per_second,
            cpu_us_per_sample: spent.as_secs_f64() * 1e6 / summary.samples.max(1) as f64,
            auc: summary.evaluation.and_then(|evaluation| evaluation.auc),
            staleness_max: summary.staleness.max,
            staleness_mean: summary.staleness.mean,
            samples: summary.samples,
        }
    }
}
