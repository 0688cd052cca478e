//! `zagros up`: every role of a job as its own process on this machine.
//!
//! The parent starts the roles in order, shows their lines with a prefix, and ends them in order at Ctrl-C. If a process
//! dies, the parent ends the others and names the first that died.

mod end;
mod targets;

use std::convert::Infallible;
use std::path::Path;
use std::time::Duration;

use indicatif::HumanBytes;
use tokio::sync::watch::Sender;
use zagros_coordinator_client::{ControlPlane, GrpcControlPlane};
use zagros_dense_worker::ResumePoint;
use zagros_job::Job;
use zagros_plumbing::lifecycle::{Shutdown, StopSignals};
use zagros_plumbing::process::cpu_time_of_children;
use zagros_protocol::control::StatusRequest;
use zagros_shell::launch::{
    ChildOutput, GracePeriods, LOG_FOLDER, LaunchPlan, RestartBudget, RoleAddresses, RoleName, RowFolders, RunConsole,
    Supervisor, WantedRoles, WatchEnd, WorkerLoss, is_complete, reachable_address,
};
use zagros_shell::{
    Announcement, Exit, Failure, Logging, OrFailure, ProcessChange, ProcessRecord, UP, is_key_given, load_job,
    load_job_for, machine_of_job, note, share_cores, watch_signals_twice,
};

use crate::args::UpArgs;
use crate::commands::dense_worker;
use crate::resume::{ResumeChoice, RunStart};
use crate::steps;
use crate::{backend, memory, plan, planning, saved};
use targets::ScrapeTargets;
use zagros_transport::{Credentials, PeerRole, RoleKey};

/// How often the coordinator is asked what the run is to have.
const LOOK: Duration = Duration::from_secs(1);

pub(crate) async fn run(args: UpArgs, logging: Logging) -> Result<Exit, Failure> {
    if let Some(dates) = &args.dates {
        let what = format!("`zagros up` trains on one set of files, and --dates {dates} names several days");
        let help = "give it one day after another, each from the model of the day before: zagros up JOB --set \
                    data.train='logs/2026-11-02.csv' --from RUN; or train in one process with `zagros train JOB --dates …`";
        return Err(Failure::usage(what, help));
    }
    let sets = overrides(&args)?;
    let job = load_job(&args.job.job, &sets)?;
    backend::check(&job)?;
    dense_worker::refuse_stdin(&job)?;
    let machine = machine_of_job(&job, zagros_job::threads::core_count());
    if args.dry_run {
        let job = load_job_for(&args.job.job, &sets, &machine)?;
        plan::print(&job, &machine)?;
        plan::print_log_disk(&job);
        return Ok(Exit::Success);
    }
    memory::check(&job, &machine)?;
    let program = std::env::current_exe().or_internal()?;
    let console = RunConsole::default();
    let is_given = is_key_given(&args.job.job, &sets, "cluster.coordinator");
    let addresses = RoleAddresses::from_job(&job, is_given, &console)?;
    let start = RunStart::find(&job, ResumeChoice::new(args.fresh, args.resume))?;
    let stop = StopRequests { first: Shutdown::new(), second: Shutdown::new() };
    let signals = watch_signals_twice(&stop.first, &stop.second)?;

    let timeout = job.cluster.timeout;
    let mut counted = job;
    steps::count_epochs(&mut counted, start.point.as_ref())?;
    let sets =
        sets.into_iter().chain(counted.train.epoch_steps.map(|steps| format!("train.epoch_steps={steps}"))).collect();
    let (job, sets) = share_cores(&args.job.job, sets, &machine)?;
    let folder = start.folder.path();
    let secret = secret(folder)?;
    let logs = Some(folder.join(LOG_FOLDER));
    let output = ChildOutput { logs, console: console.clone() };
    let plan = LaunchPlan {
        program: &program,
        job_file: &args.job.job,
        sets: &sets,
        folder,
        timeout,
        resume: args.resume,
        logging,
        output,
        addresses,
        row_folders: RowFolders::new(&job, folder),
        secret,
    };
    print_processes(&job, folder);
    steps::announce_steps(&job);
    if let Some(said) = planning::streaming_notice(&job, &machine) {
        note!("{said}");
    }
    if let Err(error) = ProcessRecord::now(UP, std::process::id(), ProcessChange::Started).append(folder) {
        tracing::warn!(%error, "starts and ends of processes are not recorded: `zagros doctor` will know less");
    }
    let cpu_before = cpu_time_of_children();
    let wanted = Sender::new(WantedRoles::default());
    let listed = args.prometheus_targets.as_deref();
    let targets = listed.map(|file| ScrapeTargets::follow(file, folder, &job, wanted.subscribe())).transpose()?;
    let ended = train(&plan, &job, args.restarts, (&stop, &signals), &wanted).await;
    if ended.is_ok() {
        plan.row_folders.remove();
        end::record_cost(&start.folder, cpu_before, &console);
    }
    if let Some(targets) = targets {
        targets.end(ended.is_ok());
    }
    ended.map_err(|failure| with_way_on(failure, &job, &start, args.fresh))
}

