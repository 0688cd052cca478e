//! Experiments: commands that train a job many times, `zagros sweep` and `zagros scaling-law`.
//!
//! ```text
//!  ExperimentPlan ── next_member() ──► zagros train JOB --set …   (a process for each member, in a folder of its own)
//!    ▲    │                               │ ends
//!    │    └──► journal.jsonl              ▼
//!    └──── note_measured(), note_failed() ◄── measures of the held-out part, from the run folder
//! ```
//!
//! The journal says what the experiment is and what was decided. The run folders hold what was measured. So the same command goes on
//! after any end, and trains no member twice.

mod journal;
mod process;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;
use std::{fs, io};

use rustix::process::Pid;
use tokio::task::JoinSet;
use tokio::time::Instant;
use zagros_dense_worker::{RunFolder, RunLock};
use zagros_job::Job;
use zagros_job::threads::core_count;
use zagros_plumbing::lifecycle::{Shutdown, StopSignals};
use zagros_shell::{Exit, Failure, OrFailure, note};

use self::process::{EndKind, ask_to_end, wait_for_earlier};
use crate::args::JobArgs;
use crate::report::interrupt_exit;
use crate::resume::failed;

pub(crate) use self::journal::ExperimentJournal;
pub(crate) use self::process::newest_run;

/// Far enough away for a command without a budget.
pub(crate) const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);

pub(crate) struct ExperimentSetup {
    /// In messages: `sweep`.
    pub(crate) name: &'static str,
    pub(crate) job: Job,
    pub(crate) file: PathBuf,
    pub(crate) sets: Vec<String>,
    /// Processes side by side.
    pub(crate) jobs: usize,
    pub(crate) folder: PathBuf,
}

pub(crate) struct ExperimentMember {
    pub(crate) number: usize,
    /// In messages: `trial 3`.
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
    /// Changes to the job, without its folder and threads.
    pub(crate) sets: Vec<String>,
    /// Options of `zagros train`.
    pub(crate) options: Vec<String>,
}

pub(crate) trait ExperimentPlan {
    /// The member to start beside those that run. `None`: nothing, until one of them ends.
    fn next_member(&mut self, running: &BTreeSet<usize>) -> Result<Option<ExperimentMember>, Failure>;

    /// Takes what a member has measured, if its run has come there. `took` is how long its process ran; `None` before it is started.
    fn note_measured(&mut self, number: usize, took: Option<Duration>) -> Result<bool, Failure>;

    /// A member failed by its own values.
    fn note_failed(&mut self, number: usize, reason: String) -> Result<(), Failure>;
}

/// Why an experiment trains no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrainingEnd {
    Over,
    OutOfTime,
    /// A signal asked for it.
    Stopped,
}

impl TrainingEnd {
    /// Says what is left to do, after all else that the command prints.
    pub(crate) fn note_exit(self, signals: &StopSignals) -> Exit {
        match self {
            Self::Over => Exit::Success,
            Self::OutOfTime => {
                note!("the time of --budget is over; the same command goes on");
                Exit::Success
            }
            Self::Stopped => {
                note!("stopped; the same command goes on");
                interrupt_exit(signals)
            }
        }
    }
}

impl ExperimentSetup {
    /// `None` for `jobs` is a process for every two cores. Refuses a job of several workers: a member is one process.
    pub(crate) fn new(
        name: &'static str,
        args: &JobArgs,
        job: Job,
        jobs: Option<u64>,
        folder: PathBuf,
    ) -> Result<Self, Failure> {
        if job.cluster.workers > 1 {
            let what = format!("`cluster.workers` is more than 1, but each run of a {name} is one process");
            return Err(Failure::usage(what, "--set cluster.workers=1"));
        }
        let planned = (core_count() / 2).max(1);
        let jobs = jobs.map_or(planned, |jobs| usize::try_from(jobs).unwrap_or(usize::MAX));
        Ok(Self { name, job, file: args.job.clone(), sets: args.sets(), jobs, folder })
    }

    /// Makes the folder, and keeps other processes from working in it.
    pub(crate) fn lock_folder(&self) -> Result<RunLock, Failure> {
        fs::create_dir_all(&self.folder).map_err(|error| Failure::unwritable(&self.folder, &error))?;
        let lock = RunFolder::open(&self.folder).and_then(|folder| folder.try_lock()).map_err(failed)?;
        lock.ok_or_else(|| {
            let what = format!("another process trains the {} in {}", self.name, self.folder.display());
            Failure::usage(what, "wait for it, or name another folder: --folder FOLDER")
        })
    }
}

