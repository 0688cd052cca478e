//! `zagros up`: every role of a job as its own process on this machine.
//!
//! The parent starts the roles in order, shows their lines with a prefix, passes Ctrl-C on to the
//! workers, and ends everything when one of them dies, naming the first that did.

mod announce;
mod child;
mod prefix;
mod supervise;

pub(crate) use announce::Announcement;

use std::path::Path;
use std::time::Duration;

use zagros_job::Job;
use zagros_plumbing::lifecycle::Shutdown;

use crate::args::UpArgs;
use crate::exit::{Exit, Failure};
use crate::print::err;
use crate::resume::Start;
use crate::start::{load_job, watch_signals};
use child::{Child, RoleName};
pub(crate) use supervise::Supervisor;

/// Address for "any free port on this machine": several roles share one host here.
const ANY_PORT: &str = "127.0.0.1:0";

/// Runs the job to its end.
pub(crate) async fn run(args: UpArgs) -> Result<Exit, Failure> {
    let sets = overrides(&args);
    let job = load_job(&args.job.job, &sets)?;
    let start = Start::of(&job, args.fresh)?;
    let shutdown = Shutdown::new();
    let signals = watch_signals(&shutdown)?;

    let patience = job.cluster.patience;
    let sets = share_cores(&job, sets, zagros_job::threads::cores());
    let plan = Plan { job_file: &args.job.job, sets: &sets, folder: start.folder.path(), patience, quiet: false };
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
    sets.extend(args.workers.map(|workers| format!("cluster.workers={workers}")));
    sets.extend(args.max_steps.map(|steps| format!("train.max_steps={steps}")));
    sets
}

/// Several workers on one machine divide its cores among them: threads that spin for each other make a step take a
/// hundred times as long when they have no core each.
fn share_cores(job: &Job, mut sets: Vec<String>, cores: usize) -> Vec<String> {
    let workers = job.cluster.workers as usize;
    if workers > 1 && job.train.threads * workers > cores {
        sets.push(format!("train.threads={}", (cores / workers).max(1)));
    }
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
            format!("cluster.worker_address={ANY_PORT}"),
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use zagros_job::Overrides;

    use super::*;

    #[test]
    fn workers_of_one_machine_share_its_cores() {
        let sets = |workers: u32, threads: u32, cores| {
            let text = format!(
                "[data]\nformat = 'criteo'\ntrain = 'a'\n[cluster]\nworkers = {workers}\n[train]\nthreads = {threads}\n"
            );
            let job = Job::parse(&text, Path::new("job.toml"), &Overrides::none()).unwrap();
            share_cores(&job, Vec::new(), cores)
        };
        assert_eq!(sets(2, 4, 4), ["train.threads=2"]);
        assert_eq!(sets(3, 2, 2), ["train.threads=1"]);
        assert!(sets(2, 2, 4).is_empty() && sets(1, 4, 1).is_empty());
    }
}