/// The secret of the run: that of the environment, or a new one. `zagros status` and others of this user find it in the run
/// folder.
fn secret(run: &Path) -> Result<RoleKey, Failure> {
    let secret = match zagros_shell::from_environment()? {
        Credentials::Secret(given) if given.role() == PeerRole::Coordinator => given,
        Credentials::Secret(given) => {
            let what = format!("the secret in the environment is the key of the role {} only", given.role());
            let help = "give the secret of the whole run, or none: a new one is then made";
            return Err(Failure::usage(what, help));
        }
        Credentials::Open => RoleKey::random(),
    };
    zagros_shell::write_secret(&zagros_shell::secret_file(run), &secret)?;
    Ok(secret)
}

/// Adds how to resume, if a process was lost or a disk was full, and there is a checkpoint.
fn with_way_on(failure: Failure, job: &Job, start: &RunStart, fresh: bool) -> Failure {
    if !matches!(failure.exit_status(), Exit::Cluster | Exit::Storage) {
        return failure;
    }
    // Without a readable checkpoint there is no advice.
    let Ok(Some(point)) = ResumePoint::find_newest(job, &start.folder) else { return failure };
    failure.with_advice(way_on(point.step(), point.folder(), fresh))
}

fn way_on(step: u64, checkpoint: &impl std::fmt::Display, fresh: bool) -> String {
    let command = if fresh { "the same command without --fresh" } else { "the same command" };
    format!("{command} goes on after step {step}, from the newest checkpoint ({checkpoint})")
}

/// Whether a role comes back with what it held: an embedding server reads its rows from its log, and the coordinator its state
/// from its journal.
fn is_in_place(job: &Job, role: RoleName) -> bool {
    match role {
        RoleName::Coordinator => true,
        RoleName::EmbeddingServer(_) => job.cluster.durability.has_log(),
        RoleName::DenseWorker(_) => false,
    }
}

fn overrides(args: &UpArgs) -> Result<Vec<String>, Failure> {
    let mut sets = args.job.sets();
    sets.extend(args.servers.map(|servers| format!("cluster.servers={servers}")));
    sets.extend(args.workers.map(|workers| format!("cluster.workers={workers}")));
    sets.extend(args.max_steps.map(|steps| format!("train.max_steps={steps}")));
    saved::start_from(args.from.as_deref(), &mut sets)?;
    Ok(sets)
}

struct StopRequests {
    /// For an orderly end.
    first: Shutdown,
    /// For an end at once.
    second: Shutdown,
}

fn print_processes(job: &Job, folder: &Path) {
    note!(
        "{}: 1 coordinator, {} embedding server(s), {} dense worker(s) on this machine; run folder {}",
        job.name,
        job.cluster.servers,
        job.cluster.workers,
        folder.display()
    );
}

