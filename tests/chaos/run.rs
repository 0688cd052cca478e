//! The command: an undisturbed round, then rounds with faults until the time is over, each checked by the oracle.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use zagros_job::Job;
use zagros_plumbing::Shutdown;
use zagros_shell::launch::{ChildOutput, LOG_FOLDER, LaunchPlan, RoleAddresses, RowFolders, RunConsole, WorkerLoss};
use zagros_shell::{Exit, Failure, Logging, OrFailure};
use zagros_transport::RoleKey;

use crate::cluster::RoundCluster;
use crate::incarnations::IncarnationLog;
use crate::injector::{FaultInjector, RoundView};
use crate::ledger::PushLedger;
use crate::link::RoundLinks;
use crate::losses::RunFacts;
use crate::oracle::RowOracle;
use crate::processes::RoundScaling;
use crate::recorder::{RoundRecord, RoundRecorder};
use crate::schedule::{PlannedFault, ScheduleRules};
use crate::verdict::{CheckedPromise, EndedRound, promises};
use crate::{FaultKind, checkpoints, processes, report, rules};

const POINTS: usize = 48;
/// Faults of a schedule that only the time bounds.
const MOST_FAULTS: usize = 100_000;

#[derive(Clone, Debug)]
pub(crate) struct ChaosOptions {
    /// The schedule is a function of it.
    pub(crate) seed: u64,
    /// No fault is made after so long. The round that is under way then ends undisturbed.
    pub(crate) length: Duration,
    pub(crate) every: Duration,
    /// The most faults, if not only the time bounds them.
    pub(crate) faults: Option<usize>,
    pub(crate) kinds: Vec<FaultKind>,
}

pub(crate) struct ChaosRun<'a> {
    /// The job, changed by [`crate::job_changes`].
    pub(crate) job: &'a Job,
    pub(crate) job_file: &'a Path,
    /// All changes to the file, those of [`crate::job_changes`] among them.
    pub(crate) sets: &'a [String],
    /// What to print as the changes of this command.
    pub(crate) changes: &'a [String],
    pub(crate) program: &'a Path,
    pub(crate) logging: Logging,
    pub(crate) stop: Shutdown,
    pub(crate) options: ChaosOptions,
}

