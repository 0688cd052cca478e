//! What the doctor says in each situation that a person may be in.

mod properties;

use std::time::Duration;

use zagros_coordinator_core::doctor::{
    CoordinatorSign, Diagnosis, Finding, FindingKind, Observation, ObservedMember, ObservedProcess, Party, ProcessEnd,
    ProcessState, Severity, diagnose_run,
};
use zagros_coordinator_core::{MemberSlot, Role};
use zagros_protocol::control::{LongWait, ScaleStatus, ServerWait, StageSeconds, WaitKind};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn member(slot: MemberSlot) -> ObservedMember {
    ObservedMember {
        slot,
        state: "alive".to_owned(),
        address: if slot.role == Role::EmbeddingServer {
            format!("10.0.0.1:77{:02}", slot.index)
        } else {
            String::new()
        },
        silent: Duration::from_millis(300),
        still: (slot.role == Role::DenseWorker).then_some(seconds(1)),
        step: 811,
        stages: None,
        requests: Vec::new(),
        waits: Vec::new(),
        disk: None,
        under_way: 0,
    }
}

fn worker(index: u32) -> ObservedMember {
    member(MemberSlot::worker(index))
}

fn server(index: u32) -> ObservedMember {
    member(MemberSlot::server(index))
}

fn waiting(mut member: ObservedMember, kind: WaitKind, what: &str, age: u64) -> ObservedMember {
    let (part, what, left_ms) = ("training".to_owned(), what.to_owned(), Some((60 - age) * 1000));
    member.waits.push(LongWait { part, kind: kind.into(), indices: Vec::new(), what, age_ms: age * 1000, left_ms });
    member
}

fn in_all_reduce(index: u32, age: u64) -> ObservedMember {
    waiting(worker(index), WaitKind::Workers, "the all-reduce of step 812", age)
}

fn asking(mut member: ObservedMember, server: u32, age: u64) -> ObservedMember {
    member.requests.push(ServerWait { server, lookups: 1, pushes: 3, oldest_ms: age * 1000 });
    member
}

fn silent(member: ObservedMember, state: &str, age: u64) -> ObservedMember {
    ObservedMember { state: state.to_owned(), silent: seconds(age), ..member }
}

fn process(party: Party, state: ProcessState) -> ObservedProcess {
    ObservedProcess { party, pid: 4711, state, answers: None, end: None }
}

fn run(servers: u32, workers: u32, members: Vec<ObservedMember>) -> Observation {
    Observation {
        job: "ads".to_owned(),
        state: "training".to_owned(),
        servers,
        workers,
        lease: seconds(10),
        timeout: seconds(60),
        step: 811,
        group: (0..workers).collect(),
        members,
        ..Observation::default()
    }
}

#[track_caller]
fn only(observation: &Observation) -> Finding {
    let Diagnosis { findings, healthy, verdict } = diagnose_run(observation);
    assert_eq!(findings.len(), 1, "{findings:#?}");
    assert_eq!((healthy, &verdict), (findings[0].severity == Severity::Slow, &findings[0].what));
    findings.into_iter().next().unwrap()
}

#[track_caller]
fn says(finding: &Finding, kind: FindingKind, what: &str, why: &[&str], next: &str) {
    assert_eq!((finding.kind, finding.what.as_str()), (kind, what));
    assert_eq!(finding.why, why);
    assert!(finding.next.contains(next), "{}", finding.next);
}

#[test]
fn a_run_that_makes_steps_is_healthy() {
    let members = vec![server(0), worker(0), in_all_reduce(1, 2)];
    let Diagnosis { healthy, verdict, findings } = diagnose_run(&run(1, 2, members));
    assert!(healthy && findings.is_empty(), "{findings:?}");
    assert_eq!(verdict, "nothing hangs: no wait is longer than 3.0 s (step 811)");
}

