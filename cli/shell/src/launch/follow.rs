//! The servers and workers that a run is to have, and the processes that follow from it.
//!
//! | process | started | asked to end |
//! |---|---|---|
//! | embedding server | it is wanted, and was never started or has handed its buckets over | never: it ends by itself |
//! | dense worker | it is wanted, and no process holds its slot | it is not wanted any more |

use crate::Failure;
use crate::launch::child::{ChildProcess, RoleName};
use crate::launch::restart::RestartBudget;
use crate::launch::supervise::{Supervisor, WantedRoles, WantedWorkers, is_success};

impl Supervisor {
    pub(crate) fn follow(&mut self, wanted: WantedRoles, restarts: &RestartBudget<'_>) -> Result<(), Failure> {
        self.start_servers(wanted.servers, restarts)?;
        match wanted.workers {
            Some(workers) => self.change_workers(&workers, restarts),
            None => Ok(()),
        }
    }

    /// Starts the embedding servers below `count` that were never started, or that have handed their buckets over and ended.
    fn start_servers(&mut self, count: u32, restarts: &RestartBudget<'_>) -> Result<(), Failure> {
        for role in (0..count).map(RoleName::EmbeddingServer) {
            let known = self.children.iter().position(|child| child.role == role);
            if known.is_some_and(|index| !is_success(self.children[index].ended)) {
                continue;
            }
            self.console.print_line(format!("{} is wanted; starting it", role.display_name()));
            self.put(known, (restarts.start)(role)?);
        }
        Ok(())
    }

    fn change_workers(&mut self, wanted: &WantedWorkers, restarts: &RestartBudget<'_>) -> Result<(), Failure> {
        self.workers_wanted = Some(wanted.count);
        for child in self.children.iter_mut().filter(|child| is_beyond(child.role, wanted.count)) {
            if child.ended.is_none() && !child.was_asked() {
                let name = child.role.display_name();
                self.console
                    .print_line(format!("{name} is not wanted any more; it trains on what it has read, and leaves"));
                child.ask_to_end();
            }
        }
        let first = self.children.iter().find(|child| child.role == RoleName::DenseWorker(0));
        if first.is_some_and(|first| first.ended.is_some()) {
            return Ok(());
        }
        for index in wanted.vacant.iter().copied() {
            let role = RoleName::DenseWorker(index);
            let known = self.children.iter().position(|child| child.role == role);
            // One that failed would fail again.
            if known.is_some_and(|known| !has_left(&self.children[known])) {
                continue;
            }
            self.console.print_line(format!("{} is wanted; starting it", role.display_name()));
            self.put(known, (restarts.join)(index)?);
        }
        Ok(())
    }

    fn put(&mut self, place: Option<usize>, child: ChildProcess) {
        match place {
            Some(place) => self.children[place] = child,
            None => self.children.push(child),
        }
    }

    /// Whether a child was a dense worker that is not wanted any more. However it ended, the run goes on without it.
    pub(crate) fn is_released(&self, child: &ChildProcess) -> bool {
        self.workers_wanted.is_some_and(|wanted| is_beyond(child.role, wanted))
    }
}

fn is_beyond(role: RoleName, wanted: u32) -> bool {
    matches!(role, RoleName::DenseWorker(index) if index >= wanted)
}

