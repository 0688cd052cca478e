//! The calls one by one; random orders of them are in `tests/simulation`.

use zagros_protocol::control::{
    DataFile, Evaluation, GroupRequest, GroupResponse, Outcome, Progress, ServerLoad, Split, Transform,
    TransformsRequest, TransformsResponse, assign_response::Work,
};
use zagros_protocol::{BucketMap, Generation, PROTOCOL_VERSION, RefusalKind, RunId};

use super::*;
use crate::totals::tests::time;
use crate::watch::EVALUATIONS_KEPT;

const LEASE: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(30);
const FINGERPRINT: u64 = 0xfeed;

fn core(servers: u32, workers: u32) -> Core {
    Core::new(CoreConfig {
        run: RunId(0xa11),
        job: "test".to_owned(),
        servers,
        workers,
        min_workers: workers,
        max_workers: workers,
        buckets: 64,
        epochs: 2,
        staleness: 4,
        lease: LEASE,
        timeout: TIMEOUT,
        fingerprint: FINGERPRINT,
        ..CoreConfig::default()
    })
}

fn request(slot: MemberSlot, instance: u64) -> JoinRequest {
    let file = DataFile { path: "train.txt".to_owned(), bytes: 3 * 512, splittable: true, fingerprint: 0 };
    let is_worker = slot.role == Role::DenseWorker;
    JoinRequest {
        role: slot.role.to_wire(),
        index: slot.index,
        address: if is_worker { String::new() } else { format!("127.0.0.1:770{}", slot.index) },
        instance,
        job_fingerprint: FINGERPRINT,
        protocol_version: PROTOCOL_VERSION,
        release: "0.1.0".to_owned(),
        files: if is_worker { vec![file] } else { Vec::new() },
        ..JoinRequest::default()
    }
}

fn join(core: &mut Core, seconds: u64, slot: MemberSlot) -> JoinResponse {
    core.join(time(seconds), &request(slot, 1)).unwrap()
}

/// One server and one worker, in.
fn running() -> (Core, JoinResponse, JoinResponse) {
    let mut core = core(1, 1);
    let (server, worker) = (join(&mut core, 0, MemberSlot::server(0)), join(&mut core, 0, MemberSlot::worker(0)));
    core.take_events();
    (core, server, worker)
}

/// Two workers of a run of one server, in.
fn two_workers() -> (Core, JoinResponse, JoinResponse) {
    let mut core = core(1, 2);
    let [ada, bob] = [0, 1].map(|index| join(&mut core, 0, MemberSlot::worker(index)));
    (core, ada, bob)
}

fn reachable(index: u32, instance: u64) -> JoinRequest {
    JoinRequest { address: format!("127.0.0.1:80{index}"), ..request(MemberSlot::worker(index), instance) }
}

/// One server, and `workers` workers in one group, of which `least` must stay. The run takes up to `most`.
fn training(workers: u32, least: u32, most: u32) -> (Core, Vec<JoinResponse>) {
    let mut core = Core::new(CoreConfig { min_workers: least, max_workers: most, ..core(1, workers).config });
    join(&mut core, 0, MemberSlot::server(0));
    let joined: Vec<_> = (0..workers).map(|index| core.join(time(0), &reachable(index, 1)).unwrap()).collect();
    let group = core.group(time(0), &ask_after(&joined[0], 0)).unwrap();
    assert_eq!((group.generation, group.world), (1, workers));
    core.take_events();
    (core, joined)
}

fn heartbeat(member: &JoinResponse) -> HeartbeatRequest {
    HeartbeatRequest { member: member.member, incarnation: member.incarnation, ..HeartbeatRequest::default() }
}

fn beat(core: &mut Core, seconds: u64, member: &JoinResponse) -> Result<HeartbeatResponse, Refusal> {
    core.heartbeat(time(seconds), &heartbeat(member))
}

/// Lets time pass. Only `members` are heard.
fn hear(core: &mut Core, seconds: impl IntoIterator<Item = u64>, members: &[&JoinResponse]) {
    for second in seconds {
        members.iter().for_each(|member| drop(beat(core, second, member).unwrap()));
    }
}

