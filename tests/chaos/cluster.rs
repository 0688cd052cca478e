//! The processes of one round, started and watched as `zagros up` does.

use std::path::Path;
use std::time::Duration;

use zagros_shell::launch::{
    ChildProcess, GracePeriods, LaunchPlan, RestartBudget, RoleName, Supervisor, WatchEnd, WorkerLoss, is_complete,
};
use zagros_shell::{Announcement, Exit, Failure};

use crate::injector::RoundView;
use crate::link::LinkName;

/// Time for the processes of an interrupted round to end.
const GRACE: Duration = Duration::from_secs(5);

pub(crate) struct RoundCluster<'a> {
    pub(crate) plan: LaunchPlan<'a>,
    pub(crate) socket: &'a Path,
    /// Its recorder learns when the run goes back.
    pub(crate) round: &'a RoundView<'a>,
}

impl RoundCluster<'_> {
    /// Trains to the end. Lost processes are started again, in mode `sync` all of them.
    pub(crate) async fn train(&self) -> Result<(), Failure> {
        let RoundView { job, stop, recorder, scaling, .. } = *self.round;
        loop {
            let mut supervisor = Supervisor::new(job.cluster.timeout);
            supervisor.console = self.plan.output.console.clone();
            supervisor.wanted = Some(scaling.wanted.subscribe());
            supervisor.is_tireless = true;
            let ended = self.train_in(&mut supervisor).await;
            if stop.is_requested() {
                supervisor.stop(GracePeriods { workers: GRACE, others: GRACE }).await;
                return ended;
            }
            // As in `zagros up`: a process that is lost after the run has written everything is not needed any more.
            let ended = if is_complete(self.plan.folder) { Ok(()) } else { ended };
            let goes_back = ended.is_err()
                && WorkerLoss::from_job(job) == WorkerLoss::SetsRunBack
                && supervisor.lost_worker().is_some();
            if !goes_back {
                supervisor.end_all().await;
                return ended;
            }
            supervisor.set_back().await;
            recorder.go_back().await;
        }
    }

    async fn train_in(&self, supervisor: &mut Supervisor) -> Result<(), Failure> {
        let Self { plan, round: RoundView { job, stop, scaling, .. }, .. } = self;
        plan.start_coordinator(supervisor).await?;
        let announced = Announcement::read(&RoleName::Coordinator.announcement_file(plan.folder));
        let help = "is the run folder still there?";
        let gone = || Failure::with_help(Exit::Storage, "the coordinator's announcement is gone", help);
        let coordinator = announced.ok_or_else(gone)?;
        for index in 0..job.cluster.servers {
            supervisor.add_child(self.start_server(index)?);
        }
        for index in 0..job.cluster.workers {
            supervisor.add_child(self.start_worker(index, &[])?);
        }
        let start = |role| match role {
            RoleName::DenseWorker(index) => self.start_worker(index, &["--supersede"]),
            RoleName::EmbeddingServer(index) => self.start_server(index),
            RoleName::Coordinator => plan.restart_coordinator(&coordinator),
        };
        let is_in_place = |role| !matches!(role, RoleName::DenseWorker(_));
        let left = if WorkerLoss::from_job(job) == WorkerLoss::Replaced { u32::MAX } else { 0 };
        let least = job.cluster.least_workers() as usize;
        let join = |index| self.start_worker(index, &[]);
        let restarts = RestartBudget { left, least, is_in_place: &is_in_place, start: &start, join: &join };
        let watched = tokio::select! {
            watched = supervisor.watch_and_restart(stop, restarts) => watched,
            never = scaling.follow() => match never {},
        };
        match watched? {
            WatchEnd::Done => Ok(()),
            WatchEnd::StopRequested => Err(Failure::with_help(Exit::Cluster, "the round was ended", "see above")),
        }
    }

    /// Workers reach it over its link.
    fn start_server(&self, index: u32) -> Result<ChildProcess, Failure> {
        let role = RoleName::EmbeddingServer(index);
        let advertised = self.round.links.address(LinkName::Server(index)).unwrap_or_default();
        self.plan.start_role(role, self.coordinator_of(role), &["--advertise", advertised])
    }

    fn start_worker(&self, index: u32, more: &[&str]) -> Result<ChildProcess, Failure> {
        let socket = self.socket.display().to_string();
        let coordinator = self.coordinator_of(RoleName::DenseWorker(index));
        self.plan.start_worker(index, coordinator, &[more, &["--push-recorder", &socket]].concat())
    }

    /// Where a member reaches the coordinator. Each member has a link.
    fn coordinator_of(&self, member: RoleName) -> &str {
        self.round.links.address(LinkName::Coordinator(member)).unwrap_or_default()
    }
}
