//! Makes the faults of the schedule, one after the other, and watches the run recover from each.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use zagros_job::Job;
use zagros_plumbing::Shutdown;
use zagros_protocol::RefusalKind;
use zagros_protocol::control::ScaleStatus;
use zagros_shell::launch::RoleName;

use crate::link::{LinkName, LinkState, RoundLinks};
use crate::processes::{RoundProcesses, RoundScaling, allow_writes, signal};
use crate::recorder::{ProgressMoment, RoundRecorder};
use crate::schedule::{FaultRecord, FaultTarget, PlannedFault};
use crate::{FaultKind, report};

const LOOK: Duration = Duration::from_millis(5);
/// How long each part of a slow link waits.
const DELAY: Duration = Duration::from_millis(20);
/// Added to the job's own timeouts: a run that makes no step for longer hangs.
const SLACK: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct FaultInjector {
    faults: Vec<PlannedFault>,
    next: usize,
    started: Instant,
    length: Duration,
    pub(crate) records: Vec<FaultRecord>,
    /// The moves of each round, as the coordinator last reported.
    pub(crate) moves: Vec<ScaleStatus>,
    pub(crate) problems: Vec<String>,
}

pub(crate) struct RoundView<'a> {
    pub(crate) job: &'a Job,
    pub(crate) run: &'a Path,
    pub(crate) links: &'a RoundLinks,
    pub(crate) scaling: &'a RoundScaling<'a>,
    pub(crate) recorder: &'a RoundRecorder,
    pub(crate) over: &'a Shutdown,
    pub(crate) stop: &'a Shutdown,
}

struct OpenFault {
    began: Instant,
    moment: ProgressMoment,
    steps: u64,
    hit: Vec<HitTarget>,
    until: Option<Instant>,
    record: FaultRecord,
}

#[derive(Clone, Copy)]
enum HitTarget {
    Process { role: RoleName, pid: u32, is_back: bool },
    Link(LinkName),
    Run,
}

impl FaultInjector {
    pub(crate) fn new(faults: Vec<PlannedFault>, length: Duration) -> Self {
        let (records, moves, problems) = (Vec::new(), Vec::new(), Vec::new());
        Self { faults, next: 0, started: Instant::now(), length, records, moves, problems }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.next >= self.faults.len() || self.started.elapsed() >= self.length
    }

    /// Makes faults until the run is over or none is left.
    pub(crate) async fn run(&mut self, round: &RoundView<'_>) {
        let mut processes = RoundProcesses::new(round.run, round.job);
        let mut moves = None;
        while !self.is_done() && self.wait_for_training(round).await {
            let fault = self.faults[self.next].clone();
            if ended_within(round.over, fault.pause).await {
                break;
            }
            let Some(open) = self.strike_when_there(&fault, round, &mut processes).await else { break };
            self.next += 1;
            let record = self.follow(open, round, &mut processes).await;
            report::fault(&record);
            self.records.push(record);
            moves = round.scaling.status().await.or(moves);
        }
        self.moves.extend(moves);
        // No process is started again because of what was done to another.
        while !ended_within(round.over, LOOK * 10).await {
            let more = processes.look();
            self.problems.extend(more);
        }
    }

    /// Waits until every worker makes steps; `false` if the run ends before.
    async fn wait_for_training(&mut self, round: &RoundView<'_>) -> bool {
        let workers = round.job.cluster.workers as usize;
        let trains = |_: &Self| (round.recorder.record().progress.newest.len() >= workers).then_some(());
        self.wait_for(round, "not every worker has made a step", trains).await.is_some()
    }

    /// Looks again and again for what a run has sooner or later; `None` if the run ends before.
    async fn wait_for<T>(
        &mut self,
        round: &RoundView<'_>,
        missing: &str,
        mut find: impl FnMut(&Self) -> Option<T>,
    ) -> Option<T> {
        let began = Instant::now();
        loop {
            let found = find(self);
            if found.is_some() {
                return found;
            }
            if began.elapsed() > limit(round.job) {
                self.give_up(round, format!("{missing} after {:?}", limit(round.job)));
                return None;
            }
            if ended_within(round.over, LOOK).await {
                return None;
            }
        }
    }

    /// Makes a fault once every process that it hits runs; `None` if the run ends before.
    async fn strike_when_there(
        &mut self,
        fault: &PlannedFault,
        round: &RoundView<'_>,
        processes: &mut RoundProcesses,
    ) -> Option<OpenFault> {
        let missing = format!("{} cannot be found", fault.target_names());
        let open = self.wait_for(round, &missing, |injector| injector.strike(fault, round, processes)).await?;
        self.scale(fault, round).await;
        Some(open)
    }

    /// Asks for the number of servers that the fault names, if it names one.
    async fn scale(&mut self, fault: &PlannedFault, round: &RoundView<'_>) {
        for target in &fault.targets {
            if let FaultTarget::Servers(count) = target
                && let Err(refusal) = round.scaling.scale_to(*count).await
                // Refused as by a newer incarnation: the run has ended meanwhile.
                && refusal.kind != RefusalKind::Fenced
            {
                self.problems.push(format!("the run does not get {count} embedding servers: {refusal}"));
            }
        }
    }

    fn strike(&self, fault: &PlannedFault, round: &RoundView<'_>, processes: &mut RoundProcesses) -> Option<OpenFault> {
        let found: Option<Vec<_>> = fault.targets.iter().map(|target| HitTarget::find(*target, processes)).collect();
        let hit = found?;
        processes.hit(&fault.targets.iter().filter_map(|target| target.role()).collect::<Vec<_>>());
        let began = Instant::now();
        hit.iter().for_each(|target| target.strike(fault.kind, round.links));
        let mut record = round.recorder.record();
        hit.iter().filter_map(HitTarget::worker).for_each(|worker| record.incarnations.hit(worker));
        Some(OpenFault {
            began,
            moment: record.progress.moment(),
            steps: record.progress.steps,
            hit,
            until: fault.kind.lasts().then(|| began + fault.lasts),
            record: FaultRecord::new(fault.clone(), began.duration_since(self.started)),
        })
    }