impl ChaosRun<'_> {
    /// Prints the report. Fails if a promise was broken, the job cannot be checked, or the command was stopped.
    pub(crate) async fn run(&self) -> Result<(), Failure> {
        rules::check(self.job)?;
        let faults = self.faults();
        report::setting(self.job, self.options.seed, self.changes);
        report::schedule(&faults, self.options.seed);
        report::round("round 0, undisturbed");
        let mut undisturbed = self.round(None).await?;
        if let Some(failure) = undisturbed.failure.take() {
            return Err(failure);
        }
        let mut kept = self.judge(&undisturbed, None);
        let mut injector = FaultInjector::new(faults, self.options.length);
        let mut round = 0;
        while kept && !injector.is_done() && !self.stop.is_requested() {
            round += 1;
            report::round(&format!("round {round}"));
            let ended = self.round(Some(&mut injector)).await?;
            kept = self.judge(&ended, undisturbed.ended.as_ref());
        }
        self.conclude(&injector, kept)
    }

    fn faults(&self) -> Vec<PlannedFault> {
        let options = &self.options;
        // A pause is half of the mean at least.
        let fitting = (options.length.as_secs_f64() / (options.every.as_secs_f64() / 2.0)).ceil() as usize;
        let rules = ScheduleRules {
            seed: options.seed,
            every: options.every,
            kinds: options.kinds.clone(),
            targets: options.kinds.iter().map(|kind| (*kind, rules::targets(self.job, *kind))).collect(),
            longest: rules::longest_fault(self.job),
        };
        rules.faults(fitting.min(options.faults.unwrap_or(MOST_FAULTS)))
    }

    async fn round(&self, injector: Option<&mut FaultInjector>) -> Result<RoundResult, Failure> {
        let folder = new_folder(self.job)?;
        let socket = folder.join("pushes.sock");
        let goes_back = WorkerLoss::from_job(self.job) == WorkerLoss::SetsRunBack;
        let ledger = if goes_back { PushLedger::of_a_run_that_goes_back() } else { PushLedger::default() };
        let recorder = RoundRecorder::listen(&socket, self.job.tables.len() as u32, ledger).or_internal()?;
        let (over, stop) = (Shutdown::new(), Shutdown::new());
        // Lines of the supervisor are in the report, in other words.
        let output = ChildOutput { console: RunConsole::silent(), logs: Some(folder.join(LOG_FOLDER)) };
        let program = processes::without_signal(self.program, &folder).or_internal()?;
        let links =
            RoundLinks::open(&folder, &rules::links(self.job, rules::most_servers(self.job))).await.or_internal()?;
        let plan = LaunchPlan {
            program: &program,
            job_file: self.job_file,
            sets: self.sets,
            folder: &folder,
            timeout: self.job.cluster.timeout,
            resume: false,
            logging: self.logging.clone(),
            output,
            addresses: RoleAddresses::any_ports(),
            row_folders: RowFolders::new(self.job, &folder),
            secret: RoleKey::random(),
        };
        let (credentials, wanted) = (plan.credentials(), tokio::sync::watch::Sender::default());
        let scaling = RoundScaling { run: &folder, job: self.job, credentials, wanted };
        let view = RoundView {
            job: self.job,
            run: &folder,
            links: &links,
            scaling: &scaling,
            recorder: &recorder,
            over: &over,
            stop: &stop,
        };
        let cluster = RoundCluster { plan, socket: &socket, round: &view };
        let train = async {
            let ended = cluster.train().await;
            over.request();
            ended
        };
        let passed_on = async {
            tokio::select! {
                () = self.stop.requested() => stop.request(),
                () = over.requested() => {}
                () = checkpoints::settle(&folder, &recorder, &over) => {}
            }
        };
        let (ended, mut problems) = match injector {
            None => (tokio::join!(train, passed_on).0, Vec::new()),
            Some(injector) => {
                let (ended, (), ()) = tokio::join!(train, passed_on, injector.run(&view));
                (ended, std::mem::take(&mut injector.problems))
            }
        };
        recorder.wait_for_reports().await;
        problems.extend(std::mem::take(&mut recorder.record().failures));
        problems.sort();
        problems.dedup();
        let record = std::mem::take(&mut *recorder.record());
        let (ended, failure) = match ended {
            Ok(()) => (Some(self.inspect(&folder, record)?), None),
            Err(failure) => (None, Some(failure)),
        };
        Ok(RoundResult { folder, ended, failure, problems })
    }

    fn inspect(
        &self,
        folder: &Path,
        RoundRecord { ledger, incarnations, .. }: RoundRecord,
    ) -> Result<EndedRound, Failure> {
        let unanswered = unanswered(&ledger, &incarnations);
        let tables: Vec<String> = self.job.tables.iter().map(|table| table.name.clone()).collect();
        let mut oracle = RowOracle::new(&ledger);
        checkpoints::each_saved_row(folder, &tables, &mut |row, weights| oracle.check(row, weights))?;
        let rows = oracle.finish();
        let facts = RunFacts::read(folder)?;
        Ok(EndedRound { facts, rows, ledger, incarnations, unanswered })
    }

    /// Prints what a round kept; answers whether that is everything.
    fn judge(&self, round: &RoundResult, undisturbed: Option<&EndedRound>) -> bool {
        let mut checked = vec![CheckedPromise::ended(round.failure.as_ref())];
        if let Some(ended) = &round.ended {
            checked.extend(promises(self.job, ended, undisturbed));
            if let Some(undisturbed) = undisturbed {
                print_curves(&ended.facts, &undisturbed.facts);
            }
        }
        let problem = |what: &String| CheckedPromise { is_kept: false, what: what.clone() };
        checked.extend(round.problems.iter().map(problem));
        report::promises(&checked);
        let is_kept = checked.iter().all(|promise| promise.is_kept);
        if !is_kept {
            report::round(&format!("the files of this round are in {}", round.folder.display()));
        }
        is_kept
    }

    fn conclude(&self, injector: &FaultInjector, kept: bool) -> Result<(), Failure> {
        let made: Vec<PlannedFault> = injector.records.iter().map(|record| record.fault.clone()).collect();
        if !made.is_empty() {
            report::recoveries(&injector.records);
            report::moves(&injector.moves);
            report::schedule(&made, self.options.seed);
        }
        let seed = self.options.seed;
        if !kept {
            let what = format!("a promise was broken after {} faults (seed {seed})", made.len());
            let help = format!(
                "the lines with ✗ say which; the same command with --seed {seed} repeats the schedule; \
                 please report it with the run's folder"
            );
            return Err(Failure::with_help(Exit::Internal, what, help));
        }
        if self.stop.is_requested() {
            return Err(Failure::with_help(Exit::Cluster, "stopped before the end", "start it again"));
        }
        if made.is_empty() {
            let help = "give the job more epochs or data, or a shorter --every";
            return Err(Failure::usage("the run ended before any fault: nothing was shown", help));
        }
        report::title(&format!("Exact: {} faults, nothing lost, nothing doubled (seed {seed})", made.len()));
        Ok(())
    }
}