/// Training goes on without the servers that are to come.
#[test]
fn a_move_that_waits_is_no_trouble_and_says_for_whom() {
    let moving = |last_failure: &str| {
        let doing = "waits: embedding server 1 has not joined".to_owned();
        let last_failure = last_failure.to_owned();
        Some(ScaleStatus { servers_wanted: 2, buckets_left: 512, doing, last_failure, ..ScaleStatus::default() })
    };
    let finding = only(&Observation { moving: moving(""), ..run(2, 1, vec![server(0), worker(0)]) });
    let wanted = "2 embedding servers are wanted, and 512 buckets still have to move";
    let doing = "now: waits: embedding server 1 has not joined";
    let what = "a move of buckets waits for embedding server 1 to join";
    says(&finding, FindingKind::MoveWaits, what, &[wanted, doing], "zagros scale servers=N");
    let all = || vec![server(0), server(1), worker(0)];
    let finding = only(&Observation { moving: moving("move 3: disk full"), ..run(2, 1, all()) });
    let what = "a move of buckets was given up, and is tried again";
    says(&finding, FindingKind::MoveWaits, what, &[wanted, doing, "a move was given up: move 3: disk full"], "logs");
    assert!(diagnose_run(&Observation { moving: moving(""), ..run(2, 1, all()) }).findings.is_empty());
}

#[test]
fn a_worker_that_is_wanted_and_does_not_come_is_no_trouble_and_is_named() {
    let finding = only(&Observation { group: vec![0], ..run(1, 2, vec![server(0), worker(0)]) });
    let what = "the run trains without dense worker 1, which it is to have";
    let why = "2 dense workers are wanted, and 1 make steps";
    says(&finding, FindingKind::WorkerWanted, what, &[why], "zagros scale workers=N");
    assert_eq!((finding.severity, finding.subject.as_str()), (Severity::Slow, "dense worker 1"));
}

/// Invariant WT-2: the root of a chain is named, and not those who only wait.
#[test]
fn a_chain_is_described_from_its_root() {
    let members = vec![
        server(0),
        silent(server(2), "lost", 14),
        in_all_reduce(0, 14),
        asking(worker(1), 2, 13),
        in_all_reduce(2, 13),
        in_all_reduce(3, 14),
    ];
    let observation = Observation { servers: 2, ..run(2, 4, members) };
    // Server 1 is missing as well.
    let findings = diagnose_run(&observation).findings;
    let finding = findings.iter().find(|finding| finding.kind == FindingKind::MemberSilent).unwrap();
    says(
        finding,
        FindingKind::MemberSilent,
        "embedding server 2 is lost: no sign of life since 14 s, longer than its lease of 10 s",
        &[
            "it was killed, or its machine cannot be reached",
            "dense worker 1 waits with 1 lookup and 3 pushes for embedding server 2, for 13 s",
            "dense workers 0, 2 and 3 wait in the all-reduce of step 812 for dense worker 1, for up to 14 s",
            "dense worker 0 gives up in 46 s (cluster.timeout_seconds)",
        ],
        "zagros embedding-server JOB --index 2",
    );
}

#[test]
fn a_stopped_worker_is_named_with_its_process_and_how_to_let_it_go_on() {
    let members = vec![server(0), in_all_reduce(0, 5), silent(worker(1), "alive", 6)];
    let processes = vec![process(Party::Member(MemberSlot::worker(1)), ProcessState::Stopped)];
    let finding = only(&Observation { processes, ..run(1, 2, members) });
    says(
        &finding,
        FindingKind::MemberSilent,
        "dense worker 1 shows no sign of life since 6.0 s",
        &[
            "its process 4711 on this machine is stopped by a signal (SIGSTOP, a debugger, Ctrl-Z)",
            "dense worker 0 waits in the all-reduce of step 812 for dense worker 1, for 5.0 s",
            "dense worker 0 gives up in 55 s (cluster.timeout_seconds)",
        ],
        "kill -CONT 4711",
    );
}