/// Whether it has ended well, or in whatever way after it was asked to.
fn has_left(child: &ChildProcess) -> bool {
    is_success(child.ended) || (child.ended.is_some() && child.was_asked())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::Duration;

    use tokio::sync::watch;
    use zagros_plumbing::Shutdown;

    use super::*;
    use crate::launch::child::shell as child;
    use crate::launch::supervise::WatchEnd;

    fn servers(servers: u32) -> WantedRoles {
        WantedRoles { servers, workers: None }
    }

    fn workers(count: u32, vacant: &[u32]) -> WantedRoles {
        WantedRoles { servers: 0, workers: Some(WantedWorkers { count, vacant: vacant.iter().copied().collect() }) }
    }

    #[tokio::test]
    async fn servers_that_are_wanted_are_started_once_each_and_again_after_they_have_ended_well() {
        let wanted = watch::Sender::new(servers(1));
        let mut supervisor = Supervisor::new(Duration::from_secs(60));
        supervisor.wanted = Some(wanted.subscribe());
        supervisor.add_child(child(RoleName::EmbeddingServer(0), "sleep 60"));
        supervisor.add_child(child(RoleName::EmbeddingServer(1), "true"));
        supervisor.add_child(child(RoleName::DenseWorker(0), "sleep 60"));
        supervisor.children[1].wait().await;
        let started = RefCell::new(Vec::new());
        let shutdown = Shutdown::new();
        let start = |role: RoleName| {
            started.borrow_mut().push(role);
            // The last one to be started ends the test, once the number has been announced again.
            if role == RoleName::EmbeddingServer(2) {
                wanted.send_replace(servers(3));
                shutdown.request();
            }
            Ok(child(role, "sleep 60"))
        };
        let budget = || RestartBudget::without_restarts(&start);
        wanted.send_replace(servers(3));
        let ended = supervisor.watch_and_restart(&shutdown, budget()).await;
        assert_eq!(ended.unwrap(), WatchEnd::StopRequested);
        supervisor.start_servers(3, &budget()).unwrap();
        assert_eq!(*started.borrow(), [RoleName::EmbeddingServer(1), RoleName::EmbeddingServer(2)]);
        assert_eq!(supervisor.server_count(), 3);
        supervisor.end_all().await;
    }

    #[tokio::test]
    async fn workers_come_and_go_as_they_are_wanted() {
        let mut supervisor = Supervisor::new(Duration::from_secs(60));
        supervisor.add_child(child(RoleName::DenseWorker(0), "sleep 60"));
        let joined = RefCell::new(Vec::new());
        let start = |role: RoleName| panic!("{} was started to take the place of another process", role.display_name());
        let join = |index| {
            joined.borrow_mut().push(index);
            Ok(child(RoleName::DenseWorker(index), "sleep 60"))
        };
        let budget = || RestartBudget { join: &join, ..RestartBudget::without_restarts(&start) };
        // A worker takes its time to join.
        for _ in 0..2 {
            supervisor.follow(workers(3, &[1, 2]), &budget()).unwrap();
        }
        assert_eq!(*joined.borrow(), [1, 2]);
        supervisor.follow(workers(2, &[]), &budget()).unwrap();
        supervisor.children[2].wait().await;
        assert!(supervisor.is_released(&supervisor.children[2]) && !supervisor.is_released(&supervisor.children[1]));
        supervisor.follow(workers(3, &[2]), &budget()).unwrap();
        assert_eq!(*joined.borrow(), [1, 2, 2]);
        // When the first has ended, the run is all but over.
        supervisor.children[0].kill().await;
        supervisor.follow(workers(4, &[3]), &budget()).unwrap();
        assert_eq!(joined.borrow().len(), 3);
        supervisor.end_all().await;
    }

    #[tokio::test]
    async fn a_worker_that_is_killed_while_it_leaves_ends_no_run_and_is_not_started_again() {
        let wanted = watch::Sender::new(workers(2, &[]));
        let mut supervisor = Supervisor::new(Duration::from_secs(60));
        supervisor.wanted = Some(wanted.subscribe());
        supervisor.add_child(child(RoleName::DenseWorker(0), "sleep 1"));
        supervisor.add_child(child(RoleName::DenseWorker(1), "trap 'kill -9 $$' TERM; while :; do sleep 0.05; done"));
        let start = |role: RoleName| panic!("{} was started again", role.display_name());
        wanted.send_replace(workers(1, &[]));
        let budget = RestartBudget { left: 9, ..RestartBudget::without_restarts(&start) };
        let ended = supervisor.watch_and_restart(&Shutdown::new(), budget).await;
        assert_eq!(ended.unwrap(), WatchEnd::Done);
        assert!(supervisor.children[1].ended.is_some_and(|status| !status.success()));
    }
}
