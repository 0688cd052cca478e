//! Training over time, as members report it: its curve, its checkpoints, its evaluations.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use zagros_protocol::NumberPace;
use zagros_protocol::control::{CheckpointMark, Evaluation, Progress};

use crate::history::TrainingHistory;
use crate::totals::TrainingTotals;

const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
const CHECKPOINTS_KEPT: usize = 12;
/// Evaluations that are remembered. Older ones are in the worker's run folder.
pub(crate) const EVALUATIONS_KEPT: usize = 1000;

/// The part of the training that is remembered besides the members' last reports.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct TrainingWatch {
    pub(crate) history: TrainingHistory,
    sampled: Option<Duration>,
    since: Option<Duration>,
    /// Step of a checkpoint, and when it was first reported; oldest first.
    checkpoints: VecDeque<(u64, Duration)>,
    /// The newest evaluations, oldest first.
    pub(crate) evaluations: VecDeque<Evaluation>,
    /// The largest step or batch number that a worker has reported.
    pub(crate) batches: NumberPace,
    /// Whether the first worker has reported a step. Its first one may be that of a checkpoint, far from 0.
    has_steps: bool,
}

impl TrainingWatch {
    pub(crate) fn is_due(&mut self, now: Duration) -> bool {
        self.since.get_or_insert(now);
        self.sampled.is_none_or(|sampled| now.saturating_sub(sampled) >= SAMPLE_INTERVAL)
    }

    pub(crate) fn sample(&mut self, now: Duration, totals: TrainingTotals) {
        self.sampled = Some(now);
        // Before the first step there is nothing to draw.
        if totals.samples > 0 {
            self.history.add(now, totals.moment);
        }
    }

    /// Notes the progress that a worker reports. The first worker alone reads and writes checkpoints.
    pub(crate) fn note_progress(&mut self, now: Duration, is_first: bool, progress: Progress) {
        let number = progress.step.max(progress.batch);
        if is_first && !self.has_steps && number > 0 {
            self.has_steps = true;
            self.batches.note_reached(number);
        }
        self.batches.approach_claim(now, number);
        if !is_first {
            return;
        }
        let newest = self.checkpoints.back().map_or(0, |(newest, _)| *newest);
        if progress.checkpoint_step > newest {
            push_bounded(&mut self.checkpoints, CHECKPOINTS_KEPT, (progress.checkpoint_step, now));
        }
    }

    pub(crate) fn add_evaluation(&mut self, evaluation: Evaluation) {
        let which = |evaluation: &Evaluation| (evaluation.step, evaluation.epoch, evaluation.part);
        if self.evaluations.back().is_some_and(|newest| which(newest) == which(&evaluation)) {
            // The answer to the first report was lost.
            return;
        }
        push_bounded(&mut self.evaluations, EVALUATIONS_KEPT, evaluation);
    }

    pub(crate) fn training_time(&self, now: Duration) -> Duration {
        self.since.map(|since| now.saturating_sub(since)).unwrap_or_default()
    }

    /// The newest checkpoints, oldest first.
    pub(crate) fn checkpoint_marks(&self, now: Duration) -> Vec<CheckpointMark> {
        let mark = |(step, at): &(u64, Duration)| {
            let age = now.saturating_sub(*at);
            CheckpointMark { step: *step, age_seconds: age.as_secs_f64() }
        };
        self.checkpoints.iter().map(mark).collect()
    }
}

/// Adds a value. Drops the oldest value if there is no room.
pub(crate) fn push_bounded<T>(values: &mut VecDeque<T>, most: usize, value: T) {
    if values.len() == most {
        values.pop_front();
    }
    values.push_back(value);
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use zagros_protocol::pace::{MOST_AT_ONCE, MOST_PER_SECOND};

    use super::*;
    use crate::members::Members;
    use crate::totals::tests::{time, workers};

    fn sample(watch: &mut TrainingWatch, now: Duration, members: &Members) {
        if watch.is_due(now) {
            watch.sample(now, TrainingTotals::new(members, false, now));
        }
    }

    #[test]
    fn samples_are_a_second_apart_and_begin_with_the_first_step() {
        let mut watch = TrainingWatch::default();
        sample(&mut watch, time(0), &workers(0, [0, 0]));
        for millis in (1000..4000).step_by(100) {
            sample(&mut watch, Duration::from_millis(millis), &workers(1, [3, 3]));
        }
        assert_eq!(watch.training_time(time(3)), time(3));
        assert_eq!(watch.history.points.iter().map(|point| point.seconds).collect::<Vec<_>>(), [2.0, 3.0]);
    }

    #[test]
    fn the_newest_checkpoints_are_remembered_with_their_age() {
        let mut watch = TrainingWatch::default();
        let report = |watch: &mut TrainingWatch, step| {
            watch.note_progress(time(step), true, Progress { checkpoint_step: step, ..Progress::default() });
        };
        for step in [0, 5, 5, 9, 7] {
            report(&mut watch, step);
        }
        let checkpoints = [CheckpointMark { step: 5, age_seconds: 5.0 }, CheckpointMark { step: 9, age_seconds: 1.0 }];
        assert_eq!(watch.checkpoint_marks(time(10)), checkpoints);
        for step in 10..100 {
            report(&mut watch, step);
        }
        assert_eq!(watch.checkpoint_marks(time(100)).len(), CHECKPOINTS_KEPT);
    }

    /// Rows age by this number, so one worker must not run their time to its end.
    #[test]
    fn a_number_without_sense_moves_the_newest_one_by_little_and_a_checkpoint_is_reported_by_the_first_worker_alone() {
        let mut watch = TrainingWatch::default();
        let far = Progress { step: u64::MAX, batch: u64::MAX, checkpoint_step: u64::MAX, ..Progress::default() };
        watch.note_progress(time(0), false, far);
        assert_eq!((watch.batches.newest_number(), watch.checkpoint_marks(time(0)).len()), (MOST_AT_ONCE, 0));
        // A run that goes on from a checkpoint begins far from 0, whichever worker reports first.
        watch.note_progress(time(0), true, Progress::default());
        watch.note_progress(time(0), true, Progress { step: 1 << 40, ..Progress::default() });
        assert_eq!(watch.batches.newest_number(), 1 << 40);
        for _ in 0..100 {
            watch.note_progress(time(1), false, far);
            watch.note_progress(time(1), true, Progress { checkpoint_step: 0, ..far });
        }
        assert_eq!(watch.batches.newest_number(), (1 << 40) + MOST_PER_SECOND);
    }
}
