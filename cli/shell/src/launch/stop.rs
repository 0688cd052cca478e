//! The order in which the processes of a run end: a process ends before those that it needs, so that a checkpoint finds all
//! servers.
//!
//! ```text
//! dense workers ──► embedding servers ──► coordinator
//!  save a checkpoint   nothing to save      reports the end to members
//! ```

use std::time::Duration;

use zagros_plumbing::Deadline;

use crate::launch::child::RoleName;
use crate::launch::supervise::{GRACE, Supervisor, is_success, next_to_end};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StopPhase {
    Workers,
    Servers,
    Coordinator,
}

impl StopPhase {
    /// The phases in order. Each phase needs those that end after it.
    const ORDER: [Self; 3] = [Self::Workers, Self::Servers, Self::Coordinator];

    fn for_role(role: RoleName) -> Self {
        match role {
            RoleName::DenseWorker(_) => Self::Workers,
            RoleName::EmbeddingServer(_) => Self::Servers,
            RoleName::Coordinator => Self::Coordinator,
        }
    }
}

/// How long each phase of a run may take to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GracePeriods {
    /// Dense workers, which save.
    pub workers: Duration,
    /// Embedding servers, and then the coordinator.
    pub others: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PhaseEnd {
    Ended,
    Late,
    /// The child with this index has died, and the phase needs it.
    Without(usize),
    Hurried,
}

impl Supervisor {
    /// Ends all running processes. The coordinator reports the end, then each process is asked, then killed, each with a
    /// deadline.
    pub async fn end_all(&mut self) {
        if self.workers_finished() && self.wait_all(self.timeout).await {
            return;
        }
        let is_failed = !self.workers_finished();
        // A run that lost a process saves nothing more.
        let timeout = if is_failed { self.timeout.min(GRACE) } else { self.timeout };
        self.stop(GracePeriods { workers: timeout, others: timeout }).await;
    }

    /// Ends all running processes: asks them, then kills them.
    pub async fn stop_all(&mut self) {
        self.stop(GracePeriods { workers: self.timeout, others: self.timeout }).await;
    }

    /// Kills all running processes: a run that goes back to its newest checkpoint keeps nothing that they hold.
    pub async fn set_back(&mut self) {
        for child in self.children.iter_mut().filter(|child| child.ended.is_none()) {
            child.kill().await;
        }
    }

    /// Ends all running processes, phase by phase. A phase is asked once those that need it have ended.
    pub async fn stop(&mut self, grace: GracePeriods) {
        for phase in StopPhase::ORDER {
            let grace = if phase == StopPhase::Workers { grace.workers } else { grace.others };
            self.ask(phase);
            let (waited, grace) = match self.wait_for(phase, grace, true).await {
                PhaseEnd::Without(index) => {
                    self.report_missing(index);
                    let shortened = grace.min(GRACE);
                    (self.wait_for(phase, shortened, false).await, shortened)
                }
                waited => (waited, grace),
            };
            match waited {
                PhaseEnd::Ended => {}
                PhaseEnd::Hurried => return self.kill(&StopPhase::ORDER, "the run is to end at once").await,
                PhaseEnd::Late | PhaseEnd::Without(_) => {
                    self.kill(&[phase], &format!("it has not ended within {grace:?}")).await;
                }
            }
        }
    }

    /// Asks the workers to end. They save while the others still serve them.
    pub fn ask_workers(&mut self) {
        self.ask(StopPhase::Workers);
    }

    fn ask(&mut self, phase: StopPhase) {
        self.children
            .iter_mut()
            .filter(|child| StopPhase::for_role(child.role) == phase)
            .for_each(|child| child.ask_to_end());
    }

    /// Waits until the phase has ended, or until waiting is useless, as it is without a process that the phase still `needs`.
    async fn wait_for(&mut self, phase: StopPhase, grace: Duration, needs: bool) -> PhaseEnd {
        let deadline = Deadline::from_now(grace);
        while self.runs(phase) {
            if let Some(missing) = self.missing(phase).filter(|_| needs) {
                return PhaseEnd::Without(missing);
            }
            tokio::select! {
                index = next_to_end(&mut self.children) => if needs { self.report_end(index, phase) },
                () = self.hurry.requested() => return PhaseEnd::Hurried,
                () = tokio::time::sleep(deadline.time_left()) => return PhaseEnd::Late,
            }
        }
        PhaseEnd::Ended
    }

    fn runs(&self, phase: StopPhase) -> bool {
        self.children.iter().any(|child| StopPhase::for_role(child.role) == phase && child.ended.is_none())
    }

    /// A child that has died and that this phase needs.
    fn missing(&self, phase: StopPhase) -> Option<usize> {
        self.children.iter().position(|child| {
            StopPhase::for_role(child.role) > phase
                && child.ended.is_some()
                && !is_success(child.ended)
                && !child.was_asked()
        })
    }

    fn report_missing(&self, index: usize) {
        let child = &self.children[index];
        let (name, how) = (child.role.display_name(), child.describe_end());
        self.console.print_warning(format!("{name} {how}; nothing can be saved without it, so the others end now"));
    }