/// The folder of an experiment that names none: `ads-sweep` in `output.folder`.
pub(crate) fn default_folder(job: &Job, suffix: &str) -> PathBuf {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let name: String = job.name.chars().map(plain).collect();
    job.output.folder.join(format!("{}-{suffix}", name.trim_start_matches(['.', '-'])))
}

struct ProcessEnded {
    member: ExperimentMember,
    status: io::Result<ExitStatus>,
    took: Duration,
}

struct MemberRunner<'a> {
    setup: &'a ExperimentSetup,
    /// Processes side by side, from now on.
    lanes: usize,
    running: BTreeMap<usize, Option<Pid>>,
    processes: JoinSet<ProcessEnded>,
}

/// Starts members and takes their ends into account, until there is nothing left to do. On every way out, no process is left.
pub(crate) async fn train_members(
    setup: &ExperimentSetup,
    plan: &mut impl ExperimentPlan,
    lanes: usize,
    shutdown: &Shutdown,
    deadline: Instant,
) -> Result<TrainingEnd, Failure> {
    let mut runner = MemberRunner { setup, lanes, running: BTreeMap::new(), processes: JoinSet::new() };
    let mut end: Option<Result<TrainingEnd, Failure>> = None;
    loop {
        if end.is_none()
            && let Err(error) = runner.start_members(plan).await
        {
            runner.ask_all();
            end = Some(Err(error));
        }
        if runner.processes.is_empty() {
            return end.unwrap_or(Ok(TrainingEnd::Over));
        }
        let goes_on = end.is_none();
        tokio::select! {
            Some(ended) = runner.processes.join_next() => {
                let noted = ended.or_internal().and_then(|ended| runner.note_end(plan, ended));
                // The first error is the cause.
                if let Err(error) = noted
                    && !matches!(end, Some(Err(_)))
                {
                    runner.ask_all();
                    end = Some(Err(error));
                }
            }
            () = shutdown.requested(), if goes_on => {
                runner.ask_all();
                end = Some(Ok(TrainingEnd::Stopped));
            }
            () = tokio::time::sleep_until(deadline), if goes_on => {
                runner.ask_all();
                end = Some(Ok(TrainingEnd::OutOfTime));
            }
        }
    }
}

impl MemberRunner<'_> {
    async fn start_members(&mut self, plan: &mut impl ExperimentPlan) -> Result<(), Failure> {
        while self.running.len() < self.lanes {
            let running = self.running.keys().copied().collect();
            let Some(member) = plan.next_member(&running)? else { break };
            wait_for_earlier(&member.folder).await?;
            // A process may have ended well just before this command was killed.
            if !plan.note_measured(member.number, None)? {
                self.start(member).or_internal()?;
            }
        }
        Ok(())
    }

    fn start(&mut self, member: ExperimentMember) -> io::Result<()> {
        let folder = std::path::absolute(&member.folder)?;
        let mut child = process::start_process(self.setup, &member, &folder)?;
        let (pid, started) = (child.id().and_then(|id| Pid::from_raw(id.cast_signed())), Instant::now());
        self.running.insert(member.number, pid);
        self.processes.spawn(async move {
            let stdin = child.stdin.take();
            let status = child.wait().await;
            drop(stdin);
            ProcessEnded { member, status, took: started.elapsed() }
        });
        Ok(())
    }

    fn note_end(&mut self, plan: &mut impl ExperimentPlan, ended: ProcessEnded) -> Result<(), Failure> {
        let ProcessEnded { member: ExperimentMember { number, name, folder, .. }, status, took } = ended;
        self.running.remove(&number);
        let status = status.or_internal()?;
        match EndKind::from_status(status) {
            EndKind::Well if plan.note_measured(number, Some(took))? => Ok(()),
            EndKind::Well => plan.note_failed(number, "its run has no measures of the held-out part".to_owned()),
            // It has saved a checkpoint, from which the same command goes on.
            EndKind::Interrupted => Ok(()),
            // As a rule, members side by side have used up the memory together.
            EndKind::Killed if !self.running.is_empty() => {
                self.lanes = 1;
                note!("{name} was killed, perhaps for want of memory; one process at a time trains from now on");
                Ok(())
            }
            EndKind::Failed | EndKind::Killed => plan.note_failed(number, process::failure_reason(&folder, status)),
            EndKind::Hopeless => Err(process::hopeless_failure(&name, self.setup.name, &folder, status)),
        }
    }

    /// Asks the running processes to save and end.
    fn ask_all(&self) {
        self.running.values().flatten().copied().for_each(ask_to_end);
    }
}
