//! Watches the children: ends when the workers are done, or with the first one that died and is not started again.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitStatus;
use std::time::Duration;

use crate::{Exit, Failure};
use futures::future::{FutureExt, select_all};
use rustix::process::Pid;
use tokio::sync::watch;
use tokio::time::Instant;
use zagros_plumbing::{Deadline, Shutdown};
use zagros_protocol::control::{Role, StatusResponse};

use crate::launch::child::{ChildProcess, RoleName};
use crate::launch::console::RunConsole;
use crate::launch::restart::{InPlaceRestarts, RestartBudget, WorkerLosses, limit_text, not_started};

/// Time for a coordinator that learned of a failure to end the members.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub struct Supervisor {
    pub(crate) children: Vec<ChildProcess>,
    pub(crate) timeout: Duration,
    pub console: RunConsole,
    /// Requested by a person who does not wait for an orderly end: kills the running children.
    pub hurry: Shutdown,
    /// Children that are started again after a pause, by their place.
    due: Vec<(usize, Instant)>,
    /// Restarts in place of each child, by its place.
    in_place: BTreeMap<usize, InPlaceRestarts>,
    /// Starts a child again in place each time and at once: a test kills it on purpose, again and again.
    pub is_tireless: bool,
    worker_losses: WorkerLosses,
    /// What the run is to have, announced again and again. `None` if that never changes.
    pub wanted: Option<watch::Receiver<WantedRoles>>,
    /// How many dense workers the run is to have, once a scale request has asked for a number.
    pub(crate) workers_wanted: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedRoles {
    pub servers: u32,
    /// Dense workers; `None` until a scale request has asked for a number of them.
    pub workers: Option<WantedWorkers>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedWorkers {
    pub count: u32,
    /// Indices that no process has taken, or whose process the coordinator has given up.
    pub vacant: BTreeSet<u32>,
}

impl WantedRoles {
    /// What a scale request has asked for while the run trains. A run that ends needs no more processes.
    pub fn from_status(status: &StatusResponse) -> Option<Self> {
        let scale = status.scale.as_ref().filter(|_| status.state == "training")?;
        let holds = |index: u32| {
            let mut workers = status.members.iter().filter(|member| member.role() == Role::DenseWorker);
            workers.any(|member| member.index == index && member.state != "given up")
        };
        let count = scale.workers_wanted;
        let vacant = (0..count).filter(|index| !holds(*index)).collect();
        Some(Self { servers: scale.servers_wanted, workers: (count > 0).then_some(WantedWorkers { count, vacant }) })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchEnd {
    Done,
    /// The run must stop. Every child still runs.
    StopRequested,
}

impl Supervisor {
    /// A supervisor without children. `timeout` bounds a requested end.
    pub fn new(timeout: Duration) -> Self {
        Self { timeout, ..Self::default() }
    }

    pub fn add_child(&mut self, child: ChildProcess) {
        self.children.push(child);
    }

    pub fn server_count(&self) -> u32 {
        self.children.iter().filter(|child| matches!(child.role, RoleName::EmbeddingServer(_))).count() as u32
    }

    /// The dense worker that something else than the run has ended, in words.
    pub fn lost_worker(&mut self) -> Option<String> {
        // Another worker may have failed because of it, and was seen to end first.
        for child in &mut self.children {
            child.try_ended();
        }
        let lost = self.children.iter().find(|child| child.is_lost_worker());
        lost.map(|child| format!("{} {}", child.role.display_name(), child.describe_end()))
    }

    /// Whether every dense worker was lost at about the same time, in words.
    pub fn lost_all_workers(&self) -> Option<String> {
        let index = |child: &ChildProcess| match child.role {
            RoleName::DenseWorker(index) => Some(index),
            RoleName::Coordinator | RoleName::EmbeddingServer(_) => None,
        };
        let are_lost = self.worker_losses.has_all(self.children.iter().filter_map(index), self.timeout);
        are_lost.then(|| "all dense workers were lost at once, and the dense network with them".to_owned())
    }

    fn note_loss(&mut self, index: usize) {
        if let (true, RoleName::DenseWorker(worker)) =
            (self.children[index].is_lost_worker(), self.children[index].role)
        {
            self.worker_losses.record_loss(worker);
        }
    }

    pub fn server_pids(&self) -> Vec<Pid> {
        let servers = self.children.iter().filter(|child| matches!(child.role, RoleName::EmbeddingServer(_)));
        servers.filter_map(ChildProcess::pid).collect()
    }

    /// Returns once every worker is done, or with an error about the first child that died.
    pub async fn watch(&mut self) -> Result<(), Failure> {
        let restarts = RestartBudget::without_restarts(&not_started);
        self.watch_and_restart(&Shutdown::new(), restarts).await.map(|_| ())
    }

    /// As [`Self::watch`], but lost processes are started again as `restarts` says, and a request for `shutdown` is an end,
    /// too.
    pub async fn watch_and_restart(
        &mut self,
        shutdown: &Shutdown,
        mut restarts: RestartBudget<'_>,
    ) -> Result<WatchEnd, Failure> {
        while self.workers_running() {
            let next = self.due.iter().map(|(_, at)| *at).min();
            tokio::select! {
                biased;
                () = shutdown.requested() => {
                    // The workers need every server for their last checkpoint.
                    self.start_due(None, &restarts)?;
                    return Ok(WatchEnd::StopRequested);
                }
                index = next_to_end(&mut self.children) => {
                    self.note_loss(index);
                    let is_survived = is_success(self.children[index].ended)
                        || self.is_released(&self.children[index])
                        || self.restart_in_place(index, &restarts)
                        || self.restart_worker(index, &mut restarts)?
                        || self.goes_on(index, restarts.least);
                    if !is_survived {
                        let cause = self.cause(index).await;
                        return Err(self.children[cause].end_failure().await);
                    }
                }
                wanted = next_roles(&mut self.wanted) => self.follow(wanted, &restarts)?,
                () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            }
            self.start_due(Some(Instant::now()), &restarts)?;
        }
        Ok(WatchEnd::Done)
    }

    /// Plans the restart of a child that comes back with what it held; answers whether it does.
    fn restart_in_place(&mut self, index: usize, restarts: &RestartBudget<'_>) -> bool {
        let child = &self.children[index];
        if !(restarts.is_in_place)(child.role) || !child.is_lost() {
            return false;
        }
        let (name, how, now) = (child.role.display_name(), child.describe_end(), Instant::now());
        let earlier = self.in_place.entry(index).or_default();
        let Some(pause) = (if self.is_tireless { Some(Duration::ZERO) } else { earlier.next(now) }) else {
            self.console.print_warning(format!("{name} {how}; it was started again {} and still ends", limit_text()));
            return false;
        };
        let when = if pause.is_zero() { "now".to_owned() } else { format!("in {pause:?}") };
        self.console.print_warning(format!("{name} {how}; starting it again in place {when}, the others wait for it"));
        self.due.push((index, now + pause));
        true
    }

    /// Starts the children that are due at a moment, or all of those that are to be started.
    fn start_due(&mut self, now: Option<Instant>, restarts: &RestartBudget<'_>) -> Result<(), Failure> {
        let is_due = |at: Instant| now.is_none_or(|now| at <= now);
        let (due, later) = self.due.iter().copied().partition(|(_, at)| is_due(*at));
        self.due = later;
        let due: Vec<(usize, Instant)> = due;
        for (index, _) in due {
            self.children[index] = (restarts.start)(self.children[index].role)?;
        }
        Ok(())
    }

    /// Puts another process into the place of a dense worker that was lost; answers whether it did.
    fn restart_worker(&mut self, index: usize, restarts: &mut RestartBudget<'_>) -> Result<bool, Failure> {
        let child = &self.children[index];
        if restarts.left == 0 || !child.is_lost_worker() {
            return Ok(false);
        }
        restarts.left -= 1;
        let (role, how, left) = (child.role, child.describe_end(), restarts.left);
        let name = role.display_name();
        self.console.print_warning(format!("{name} {how}; starting it again ({left} restarts left, --restarts)"));
        self.children[index] = (restarts.start)(role)?;
        Ok(true)
    }

    /// Whether the run continues, or has ended well, without a lost worker.
    fn goes_on(&self, index: usize, least: usize) -> bool {
        let child = &self.children[index];
        let (name, how) = (child.role.display_name(), child.describe_end());
        if !matches!(child.role, RoleName::DenseWorker(1..)) {
            return false;
        }
        let first = self.children.iter().find(|child| child.role == RoleName::DenseWorker(0));
        if first.is_some_and(|first| is_success(first.ended)) {
            self.console.print_warning(format!("{name} {how} after training; the run does not need it any more"));
            return true;
        }
        let runs = |child: &&ChildProcess| matches!(child.role, RoleName::DenseWorker(_)) && child.ended.is_none();
        let left = self.children.iter().filter(runs).count();
        let goes_on = child.is_lost_worker() && left >= least;
        if goes_on {
            self.console.print_warning(format!(
                "{name} {how}; {left} workers are left and continue without it (cluster.min_workers = {least})"
            ));
        }
        goes_on
    }

    /// The child whose death ended the run, when child `first` was seen dead first. A coordinator that learns of a failed
    /// worker also fails, and sometimes ends before that worker.
    async fn cause(&mut self, first: usize) -> usize {
        let relays = |child: &ChildProcess| {
            let code = child.ended.and_then(|status| status.code());
            child.role == RoleName::Coordinator && code == Some(i32::from(Exit::Cluster.code()))
        };
        if !relays(&self.children[first]) {
            return first;
        }
        let deadline = Deadline::from_now(self.timeout.min(GRACE));
        while let Ok(next) = tokio::time::timeout(deadline.time_left(), next_to_end(&mut self.children)).await {
            if !is_success(self.children[next].ended) {
                return next;
            }
        }
        first
    }

    pub(crate) fn workers_running(&self) -> bool {
        self.children.iter().any(|child| matches!(child.role, RoleName::DenseWorker(_)) && child.ended.is_none())
    }
}

/// A successful end. A server or the coordinator ends so once it learns that the run is over. That may be before the worker
/// that reported the end has printed its report.
pub(crate) fn is_success(ended: Option<ExitStatus>) -> bool {
    ended.is_some_and(|status| status.success())
}

pub(crate) async fn next_to_end(children: &mut [ChildProcess]) -> usize {
    let running = children.iter_mut().enumerate().filter(|(_, child)| child.ended.is_none());
    let waits: Vec<_> = running
        .map(|(index, child)| {
            async move {
                child.wait().await;
                index
            }
            .boxed()
        })
        .collect();
    if waits.is_empty() {
        return std::future::pending().await;
    }
    select_all(waits).await.0
}

async fn next_roles(announced: &mut Option<watch::Receiver<WantedRoles>>) -> WantedRoles {
    if let Some(announced) = announced
        && announced.changed().await.is_ok()
    {
        return announced.borrow_and_update().clone();
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use zagros_protocol::control::{MemberStatus, ScaleStatus};

    use super::*;
    use crate::launch::child::shell;

    /// A supervisor of these roles, which run these commands.
    fn supervisor(roles: &[(RoleName, &str)]) -> Supervisor {
        let mut supervisor = Supervisor::new(Duration::from_secs(60));
        roles.iter().for_each(|(role, command)| supervisor.add_child(shell(*role, command)));
        supervisor
    }

    fn workers(
        left: u32,
        least: usize,
        start: &dyn Fn(RoleName) -> Result<ChildProcess, Failure>,
    ) -> RestartBudget<'_> {
        RestartBudget { left, least, ..RestartBudget::without_restarts(start) }
    }

    /// Restarts of embedding servers alone.
    fn servers(start: &dyn Fn(RoleName) -> Result<ChildProcess, Failure>) -> RestartBudget<'_> {
        let is_in_place = &|role| matches!(role, RoleName::EmbeddingServer(_));
        RestartBudget { is_in_place, ..RestartBudget::without_restarts(start) }
    }

    #[test]
    fn processes_are_started_for_a_run_that_trains_and_was_scaled() {
        let role = Role::DenseWorker.into();
        let worker =
            |index, state: &str| MemberStatus { role, index, state: state.to_owned(), ..MemberStatus::default() };
        let status = |state: &str, workers_wanted| StatusResponse {
            state: state.to_owned(),
            members: vec![worker(0, "alive"), worker(1, "given up"), worker(2, "lost")],
            scale: Some(ScaleStatus { servers: 2, servers_wanted: 4, workers_wanted, ..ScaleStatus::default() }),
            ..StatusResponse::default()
        };
        assert_eq!(WantedRoles::from_status(&status("training", 0)), Some(WantedRoles { servers: 4, workers: None }));
        let workers = Some(WantedWorkers { count: 5, vacant: [1, 3, 4].into() });
        let five = WantedRoles { servers: 4, workers };
        assert_eq!(WantedRoles::from_status(&status("training", 5)), Some(five));
        assert_eq!(WantedRoles::from_status(&status("finished", 5)), None);
        assert_eq!(WantedRoles::from_status(&StatusResponse { scale: None, ..status("training", 5) }), None);
    }

    #[tokio::test]
    async fn a_server_that_comes_back_with_its_rows_is_started_again_in_place_unless_it_ends_for_good() {
        for (how, is_good) in [("kill -9 $$", true), ("exit 4", true), ("exit 2", false), ("exit 143", false)] {
            let roles = [(RoleName::EmbeddingServer(1), how), (RoleName::DenseWorker(0), "exec sleep 2")];
            let mut supervisor = supervisor(&roles);
            let started = std::cell::Cell::new(0);
            // It is killed twice more.
            let start = |role: RoleName| {
                started.set(started.get() + 1);
                assert_eq!(role, RoleName::EmbeddingServer(1));
                Ok(shell(role, if started.get() < 3 { "kill -9 $$" } else { "exec sleep 60" }))
            };
            let ended = supervisor.watch_and_restart(&Shutdown::new(), servers(&start)).await;
            assert_eq!((ended.is_ok(), started.get()), (is_good, if is_good { 3 } else { 0 }), "{how}");
            let said = supervisor.console.said_lines().join("\n");
            assert_eq!(said.contains("starting it again in place now"), is_good, "{said}");
            supervisor.stop_all().await;
        }
    }

    #[tokio::test]
    async fn a_server_that_ends_well_before_its_worker_ends_no_run_but_one_that_fails_does() {
        for (server, is_good) in [("true", true), ("false", false)] {
            let roles = [(RoleName::EmbeddingServer(0), server), (RoleName::DenseWorker(0), "exec sleep 1")];
            assert_eq!(supervisor(&roles).watch().await.is_ok(), is_good, "{server}");
        }
    }

    #[tokio::test]
    async fn a_failed_coordinator_is_not_the_cause_unless_it_was_killed() {
        for (end, named) in [("exit 4", "dense worker 0"), ("kill -9 $$", "coordinator")] {
            let roles = [(RoleName::Coordinator, end), (RoleName::DenseWorker(0), "sleep 0.5; exit 3")];
            let message = format!("{:?}", supervisor(&roles).watch().await.unwrap_err());
            let is_worker = message.contains("ended with exit code 3");
            assert!(message.contains(&format!("{named} ")) && is_worker == (named != "coordinator"), "{message}");
        }
        let mut supervisor = Supervisor::new(Duration::from_millis(10));
        supervisor.add_child(shell(RoleName::Coordinator, "exit 4"));
        supervisor.add_child(shell(RoleName::DenseWorker(0), "exec sleep 60"));
        let message = format!("{:?}", supervisor.watch().await.unwrap_err());
        assert!(message.contains("coordinator ended with exit code 4"), "{message}");
        supervisor.stop_all().await;
    }

    #[tokio::test]
    async fn a_killed_worker_restarts_as_often_as_allowed() {
        const KILLED: &str = "kill -9 $$";
        for (restarts, is_good) in [(2, true), (1, false)] {
            let roles = [(RoleName::DenseWorker(0), KILLED), (RoleName::DenseWorker(1), "exec sleep 2")];
            let mut supervisor = supervisor(&roles);
            let started = std::cell::Cell::new(0);
            // The second of them lives.
            let start = |role: RoleName| {
                started.set(started.get() + 1);
                assert_eq!(role, RoleName::DenseWorker(0));
                Ok(shell(role, if started.get() < 2 { KILLED } else { "true" }))
            };
            let ended = supervisor.watch_and_restart(&Shutdown::new(), workers(restarts, 9, &start)).await;
            assert_eq!((ended.is_ok(), started.get()), (is_good, restarts), "{restarts}");
            supervisor.stop_all().await;
        }
        // A fenced worker restarts too, and one that fails by itself does not.
        let start = |role: RoleName| Ok(shell(role, "true"));
        let ended = supervisor(&[(RoleName::DenseWorker(0), "exit 7")])
            .watch_and_restart(&Shutdown::new(), workers(1, 9, &start))
            .await;
        assert!(ended.is_ok());
        let start = |_: RoleName| panic!("it was started again");
        let ended = supervisor(&[(RoleName::DenseWorker(0), "exit 3")])
            .watch_and_restart(&Shutdown::new(), workers(9, 9, &start))
            .await;
        assert!(ended.is_err());
    }

    #[tokio::test]
    async fn a_worker_is_missed_by_nobody_where_enough_are_left_or_the_first_has_finished() {
        let start = |_: RoleName| panic!("it was started again");
        let ended = async |first: &str, second: &str, least: usize| {
            let mut supervisor = supervisor(&[(RoleName::DenseWorker(0), first), (RoleName::DenseWorker(1), second)]);
            let ended = supervisor.watch_and_restart(&Shutdown::new(), workers(0, least, &start)).await;
            supervisor.stop_all().await;
            ended.is_ok()
        };
        assert!(ended("sleep 1", "kill -9 $$", 1).await, "one is enough");
        assert!(!ended("exec sleep 60", "kill -9 $$", 2).await);
        assert!(!ended("exec sleep 60", "exit 4", 1).await, "it was not lost, it failed");
        assert!(!ended("kill -9 $$", "exec sleep 60", 1).await, "the first is always needed");
        assert!(ended("exit 0", "sleep 0.5; exit 4", 2).await, "the first has saved the model");
    }
}
