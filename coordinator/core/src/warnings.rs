//! Warnings for a person, in words: a function of the status alone.

use std::collections::BTreeMap;
use std::f64::consts::LN_2;
use std::time::Duration;

use zagros_protocol::control::{Disk, MemberStatus, ServerWait, StatusResponse};

use crate::{MemberSlot, Role};

/// A server counts as slow after a wait of this length. Workers warn of the same wait in their logs.
const SLOW: Duration = Duration::from_secs(3);
/// A worker without a step for so long is named. Scoring a held-out part may take as long, so this is no fault.
const STILL: Duration = Duration::from_secs(60);
/// A member that is silent for so long is named: three heartbeats, which come each second or more often.
const SILENT: Duration = Duration::from_secs(3);
/// A disk is nearly full below this share of free bytes, as in monitoring/rules.
const FREE: f64 = 0.1;
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
    let mut all: Vec<String> = of_members(lost).collect();
    all.extend(not_finite(status));
    all.extend(diverging(status));
    all.extend(of_members(silent));
    all.extend(slow_servers(status));
    all.extend(of_members(disk));
    all.extend(late_checkpoint(status, training));
    all.extend(of_members(still));
    all
}

fn slot(member: &MemberStatus) -> Option<MemberSlot> {
    Some(MemberSlot { role: Role::from_wire(member.role)?, index: member.index })
}

fn lost(slot: MemberSlot, member: &MemberStatus) -> Option<String> {
    let next = match slot.role {
        Role::EmbeddingServer => "its rows are out of reach until it answers",
        Role::DenseWorker => "the others read its splits, and wait for another process in its slot",
    };
    if member.state == "given up" {
        return Some(format!("{slot} was given up: it was lost, and the run goes on without it"));
    }
    let silence = time_in_words(Duration::from_millis(member.silent_ms));
    if member.state == "away" {
        return Some(format!(
            "{slot} is away: silent for {silence}; its rows are in its log, and the run waits for it"
        ));
    }
    (member.state == "lost").then(|| format!("{slot} is lost: silent for {silence}; {next}"))
}