/// A report in a member's name that a split of the first epoch is complete.
fn completion(member: &JoinResponse, split: &Split) -> CompleteRequest {
    let JoinResponse { member, incarnation, .. } = *member;
    CompleteRequest { member, incarnation, epoch: 0, splits: vec![split.id], bad_rows: vec![] }
}

fn assign(core: &mut Core, seconds: u64, member: &JoinResponse, epoch: u32) -> Result<Work, Refusal> {
    let JoinResponse { member, incarnation, .. } = *member;
    core.assign(time(seconds), &AssignRequest { member, incarnation, epoch, ..AssignRequest::default() })
        .map(|response| response.work.unwrap())
}

fn ask_after(worker: &JoinResponse, after: u64) -> GroupRequest {
    GroupRequest { member: worker.member, incarnation: worker.incarnation, after }
}

fn leave(core: &mut Core, member: &JoinResponse, outcome: Outcome, reason: &str) -> Result<LeaveResponse, Refusal> {
    let (outcome, reason) = (outcome as i32, reason.to_owned());
    let JoinResponse { member, incarnation, .. } = *member;
    core.leave(time(1), &LeaveRequest { member, incarnation, outcome, reason })
}

#[test]
fn a_refused_join_names_both_values_and_changes_nothing() {
    let refused = |change: fn(&mut JoinRequest), kind: RefusalKind, parts: &[&str]| {
        let mut core = core(1, 1);
        let mut request = request(MemberSlot::worker(0), 1);
        change(&mut request);
        let refusal = core.join(time(0), &request).unwrap_err();
        assert_eq!(refusal.kind, kind, "{refusal}");
        assert!(parts.iter().all(|part| refusal.message.contains(part)), "{refusal}");
        assert!(core.status(time(0)).members.is_empty() && core.take_events().is_empty());
    };
    let spoken = format!("speaks {PROTOCOL_VERSION}");
    refused(|r| r.protocol_version = 99, RefusalKind::Mismatch, &["protocol 99", &spoken, "same release"]);
    refused(|r| r.job_fingerprint = 2, RefusalKind::Mismatch, &["0000000000000002", "000000000000feed", "job file"]);
    refused(|r| r.index = 1, RefusalKind::Invalid, &["no dense worker 1", "the job has 1"]);
    refused(|r| r.role = 9, RefusalKind::Invalid, &["unknown role 9"]);
    refused(|r| r.role = Role::EmbeddingServer.to_wire(), RefusalKind::Invalid, &["does not say where it listens"]);
    refused(|r| r.files.clear(), RefusalKind::Invalid, &["brought no training data"]);
}

#[test]
fn workers_must_read_the_same_files() {
    let mut core = core(1, 2);
    join(&mut core, 0, MemberSlot::worker(0));
    let mut other = request(MemberSlot::worker(1), 1);
    other.files[0].bytes += 1;
    let refusal = core.join(time(0), &other).unwrap_err();
    assert_eq!(refusal.kind, RefusalKind::Mismatch);
    assert!(refusal.message.contains("train.txt (1537 bytes, content 0000000000000000) where that worker has train.txt (1536 bytes, content 0000000000000000)"), "{refusal}");
    other.files.insert(0, request(MemberSlot::worker(0), 1).files[0].clone());
    let refusal = core.join(time(0), &other).unwrap_err();
    let nothing = "train.txt (1537 bytes, content 0000000000000000) where that worker has nothing";
    assert!(refusal.message.contains(nothing), "{refusal}");
    let mut same_size = request(MemberSlot::worker(1), 1);
    same_size.files[0].fingerprint = 7;
    let refusal = core.join(time(0), &same_size).unwrap_err();
    assert!(refusal.message.contains("(1536 bytes, content 0000000000000007) where that worker has"), "{refusal}");
    join(&mut core, 0, MemberSlot::worker(1));
}