#[test]
fn a_process_that_waits_for_a_disk_is_distinguished_from_one_that_was_killed() {
    let finding = |state| {
        let processes = vec![process(Party::Member(MemberSlot::server(0)), state)];
        only(&Observation { processes, ..run(1, 1, vec![silent(server(0), "away", 14), worker(0)]) })
    };
    assert!(finding(ProcessState::DiskSleep).why[0].contains("waits for a disk"));
    assert!(finding(ProcessState::Gone).why[0].contains("process 4711 on this machine has ended"));
    assert!(finding(ProcessState::Gone).next.contains("zagros embedding-server JOB --index 0"));
    let what = "embedding server 0 is away: no sign of life since 14 s; its rows are in its log";
    assert_eq!(finding(ProcessState::Gone).what, what);
}

#[test]
fn a_process_that_lives_and_is_not_heard_cannot_reach_the_coordinator() {
    let alive = process(Party::Member(MemberSlot::worker(0)), ProcessState::Lives);
    let members = || vec![server(0), silent(worker(0), "alive", 8)];
    let reached = ObservedProcess { answers: Some(true), ..alive.clone() };
    let finding = only(&Observation { processes: vec![reached], ..run(1, 1, members()) });
    assert_eq!(finding.kind, FindingKind::Unreachable);
    assert!(finding.why[0].contains("lives and answers; the coordinator does not hear it"), "{finding:?}");
    let mute = ObservedProcess { answers: Some(false), ..alive };
    let finding = only(&Observation { processes: vec![mute], ..run(1, 1, members()) });
    assert_eq!(finding.kind, FindingKind::MemberSilent);
    assert!(finding.why[0].contains("HTTP port does not answer either") && finding.next.contains("gdb -p 4711"));
}

#[test]
fn a_server_that_is_heard_and_answers_no_request_cannot_be_reached_or_is_overloaded() {
    let finding = only(&run(1, 1, vec![server(0), asking(worker(0), 0, 9)]));
    says(
        &finding,
        FindingKind::ServerSlow,
        "embedding server 0 is heard, and has left requests unanswered for 9.0 s",
        &[
            "its heartbeats come; it works on 0 requests",
            "dense worker 0 waits with 1 lookup and 3 pushes for embedding server 0, for 9.0 s",
            "dense worker 0 gives up in 51 s (cluster.timeout_seconds)",
        ],
        "workers cannot reach 10.0.0.1:7700",
    );
}

#[test]
fn a_full_window_is_named_with_the_server_that_keeps_it_full() {
    let full = waiting(asking(worker(0), 0, 9), WaitKind::Window, "a place for batch 12", 8);
    let finding = only(&run(1, 1, vec![server(0), full]));
    let line = "dense worker 0 waits with 1 lookup, 3 pushes and a full window for embedding server 0, for 9.0 s";
    assert_eq!(finding.why[1], line);
}

#[test]
fn missing_members_are_counted_and_named_once() {
    let waits = |index| waiting(worker(index), WaitKind::Members, "a process group", 20);
    let mut observation = run(2, 4, vec![server(0), server(1), waits(0), waits(3)]);
    observation.group.clear();
    observation.state = "waiting".to_owned();
    let finding = only(&observation);
    assert_eq!(
        finding.what,
        "the run waits for its members: 2 of 2 servers and 2 of 4 workers have joined; dense worker 1 and dense worker 2 are \
         missing"
    );
    assert!(finding.next.contains("zagros dense-worker JOB --index 1"), "{}", finding.next);
    let wait = "dense workers 0 and 3 wait for a process group, and so for dense worker 1";
    assert!(finding.why.iter().any(|line| line.starts_with(wait)), "{finding:?}");
}