struct RoundResult {
    folder: PathBuf,
    /// `None` if the run failed.
    ended: Option<EndedRound>,
    failure: Option<Failure>,
    problems: Vec<String>,
}

fn new_folder(job: &Job) -> Result<PathBuf, Failure> {
    let runs = std::path::absolute(&job.output.folder).or_internal()?;
    fs::create_dir_all(&runs).or_exit(Exit::Storage)?;
    let mut number = 0_u64;
    loop {
        let folder = runs.join(format!("{}-chaos-{number}", job.name));
        match fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(Failure::from_error(Exit::Storage, error)),
        }
    }
}

/// Pushes without an answer of processes that were not lost.
fn unanswered(ledger: &PushLedger, incarnations: &IncarnationLog) -> usize {
    let is_excused = |writer, incarnation| incarnations.may_be_lost((writer, incarnation));
    ledger.unanswered().iter().filter(|push| !is_excused(push.writer, push.incarnation)).count()
}

fn print_curves(facts: &RunFacts, undisturbed: &RunFacts) {
    let (with, without) = (facts.curve(POINTS), undisturbed.curve(POINTS));
    let losses = with.iter().chain(&without).copied();
    let bounds = losses.fold((f64::MAX, f64::MIN), |(low, high), loss| (low.min(loss), high.max(loss)));
    report::curve("loss", &with, bounds);
    report::curve("undisturbed", &without, bounds);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::PushKey;

    /// One kill of a worker does not excuse what the processes after it lose.
    #[test]
    fn a_push_that_the_living_replacement_of_a_killed_worker_loses_is_unanswered() {
        let (mut ledger, mut incarnations) = (PushLedger::default(), IncarnationLog::default());
        for incarnation in [1, 2] {
            incarnations.join((1, incarnation), 0);
            ledger.sent(PushKey { writer: 1, incarnation, seq: 5 }, 0, vec![((0, 1), vec![2])]);
            incarnations.hit(0);
            incarnations.join((1, incarnation + 1), 0);
        }
        assert_eq!(unanswered(&ledger, &incarnations), 0, "both were killed");
        ledger.sent(PushKey { writer: 1, incarnation: 3, seq: 0 }, 0, vec![((0, 1), vec![2])]);
        assert_eq!(unanswered(&ledger, &incarnations), 1);
    }
}