#[test]
fn workers_form_a_group_once_all_have_joined_and_another_when_one_is_replaced() {
    let mut core = core(1, 2);
    let ask = |core: &mut Core, seconds, worker: &JoinResponse| core.group(time(seconds), &ask_after(worker, 0));
    let second = core.join(time(0), &reachable(1, 1)).unwrap();
    let alone = ask(&mut core, 0, &second).unwrap();
    assert_eq!((alone.generation, alone.waiting_for.as_str()), (0, "dense worker 0 has not joined"));
    let first = core.join(time(1), &reachable(0, 1)).unwrap();
    let (addresses, workers) = (["127.0.0.1:800", "127.0.0.1:801"].map(str::to_owned).to_vec(), vec![0, 1]);
    let expected = GroupResponse { generation: 1, rank: 1, world: 2, workers, addresses, ..alone };
    assert_eq!(ask(&mut core, 1, &second).unwrap(), GroupResponse { waiting_for: String::new(), ..expected });
    assert_eq!(ask(&mut core, 1, &first).map(|group| (group.generation, group.rank)), Ok((1, 0)));

    hear(&mut core, [4, 8, 12], &[&first]);
    let replaced = core.join(time(12), &reachable(1, 2)).unwrap();
    assert_eq!(ask(&mut core, 12, &replaced).unwrap().generation, 2);
    assert_eq!(ask(&mut core, 12, &second).unwrap_err().kind, RefusalKind::Fenced);
    assert_eq!(ask(&mut core, 12, &first).unwrap().generation, 2);
}

#[test]
fn a_group_that_lost_a_worker_waits_for_the_next_group_and_names_that_worker() {
    let mut core = core(1, 2);
    let first = core.join(time(0), &reachable(0, 1)).unwrap();
    let second = core.join(time(0), &reachable(1, 1)).unwrap();
    assert_eq!(core.group(time(0), &ask_after(&first, 0)).unwrap().generation, 1);
    // The loss of the second worker is not known yet.
    let answer = core.group(time(1), &ask_after(&first, 1)).unwrap();
    assert_eq!(answer.generation, 0);
    assert!(answer.waiting_for.starts_with("dense worker 1 must give up the group of generation 1"), "{answer:?}");
    hear(&mut core, [4, 8, 12], &[&first]);
    let answer = core.group(time(12), &ask_after(&first, 1)).unwrap();
    assert_eq!(answer.waiting_for, "dense worker 1 is lost: silent for longer than its lease");
    let back = core.join(time(12), &reachable(1, 2)).unwrap();
    let groups =
        [(&first, 1), (&back, 0)].map(|(worker, after)| core.group(time(12), &ask_after(worker, after)).unwrap());
    assert_eq!(groups.map(|group| (group.generation, group.rank)), [(2, 0), (2, 1)]);
    assert!(core.group(time(12), &ask_after(&second, 1)).is_err());
    // A worker that has finished joins no group.
    leave(&mut core, &back, Outcome::Finished, "").unwrap();
    let refused = core.group(time(13), &ask_after(&first, 2)).unwrap_err();
    assert!(refused.message.starts_with("dense worker 1 has finished its part of the run"), "{refused}");
}

#[test]
fn a_group_with_a_worker_that_cannot_be_reached_is_refused() {
    for hidden in 0..2 {
        let mut core = core(1, 2);
        join(&mut core, 0, MemberSlot::worker(hidden));
        let worker = core.join(time(0), &reachable(1 - hidden, 1)).unwrap();
        let refused = core.group(time(0), &ask_after(&worker, 0)).unwrap_err();
        assert_eq!(refused.message, format!("dense worker {hidden} does not say where it listens"));
    }
}

/// As when one worker's program has libtorch, and another's has not.
#[test]
fn a_worker_that_exchanges_values_in_another_way_than_the_others_is_refused() {
    let mut core = core(1, 2);
    let joins = |index, instance, transport: &str| JoinRequest {
        transport: transport.to_owned(),
        ..reachable(index, instance)
    };
    core.join(time(0), &joins(0, 1, "c10d")).unwrap();
    let refused = core.join(time(0), &joins(1, 1, "tcp")).unwrap_err();
    assert_eq!(refused.kind, RefusalKind::Mismatch);
    let expected =
        "dense worker 1 exchanges values with other workers by \"tcp\", and dense worker 0 by \"c10d\"; start";
    assert!(refused.message.starts_with(expected), "{refused}");
    // A process is not compared with the one before it in its place.
    assert_eq!(core.join(time(0), &joins(0, 2, "tcp")).unwrap_err().kind, RefusalKind::Unavailable);
    core.join(time(0), &joins(1, 1, "c10d")).unwrap();
}

