//! `zagros up`: every role of a job as its own process on this machine.
//!
//! The parent starts the roles in order, shows their lines with a prefix, passes Ctrl-C on to the
//! worker, and ends everything when one of them dies, naming the first that did.

mod announce;
mod child;
mod prefix;
mod supervise;

pub(crate) use announce::Announcement;

use std::path::Path;
use std::time::Duration;

use zagros_dense_worker::RunFolder;
use zagros_job::Job;
use zagros_plumbing::lifecycle::Shutdown;

use crate::args::UpArgs;
use crate::exit::{Exit, Failure, OrInternal};
use crate::print::err;
use crate::start::{load_job, watch_signals};
use child::{Child, RoleName};
pub(crate) use supervise::Supervisor;

/// Address for "any free port on this machine": several roles share one host here.
const ANY_PORT: &str = "127.0.0.1:0";

/// Runs the job to its end.
pub(crate) async fn run(args: UpArgs) -> Result<Exit, Failure> {
    let sets = overrides(&args);
    let job = load_job(&args.job.job, &sets)?;
    let folder = RunFolder::create(&job).or_internal()?;
    let shutdown = Shutdown::new();
    let signals = watch_signals(&shutdown)?;

    let patience = job.cluster.patience;
    let plan = Plan { job_file: &args.job.job, sets: &sets, folder: folder.path(), patience, quiet: false };
    plan.print(&job);
    let mut supervisor = Supervisor::new(job.cluster.patience);
    if let Err(cause) = plan.start_all(&job, &mut supervisor).await {
        supervisor.end_all().await;
        return Err(cause);
    }
    let ended = supervisor.watch(&shutdown).await;
    supervisor.end_all().await;
    match (ended, signals.exit_code()) {
        (_, Some(code)) => Ok(Exit::Signal(code as u8)),
        (Ok(()), None) => Ok(Exit::Success),
        (Err(cause), None) => Err(cause),
    }
}

fn overrides(args: &UpArgs) -> Vec<String> {
    let mut sets = args.job.sets.clone();
    sets.extend(args.servers.map(|servers| format!("cluster.servers={servers}")));
    sets.extend(args.max_steps.map(|steps| format!("train.max_steps={steps}")));
    sets
}

/// What every child is told.
pub(crate) struct Plan<'a> {
    pub(crate) job_file: &'a Path,
    pub(crate) sets: &'a [String],
    /// Where each child says where it listens.
    pub(crate) folder: &'a Path,
    pub(crate) patience: Duration,
    /// Children log warnings and errors only.
    pub(crate) quiet: bool,
}

impl Plan<'_> {
    fn print(&self, job: &Job) {
        err!(
            "{}: 1 coordinator, {} embedding server(s), {} dense worker(s) on this machine; run folder {}",
            job.name,
            job.cluster.servers,
            job.cluster.workers,
            self.folder.display()
        );
    }

    async fn start_all(&self, job: &Job, supervisor: &mut Supervisor) -> Result<(), Failure> {
        let address = self.start_servers(job, supervisor).await?;
        let folder = self.folder.display().to_string();
        for index in 0..job.cluster.workers {
            supervisor.add(self.start(RoleName::DenseWorker(index), &address, &["--folder", &folder])?);
        }
        Ok(())
    }

    /// Coordinator first: the others are told its address, which is the answer.
    pub(crate) async fn start_servers(&self, job: &Job, supervisor: &mut Supervisor) -> Result<String, Failure> {
        let mut coordinator = self.start(RoleName::Coordinator, ANY_PORT, &[])?;
        let announced = coordinator.wait_announced(self.patience).await;
        supervisor.add(coordinator);
        let address = announced?.address;
        for index in 0..job.cluster.servers {
            supervisor.add(self.start(RoleName::EmbeddingServer(index), &address, &[])?);
        }
        Ok(address)
    }

    fn start(&self, role: RoleName, coordinator: &str, more: &[&str]) -> Result<Child, Failure> {
        let announce = self.folder.join("roles").join(format!("{}.json", role.file_name()));
        let local = [
            format!("cluster.coordinator={coordinator}"),
            format!("cluster.server_addresses=[\"{ANY_PORT}\"]"),
            format!("cluster.admin={ANY_PORT}"),
        ];
        let sets = self.sets.iter().chain(&local).flat_map(|set| ["--set".to_owned(), set.clone()]);
        let mut arguments = role.arguments();
        arguments.extend(["--config".to_owned(), self.job_file.display().to_string()]);
        arguments.extend(sets);
        arguments.extend(["--announce".to_owned(), announce.display().to_string(), "--exit-with-parent".to_owned()]);
        arguments.extend(self.quiet.then(|| "--quiet".to_owned()));
        arguments.extend(more.iter().map(|&text| text.to_owned()));
        Child::start(role, &arguments, announce)
    }
}