    /// Reports the end of a child, unless it ended as asked. The end of a child of another phase is reported when that
    /// child is needed.
    fn report_end(&self, index: usize, phase: StopPhase) {
        let child = &self.children[index];
        if StopPhase::for_role(child.role) == phase && !child.ended_as_asked() {
            self.console.print_warning(format!("{} {}", child.role.display_name(), child.describe_end()));
        }
    }

    async fn kill(&mut self, phases: &[StopPhase], why: &str) {
        for child in &mut self.children {
            if child.ended.is_none() && phases.contains(&StopPhase::for_role(child.role)) {
                let lost = match child.role {
                    RoleName::DenseWorker(_) => "; what was learned since the last checkpoint is lost",
                    _ => "",
                };
                self.console.print_warning(format!("{} is killed: {why}{lost}", child.role.display_name()));
                child.kill().await;
            }
        }
    }

    fn workers_finished(&self) -> bool {
        let workers = self.children.iter().filter(|child| StopPhase::for_role(child.role) == StopPhase::Workers);
        let mut workers = workers.filter(|child| !self.is_released(child)).peekable();
        workers.peek().is_some() && workers.all(|child| is_success(child.ended))
    }

    async fn wait_all(&mut self, timeout: Duration) -> bool {
        let hurry = self.hurry.clone();
        let everyone = async {
            for child in &mut self.children {
                child.wait().await;
            }
        };
        tokio::select! {
            ended = tokio::time::timeout(timeout, everyone) => ended.is_ok(),
            () = hurry.requested() => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use zagros_plumbing::Shutdown;

    use super::*;
    use crate::launch::child::shell;

    /// Long enough for every child of these tests on any machine.
    const LONG: Duration = Duration::from_secs(60);

    /// Never ends by itself.
    const STUCK: &str = "while :; do sleep 0.02; done";
    const HOUR: Duration = Duration::from_secs(3600);

    /// A supervisor of roles that run these commands on SIGTERM, and then add their names to the file `ended`. All have set their traps.
    async fn supervisor(folder: &Path, roles: &[(RoleName, &str)]) -> Supervisor {
        let mut supervisor = Supervisor::new(LONG);
        for (role, end) in roles {
            let name = role.file_name();
            let script = format!(
                "cd {}; trap '{end}; echo {name} >> ended; exit 143' TERM; touch {name}.up; {STUCK}",
                folder.display()
            );
            supervisor.add_child(shell(*role, &script));
            while !folder.join(format!("{name}.up")).exists() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        supervisor
    }

    fn ended(folder: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(folder.join("ended")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// The first worker ends long before the second, which still needs the servers.
    #[tokio::test]
    async fn servers_end_after_the_last_worker_and_the_coordinator_after_them() {
        let folder = tempfile::tempdir().unwrap();
        let roles = [
            (RoleName::Coordinator, ":"),
            (RoleName::EmbeddingServer(0), ":"),
            (RoleName::DenseWorker(0), "touch go"),
            (RoleName::DenseWorker(1), "while [ ! -e go ]; do sleep 0.02; done"),
        ];
        let mut supervisor = supervisor(folder.path(), &roles).await;
        supervisor.stop(GracePeriods { workers: LONG, others: LONG }).await;
        let mut order = ended(folder.path());
        // The workers end together. Which one writes its line first depends on the machine.
        order[..2].sort();
        assert_eq!(order, ["dense-worker-0", "dense-worker-1", "embedding-server-0", "coordinator"]);
    }

    #[tokio::test]
    async fn workers_without_their_server_are_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let mut supervisor = supervisor(folder.path(), &[(RoleName::DenseWorker(0), STUCK)]).await;
        supervisor.add_child(shell(RoleName::EmbeddingServer(0), "kill -9 $$"));
        // The grace period is an hour, so that only the test's own deadline could end a wait.
        supervisor.stop(GracePeriods { workers: HOUR, others: HOUR }).await;
        let said = supervisor.console.said_lines().join("\n");
        assert!(said.contains("embedding server 0 was killed by signal 9; nothing can be saved without it"), "{said}");
        assert!(said.contains("dense worker 0 is killed") && ended(folder.path()).is_empty(), "{said}");
    }

    #[tokio::test]
    async fn a_second_request_ends_everything_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let hurry = Shutdown::new();
        let roles = [(RoleName::EmbeddingServer(0), ":"), (RoleName::DenseWorker(0), STUCK)];
        let mut supervisor = supervisor(folder.path(), &roles).await;
        supervisor.hurry = hurry.clone();
        hurry.request();
        supervisor.stop(GracePeriods { workers: HOUR, others: HOUR }).await;
        assert!(supervisor.children.iter().all(|child| child.ended.is_some()) && ended(folder.path()).is_empty());
        let said = supervisor.console.said_lines().join("\n");
        assert!(said.contains("what was learned since the last checkpoint is lost"), "{said}");
    }

    /// A worker that exceeds its time is killed, and the others get their own time.
    #[tokio::test]
    async fn a_worker_that_does_not_end_is_killed_and_the_others_are_asked() {
        let folder = tempfile::tempdir().unwrap();
        let roles = [(RoleName::EmbeddingServer(0), ":"), (RoleName::DenseWorker(0), STUCK)];
        let mut supervisor = supervisor(folder.path(), &roles).await;
        supervisor.stop(GracePeriods { workers: Duration::from_millis(50), others: LONG }).await;
        assert_eq!(ended(folder.path()), ["embedding-server-0"]);
    }
}
