//! The numbers of embedding servers and dense workers change while the run trains (ADR 22).
//!
//! The numbers belong to the coordinator: it admits new servers, moves buckets, and lets a server go that owns none any more.
//! The operator asks it for the numbers of the spec, and makes as many pods as the coordinator then reports:
//!
//! ```text
//!  spec 5, run 3:  ask ──► run 5: two more pods ──► buckets move to them ──► settled
//!  spec 3, run 5:  ask ──► run 5: five pods stay ──► buckets move away  ──► run 3: two pods go ──► settled
//! ```
//!
//! Workers have no rows. A worker that is not wanted any more trains on what it has read, and leaves, once its pod or the
//! coordinator asks it to. So the operator asks the coordinator, and then makes as many pods as it wants:
//!
//! ```text
//!  spec 4, run 2:  ask ──► coordinator wants 4: two more pods ──► they join ──► settled
//!  spec 2, run 4:  ask ──► coordinator wants 2: two pods are asked to end ──► they leave ──► settled
//! ```
//!
//! Each look derives the step from the report that the status keeps. An operator that takes over thus continues there.

pub(crate) mod answer;

use crate::crd::{RunProgress, ServerScaling};

/// What the coordinator says of a run in which numbers can change.
const TRAINING: &str = "training";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerScale {
    pub wanted: i32,
    pub started: i32,
    /// The coordinator's last report, once a scale request has changed the number.
    pub known: Option<ServerScaling>,
}

/// The number of dense workers: as it is wanted, and as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerScale {
    pub wanted: i32,
    pub started: i32,
    /// The coordinator's last report, once a scale request has changed a number of the run.
    pub known: Option<ServerScaling>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScaleStep {
    Settled,
    /// The coordinator answers and the run trains: it is asked for the wanted number now.
    Ask,
    /// The coordinator is asked once it answers and the run trains.
    Wait,
    /// The coordinator was asked. What happens, in its words.
    Moving(String),
}

impl ServerScale {
    /// How many pods there should be now.
    #[must_use]
    pub fn pod_count(&self) -> i32 {
        self.known.as_ref().map_or(self.started, |known| known.servers)
    }

    /// How many of them stay. The others hand their buckets over, and how they end is of no consequence.
    #[must_use]
    pub fn staying_count(&self) -> i32 {
        self.pod_count().min(self.wanted)
    }

    /// The next step. `heard` is what the coordinator reported just now.
    #[must_use]
    pub fn next_step(&self, heard: Option<&RunProgress>) -> ScaleStep {
        let asked = self.known.as_ref().map_or(self.started, |known| known.wanted);
        let moving = self.known.as_ref().filter(|known| known.servers != known.wanted || known.buckets_left > 0);
        ScaleStep::new(asked == self.wanted, moving, heard)
    }
}

impl WorkerScale {
    /// The coordinator's report of the workers, once a scale request has changed their number.
    fn changed(&self) -> Option<&ServerScaling> {
        self.known.as_ref().filter(|known| known.workers_wanted > 0)
    }

    /// All stay. A pod that comes before the coordinator was asked would be asked to leave. A pod beyond this number
    /// has its grace period to leave, and how it ends is of no consequence.
    #[must_use]
    pub fn pod_count(&self) -> i32 {
        self.changed().map_or(self.started, |known| known.workers_wanted)
    }

    /// How many workers train for certain: new ones that have not joined yet are not lost.
    #[must_use]
    pub fn joined_count(&self) -> i32 {
        self.changed().map_or(self.started, |known| known.workers).min(self.pod_count())
    }

    #[must_use]
    pub fn next_step(&self, heard: Option<&RunProgress>) -> ScaleStep {
        let moving = self.changed().filter(|known| known.workers != known.workers_wanted);
        ScaleStep::new(self.pod_count() == self.wanted, moving, heard)
    }
}

impl ScaleStep {
    /// `moving` is the report of a change that is under way.
    fn new(is_asked: bool, moving: Option<&ServerScaling>, heard: Option<&RunProgress>) -> Self {
        match moving {
            _ if !is_asked && heard.is_some_and(|report| report.state == TRAINING) => Self::Ask,
            _ if !is_asked => Self::Wait,
            Some(moving) => Self::Moving(moving.text.clone()),
            None => Self::Settled,
        }
    }

