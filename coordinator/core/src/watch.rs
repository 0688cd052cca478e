//! What the coordinator makes of what members tell: one picture of the training, kept over time.

use std::collections::VecDeque;
use std::time::Duration;

use zagros_protocol::control::{CheckpointMark, Progress};

use crate::core::CoreConfig;
use crate::history::{History, Moment};
use crate::members::{Member, Members};
use crate::{MemberSlot, Role};

/// How often training is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// A worker that has made no step for so long makes none: the speed it told last is of the past.
const STILL: Duration = Duration::from_secs(10);
/// Checkpoints that are remembered.
const CHECKPOINTS_KEPT: usize = 12;

/// What is remembered of the training besides what members told last.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    pub(crate) history: History,
    looked: Option<Duration>,
    /// When training began.
    pub(crate) since: Option<Duration>,
    /// Step of a checkpoint, and when it was first heard of; oldest first.
    checkpoints: VecDeque<(u64, Duration)>,
}

/// The training of all workers together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Together {
    pub(crate) samples: u64,
    pub(crate) moment: Moment,
}

impl Watch {
    /// Looks at a training that goes on.
    pub(crate) fn look(&mut self, now: Duration, config: &CoreConfig, members: &Members) {
        self.since.get_or_insert(now);
        if self.looked.is_some_and(|looked| now.saturating_sub(looked) < LOOK) {
            return;
        }
        self.looked = Some(now);
        let together = together(now, config, members);
        // Before the first step there is nothing to draw.
        if together.samples > 0 {
            self.history.add(now, together.moment);
        }
    }

    /// Takes note of what a worker told.
    pub(crate) fn told(&mut self, now: Duration, progress: Progress) {
        let step = progress.checkpoint_step;
        let newest = self.checkpoints.back().map_or(0, |(newest, _)| *newest);
        if step <= newest {
            return;
        }
        if self.checkpoints.len() == CHECKPOINTS_KEPT {
            self.checkpoints.pop_front();
        }
        self.checkpoints.push_back((step, now));
    }

    pub(crate) fn checkpoints(&self, now: Duration) -> Vec<CheckpointMark> {
        let mark =
            |(step, at): &(u64, Duration)| CheckpointMark { step: *step, age_ms: millis(now.saturating_sub(*at)) };
        self.checkpoints.iter().map(mark).collect()
    }
}

/// Workers that step together tell the same steps and samples, all of them of all; others each its own. The speed that a worker
/// tells is its own in any case.
pub(crate) fn together(now: Duration, config: &CoreConfig, members: &Members) -> Together {
    let workers: Vec<(&Member, Progress)> = members
        .iter()
        .filter(|(slot, _)| slot.role == Role::DenseWorker)
        .filter_map(|(_, member)| member.progress.map(|progress| (member, progress)))
        .collect();
    let rate = |(member, progress): &(&Member, Progress)| {
        let is_still = member.stepped.is_none_or(|stepped| now.saturating_sub(stepped) > STILL);
        if is_still || !progress.samples_per_second.is_finite() { 0.0 } else { progress.samples_per_second }
    };
    let foremost = || workers.iter().max_by_key(|(_, progress)| progress.step);
    let losses: Vec<f64> = workers.iter().map(|(_, progress)| progress.loss).collect();
    let (samples, step) = if config.apart {
        let sum = |of: fn(&Progress) -> u64| workers.iter().map(|(_, progress)| of(progress)).sum();
        (sum(|told| told.samples), sum(|told| told.step))
    } else {
        let of = |of: fn(&Progress) -> u64| foremost().map_or(0, |(_, progress)| of(progress));
        (of(|told| told.samples), of(|told| told.step))
    };
    let moment = Moment {
        step,
        samples_per_second: workers.iter().map(rate).sum(),
        loss: (!losses.is_empty()).then(|| losses.iter().sum::<f64>() / losses.len() as f64),
        staleness: workers.iter().map(|(_, progress)| progress.staleness).max().unwrap_or(0),
        auc: foremost().and_then(|(_, progress)| progress.auc),
    };
    Together { samples, moment }
}