#[test]
fn a_circle_is_named_and_a_circle_that_waits_for_somebody_else_is_none() {
    let barrier = |index| waiting(worker(index), WaitKind::Workers, "the barrier after step 811", 9);
    let finding = only(&run(1, 3, vec![server(0), in_all_reduce(0, 8), barrier(1), in_all_reduce(2, 8)]));
    says(
        &finding,
        FindingKind::Circle,
        "dense worker 0, dense worker 1 and dense worker 2 wait for each other in a circle",
        &[
            "dense workers 0 and 2 wait in the all-reduce of step 812 for dense worker 1, for up to 8.0 s",
            "dense worker 1 waits in the barrier after step 811 for dense worker 0, for 9.0 s",
            "dense worker 1 waits in the barrier after step 811 for dense worker 2, for 9.0 s",
            "the first of them gives up in 51 s, and the group then forms anew",
        ],
        "report it",
    );
    // A member that waits for the circle is named beside it.
    let outside = waiting(server(0), WaitKind::Workers, "a vote", 9);
    let mixed = only(&run(1, 2, vec![outside, in_all_reduce(0, 8), barrier(1)]));
    assert!(mixed.why.iter().any(|line| line.starts_with("embedding server 0 waits in a vote")), "{mixed:?}");
    let blocked = vec![server(0), in_all_reduce(0, 8), asking(barrier(1), 0, 9)];
    assert_eq!(only(&run(1, 2, blocked)).kind, FindingKind::ServerSlow);
}

#[test]
fn a_worker_that_is_busy_is_named_with_what_it_does() {
    let scores = || waiting(worker(0), WaitKind::Work, "the score of the held-out part", 40);
    let busy = ObservedMember { still: Some(seconds(41)), ..scores() };
    let finding = only(&run(1, 2, vec![server(0), busy, in_all_reduce(1, 38)]));
    assert_eq!(finding.kind, FindingKind::WorkerBusy);
    assert_eq!(
        finding.what,
        "the others wait for dense worker 0: it waits for no other, and has worked on the score of the held-out part for 40 s"
    );
    assert_eq!(finding.severity, Severity::Trouble);
    // One that makes steps is late, and comes.
    let late = only(&run(1, 2, vec![server(0), scores(), in_all_reduce(1, 38)]));
    assert_eq!((late.kind, late.severity), (FindingKind::WorkerBusy, Severity::Slow));
}

#[test]
fn a_data_source_and_a_disk_are_named_as_what_they_are() {
    let data = waiting(worker(0), WaitKind::Data, "the next batch of /data/train.tsv", 12);
    let finding = only(&run(1, 1, vec![server(0), data]));
    assert_eq!(finding.kind, FindingKind::DataSource);
    assert_eq!(finding.what.as_str(), "the data source of dense worker 0 has given no rows for 12 s");
    let mut full = waiting(server(0), WaitKind::Disk, "the log stopped: no space left on device", 5);
    full.disk = Some((40 << 20, 100 << 30));
    let findings = diagnose_run(&run(1, 1, vec![full, worker(0)])).findings;
    let kinds: Vec<FindingKind> = findings.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [FindingKind::DiskStopped, FindingKind::DiskFull]);
    let [log, disk, ..] = &findings[0].why[..] else { panic!("{findings:?}") };
    assert_eq!(log.as_str(), "the log stopped: no space left on device");
    assert_eq!(disk.as_str(), "40 MiB of its disk are free");
}

#[test]
fn a_coordinator_that_does_not_answer_is_named_with_its_process() {
    let coordinator = CoordinatorSign::Silent("127.0.0.1:7700 does not answer within 5 s".to_owned());
    let processes = vec![process(Party::Coordinator, ProcessState::Stopped)];
    let finding = only(&Observation { coordinator, processes, ..run(1, 1, vec![server(0), worker(0)]) });
    says(
        &finding,
        FindingKind::CoordinatorSilent,
        "the coordinator does not answer",
        &[
            "127.0.0.1:7700 does not answer within 5 s",
            "its process 4711 on this machine is stopped by a signal (SIGSTOP, a debugger, Ctrl-Z)",
        ],
        "kill -CONT 4711",
    );
}

