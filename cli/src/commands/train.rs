//! `zagros train`: the whole cluster in one process, with function calls instead of sockets.

use std::sync::Arc;

use zagros_job::threads::Machine;
use zagros_plumbing::lifecycle::Shutdown;
use zagros_shell::{Exit, Failure, describe_threads, exit_with_parent, is_key_given, load_job, note, watch_signals};

use super::init;
use crate::args::TrainArgs;
use crate::backend;
use crate::days::DailyTraining;
use crate::memory;
use crate::pause::RunPause;
use crate::plan;
use crate::planning;
use crate::report;
use crate::resume::{ResumeChoice, RunStart};
use crate::saved;
use crate::steps;
use crate::terminal::Terminal;

pub(crate) async fn run(mut args: TrainArgs) -> Result<Exit, Failure> {
    if let Some(job) = init::job_for(&args.job.job)? {
        note!("the job is {}; edit it to change what is learned", job.display());
        args.job.job = job;
    }
    let pause = args.pause();
    let mut sets = args.job.sets();
    sets.extend(args.max_steps.map(|steps| format!("train.max_steps={steps}")));
    saved::start_from(args.from.as_deref(), &mut sets)?;
    let mut job = load_job(&args.job.job, &sets)?;
    // No other process can join a run inside one process.
    job.cluster.max_workers = None;
    backend::check(&job)?;
    if args.dry_run {
        plan::print(&job, &Machine::this())?;
        return Ok(Exit::Success);
    }
    if job.cluster.workers > 1 {
        let what = format!("`cluster.workers` is {}, but `zagros train` runs one dense worker", job.cluster.workers);
        let help = "start them with `zagros up`, or use one: --set cluster.workers=1";
        return Err(Failure::usage(what, help));
    }
    memory::check(&job, &Machine::this())?;
    note!("threads: {}", describe_threads(&job, &Machine::this()));
    if let Some(said) = planning::streaming_notice(&job, &Machine::this()) {
        note!("{said}");
    }
    let shutdown = Shutdown::new();
    let signals = watch_signals(&shutdown)?;
    if args.exit_with_parent {
        exit_with_parent(shutdown.clone());
    }
    let choice = ResumeChoice::new(args.fresh, args.resume);
    if let Some(dates) = args.dates {
        let has_start_steps = is_key_given(&args.job.job, &sets, "train.start_steps");
        let keep_models = args.keep_models.map(|models| usize::try_from(models).unwrap_or(usize::MAX));
        let signals = &signals;
        return DailyTraining { job, dates, has_start_steps, keep_models, choice, shutdown, signals }.run().await;
    }
    let start = RunStart::find(&job, choice)?;
    steps::announce_steps(&job);
    steps::count_epochs(&mut job, start.point.as_ref())?;
    let mut worker = start.worker(job, shutdown.clone()).await?;
    let pause = pause.map(|point| Arc::new(RunPause::new(point, shutdown)));
    if let Some(pause) = &pause {
        worker.observer = pause.clone();
    }
    let outcome = report::run_worker(worker, Terminal::new(false), &signals).await?;
    let has_paused = pause.is_some_and(|pause| pause.has_paused());
    Ok(if has_paused && signals.exit_code().is_none() { Exit::Success } else { report::exit_status(outcome, &signals) })
}
