//! `zagros up`: every role of a job as its own process on this machine.
//!
//! The parent starts the roles in order, shows their lines with a prefix, passes Ctrl-C on to the
//! workers, and ends everything when one of them dies, naming the first that did.

mod child;
mod console;
mod prefix;
mod supervise;
mod targets;
mod watch;

use std::path::Path;
use std::time::Duration;

use zagros_dense_worker::ResumePoint;
use zagros_job::threads::Machine;
use zagros_job::{Job, Mode};
use zagros_plumbing::lifecycle::{Shutdown, Signals};
use zagros_shell::{Announcement, Exit, Failure, describe_threads, err, load_job, load_job_for, watch_signals};

use crate::args::UpArgs;
use crate::commands::dense_worker;
use crate::logs;
use crate::resume::{Start, Wanted};
use child::Child;
pub(crate) use child::RoleName;
pub(crate) use prefix::Outlet;
use supervise::Restarts;
pub(crate) use supervise::Supervisor;
use targets::Targets;

/// Address for "any free port on this machine": several roles share one host here.
const ANY_PORT: &str = "127.0.0.1:0";

/// Runs the job to its end.
pub(crate) async fn run(args: UpArgs) -> Result<Exit, Failure> {
    let sets = overrides(&args);
    if args.watch {
        zagros_shell::dashboard::check_terminal()?;
    }
    let job = load_job(&args.job.job, &sets)?;
    dense_worker::backend(&job)?;
    let start = Start::of(&job, Wanted::new(args.fresh, args.resume))?;
    let shutdown = Shutdown::new();
    let signals = watch_signals(&shutdown)?;

    let patience = job.cluster.patience;
    let (job, sets) = share_cores(&args.job.job, &job, sets, zagros_job::threads::cores())?;
    let folder = start.folder.path();
    let outlet = Outlet { logs: Some(folder.join(logs::FOLDER)), ..Outlet::default() };
    let plan = Plan {
        job_file: &args.job.job,
        sets: &sets,
        folder,
        patience,
        resume: args.resume,
        quiet: false,
        outlet: outlet.clone(),
    };
    plan.print(&job);
    let targets = args.prometheus_targets.as_deref().map(|file| Targets::follow(file, folder, &job)).transpose()?;
    let run = plan.run(&job, restarts(&job, args.restarts), &shutdown, &signals);
    let ended = if args.watch { watch::along(run, folder, patience, outlet.console).await } else { run.await };
    if let Some(targets) = targets {
        targets.end(ended.is_ok());
    }
    ended.map_err(|failure| with_way_on(failure, &job, &start, args.fresh))
}

/// A run that lost a process goes on from its newest checkpoint, where there is one.
fn with_way_on(failure: Failure, job: &Job, start: &Start, fresh: bool) -> Failure {
    if failure.exit() != Exit::Cluster {
        return failure;
    }
    // Where that cannot be found out, nothing is promised.
    let Ok(Some(point)) = ResumePoint::newest(job, &start.folder) else { return failure };
    failure.advise(way_on(point.step(), point.folder(), fresh))
}

fn way_on(step: u64, checkpoint: &impl std::fmt::Display, fresh: bool) -> String {
    let command = if fresh { "the same command without --fresh" } else { "the same command" };
    format!("{command} goes on after step {step}, from the newest checkpoint ({checkpoint})")
}

/// Where nobody would wait for it, a worker that comes back is of no use.
fn restarts(job: &Job, asked: u32) -> u32 {
    let others_wait = job.cluster.workers > 1 && job.train.mode == Mode::Hybrid;
    if others_wait { asked } else { 0 }
}

fn overrides(args: &UpArgs) -> Vec<String> {
    let mut sets = args.job.sets.clone();
    sets.extend(args.servers.map(|servers| format!("cluster.servers={servers}")));
    sets.extend(args.workers.map(|workers| format!("cluster.workers={workers}")));
    sets.extend(args.max_steps.map(|steps| format!("train.max_steps={steps}")));
    sets
}

/// The processes of one machine divide its cores among them: threads that spin for each other make a step take a
/// hundred times as long when they have no core each. The job as it is then, and what its children are told.
fn share_cores(file: &Path, job: &Job, mut sets: Vec<String>, cores: usize) -> Result<(Job, Vec<String>), Failure> {
    let machine = Machine { cores, workers: job.cluster.workers as usize, servers: job.cluster.servers as usize };
    let job = load_job_for(file, &sets, &machine)?;
    err!("threads: {}", describe_threads(&job, &machine));
    sets.push(format!("train.threads={}", job.train.threads));
    sets.push(format!("data.threads={}", job.data.threads));
    sets.push(format!("cluster.server_threads={}", job.cluster.server_threads));
    Ok((job, sets))
}