    /// The step of both numbers together. They are one request, and one report.
    #[must_use]
    pub fn combine(self, other: Self) -> Self {
        match (self, other) {
            (Self::Ask, _) | (_, Self::Ask) => Self::Ask,
            (Self::Wait, _) | (_, Self::Wait) => Self::Wait,
            (Self::Moving(text), _) | (_, Self::Moving(text)) => Self::Moving(text),
            (Self::Settled, Self::Settled) => Self::Settled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(wanted: i32, known: Option<(i32, i32, i32)>) -> ServerScale {
        let known = known.map(|(servers, wanted, buckets_left)| {
            let text = "4 buckets still move".to_owned();
            ServerScaling { servers, wanted, buckets_left, text, ..ServerScaling::default() }
        });
        ServerScale { wanted, started: 3, known }
    }

    /// Of a run that started with two workers. `known` are those that train and those that the coordinator wants.
    fn workers(wanted: i32, known: Option<(i32, i32)>) -> WorkerScale {
        let known = known.map(|(workers, workers_wanted)| {
            let text = "worker 2 has not joined".to_owned();
            ServerScaling { workers, workers_wanted, text, ..ServerScaling::default() }
        });
        WorkerScale { wanted, started: 2, known }
    }

    #[test]
    fn pods_of_workers_follow_what_the_coordinator_wants() {
        let pods = |wanted, known| {
            let scale = workers(wanted, known);
            (scale.pod_count(), scale.joined_count())
        };
        assert_eq!(pods(4, None), (2, 2), "it was not asked yet");
        assert_eq!(pods(4, Some((0, 0))), (2, 2), "only the servers' number was changed");
        assert_eq!(pods(4, Some((2, 4))), (4, 2), "two have not joined yet");
        assert_eq!(pods(4, Some((4, 4))), (4, 4));
        assert_eq!(pods(1, Some((4, 4))), (4, 4), "it was not asked yet, or refuses");
        assert_eq!(pods(1, Some((4, 1))), (1, 1));
    }

    #[test]
    fn a_change_of_the_workers_is_asked_for_and_waited_for() {
        let training = report("training");
        assert_eq!(workers(2, None).next_step(Some(&training)), ScaleStep::Settled);
        assert_eq!(workers(3, None).next_step(Some(&report("waiting"))), ScaleStep::Wait);
        assert_eq!(workers(3, None).next_step(Some(&training)), ScaleStep::Ask);
        assert_eq!(workers(3, Some((2, 3))).next_step(None), ScaleStep::Moving("worker 2 has not joined".to_owned()));
        assert_eq!(workers(3, Some((3, 3))).next_step(None), ScaleStep::Settled);
        assert_eq!(workers(2, Some((3, 3))).next_step(Some(&training)), ScaleStep::Ask);
        let moving = || ScaleStep::Moving("4 buckets".to_owned());
        assert_eq!(ScaleStep::Settled.combine(ScaleStep::Ask), ScaleStep::Ask);
        assert_eq!(ScaleStep::Wait.combine(moving()), ScaleStep::Wait);
        assert_eq!(ScaleStep::Settled.combine(moving()), moving());
    }

    fn report(state: &str) -> RunProgress {
        RunProgress { state: state.to_owned(), ..RunProgress::default() }
    }

    #[test]
    fn the_coordinator_is_asked_when_it_answers_and_the_run_trains() {
        assert_eq!(scale(3, None).next_step(Some(&report("training"))), ScaleStep::Settled);
        assert_eq!(scale(5, None).next_step(None), ScaleStep::Wait);
        assert_eq!(scale(5, None).next_step(Some(&report("waiting"))), ScaleStep::Wait);
        assert_eq!(scale(5, None).next_step(Some(&report("training"))), ScaleStep::Ask);
        // A user asked the coordinator for another number, and did not change the spec.
        assert_eq!(scale(3, Some((4, 4, 0))).next_step(Some(&report("training"))), ScaleStep::Ask);
    }
}
