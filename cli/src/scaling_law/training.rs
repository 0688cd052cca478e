//! Trains runs in processes of their own, so many side by side, until all have ended, the time is over or a signal asks for the end.

use std::collections::BTreeMap;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::Pid;
use tokio::task::JoinSet;
use tokio::time::Instant;
use zagros_plumbing::lifecycle::Shutdown;
use zagros_shell::{Failure, OrInternal, note};

use super::member::FamilyMember;
use super::setup::FamilySetup;
use crate::train_process::{EndKind, TrainProcess, ask_to_end, failure_reason, hopeless_failure, wait_for_earlier};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TrainingEnd {
    Over,
    OutOfTime,
    /// A signal asked for it.
    Stopped,
}

type ProcessEnd = (usize, std::io::Result<ExitStatus>, Duration);

struct FamilyTraining<'a> {
    setup: &'a FamilySetup,
    members: &'a [FamilyMember],
    /// Number of the member that is started next.
    next: usize,
    running: BTreeMap<usize, Option<Pid>>,
    processes: JoinSet<ProcessEnd>,
}

/// Trains the members that are not complete. On every way out, no process is left. A run that fails by its own size is a note.
pub(super) async fn train(
    setup: &FamilySetup,
    members: &[FamilyMember],
    shutdown: &Shutdown,
    deadline: Instant,
) -> Result<TrainingEnd, Failure> {
    let mut training = FamilyTraining { setup, members, next: 0, running: BTreeMap::new(), processes: JoinSet::new() };
    let ended = training.run(shutdown, deadline).await;
    training.stop().await;
    ended
}

impl FamilyTraining<'_> {
    async fn run(&mut self, shutdown: &Shutdown, deadline: Instant) -> Result<TrainingEnd, Failure> {
        loop {
            while self.running.len() < self.setup.jobs && self.next < self.members.len() {
                self.start().await?;
            }
            if self.processes.is_empty() {
                return Ok(TrainingEnd::Over);
            }
            tokio::select! {
                Some(ended) = self.processes.join_next() => self.note_end(ended.or_internal()?)?,
                () = shutdown.requested() => return Ok(TrainingEnd::Stopped),
                () = tokio::time::sleep_until(deadline) => return Ok(TrainingEnd::OutOfTime),
            }
        }
    }

    /// Starts the next member, unless it is complete.
    async fn start(&mut self) -> Result<(), Failure> {
        let number = self.next;
        self.next += 1;
        let member = &self.members[number];
        wait_for_earlier(&member.folder).await?;
        if member.measured_points(self.setup).is_some() {
            return Ok(());
        }
        let folder = std::path::absolute(&member.folder).or_internal()?;
        let sets = FamilyMember { folder: folder.clone(), ..member.clone() }.job_sets(self.setup);
        let process = TrainProcess::start(&self.setup.file, &folder, &sets, &[]).or_internal()?;
        self.running.insert(number, process.pid());
        self.processes.spawn(async move {
            let (status, length) = process.wait_end().await;
            (number, status, length)
        });
        Ok(())
    }

    fn note_end(&mut self, (number, status, length): ProcessEnd) -> Result<(), Failure> {
        self.running.remove(&number);
        let status = status.or_internal()?;
        let member = &self.members[number];
        match EndKind::from_status(status) {
            EndKind::Well => {
                let last = member
                    .measured_points(self.setup)
                    .and_then(|points| points.last().map(|point| point.measured.loss));
                let loss =
                    last.map_or_else(|| "no log loss was measured".to_owned(), |loss| format!("log loss {loss:.5}"));
                note!("{}: {loss} ({:.1} s)", member.name(), length.as_secs_f64());
            }
            EndKind::Interrupted => {}
            EndKind::Failed => note!("{} failed: {}", member.name(), failure_reason(&member.folder, status)),
            EndKind::Hopeless => return Err(hopeless_failure(&member.name(), "family", &member.folder, status)),
        }
        Ok(())
    }

    /// Asks the running processes to save and end, and waits for them.
    async fn stop(&mut self) {
        self.running.values().flatten().copied().for_each(ask_to_end);
        while self.processes.join_next().await.is_some() {}
    }
}
