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

use zagros_protocol::control::ScaleRequest;

use super::Planner;
use crate::crd::{ConditionStatus, HybridJobSpec, RunProgress, SCALED, ServerScaling};
use crate::step::EventNote;

/// What the coordinator says of a run in which numbers can change.
const TRAINING: &str = "training";
/// Reason of a run whose coordinator refuses the wanted number.
const REFUSED: &str = "ScaleRefused";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemberCounts {
    pub(super) servers: i32,
    pub(super) workers: i32,
}

#[derive(Clone, Debug)]
pub(super) struct RunNumbers {
    wanted: MemberCounts,
    started: MemberCounts,
    /// The coordinator's last report, once a scale request has changed a number.
    known: Option<ServerScaling>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ScaleStep {
    Settled,
    /// The coordinator answers and the run trains: it is asked now, for numbers that it does not want already.
    Ask(ScaleRequest),
    /// The coordinator is asked once it answers and the run trains.
    Wait(ScaleRequest),
    /// The coordinator was asked. What happens, in its words.
    Moving(String),
}

impl RunNumbers {
    /// `started`: servers and workers of the attempt's job file. `report`: the newest one of the coordinator.
    pub(super) fn new(spec: &HybridJobSpec, started: Option<MemberCounts>, report: Option<&RunProgress>) -> Self {
        let wanted = MemberCounts { servers: spec.embedding_servers.replicas, workers: spec.dense_workers.replicas };
        let known = report.and_then(|report| report.scaling.clone());
        Self { wanted, started: started.unwrap_or(wanted), known }
    }

    /// The coordinator's report of the workers, once a scale request has changed their number.
    fn changed_workers(&self) -> Option<&ServerScaling> {
        self.known.as_ref().filter(|known| known.workers_wanted > 0)
    }

    /// How many pods there should be now. A worker's pod that comes before the coordinator was asked would be asked to leave. One
    /// beyond this number has its grace period to leave, and how it ends is of no consequence.
    pub(super) fn pods(&self) -> MemberCounts {
        MemberCounts {
            servers: self.known.as_ref().map_or(self.started.servers, |known| known.servers),
            workers: self.changed_workers().map_or(self.started.workers, |known| known.workers_wanted),
        }
    }

    /// How many of them stay. The other servers hand their buckets over, and how they end is of no consequence.
    pub(super) fn staying(&self) -> MemberCounts {
        let pods = self.pods();
        MemberCounts { servers: pods.servers.min(self.wanted.servers), ..pods }
    }

    /// How many workers train for certain: new ones that have not joined yet are not lost.
    pub(super) fn joined_workers(&self) -> i32 {
        self.changed_workers().map_or(self.started.workers, |known| known.workers).min(self.pods().workers)
    }

