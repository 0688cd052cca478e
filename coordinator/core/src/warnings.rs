//! Warnings for a person, in words, of what the doctor does not look at: a function of the status alone.

use std::f64::consts::LN_2;
use std::time::Duration;

use zagros_protocol::control::{MemberStatus, StatusResponse};

use crate::{MemberSlot, Role};

/// A worker without a step for so long is named. Scoring a held-out part may take as long, so this is no fault.
const STILL: Duration = Duration::from_secs(60);
/// A checkpoint is late after so many intervals, as in monitoring/rules.
const LATE: u32 = 3;

/// The warnings, worst first. `training` is how long the run has trained. A run that is over has no warnings: its reason
/// says what went wrong.
pub(crate) fn status_warnings(status: &StatusResponse, training: Duration) -> Vec<String> {
    if !matches!(status.state.as_str(), "training" | "waiting") {
        return Vec::new();
    }
    let of_members = |of: fn(MemberSlot, &MemberStatus) -> Option<String>| {
        status.members.iter().filter_map(move |member| of(slot(member)?, member))
    };
    let mut all: Vec<String> = of_members(given_up).collect();
    all.extend(not_finite(status));
    all.extend(diverging(status));
    all.extend(late_checkpoint(status, training));
    all.extend(of_members(still));
    all
}

fn slot(member: &MemberStatus) -> Option<MemberSlot> {
    Some(MemberSlot { role: Role::from_wire(member.role)?, index: member.index })
}

fn given_up(slot: MemberSlot, member: &MemberStatus) -> Option<String> {
    (member.state == "given up").then(|| format!("{slot} was given up: it was lost, and the run goes on without it"))
}

fn not_finite(status: &StatusResponse) -> Option<String> {
    let loss = |member: &MemberStatus| member.progress.map(|progress| progress.loss);
    let broken = status.members.iter().find(|member| loss(member).is_some_and(|loss| !loss.is_finite()))?;
    Some(format!("loss is not finite on {}: training has diverged; a lower learning rate may help", slot(broken)?))
}

/// Divergence is reported from this step on, when the first weights and the warm-up have no effect any more.
const WARMED_UP: u64 = 200;

fn diverging(status: &StatusResponse) -> Option<String> {
    let high = |member: &&MemberStatus| {
        member.progress.is_some_and(|progress| {
            progress.step >= WARMED_UP && progress.loss.is_finite() && progress.loss > 2.0 * LN_2
        })
    };
    let member = status.members.iter().find(high)?;
    let (slot, loss) = (slot(member)?, member.progress?.loss);
    Some(format!(
        "the loss on {slot} is {loss:.2}, and a network that knows nothing has {LN_2:.2}: training may have diverged; a lower \
         learning rate may help"
    ))
}

fn late_checkpoint(status: &StatusResponse, training: Duration) -> Option<String> {
    let every = Duration::from_millis(status.checkpoint_every_ms);
    let age = status.checkpoints.last().map_or(training, |newest| Duration::from_secs_f64(newest.age_seconds));
    let is_late = status.state == "training" && !every.is_zero() && age > every * LATE;
    is_late.then(|| {
        format!("no checkpoint for {}; the job asks for one every {}", time_in_words(age), time_in_words(every))
    })
}

fn still(slot: MemberSlot, member: &MemberStatus) -> Option<String> {
    let still = Duration::from_millis(member.still_ms?);
    let is_still = member.state == "alive" && still >= STILL;
    let may = "it scores a held-out part, writes a checkpoint, or waits";
    is_still.then(|| format!("{slot} has made no step for {}: {may}", time_in_words(still)))
}

/// A time as a person reads it: `3.2 s`, `42 s`, `12 min`, `1 h 5 min`.
pub fn time_in_words(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        10..120 => format!("{seconds} s"),
        120..3600 => format!("{} min", seconds / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use zagros_protocol::control::{CheckpointMark, Progress};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn member(slot: MemberSlot) -> MemberStatus {
        MemberStatus { role: slot.role.to_wire(), index: slot.index, state: "alive".to_owned(), ..Default::default() }
    }

    fn warn(members: Vec<MemberStatus>) -> Vec<String> {
        status_warnings(&StatusResponse { state: "training".to_owned(), members, ..StatusResponse::default() }, HOUR)
    }

    #[test]
    fn a_worker_that_was_given_up_or_makes_no_step_is_named() {
        let given_up = MemberStatus { state: "given up".to_owned(), ..member(MemberSlot::worker(4)) };
        let still = MemberStatus { still_ms: Some(400_000), ..member(MemberSlot::worker(2)) };
        let expected = [
            "dense worker 4 was given up: it was lost, and the run goes on without it",
            "dense worker 2 has made no step for 6 min: it scores a held-out part, writes a checkpoint, or waits",
        ];
        assert_eq!(warn(vec![still, given_up]), expected);
    }

    #[test]
    fn a_loss_that_is_not_finite_is_reported() {
        let progress = Some(Progress { loss: f64::NAN, ..Progress::default() });
        let worker = MemberStatus { progress, ..member(MemberSlot::worker(1)) };
        let expected = "loss is not finite on dense worker 1: training has diverged; a lower learning rate may help";
        assert_eq!(warn(vec![worker]), [expected]);
    }

    #[test]
    fn a_loss_above_that_of_ignorance_is_reported_once_warm_up_is_past() {
        let warn_at = |step, loss| {
            let progress = Some(Progress { step, loss, ..Progress::default() });
            warn(vec![MemberStatus { progress, ..member(MemberSlot::worker(0)) }])
        };
        assert!(warn_at(199, 251.0).is_empty() && warn_at(5000, 1.3).is_empty());
        let high = "the loss on dense worker 0 is 251.00, and a network that knows nothing has 0.69: training may have \
                    diverged; a lower learning rate may help";
        assert_eq!(warn_at(200, 251.0), [high]);
    }

    #[test]
    fn a_checkpoint_is_late_after_three_intervals_counted_from_the_last_or_from_the_start() {
        let late = |checkpoint_every_ms, age: Option<u64>, training| {
            let checkpoints =
                age.map(|seconds| CheckpointMark { step: 9, age_seconds: seconds as f64 }).into_iter().collect();
            let state = "training".to_owned();
            status_warnings(&StatusResponse { state, checkpoints, checkpoint_every_ms, ..Default::default() }, training)
        };
        let warning = ["no checkpoint for 12 min; the job asks for one every 2 min"];
        assert_eq!(late(120_000, Some(725), HOUR), warning);
        assert_eq!(late(120_000, None, Duration::from_secs(725)), warning);
        assert!(late(120_000, Some(300), HOUR).is_empty() && late(0, None, HOUR).is_empty());
    }

    #[test]
    fn times_are_in_whole_words() {
        let words = [3200, 42_000, 725_000, 3_900_000].map(|millis| time_in_words(Duration::from_millis(millis)));
        assert_eq!(words, ["3.2 s", "42 s", "12 min", "1 h 5 min"]);
    }
}