#[test]
fn a_lost_server_is_waited_for_and_may_come_back() {
    let (mut core, server, worker) = running();
    hear(&mut core, [4, 8, 12], &[&worker]);
    let placement = core.placement(time(12));
    assert_eq!(placement.waiting_for, "embedding server 0 is lost: silent for longer than its lease");
    assert_eq!((placement.generation, placement.servers[0].alive), (1, false));
    let lost = RunEvent::MemberLost { slot: MemberSlot::server(0), silence: time(12), splits: 0 };
    assert_eq!(core.take_events(), [lost]);
    beat(&mut core, 13, &server).unwrap();
    assert!(core.placement(time(13)).waiting_for.is_empty());
    assert_eq!(core.take_events(), [RunEvent::MemberReturned { slot: MemberSlot::server(0) }]);
    assert_eq!(core.status(time(13)).state, "training");
}

/// Invariants SP-2 and MB-1.
#[test]
fn a_lost_workers_splits_are_read_by_its_successor_and_it_is_fenced() {
    let (mut core, server, worker) = running();
    let Work::Split(first) = assign(&mut core, 1, &worker, 0).unwrap() else { panic!("no split") };
    assert_eq!((first.file, first.start, first.end), (0, 0, 512));
    hear(&mut core, [4, 8, 12], &[&server]);
    assert!(matches!(core.take_events()[..], [RunEvent::MemberLost { splits: 1, .. }]));
    let complete = completion(&worker, &first);
    assert_eq!(core.complete(time(12), &complete).unwrap_err().kind, RefusalKind::Unavailable);
    let successor = core.join(time(12), &request(MemberSlot::worker(0), 2)).unwrap();
    let Work::Split(again) = assign(&mut core, 12, &successor, 0).unwrap() else { panic!("no split") };
    assert_eq!(again, first);
    assert_eq!(assign(&mut core, 12, &worker, 0).unwrap_err().kind, RefusalKind::Fenced);
}

/// Invariant WT-1: servers and coordinator do not wait for ever for a worker that was killed.
#[test]
fn a_lost_worker_that_nobody_replaces_ends_the_run() {
    let (mut core, server, _) = running();
    for second in (4..=40).step_by(4) {
        assert!(!beat(&mut core, second, &server).unwrap().stop, "ended after {second} s");
    }
    let answer = beat(&mut core, 41, &server).unwrap();
    assert!(answer.reason.contains("dense worker 0 is lost: silent for 41.0s"), "{}", answer.reason);
    assert!(answer.reason.contains("taken its slot within 30.0s"), "{}", answer.reason);
    assert_eq!(core.outcome().map(RunOutcome::as_str), Some("failed"));
}

#[test]
fn a_lost_server_and_a_replaced_worker_do_not_end_the_run() {
    let (mut core, _, _) = running();
    [4, 8, 12].into_iter().for_each(|second| core.tick(time(second)));
    let successor = core.join(time(12), &request(MemberSlot::worker(0), 2)).unwrap();
    for second in (16..=120).step_by(4) {
        assert!(!beat(&mut core, second, &successor).unwrap().stop);
    }
    assert_eq!(core.status(time(120)).members[0].state, "lost");
}

#[test]
fn a_worker_that_leaves_gives_its_splits_back() {
    let (mut core, ada, bob) = two_workers();
    let Work::Split(first) = assign(&mut core, 0, &ada, 0).unwrap() else { panic!("no split") };
    leave(&mut core, &ada, Outcome::Finished, "").unwrap();
    // Its own share comes first.
    assert!(matches!(assign(&mut core, 1, &bob, 0).unwrap(), Work::Split(own) if own.id == 1));
    assert_eq!(assign(&mut core, 1, &bob, 0).unwrap(), Work::Split(first));
    assert_eq!(core.outcome(), None, "the other worker has not finished");
}