/// Runs the job to its end. After a lost worker one process or all of them start again, `restarts` times in all.
async fn train(
    plan: &LaunchPlan<'_>,
    job: &Job,
    restarts: u32,
    (stop, signals): (&StopRequests, &StopSignals),
    wanted: &Sender<WantedRoles>,
) -> Result<Exit, Failure> {
    let loss = WorkerLoss::from_job(job);
    let of_one = if loss == WorkerLoss::Replaced { restarts } else { 0 };
    let mut of_all = if loss == WorkerLoss::EndsRun { 0 } else { restarts };
    loop {
        let mut lost = None;
        // A run that goes back has the numbers of its job again.
        wanted.send_replace(WantedRoles::default());
        let ended = supervise(plan, job, of_one, of_all, (stop, signals), wanted, &mut lost).await;
        let Some(lost) = lost.filter(|_| ended.is_err() && of_all > 0) else { return ended };
        of_all -= 1;
        plan.output.console.print_warning(format!(
            "{lost}; the run goes back to its newest checkpoint, in all processes ({of_all} restarts left, --restarts)"
        ));
    }
}

/// Runs from the start of the first process to the end of the last. A lost worker alone, or all processes, may be started again so
/// often. `lost` becomes the worker whose loss ended the run, in words.
async fn supervise(
    plan: &LaunchPlan<'_>,
    job: &Job,
    of_one: u32,
    of_all: u32,
    (stop, signals): (&StopRequests, &StopSignals),
    wanted: &Sender<WantedRoles>,
    lost: &mut Option<String>,
) -> Result<Exit, Failure> {
    let mut supervisor = Supervisor::new(job.cluster.timeout);
    supervisor.console = plan.output.console.clone();
    supervisor.hurry = stop.second.clone();
    supervisor.wanted = Some(wanted.subscribe());
    let coordinator = match start_all(plan, job, &mut supervisor).await {
        Ok(coordinator) => coordinator,
        Err(cause) => {
            supervisor.end_all().await;
            return Err(cause);
        }
    };
    let address = reachable_address(&coordinator.address);
    let start = |role| match role {
        // This process saw the end of the worker's earlier process.
        RoleName::DenseWorker(index) => plan.start_worker(index, &address, &["--supersede"]),
        RoleName::EmbeddingServer(_) => plan.start_role(role, &address, &[]),
        RoleName::Coordinator => plan.restart_coordinator(&coordinator),
    };
    let least = job.cluster.least_workers() as usize;
    let is_in_place = |role| is_in_place(job, role);
    let join = |index| plan.start_worker(index, &address, &[]);
    let restarts = RestartBudget { left: of_one, least, is_in_place: &is_in_place, start: &start, join: &join };
    let credentials = plan.credentials();
    let watched = tokio::select! {
        watched = supervisor.watch_and_restart(&stop.first, restarts) => watched,
        failed = follow_scale(&address, &credentials, job.cluster.timeout, wanted) => match failed {
            Ok(never) => match never {},
            Err(failure) => Err(failure),
        },
    };
    let watched = match watched {
        Err(_) if is_complete(plan.folder) => {
            let who = supervisor.lost_worker().unwrap_or_else(|| "a process ended".to_owned());
            plan.output.console.print_warning(format!("{who} after the run was complete; nothing is lost"));
            Ok(WatchEnd::Done)
        }
        watched => watched,
    };
    if let Ok(WatchEnd::StopRequested) = watched {
        stop_in_order(plan, job, &mut supervisor).await;
    } else {
        *lost = match WorkerLoss::from_job(job) {
            WorkerLoss::SetsRunBack => supervisor.lost_worker(),
            // One after the other they were replaced by workers that have the dense network.
            WorkerLoss::Replaced => supervisor.lost_all_workers(),
            WorkerLoss::EndsRun => None,
        };
        match lost {
            Some(_) if watched.is_err() && of_all > 0 => supervisor.set_back().await,
            _ => supervisor.end_all().await,
        }
    }
    match (watched, signals.exit_code()) {
        (_, Some(code)) => Ok(Exit::Signal(code as u8)),
        (Ok(_), None) => Ok(Exit::Success),
        (Err(cause), None) => Err(cause),
    }
}