/// Buckets that a server owns.
pub(crate) fn buckets_of(slot: MemberSlot, owners: impl Iterator<Item = u32>) -> u32 {
    match slot.role {
        Role::EmbeddingServer => owners.filter(|owner| *owner == slot.index).count() as u32,
        Role::DenseWorker => 0,
    }
}

/// Milliseconds, which no run has too many of.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use zagros_protocol::control::{HeartbeatRequest, JoinRequest};

    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn config(apart: bool) -> CoreConfig {
        CoreConfig {
            run: zagros_protocol::RunId(1),
            job: "test".to_owned(),
            servers: 1,
            workers: 2,
            min_workers: 2,
            buckets: 4,
            epochs: 1,
            fixed_splits: false,
            order: crate::SplitOrder::AsInFiles,
            apart,
            staleness: 4,
            checkpoint_every: None,
            lease: at(10),
            timeout: at(30),
            fingerprint: 1,
        }
    }

    /// Two workers at a step each, which were heard at `seconds`.
    fn workers(seconds: u64, steps: [u64; 2]) -> Members {
        let mut members = Members::new(at(10));
        for (index, step) in (0..).zip(steps) {
            members.admit(at(0), MemberSlot::worker(index), &JoinRequest::default());
            let progress = Progress {
                step,
                samples: step * 10,
                samples_per_second: 100.0,
                loss: 0.5,
                staleness: index,
                ..Progress::default()
            };
            let told = HeartbeatRequest { progress: Some(progress), ..HeartbeatRequest::default() };
            members.report(at(seconds), MemberSlot::worker(index), &told);
        }
        members
    }

    #[test]
    fn workers_in_step_tell_the_same_steps_and_the_speeds_of_all_add_up() {
        let members = workers(1, [3, 4]);
        let in_step = together(at(2), &config(false), &members);
        assert_eq!((in_step.samples, in_step.moment.step, in_step.moment.samples_per_second), (40, 4, 200.0));
        assert_eq!((in_step.moment.loss, in_step.moment.staleness), (Some(0.5), 1));
        let apart = together(at(2), &config(true), &members);
        assert_eq!((apart.samples, apart.moment.step, apart.moment.samples_per_second), (70, 7, 200.0));
    }

    #[test]
    fn a_worker_that_stands_still_has_no_speed_whatever_it_told_last() {
        let members = workers(1, [3, 3]);
        let rate = |seconds| together(at(seconds), &config(false), &members).moment.samples_per_second;
        assert_eq!((rate(11), rate(12)), (200.0, 0.0));
    }

    #[test]
    fn looks_are_a_second_apart_and_begin_with_the_first_step() {
        let mut watch = Watch::default();
        watch.look(at(0), &config(false), &workers(0, [0, 0]));
        for millis in (1000..4000).step_by(100) {
            watch.look(Duration::from_millis(millis), &config(false), &workers(1, [3, 3]));
        }
        assert_eq!(watch.since, Some(at(0)));
        assert_eq!(watch.history.points().iter().map(|point| point.at_ms).collect::<Vec<_>>(), [2000, 3000]);
    }

    #[test]
    fn the_newest_checkpoints_are_remembered_with_their_age() {
        let mut watch = Watch::default();
        for step in [0, 5, 5, 9, 7] {
            watch.told(at(step), Progress { checkpoint_step: step, ..Progress::default() });
        }
        let told = watch.checkpoints(at(10));
        assert_eq!(told, [CheckpointMark { step: 5, age_ms: 5000 }, CheckpointMark { step: 9, age_ms: 1000 }]);
        for step in 10..100 {
            watch.told(at(step), Progress { checkpoint_step: step, ..Progress::default() });
        }
        assert_eq!(watch.checkpoints(at(100)).len(), CHECKPOINTS_KEPT);
    }

    #[test]
    fn a_servers_buckets_are_those_that_the_map_gives_it() {
        let owners = || [0, 1, 1, 0, 1].into_iter();
        assert_eq!([0, 1, 2].map(|index| buckets_of(MemberSlot::server(index), owners())), [2, 3, 0]);
        assert_eq!(buckets_of(MemberSlot::worker(1), owners()), 0);
    }
}