/// What every child is told.
pub(crate) struct Plan<'a> {
    pub(crate) job_file: &'a Path,
    pub(crate) sets: &'a [String],
    /// Where each child says where it listens.
    pub(crate) folder: &'a Path,
    pub(crate) patience: Duration,
    /// The run goes on though the job learns otherwise now.
    pub(crate) resume: bool,
    /// Children log warnings and errors only.
    pub(crate) quiet: bool,
    /// Where what they print goes; the last lines of one that failed are shown in any case.
    pub(crate) outlet: Outlet,
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

    /// From the first process to the end of the last; a lost worker is started again so many times.
    async fn run(&self, job: &Job, restarts: u32, shutdown: &Shutdown, signals: &Signals) -> Result<Exit, Failure> {
        let mut supervisor = Supervisor::new(job.cluster.patience).telling(self.outlet.console.clone());
        let coordinator = match self.start_all(job, &mut supervisor).await {
            Ok(coordinator) => coordinator,
            Err(cause) => {
                supervisor.end_all().await;
                return Err(cause);
            }
        };
        // That its last process has ended was seen here.
        let restart = |role| self.start_worker(role, &coordinator, &["--supersede"]);
        let least = job.cluster.min_workers.unwrap_or(job.cluster.workers) as usize;
        let restarts = Restarts { left: restarts, least, start: &restart };
        let ended = supervisor.watch_and_restart(shutdown, restarts).await;
        supervisor.end_all().await;
        match (ended, signals.exit_code()) {
            (_, Some(code)) => Ok(Exit::Signal(code as u8)),
            (Ok(()), None) => Ok(Exit::Success),
            (Err(cause), None) => Err(cause),
        }
    }

    /// Answers the coordinator's address.
    async fn start_all(&self, job: &Job, supervisor: &mut Supervisor) -> Result<String, Failure> {
        let address = self.start_servers(job, supervisor).await?;
        if let Some(coordinator) = Announcement::read(&RoleName::Coordinator.announcement(self.folder)) {
            self.outlet.console.say(format!("live page: http://{}/", coordinator.admin));
        }
        self.start_workers(job, &address, supervisor)?;
        Ok(address)
    }

    pub(crate) fn start_workers(
        &self,
        job: &Job,
        coordinator: &str,
        supervisor: &mut Supervisor,
    ) -> Result<(), Failure> {
        for index in 0..job.cluster.workers {
            supervisor.add(self.start_worker(RoleName::DenseWorker(index), coordinator, &[])?);
        }
        Ok(())
    }

    fn start_worker(&self, role: RoleName, coordinator: &str, more: &[&str]) -> Result<Child, Failure> {
        let folder = self.folder.display().to_string();
        let resume: &[&str] = if self.resume { &["--resume"] } else { &[] };
        self.start(role, coordinator, &[&["--folder", &folder], resume, more].concat())
    }

    /// Coordinator first: the others are told its address, which is the answer.
    pub(crate) async fn start_servers(&self, job: &Job, supervisor: &mut Supervisor) -> Result<String, Failure> {
        let address = self.start_coordinator(supervisor).await?;
        for index in 0..job.cluster.servers {
            supervisor.add(self.start(RoleName::EmbeddingServer(index), &address, &[])?);
        }
        Ok(address)
    }

    /// Answers its address.
    pub(crate) async fn start_coordinator(&self, supervisor: &mut Supervisor) -> Result<String, Failure> {
        let mut coordinator = self.start(RoleName::Coordinator, ANY_PORT, &[])?;
        let announced = coordinator.wait_announced(self.patience).await;
        supervisor.add(coordinator);
        Ok(announced?.address)
    }

    pub(crate) fn start(&self, role: RoleName, coordinator: &str, more: &[&str]) -> Result<Child, Failure> {
        let announce = role.announcement(self.folder);
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
        Child::start(role, &arguments, announce, &self.outlet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_lost_a_process_is_told_how_to_go_on() {
        let told = way_on(40, &"runs/ads/checkpoints/resume-40", false);
        assert_eq!(
            told,
            "the same command goes on after step 40, from the newest checkpoint (runs/ads/checkpoints/resume-40)"
        );
        assert!(way_on(40, &"there", true).starts_with("the same command without --fresh goes on"));
    }

    #[test]
    fn processes_of_one_machine_share_its_cores_unless_told_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("job.toml");
        let sets = |cluster: &str, sets: &[&str], cores| {
            std::fs::write(&file, format!("[data]\nformat = 'criteo'\ntrain = 'a'\n[cluster]\n{cluster}\n")).unwrap();
            let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
            let job = load_job(&file, &sets).unwrap();
            share_cores(&file, &job, sets, cores).unwrap().1
        };
        let shared = sets("workers = 2\nservers = 2", &[], 16);
        assert_eq!(shared, ["train.threads=5", "data.threads=2", "cluster.server_threads=1"]);
        let asked = sets("workers = 2", &["train.threads=4"], 4);
        assert_eq!(asked, ["train.threads=4", "train.threads=4", "data.threads=1", "cluster.server_threads=1"]);
    }
}