    /// `heard` is what the coordinator reported just now.
    fn next_step(&self, heard: Option<&RunProgress>) -> ScaleStep {
        let known = self.known.as_ref();
        let asked = known.map_or(self.started.servers, |known| known.wanted);
        let request = |asked: i32, wanted: i32| if asked == wanted { 0 } else { wanted.unsigned_abs() };
        let request = ScaleRequest {
            servers: request(asked, self.wanted.servers),
            workers: request(self.pods().workers, self.wanted.workers),
        };
        let is_asked = request == ScaleRequest::default();
        let servers_move = known.filter(|known| known.servers != known.wanted || known.buckets_left > 0);
        let workers_move = self.changed_workers().filter(|known| known.workers != known.workers_wanted);
        match servers_move.or(workers_move) {
            _ if !is_asked && heard.is_some_and(|report| report.state == TRAINING) => ScaleStep::Ask(request),
            _ if !is_asked => ScaleStep::Wait(request),
            Some(moving) => ScaleStep::Moving(moving.text.clone()),
            None => ScaleStep::Settled,
        }
    }
}

/// Of each role whose number the request names: its members, its field of the spec, the number, and what follows.
fn asked_numbers(request: ScaleRequest) -> impl Iterator<Item = (&'static str, &'static str, u32, &'static str)> {
    let (servers, moves) = ("spec.embeddingServers.replicas", "rows move between the servers");
    let (workers, joins) = ("spec.denseWorkers.replicas", "workers join or leave between two steps");
    let all =
        [("embedding servers", servers, request.servers, moves), ("dense workers", workers, request.workers, joins)];
    all.into_iter().filter(|(_, _, number, _)| *number > 0)
}

pub(super) fn admission_note(request: ScaleRequest) -> EventNote {
    let changes = asked_numbers(request).map(|(_, field, number, effect)| format!("{field} is {number}: {effect}"));
    let note = format!("{}, and the run goes on", changes.collect::<Vec<_>>().join("; "));
    EventNote::normal_note("Scaling", note)
}

fn refusal_message(request: ScaleRequest, words: &str) -> String {
    let numbers = asked_numbers(request).map(|(members, _, number, _)| format!("{number} {members}"));
    let fields = asked_numbers(request).map(|(_, field, ..)| field);
    format!(
        "the coordinator does not admit {}: {words}; correct {}",
        numbers.collect::<Vec<_>>().join(" and "),
        fields.collect::<Vec<_>>().join(" or ")
    )
}

impl Planner<'_> {
    /// Records how far a change is. A run whose number does not change has no such condition.
    pub(super) fn record_scale(&mut self) -> (ScaleStep, Option<EventNote>) {
        let step = self.numbers.next_step(self.seen.report.as_ref());
        let previous = self.recorded.condition(SCALED);
        // The refusal of this spec stays until the coordinator admits the number.
        let generation = self.job.metadata.generation;
        let is_refused = previous.is_some_and(|one| one.reason == REFUSED && one.observed_generation == generation);
        let was_open = previous.is_some_and(|one| one.status == ConditionStatus::False);
        let MemberCounts { servers, workers } = self.numbers.wanted;
        let numbers = format!("{servers} embedding servers and {workers} dense workers");
        let event = match &step {
            ScaleStep::Settled if previous.is_none() => None,
            ScaleStep::Settled => {
                let text = self.numbers.known.as_ref().map_or("", |known| known.text.as_str());
                let note = format!("the run has the wanted number: {text}");
                self.set(SCALED, true, "Done", &format!("the run has {numbers}"));
                was_open.then(|| EventNote::normal_note("Scaled", note))
            }
            ScaleStep::Ask(request) | ScaleStep::Wait(request) => match &self.seen.scale_refusal {
                Some(words) => {
                    let message = refusal_message(*request, words);
                    let is_news = previous.is_none_or(|one| one.message != message);
                    self.set(SCALED, false, REFUSED, &message);
                    is_news.then(|| EventNote::warning_note(REFUSED, message))
                }
                None if is_refused => None,
                None => {
                    let message = format!("the coordinator is asked for {numbers} once the run trains");
                    self.set(SCALED, false, "Scaling", &message);
                    None
                }
            },
            ScaleStep::Moving(text) => {
                self.set(SCALED, false, "Scaling", text);
                None
            }
        };
        (step, event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a run that started with three servers and two workers.
    fn numbers(servers: i32, workers: i32, known: Option<ServerScaling>) -> RunNumbers {
        let wanted = MemberCounts { servers, workers };
        RunNumbers { wanted, started: MemberCounts { servers: 3, workers: 2 }, known }
    }

    /// Servers, and those that the coordinator wants; buckets that still move.
    fn servers(servers: i32, wanted: i32, buckets_left: i32) -> Option<ServerScaling> {
        let text = "4 buckets still move".to_owned();
        Some(ServerScaling { servers, wanted, buckets_left, text, ..ServerScaling::default() })
    }

    /// Workers that train, and those that the coordinator wants.
    fn workers(workers: i32, workers_wanted: i32) -> Option<ServerScaling> {
        let text = "worker 2 has not joined".to_owned();
        Some(ServerScaling { servers: 3, wanted: 3, workers, workers_wanted, text, ..ServerScaling::default() })
    }

    fn report(state: &str) -> RunProgress {
        RunProgress { state: state.to_owned(), ..RunProgress::default() }
    }

    #[test]
    fn pods_of_workers_follow_what_the_coordinator_wants() {
        for (wanted, known, pods, joined, what) in [
            (4, None, 2, 2, "it was not asked yet"),
            (4, workers(0, 0), 2, 2, "only the servers' number was changed"),
            (4, workers(2, 4), 4, 2, "two have not joined yet"),
            (4, workers(4, 4), 4, 4, "all have joined"),
            (1, workers(4, 4), 4, 4, "it was not asked yet, or refuses"),
            (1, workers(4, 1), 1, 1, "it agrees"),
        ] {
            let numbers = numbers(3, wanted, known);
            assert_eq!((numbers.pods().workers, numbers.joined_workers()), (pods, joined), "{what}");
        }
    }

    #[test]
    fn the_coordinator_is_asked_when_it_answers_and_the_run_trains() {
        let (training, waiting) = (report("training"), report("waiting"));
        let request = |servers, workers| ScaleRequest { servers, workers };
        let moving = |text: &str| ScaleStep::Moving(text.to_owned());
        for (numbers, heard, expected) in [
            (numbers(3, 2, None), Some(&training), ScaleStep::Settled),
            (numbers(5, 2, None), None, ScaleStep::Wait(request(5, 0))),
            (numbers(5, 2, None), Some(&waiting), ScaleStep::Wait(request(5, 0))),
            (numbers(5, 2, None), Some(&training), ScaleStep::Ask(request(5, 0))),
            (numbers(5, 3, None), Some(&training), ScaleStep::Ask(request(5, 3))),
            (numbers(5, 2, servers(5, 5, 4)), None, moving("4 buckets still move")),
            (numbers(3, 3, workers(2, 3)), None, moving("worker 2 has not joined")),
            (numbers(3, 3, workers(3, 3)), None, ScaleStep::Settled),
            (numbers(3, 2, workers(3, 3)), Some(&training), ScaleStep::Ask(request(0, 2))),
            // A user asked the coordinator for another number, and did not change the spec.
            (numbers(3, 2, servers(4, 4, 0)), Some(&training), ScaleStep::Ask(request(3, 0))),
        ] {
            assert_eq!(numbers.next_step(heard), expected, "{numbers:?}");
        }
    }
}