/// Tells `wanted` again and again what the run is to have, once a scale request has asked for other numbers. Ends with the task
/// that awaits it.
async fn follow_scale(
    coordinator: &str,
    credentials: &Credentials,
    timeout: Duration,
    wanted: &Sender<WantedRoles>,
) -> Result<Infallible, Failure> {
    let control = GrpcControlPlane::connect(coordinator, timeout, credentials).or_internal()?;
    loop {
        tokio::time::sleep(LOOK).await;
        // A coordinator that is away for a moment comes back.
        let status = control.status(StatusRequest {}).await.ok();
        if let Some(roles) = status.as_ref().and_then(WantedRoles::from_status) {
            wanted.send_replace(roles);
        }
    }
}

/// Stops the run before the end of its data. The workers get as long as a checkpoint and a model may take.
async fn stop_in_order(plan: &LaunchPlan<'_>, job: &Job, supervisor: &mut Supervisor) {
    supervisor.ask_workers();
    let held = end::held_bytes(plan.folder, &plan.credentials(), supervisor.server_count()).await;
    let workers = end::save_grace(held, job.cluster.timeout);
    plan.output.console.print_line(format!(
        "stopping: the dense workers finish their step and save {} of rows, for up to {}; a second Ctrl-C ends \
         everything at once and saves nothing",
        HumanBytes(held),
        humantime::format_duration(workers)
    ));
    supervisor.stop(GracePeriods { workers, others: job.cluster.timeout }).await;
}

/// Returns where the coordinator listens.
async fn start_all(plan: &LaunchPlan<'_>, job: &Job, supervisor: &mut Supervisor) -> Result<Announcement, Failure> {
    let address = plan.start_servers(job, supervisor).await?;
    let announced = RoleName::Coordinator.announcement_file(plan.folder);
    let coordinator = Announcement::read(&announced).ok_or_else(|| {
        let what = format!("the coordinator's file {} is gone", announced.display());
        Failure::with_help(Exit::Storage, what, "is the run folder still there?")
    })?;
    plan.output.console.print_line(format!("live page: http://{}/", reachable_address(&coordinator.admin)));
    plan.start_workers(job, &address, supervisor)?;
    Ok(coordinator)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_lost_a_process_says_how_to_resume() {
        let advice = way_on(40, &"runs/ads/checkpoints/resume-40", false);
        let place = "from the newest checkpoint (runs/ads/checkpoints/resume-40)";
        assert_eq!(advice, format!("the same command goes on after step 40, {place}"));
        assert!(way_on(40, &"there", true).starts_with("the same command without --fresh goes on"));
    }

    #[test]
    fn processes_of_one_machine_share_its_cores_unless_the_job_says_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("job.toml");
        let sets = |cluster: &str, sets: &[&str], cores| {
            std::fs::write(&file, format!("[data]\nformat = 'criteo'\ntrain = 'a'\n[cluster]\n{cluster}\n")).unwrap();
            let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
            let job = load_job(&file, &sets).unwrap();
            share_cores(&file, sets, &machine_of_job(&job, cores)).unwrap().1
        };
        let shared = sets("workers = 2\nservers = 2", &[], 16);
        assert_eq!(shared, ["train.threads=5", "data.threads=2", "cluster.server_threads=1"]);
        let asked = sets("workers = 2", &["train.threads=4"], 4);
        assert_eq!(asked, ["train.threads=4", "train.threads=4", "data.threads=1", "cluster.server_threads=1"]);
    }
}
