//! `zagros dense-worker`: one dense worker of a job, in this process.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use zagros_collective::Rendezvous;
use zagros_coordinator_client::Waits;
use zagros_coordinator_core::doctor::OwnWaits;
use zagros_dense_worker::{Observer, ObserverList, RunFolder, Worker, WorkerError};
use zagros_embedding_client::GrpcShard;
use zagros_embedding_client::push_record::PushRecorder;
use zagros_job::Job;
use zagros_plumbing::admin;
use zagros_scoring::TrainingOutcome;
use zagros_shell::{Exit, Failure, OrFailure, Role, RolePort};
use zagros_store::StoreError;

use crate::args::{LeaveMeaning, WorkerArgs};
use crate::backend::{self, backend};
use crate::memory;
use crate::report;
use crate::resume::{ResumeChoice, RunStart, failed};
use crate::terminal::Terminal;

pub(crate) async fn run(args: WorkerArgs) -> Result<Exit, Failure> {
    let role = Role::start(&args.config, format!("dense worker {}", args.index))?;
    refuse_stdin(&role.job)?;
    backend::check(&role.job)?;
    memory::check_worker(&role.job)?;
    let http = role.bind(RolePort::Admin, &role.job.cluster.admin).await?;
    let rendezvous = rendezvous(&role, args.advertise).await?;
    role.announce_addresses(&args.config, None, &http)?;
    let waits = Waits::default();
    let reported = waits.clone();
    let routes = admin::routes(role.registry.clone(), Arc::new(|| Ok(())));
    let routes = routes.merge(admin::json_route("/waits", move || OwnWaits {
        waits: reported.long_waits(),
        requests: reported.unanswered_requests(),
    }));
    let page = role.page_access(&http)?;
    tokio::spawn(admin::serve(http, routes, page, role.shutdown.clone()));

    let wanted = ResumeChoice::new(args.fresh, args.resume);
    // Only one worker writes.
    let start = match args.folder {
        _ if args.index > 0 => None,
        Some(path) => Some(RunStart::in_folder(run_folder(&path)?, &role.job, wanted)?),
        None => Some(RunStart::find(&role.job, wanted)?),
    };
    let (timeout, credentials) = (role.job.cluster.timeout, role.credentials.clone());
    let recorder = args.push_recorder.as_deref().map(|socket| recorder(socket, args.index, &role.job)).transpose()?;
    let observer: Arc<dyn Observer> = match recorder.clone() {
        Some(recorder) => recorder,
        None => Arc::new(ObserverList::default()),
    };
    let worker = Worker {
        job: Job::clone(&role.job),
        backend: backend(),
        control: role.control_client()?,
        connect: Arc::new(move |entry| {
            let shard = GrpcShard::connect(entry, timeout, &credentials)?;
            Ok(recorder
                .as_ref()
                .map_or_else(|| Arc::clone(&shard), |recorder| recorder.record_shard(Arc::clone(&shard))))
        }),
        index: args.index,
        supersede: args.supersede,
        waits,
        rendezvous,
        registry: role.registry.clone(),
        observer,
        folder: start.as_ref().map(|start| start.folder.clone()),
        resume: start.as_ref().and_then(|start| start.point.clone()),
        shutdown: role.shutdown.clone(),
    };
    let outcome = report::run_worker(worker, Terminal::new(true), &role.signals).await?;
    let comes_back = args.on_stop == LeaveMeaning::Restart && role.signals.exit_code().is_some();
    Ok(match outcome {
        TrainingOutcome::Left if comes_back => report::interrupt_exit(&role.signals),
        outcome => report::exit_status(outcome, &role.signals),
    })
}

/// The standard input of a worker says whether its parent lives.
pub(crate) fn refuse_stdin(job: &Job) -> Result<(), Failure> {
    if !job.data.reads_stdin() {
        return Ok(());
    }
    let what = "`data.train` is standard input, which only `zagros train` reads";
    Err(Failure::usage(what, "train with `zagros train`, or write the data to files"))
}

fn run_folder(path: &Path) -> Result<RunFolder, Failure> {
    RunFolder::open(path).map_err(|error| match &error {
        WorkerError::Store(StoreError::Disk { source, .. })
            if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
        {
            let help = "make the folder first, or leave --folder out: a new one is then made below output.folder";
            Failure::usage(format!("there is no run folder {}", path.display()), help)
        }
        _ => failed(error),
    })
}

/// The recorder of the test program `zagros-chaos`.
fn recorder(socket: &Path, index: u32, job: &Job) -> Result<Arc<PushRecorder>, Failure> {
    PushRecorder::connect(socket, index, job.tables.len() as u32).map_err(|error| {
        let what = format!("no push recorder listens at {}: {error}", socket.display());
        Failure::usage(what, "only `zagros-chaos` gives --push-recorder")
    })
}

/// The rendezvous at which the other workers of a run find this one.
async fn rendezvous(role: &Role, advertise: Option<String>) -> Result<Option<Arc<dyn Rendezvous>>, Failure> {
    let cluster = &role.job.cluster;
    if !cluster.has_groups() {
        return Ok(None);
    }
    let listener = role.bind(RolePort::DenseWorker, &cluster.worker_address).await?;
    let address = role.advertised_address(advertise, &listener)?;
    let listener = listener.into_std().or_internal()?;
    listener.set_nonblocking(false).or_internal()?;
    backend::rendezvous(&role.job, listener, address).map(Some)
}
