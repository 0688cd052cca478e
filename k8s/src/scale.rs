//! The number of embedding servers changes while the run trains (ADR 55).
//!
//! The number belongs to the coordinator: it admits new servers, moves buckets, and lets a server go that owns none any more.
//! The operator asks it for the number of the spec, and makes as many pods as the coordinator then reports:
//!
//! ```text
//!  spec 5, run 3:  ask ──► run 5: two more pods ──► buckets move to them ──► settled
//!  spec 3, run 5:  ask ──► run 5: five pods stay ──► buckets move away  ──► run 3: two pods go ──► settled
//! ```
//!
//! Each look derives the step from the report that the status keeps. An operator that takes over thus continues there.

pub(crate) mod answer;
pub mod ask;

use crate::crd::{Progress, ServerScaling};

/// What the coordinator says of a run in which numbers can change.
const TRAINING: &str = "training";

/// The number of embedding servers: as it is wanted, and as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerScale {
    /// What the spec says.
    pub wanted: i32,
    /// With how many the attempt started.
    pub started: i32,
    /// The coordinator's last report, once somebody has changed the number.
    pub known: Option<ServerScaling>,
}

/// What a change of the number waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScaleStep {
    /// The run has the wanted number.
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
    pub fn pods(&self) -> i32 {
        self.known.as_ref().map_or(self.started, |known| known.servers)
    }

    /// How many of them stay. The others hand their buckets over, and how they end is of no consequence.
    #[must_use]
    pub fn staying(&self) -> i32 {
        self.pods().min(self.wanted)
    }

    /// The next step. `heard` is what the coordinator reported just now.
    #[must_use]
    pub fn step(&self, heard: Option<&Progress>) -> ScaleStep {
        let asked = self.known.as_ref().map_or(self.started, |known| known.wanted);
        if asked != self.wanted {
            let trains = heard.is_some_and(|report| report.state == TRAINING);
            return if trains { ScaleStep::Ask } else { ScaleStep::Wait };
        }
        match &self.known {
            Some(known) if known.servers != known.wanted || known.buckets_left > 0 => {
                ScaleStep::Moving(known.text.clone())
            }
            _ => ScaleStep::Settled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(wanted: i32, known: Option<(i32, i32, i32)>) -> ServerScale {
        let known = known.map(|(servers, wanted, buckets_left)| ServerScaling {
            servers,
            wanted,
            buckets_left,
            text: "4 buckets still move".to_owned(),
        });
        ServerScale { wanted, started: 3, known }
    }

    fn report(state: &str) -> Progress {
        Progress { state: state.to_owned(), ..Progress::default() }
    }

    #[test]
    fn the_coordinator_is_asked_when_it_answers_and_the_run_trains() {
        assert_eq!(scale(3, None).step(Some(&report("training"))), ScaleStep::Settled);
        assert_eq!(scale(5, None).step(None), ScaleStep::Wait);
        assert_eq!(scale(5, None).step(Some(&report("waiting"))), ScaleStep::Wait);
        assert_eq!(scale(5, None).step(Some(&report("training"))), ScaleStep::Ask);
        // Somebody asked for another number without the spec.
        assert_eq!(scale(3, Some((4, 4, 0))).step(Some(&report("training"))), ScaleStep::Ask);
    }

    #[test]
    fn pods_come_once_the_coordinator_admits_them_and_go_once_it_lets_them_go() {
        let pods = |wanted, known| {
            let scale = scale(wanted, known);
            (scale.pods(), scale.staying())
        };
        assert_eq!(pods(5, None), (3, 3), "it was not asked yet");
        assert_eq!(pods(5, Some((5, 5, 8))), (5, 5));
        assert_eq!(pods(2, Some((5, 5, 0))), (5, 2), "the fifth still owns buckets");
        assert_eq!(pods(2, Some((5, 2, 1))), (5, 2));
        assert_eq!(pods(2, Some((2, 2, 0))), (2, 2));
        assert_eq!(scale(2, Some((5, 2, 0))).step(None), ScaleStep::Moving("4 buckets still move".to_owned()));
        assert_eq!(scale(2, Some((2, 2, 0))).step(None), ScaleStep::Settled);
    }
}