    async fn follow(
        &mut self,
        mut open: OpenFault,
        round: &RoundView<'_>,
        processes: &mut RoundProcesses,
    ) -> FaultRecord {
        while !open.look(round, processes) {
            let is_over = ended_within(round.over, LOOK).await;
            if is_over {
                break;
            }
            if open.began.elapsed() > limit(round.job) + open.record.fault.lasts {
                let (fault, limit) = (&open.record.fault, limit(round.job));
                let (number, what, names) = (fault.number, fault.what(), fault.target_names());
                let what = format!("no worker recovered within {limit:?} from fault {number}: {what} of {names}");
                self.give_up(round, what);
                break;
            }
        }
        open.restore(round);
        self.problems.extend(processes.look());
        open.record
    }

    fn give_up(&mut self, round: &RoundView<'_>, what: String) {
        self.problems.push(what);
        round.stop.request();
    }
}

impl OpenFault {
    /// Notes what has happened. Answers whether the run has recovered.
    fn look(&mut self, round: &RoundView<'_>, processes: &RoundProcesses) -> bool {
        let elapsed = self.began.elapsed();
        if self.until.is_some_and(|until| Instant::now() >= until) {
            self.restore(round);
        }
        let record = round.recorder.record();
        if self.record.next_step.is_none() && record.progress.is_past(&self.moment, round.job.train.staleness as u64) {
            self.record.next_step = Some(elapsed);
        }
        let steps = record.progress.steps - self.steps;
        drop(record);
        if self.record.fault.kind == FaultKind::Kill && self.record.back.is_none() {
            for target in &mut self.hit {
                if target.looks_back(processes) == Some(RoleName::Coordinator) {
                    self.record.steps_without_coordinator = Some(steps);
                }
            }
            self.record.back = self.hit.iter().all(HitTarget::is_back).then_some(elapsed);
        }
        let is_back = self.record.back.is_some() || self.record.fault.kind != FaultKind::Kill;
        is_back && self.record.next_step.is_some() && self.until.is_none()
    }

    fn restore(&mut self, round: &RoundView<'_>) {
        if self.until.take().is_some() {
            self.hit.iter().for_each(|target| target.restore(self.record.fault.kind, round.links));
            // A link that failed has hit the process that came meanwhile, too.
            let links = self.hit.iter().filter(|target| matches!(target, HitTarget::Link(_)));
            links.filter_map(HitTarget::worker).for_each(|worker| round.recorder.record().incarnations.hit(worker));
        }
    }
}

impl HitTarget {
    /// `None` while the process does not run.
    fn find(target: FaultTarget, processes: &RoundProcesses) -> Option<Self> {
        match target {
            FaultTarget::Process(role) => Some(Self::Process { role, pid: processes.pid(role)?, is_back: false }),
            FaultTarget::Link(link) => Some(Self::Link(link)),
            FaultTarget::Servers(_) => Some(Self::Run),
        }
    }

    fn strike(&self, kind: FaultKind, links: &RoundLinks) {
        match (self, kind) {
            (Self::Process { pid, .. }, FaultKind::Kill) => signal(*pid, Signal::KILL),
            (Self::Process { pid, .. }, FaultKind::Disk) => allow_writes(*pid, false),
            (Self::Process { pid, .. }, _) => signal(*pid, Signal::STOP),
            (Self::Link(link), FaultKind::Slow) => links.set(*link, |_| LinkState::Slow(DELAY)),
            (Self::Link(link), FaultKind::Break) => links.set(*link, |before| LinkState::Broken { before }),
            (Self::Link(link), FaultKind::Late) => links.set(*link, |before| LinkState::Late { before }),
            (Self::Link(link), _) => links.set(*link, |_| LinkState::Partitioned),
            (Self::Run, _) => {}
        }
    }

    fn restore(&self, kind: FaultKind, links: &RoundLinks) {
        match self {
            Self::Process { pid, .. } if kind == FaultKind::Disk => allow_writes(*pid, true),
            Self::Process { pid, .. } => signal(*pid, Signal::CONT),
            Self::Link(link) => links.set(*link, |_| LinkState::Open),
            Self::Run => {}
        }
    }

    /// The dense worker that may be lost by the fault.
    fn worker(&self) -> Option<u32> {
        match self {
            Self::Process { role: RoleName::DenseWorker(worker), .. }
            | Self::Link(LinkName::Coordinator(RoleName::DenseWorker(worker))) => Some(*worker),
            _ => None,
        }
    }

    fn is_back(&self) -> bool {
        matches!(self, Self::Link(_) | Self::Run | Self::Process { is_back: true, .. })
    }

    /// Looks for the successor of a process. Answers the role if it has just been found.
    fn looks_back(&mut self, processes: &RoundProcesses) -> Option<RoleName> {
        match self {
            Self::Process { role, pid, is_back } if !*is_back => {
                *is_back = processes.pid(*role).is_some_and(|now| now != *pid);
                is_back.then_some(*role)
            }
            _ => None,
        }
    }
}

async fn ended_within(over: &Shutdown, time: Duration) -> bool {
    tokio::time::timeout(time, over.requested()).await.is_ok()
}

/// The longest time without a step that is no hang: a process is started, waits for a lease, and for its peers.
fn limit(job: &Job) -> Duration {
    job.cluster.timeout * 2 + job.cluster.lease * 2 + SLACK
}