/// Regression: one of two workers trained alone on a compressed file, and no message said so.
#[test]
fn workers_without_data_are_named_in_the_log_and_the_status_until_the_end() {
    let mut core = core(1, 2);
    join(&mut core, 0, MemberSlot::server(0));
    let mut zipped = request(MemberSlot::worker(0), 1);
    zipped.files[0].splittable = false;
    let worker = core.join(time(0), &zipped).unwrap();
    let uneven = |event: &RunEvent| matches!(event, RunEvent::UnevenShares { .. });
    let answer =
        core.take_events().into_iter().find(uneven).expect("no event names the workers without data").to_string();
    let named = "1 of 2 dense workers have too little to read (dense worker 1 has 0 bytes)";
    assert!(answer.starts_with(named), "{answer}");
    assert_eq!(core.status(time(1)).warnings, [answer]);
    leave(&mut core, &worker, Outcome::Failed, "").unwrap();
    assert!(core.status(time(2)).warnings.is_empty());
}

/// Each worker counts its own malformed rows, from 0 in each incarnation.
#[test]
fn malformed_rows_of_all_workers_and_epochs_add_up_and_count_once() {
    let (mut core, ada, bob) = two_workers();
    let mut complete = |worker: &JoinResponse, epoch, bad: u64| {
        let Work::Split(split) = assign(&mut core, 0, worker, epoch).unwrap() else { panic!("no split") };
        let (member, incarnation, splits, bad_rows) = (worker.member, worker.incarnation, vec![split.id], vec![bad]);
        let request = CompleteRequest { member, incarnation, epoch, splits, bad_rows };
        let answer = core.complete(time(0), &request).unwrap().bad_rows;
        assert_eq!(core.complete(time(0), &request).unwrap().bad_rows, answer, "a repeated call is counted again");
        answer
    };
    assert_eq!([complete(&ada, 0, 2), complete(&bob, 0, 3), complete(&bob, 1, 4)], [2, 5, 9]);
    let JoinResponse { member, incarnation, .. } = ada;
    let odd = CompleteRequest { member, incarnation, bad_rows: vec![1], ..CompleteRequest::default() };
    assert_eq!(core.complete(time(0), &odd).unwrap_err().kind, RefusalKind::Invalid);
    let position = PositionRequest { member, incarnation, epoch: 1 };
    let position = core.view_position(&position).unwrap().position.unwrap();
    let mut again = self::core(1, 2);
    let resumed = JoinRequest { position: Some(position), ..request(MemberSlot::worker(0), 1) };
    let ada = again.join(time(0), &resumed).unwrap();
    let nothing = CompleteRequest { member: ada.member, incarnation: ada.incarnation, ..CompleteRequest::default() };
    assert_eq!(again.complete(time(0), &nothing).unwrap().bad_rows, 9);
}

#[test]
fn the_first_worker_reports_the_transforms_and_a_later_report_changes_nothing() {
    let (mut core, ada, bob) = two_workers();
    let answer = |mean: f64| vec![Transform { mean, deviation: 2.0, ..Transform::default() }];
    let mut tell = |worker: &JoinResponse, measured, bytes| {
        let JoinResponse { member, incarnation, .. } = *worker;
        core.transforms(time(0), &TransformsRequest { member, incarnation, measured, bytes })
    };
    assert_eq!(tell(&ada, vec![], 70).unwrap(), TransformsResponse { measured: vec![], bytes: 70 });
    assert_eq!(tell(&bob, vec![], 0).unwrap(), TransformsResponse { measured: vec![], bytes: 70 });
    assert_eq!(tell(&bob, answer(1.0), 0).unwrap_err().kind, RefusalKind::Invalid);
    assert_eq!(tell(&ada, answer(f64::NAN), 0).unwrap_err().kind, RefusalKind::Invalid);
    tell(&ada, answer(1.0), 90).unwrap();
    assert_eq!(tell(&ada, answer(5.0), 90).unwrap().measured, answer(1.0), "what the others train on was replaced");
    assert_eq!(tell(&bob, vec![], 0).unwrap(), TransformsResponse { measured: answer(1.0), bytes: 90 });
}

