//! The totals of training: the reports of all workers, added up.

use std::time::Duration;

use zagros_protocol::control::Progress;

use crate::Role;
use crate::history::TrainingMoment;
use crate::members::{MemberRecord, Members};

/// A worker without a step for so long stands still. The speed that it last reported is then void.
const STILL: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TrainingTotals {
    pub(crate) samples: u64,
    pub(crate) moment: TrainingMoment,
}

impl TrainingTotals {
    /// The workers of a process group make the same steps, and each reports the samples of all. Asynchronous workers report
    /// their own steps and samples, which add up. In both cases the speed that a worker reports is its own.
    pub(crate) fn new(members: &Members, asynchronous: bool, now: Duration) -> Self {
        let workers: Vec<(&MemberRecord, Progress)> = members
            .iter()
            .filter(|(slot, _)| slot.role == Role::DenseWorker)
            .filter_map(|(_, member)| member.progress.map(|progress| (member, progress)))
            .collect();
        let foremost = workers.iter().map(|(_, progress)| progress).max_by_key(|progress| progress.step);
        let (step, samples) = match asynchronous {
            true => sum_of_all(members),
            false => foremost.map_or((0, 0), |progress| (progress.step, progress.samples)),
        };
        let losses: Vec<f64> = workers.iter().map(|(_, progress)| progress.loss).collect();
        let moment = TrainingMoment {
            step,
            samples_per_second: workers.iter().map(|(member, progress)| speed(now, member, progress)).sum(),
            loss: (!losses.is_empty()).then(|| losses.iter().sum::<f64>() / losses.len() as f64),
            staleness: workers.iter().map(|(_, progress)| progress.staleness).max().unwrap_or(0),
            auc: foremost.and_then(|progress| progress.auc),
        };
        Self { samples, moment }
    }
}

/// Steps and samples of all workers, also of processes that were lost.
fn sum_of_all(members: &Members) -> (u64, u64) {
    let workers = members.iter().filter(|(slot, _)| slot.role == Role::DenseWorker);
    workers.map(|(_, member)| member.reported_totals()).fold((0, 0), |(steps, samples): (u64, u64), made| {
        (steps.saturating_add(made.0), samples.saturating_add(made.1))
    })
}

/// Samples per second of a worker; 0 while it stands still.
fn speed(now: Duration, member: &MemberRecord, progress: &Progress) -> f64 {
    let is_still = member.stepped.is_none_or(|stepped| now.saturating_sub(stepped) > STILL);
    if is_still || !progress.samples_per_second.is_finite() { 0.0 } else { progress.samples_per_second }
}

#[cfg(test)]
pub(crate) mod tests {
    use zagros_protocol::control::{HeartbeatRequest, JoinRequest};
    use zagros_zip::number_from;

    use super::*;
    use crate::MemberSlot;

    pub(crate) fn time(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Two workers with their steps, last heard at `seconds`.
    pub(crate) fn workers(seconds: u64, steps: [u64; 2]) -> Members {
        let mut members = Members::new(time(10));
        for (index, step) in number_from(0, steps) {
            members.admit_member(time(0), MemberSlot::worker(index), &JoinRequest::default());
            let (samples, samples_per_second, loss, staleness) = (step.saturating_mul(10), 100.0, 0.5, index);
            let progress = Progress { step, samples, samples_per_second, loss, staleness, ..Progress::default() };
            let report = HeartbeatRequest { progress: Some(progress), ..HeartbeatRequest::default() };
            members.note_report(time(seconds), MemberSlot::worker(index), &report);
        }
        members
    }

    #[test]
    fn a_process_group_reports_the_same_steps_and_the_speeds_of_all_add_up() {
        let members = workers(1, [3, 4]);
        let sums = |totals: TrainingTotals| (totals.samples, totals.moment.step, totals.moment.samples_per_second);
        let group = TrainingTotals::new(&members, false, time(2));
        assert_eq!(sums(group), (40, 4, 200.0));
        assert_eq!((group.moment.loss, group.moment.staleness), (Some(0.5), 1));
        assert_eq!(sums(TrainingTotals::new(&members, true, time(2))), (70, 7, 200.0));
    }

    #[test]
    fn what_a_lost_asynchronous_worker_has_made_still_counts() {
        let mut members = workers(1, [3, 4]);
        members.admit_member(time(2), MemberSlot::worker(1), &JoinRequest::default());
        let totals = TrainingTotals::new(&members, true, time(2));
        assert_eq!((totals.samples, totals.moment.step), (70, 7));
        assert_eq!(TrainingTotals::new(&members, false, time(2)).moment.step, 3);
    }

    #[test]
    fn numbers_without_sense_do_not_overflow() {
        let moment = TrainingTotals::new(&workers(1, [u64::MAX, u64::MAX]), true, time(2));
        assert_eq!(moment.moment.step, u64::MAX);
    }

    #[test]
    fn a_worker_that_stands_still_has_no_speed_whatever_its_last_report() {
        let members = workers(1, [3, 3]);
        let rate = |seconds| TrainingTotals::new(&members, false, time(seconds)).moment.samples_per_second;
        assert_eq!((rate(11), rate(12)), (200.0, 0.0));
    }
}