fn silent(slot: MemberSlot, member: &MemberStatus) -> Option<String> {
    let silence = Duration::from_millis(member.silent_ms);
    let is_silent = member.state == "alive" && silence >= SILENT;
    is_silent.then(|| format!("{slot} has not been heard for {}", time_in_words(silence)))
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

/// The workers that wait for a server, and the longest wait.
fn slow_servers(status: &StatusResponse) -> Vec<String> {
    let mut waits: BTreeMap<u32, (u64, Vec<u32>)> = BTreeMap::new();
    for member in status.members.iter().filter(|member| member.state == "alive") {
        for ServerWait { server, oldest_ms, .. } in &member.waits {
            let (oldest, workers) = waits.entry(*server).or_default();
            *oldest = (*oldest).max(*oldest_ms);
            workers.push(member.index);
        }
    }
    let slow = waits.into_iter().map(|(server, (oldest, workers))| (server, Duration::from_millis(oldest), workers));
    let warning = |(server, oldest, workers): (u32, Duration, Vec<u32>)| {
        let who = match &workers[..] {
            [one] => format!("dense worker {one} waits for it"),
            many => format!("{} workers wait for it", many.len()),
        };
        format!(
            "{} is slow: its oldest request has waited {}; {who}",
            MemberSlot::server(server),
            time_in_words(oldest)
        )
    };
    slow.filter(|(_, oldest, _)| *oldest >= SLOW).map(warning).collect()
}

fn disk(slot: MemberSlot, member: &MemberStatus) -> Option<String> {
    let Disk { free_bytes, size_bytes } = member.disk?;
    let what = match slot.role {
        Role::EmbeddingServer => "cold tier",
        Role::DenseWorker => "run folder",
    };
    let is_full = size_bytes > 0 && (free_bytes as f64) < FREE * size_bytes as f64;
    let free = free_bytes as f64 / f64::from(1 << 30);
    is_full.then(|| format!("the disk of the {what} of {slot} is nearly full: {free:.1} GiB are free"))
}

fn late_checkpoint(status: &StatusResponse, training: Duration) -> Option<String> {
    let every = Duration::from_millis(status.checkpoint_every_ms);
    let age = status.checkpoints.last().map_or(training, |newest| Duration::from_millis(newest.age_ms));
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
#[must_use]
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
    use proptest::prelude::*;
    use zagros_protocol::control::{CheckpointMark, Progress};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn member(slot: MemberSlot) -> MemberStatus {
        MemberStatus { role: slot.role.to_wire(), index: slot.index, state: "alive".to_owned(), ..Default::default() }
    }

    fn waiting(worker: u32, server: u32, oldest_ms: u64) -> MemberStatus {
        let wait = ServerWait { server, lookups: 1, pushes: 0, oldest_ms };
        MemberStatus { waits: vec![wait], ..member(MemberSlot::worker(worker)) }
    }

    fn warn(members: Vec<MemberStatus>) -> Vec<String> {
        status_warnings(&StatusResponse { state: "training".to_owned(), members, ..StatusResponse::default() }, HOUR)
    }

    #[test]
    fn a_slow_server_is_reported_once_with_the_longest_wait_and_all_who_wait() {
        let members = vec![waiting(0, 2, 3200), waiting(1, 2, 1100), waiting(2, 2, 2000), waiting(3, 0, 2999)];
        let many = "embedding server 2 is slow: its oldest request has waited 3.2 s; 3 workers wait for it";
        assert_eq!(warn(members), [many]);
        let one = "embedding server 1 is slow: its oldest request has waited 75 s; dense worker 0 waits for it";
        assert_eq!(warn(vec![waiting(0, 1, 75_000)]), [one]);
        let gone = MemberStatus { state: "lost".to_owned(), ..waiting(0, 1, 75_000) };
        assert!(!warn(vec![gone]).iter().any(|warning| warning.contains("slow")));
    }

    #[test]
    fn members_that_are_lost_come_first() {
        let lost = |slot| MemberStatus { state: "lost".to_owned(), silent_ms: 34_500, ..member(slot) };
        let given_up = MemberStatus { state: "given up".to_owned(), ..member(MemberSlot::worker(4)) };
        let still = MemberStatus { still_ms: Some(400_000), ..member(MemberSlot::worker(2)) };
        let silent = MemberStatus { silent_ms: 4000, ..member(MemberSlot::worker(3)) };
        let members = vec![still, silent, lost(MemberSlot::server(1)), lost(MemberSlot::worker(0)), given_up];
        let expected = [
            "embedding server 1 is lost: silent for 34 s; its rows are out of reach until it answers",
            "dense worker 0 is lost: silent for 34 s; the others read its splits, and wait for another process in its slot",
            "dense worker 4 was given up: it was lost, and the run goes on without it",
            "dense worker 3 has not been heard for 4.0 s",
            "dense worker 2 has made no step for 6 min: it scores a held-out part, writes a checkpoint, or waits",
        ];
        assert_eq!(warn(members), expected);
    }

    #[test]
    fn a_loss_that_is_not_finite_and_a_full_disk_are_reported() {
        let progress = Some(Progress { loss: f64::NAN, ..Progress::default() });
        let disk = Some(Disk { free_bytes: 3 << 30, size_bytes: 40 << 30 });
        let worker = MemberStatus { progress, disk, ..member(MemberSlot::worker(1)) };
        let roomy = Some(Disk { free_bytes: 4 << 30, size_bytes: 40 << 30 });
        let server = MemberStatus { disk: roomy, ..member(MemberSlot::server(0)) };
        let expected = [
            "loss is not finite on dense worker 1: training has diverged; a lower learning rate may help",
            "the disk of the run folder of dense worker 1 is nearly full: 3.0 GiB are free",
        ];
        assert_eq!(warn(vec![worker, server]), expected);
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
                age.map(|seconds| CheckpointMark { step: 9, age_ms: seconds * 1000 }).into_iter().collect();
            let state = "training".to_owned();
            status_warnings(&StatusResponse { state, checkpoints, checkpoint_every_ms, ..Default::default() }, training)
        };
        let warning = ["no checkpoint for 12 min; the job asks for one every 2 min"];
        assert_eq!(late(120_000, Some(725), HOUR), warning);
        assert_eq!(late(120_000, None, Duration::from_secs(725)), warning);
        assert!(late(120_000, Some(300), HOUR).is_empty() && late(0, None, HOUR).is_empty());
    }

    proptest! {
        #[test]
        fn a_wait_is_reported_from_three_seconds_on_and_in_whole_words(millis in 0_u64..10_000_000) {
            let warnings = warn(vec![waiting(0, 0, millis)]);
            prop_assert_eq!(warnings.len(), usize::from(millis >= 3000), "{:?}", warnings);
            prop_assert!(warnings.iter().all(|warning| !warning.contains(" 0 min") || warning.contains(" h 0 min")));
        }
    }
}