#[test]
fn a_coordinator_that_stood_still_blames_nobody() {
    let (mut core, server, worker) = running();
    beat(&mut core, 1, &server).unwrap();
    core.tick(time(3600));
    assert_eq!(core.take_events(), [RunEvent::CoordinatorStalled { gap: time(3599) }]);
    beat(&mut core, 3601, &worker).unwrap();
    beat(&mut core, 3601, &server).unwrap();
    assert!(core.take_events().is_empty());
}

#[test]
fn a_failure_ends_the_run_for_everyone_and_stays_its_reason() {
    let (mut core, server, worker) = running();
    leave(&mut core, &worker, Outcome::Failed, "loss is not finite at step 7").unwrap();
    leave(&mut core, &worker, Outcome::Failed, "the answer was lost").unwrap();
    let stopped = beat(&mut core, 1, &server).unwrap();
    assert_eq!(stopped.reason, "run failed: dense worker 0: loss is not finite at step 7");
    leave(&mut core, &server, Outcome::Interrupted, "").unwrap();
    core.end_run(time(1), RunOutcome::Finished);
    assert_eq!(core.outcome().map(RunOutcome::as_str), Some("failed"));
    assert_eq!(core.status(time(1)).reason, "dense worker 0: loss is not finite at step 7");
    assert!(core.is_deserted());
    let late = core.join(time(2), &request(MemberSlot::worker(0), 5)).unwrap_err();
    assert_eq!((late.kind, late.message.contains("run failed")), (RefusalKind::Fenced, true));
}

#[test]
fn a_server_may_not_leave_while_others_need_it() {
    let (mut core, server, _) = running();
    assert!(leave(&mut core, &server, Outcome::Unspecified, "").is_err());
    leave(&mut core, &server, Outcome::Finished, "").unwrap();
    assert_eq!(core.outcome().unwrap().to_string(), "run failed: embedding server 0 left before the run was over");
}

#[test]
fn only_workers_get_work_and_report_measures() {
    let (mut core, server, worker) = running();
    assert_eq!(assign(&mut core, 0, &server, 0).unwrap_err().message, "embedding server 0 is no dense worker");
    let evaluation = Evaluation { auc: 0.75, ..Evaluation::default() };
    let mut report =
        ReportEvaluationRequest { member: worker.member, incarnation: worker.incarnation, evaluation: None };
    assert!(core.report_evaluation(time(0), &report).is_err());
    let of_step = |step| Evaluation { step, ..evaluation };
    for step in 0..=EVALUATIONS_KEPT as u64 {
        report.evaluation = Some(of_step(step));
        // Twice, as when the answer to the first report was lost.
        core.report_evaluation(time(0), &report).unwrap();
        core.report_evaluation(time(0), &report).unwrap();
    }
    let newest: Vec<Evaluation> = (1..=EVALUATIONS_KEPT as u64).map(of_step).collect();
    assert_eq!(core.status(time(0)).evaluations, newest);
}

#[test]
fn the_reports_of_members_are_kept() {
    let (mut core, server, worker) = running();
    let progress = Progress { step: 40, ..Progress::default() };
    core.heartbeat(time(1), &HeartbeatRequest { progress: Some(progress), ..heartbeat(&worker) }).unwrap();
    beat(&mut core, 2, &worker).unwrap();
    let load = ServerLoad { rows: 7, bytes: 700, ..ServerLoad::default() };
    core.heartbeat(time(2), &HeartbeatRequest { load: Some(load), ..heartbeat(&server) }).unwrap();
    let members = core.status(time(3)).members;
    assert_eq!((members[0].load, members[1].progress), (Some(load), Some(progress)));
    assert_eq!((members[0].silent_ms, members[0].state.as_str()), (1000, "alive"));
}

mod away;
mod ballot;
mod lost;
mod reports;
mod scale;
mod workers;