#[test]
fn members_that_cannot_reach_a_coordinator_that_answers_are_named() {
    let waits = waiting(worker(0), WaitKind::Coordinator, "its next split", 9);
    let finding = only(&run(1, 1, vec![server(0), waits]));
    assert_eq!(finding.what, "the coordinator answers here, and not to all its members");
    assert_eq!(finding.why[0], "dense worker 0 waits for its next split from the coordinator, for 9.0 s");
}

#[test]
fn a_straggler_slows_the_run_and_is_no_trouble() {
    let stages = |dense, reduce| Some(StageSeconds { dense, reduce, waiting: 1.0, ..StageSeconds::default() });
    let quick = ObservedMember { stages: stages(10.0, 9.0), ..worker(0) };
    let slow = ObservedMember { stages: stages(19.0, 0.1), ..worker(1) };
    let finding = only(&run(1, 2, vec![server(0), quick, slow]));
    assert_eq!((finding.kind, finding.severity), (FindingKind::Straggler, Severity::Slow));
    assert_eq!(finding.what, "dense worker 1 needs 1.9 times as long for its part of a step as dense worker 0");
    let alone = run(1, 1, vec![server(0), ObservedMember { stages: stages(10.0, 0.0), ..worker(0) }]);
    assert!(diagnose_run(&alone).findings.is_empty());
}

#[test]
fn a_worker_that_starves_is_advised_to_read_faster() {
    let stages = StageSeconds { dense: 4.0, waiting: 6.0, parse: 9.0, lookup: 1.0, ..StageSeconds::default() };
    let finding = only(&run(1, 1, vec![server(0), ObservedMember { stages: Some(stages), ..worker(0) }]));
    assert_eq!(finding.what, "dense worker 0 waits for batches for 60 % of its time: reading is slower than training");
    let stages = Some(StageSeconds { lookup: 20.0, ..stages });
    let looks_up = run(1, 1, vec![server(0), ObservedMember { stages, ..worker(0) }]);
    assert!(diagnose_run(&looks_up).findings.is_empty());
}

fn ended(party: Party, how: &str, order: u64, asked: bool) -> ObservedProcess {
    let end = ProcessEnd { how: how.to_owned(), well: false, asked, order, last_error: Some("disk full".to_owned()) };
    ObservedProcess { end: Some(end), ..process(party, ProcessState::Gone) }
}

#[test]
fn of_a_run_that_is_over_the_first_process_that_ended_badly_is_named() {
    let processes = vec![
        ended(Party::Coordinator, "ended with exit code 4", 2, false),
        ended(Party::Member(MemberSlot::server(1)), "was killed by signal 9", 1, false),
        ended(Party::Member(MemberSlot::worker(0)), "was killed by signal 15", 0, true),
    ];
    let observation = Observation { processes, state: "failed".to_owned(), ..run(2, 1, Vec::new()) };
    let finding = only(&Observation { reason: "embedding server 1 is gone".to_owned(), ..observation });
    says(
        &finding,
        FindingKind::RunFailed,
        "the run ended because embedding server 1 was killed by signal 9",
        &[
            "its last error: disk full",
            "then coordinator ended with exit code 4",
            "the coordinator's account: embedding server 1 is gone",
        ],
        "goes on from the newest checkpoint",
    );
}

#[test]
fn a_run_whose_processes_are_gone_has_not_finished_unless_it_says_so() {
    let processes = vec![process(Party::Coordinator, ProcessState::Gone)];
    let coordinator = CoordinatorSign::Ended;
    let gone = Observation { processes, coordinator, ..run(1, 1, vec![server(0), worker(0)]) };
    assert_eq!(only(&gone).what, "no process of the run is left, and none has said why");
    let finished = diagnose_run(&Observation { state: "finished".to_owned(), ..gone });
    assert!(finished.healthy);
    assert_eq!(finished.verdict, "the run has finished");
}
