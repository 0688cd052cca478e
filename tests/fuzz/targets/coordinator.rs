//! Messages to the coordinator: noise on the wire, and messages whose parts disagree, into the real state machine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bolero::{TypeGenerator, check};
use prost::Message;
use zagros_coordinator_core::{Core, CoreConfig, SplitOrder};
use zagros_protocol::control::{
    AssignRequest, BarrierRequest, CompleteRequest, DataFile, Disk, Evaluation, GroupRequest, HeartbeatRequest,
    JoinRequest, LeaveRequest, LongWait, Position, PositionRequest, Progress, ReportEvaluationRequest,
    ReportMoveRequest, ResumeCursor, Role, ScaleRequest, ServerLoad, ServerWait, Split, Transform, TransformsRequest,
};
use zagros_protocol::{PROTOCOL_VERSION, Refusal, RunId};

use crate::allocations::AllocatedBytes;

pub(crate) const FINGERPRINT: u64 = 7;
/// What the answer to any message may take, where the run has few splits.
pub(crate) const LEAST: usize = 64 << 10;
/// What a byte of a message may take: a field of two bytes becomes an entry of some dozen, which is copied a few times.
pub(crate) const A_BYTE: usize = 256;
/// What a plan of the most splits that a run can have may take. The first worker to join brings one.
pub(crate) const PLAN: usize = 64 << 20;

/// A message as numbers: small ones, and those at which arithmetic goes wrong.
#[derive(Clone, Debug, TypeGenerator)]
struct ControlClaims {
    kind: u8,
    member: u8,
    incarnation: u8,
    numbers: [u8; 8],
    flags: [bool; 2],
    list: Vec<(u8, u8)>,
    text: Vec<u8>,
}

fn number(choice: u8) -> u64 {
    match choice % 16 {
        small @ 0..8 => u64::from(small),
        8 => u64::MAX,
        9 => u64::MAX - 1,
        10 => u64::from(u32::MAX),
        11 => 1 << 32,
        12 => 1 << 40,
        13 => 1 << 63,
        14 => (1 << 32) + 1,
        _ => 1000,
    }
}

fn float(choice: u8) -> f64 {
    match choice % 6 {
        0 => f64::NAN,
        1 => f64::INFINITY,
        2 => -1.0,
        3 => 0.0,
        4 => f64::MAX,
        _ => 0.5,
    }
}

impl ControlClaims {
    fn number(&self, index: usize) -> u64 {
        number(self.numbers[index])
    }

    fn small(&self, index: usize) -> u32 {
        self.number(index) as u32
    }

    /// Most often that of a member.
    fn member(&self, members: &[u64]) -> u64 {
        members.get(usize::from(self.member % 4)).copied().unwrap_or_else(|| number(self.member))
    }

    fn incarnation(&self) -> u32 {
        if self.incarnation.is_multiple_of(4) { number(self.incarnation / 4) as u32 } else { 1 }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.text).into_owned()
    }

    fn splits(&self) -> Vec<Split> {
        let split = |(id, file): &(u8, u8)| Split {
            id: number(*id),
            file: number(*file) as u32,
            start: self.number(0),
            end: self.number(1),
        };
        self.list.iter().map(split).collect()
    }

    fn ids(&self) -> Vec<u64> {
        self.list.iter().map(|(id, _)| number(*id)).collect()
    }

    fn position(&self) -> Position {
        let cursor = ResumeCursor {
            reader: self.small(2),
            splits: self.splits(),
            drop: self.number(3),
            windows: self.number(4),
            skip: self.number(5),
        };
        Position {
            epoch: self.small(6),
            plan: self.splits(),
            done: self.ids(),
            resume_cursors: vec![cursor; self.list.len().min(3)],
            bad_rows: self.number(7),
        }
    }

    fn join(&self) -> JoinRequest {
        let file = |(bytes, path): &(u8, u8)| DataFile {
            path: path.to_string(),
            bytes: number(*bytes),
            splittable: self.flags[0],
            fingerprint: self.number(0),
        };
        JoinRequest {
            role: if self.flags[1] { Role::DenseWorker as i32 } else { self.small(1) as i32 },
            index: self.small(2),
            address: self.text(),
            instance: self.number(3),
            job_fingerprint: if self.incarnation.is_multiple_of(4) { self.number(4) } else { FINGERPRINT },
            protocol_version: if self.member.is_multiple_of(8) { self.small(5) } else { PROTOCOL_VERSION },
            release: self.text(),
            transport: if self.incarnation.is_multiple_of(8) { self.text() } else { String::new() },
            files: self.list.iter().map(file).collect(),
            position: self.kind.is_multiple_of(4).then(|| self.position()),
            supersede: self.kind.is_multiple_of(2),
            ..JoinRequest::default()
        }
    }

    fn heartbeat(&self, members: &[u64]) -> HeartbeatRequest {
        let wait = |(server, oldest): &(u8, u8)| ServerWait {
            server: number(*server) as u32,
            lookups: self.small(0),
            pushes: self.small(1),
            oldest_ms: number(*oldest),
        };
        let long = |(kind, age): &(u8, u8)| LongWait {
            part: self.text(),
            kind: i32::from(*kind),
            indices: vec![u32::from(*age)],
            what: self.text(),
            age_ms: number(*age),
            left_ms: self.flags[0].then(|| number(*kind)),
        };
        let progress = Progress {
            step: self.number(2),
            epoch: self.small(3),
            samples: self.number(4),
            samples_per_second: float(self.numbers[5]),
            loss: float(self.numbers[6]),
            staleness: self.small(7),
            checkpoint_step: self.number(0),
            auc: self.flags[0].then(|| float(self.numbers[1])),
            batch: self.number(2),
            trained: self.flags[1],
            ..Progress::default()
        };
        HeartbeatRequest {
            member: self.member(members),
            incarnation: self.incarnation(),
            progress: Some(progress),
            load: self.flags[0].then(|| ServerLoad {
                rows: self.number(1),
                bytes: self.number(2),
                ..ServerLoad::default()
            }),
            waits: self.list.iter().map(wait).collect(),
            disk: self.flags[1].then(|| Disk { free_bytes: self.number(3), size_bytes: self.number(4) }),
            barrier: self.number(5),
            leaving: self.kind.is_multiple_of(32),
            long_waits: self.list.iter().map(long).collect(),
        }
    }
}

pub(crate) struct FuzzedRun {
    pub(crate) core: Core,
    pub(crate) now: Duration,
    pub(crate) members: Vec<u64>,
}

impl FuzzedRun {
    pub(crate) fn empty(asynchronous: bool) -> Self {
        let config = CoreConfig {
            run: RunId(1),
            job: "fuzz".to_owned(),
            servers: 1,
            workers: 2,
            min_workers: 1,
            max_workers: 3,
            buckets: 8,
            epochs: 3,
            order: SplitOrder::Shuffled { seed: 1, window_rows: 1 },
            asynchronous,
            staleness: 2,
            checkpoint_every: Some(Duration::from_secs(60)),
            lease: Duration::from_secs(10),
            timeout: Duration::from_secs(60),
            fingerprint: FINGERPRINT,
            ..CoreConfig::default()
        };
        Self { core: Core::new(config), now: Duration::ZERO, members: Vec::new() }
    }

    pub(crate) fn training(asynchronous: bool) -> Self {
        let mut run = Self::empty(asynchronous);
        for (role, index) in [(Role::EmbeddingServer, 0), (Role::DenseWorker, 0), (Role::DenseWorker, 1)] {
            let file = DataFile { path: "a".to_owned(), bytes: 8 << 10, splittable: true, fingerprint: 1 };
            let request = JoinRequest {
                role: role as i32,
                index,
                address: "127.0.0.1:1".to_owned(),
                instance: u64::from(index) + 1,
                job_fingerprint: FINGERPRINT,
                protocol_version: PROTOCOL_VERSION,
                files: vec![file],
                ..JoinRequest::default()
            };
            let joined = run.core.join(run.now, &request).expect("it joins");
            run.members.push(joined.member);
        }
        run
    }

    /// Whether the message was answered, and its size.
    fn send(&mut self, claims: &ControlClaims) -> (bool, usize) {
        let (member, incarnation, members) = (claims.member(&self.members), claims.incarnation(), &self.members);
        let (core, now, epoch) = (&mut self.core, self.now, claims.small(0));
        match claims.kind % 9 {
            0 => answered(claims.join(), |request| core.join(now, request)),
            1 => answered(claims.heartbeat(members), |request| core.heartbeat(now, request)),
            2 => {
                let outcome = claims.small(1) as i32;
                let request = LeaveRequest { member, incarnation, outcome, reason: claims.text() };
                answered(request, |request| core.leave(now, request))
            }
            3 => {
                let request = GroupRequest { member, incarnation, after: claims.number(1) };
                answered(request, |request| core.group(now, request))
            }
            4 => {
                let request = AssignRequest {
                    member,
                    incarnation,
                    epoch,
                    continuing: claims.flags[0],
                    ..AssignRequest::default()
                };
                answered(request, |request| core.assign(now, request))
            }
            5 => {
                let (splits, bad_rows) = (claims.ids(), claims.ids());
                let bad_rows = if claims.flags[0] { bad_rows } else { Vec::new() };
                let request = CompleteRequest { member, incarnation, epoch, splits, bad_rows };
                answered(request, |request| core.complete(now, request))
            }
            6 => {
                let request = PositionRequest { member, incarnation, epoch };
                core.tick(now);
                answered(request, |request| core.view_position(request))
            }
            7 => {
                let transform = |(mean, deviation): &(u8, u8)| Transform {
                    mean: float(*mean),
                    deviation: float(*deviation),
                    numbers: vec![float(*deviation)],
                    ids: vec![u64::from(*mean)],
                    values: vec![float(*mean) as f32],
                };
                let measured = claims.list.iter().map(transform).collect();
                let request = TransformsRequest { member, incarnation, measured, bytes: claims.number(1) };
                answered(request, |request| core.transforms(now, request))
            }
            _ => {
                let evaluation = Evaluation {
                    step: claims.number(1),
                    epoch,
                    samples: claims.number(2),
                    auc: float(claims.numbers[3]),
                    logloss: float(claims.numbers[4]),
                    part: claims.small(5) as i32,
                };
                let request = ReportEvaluationRequest { member, incarnation, evaluation: Some(evaluation) };
                answered(request, |request| core.report_evaluation(now, request))
            }
        }
    }

    /// What any caller may ask at any time.
    fn look(&mut self) {
        self.core.placement(self.now);
        let status = self.core.status(self.now);
        assert_eq!(status.job, "fuzz");
        self.core.take_events();
    }
}

fn answered<Q: Message, A>(request: Q, call: impl FnOnce(&Q) -> Result<A, Refusal>) -> (bool, usize) {
    let size = request.encoded_len();
    (call(&request).is_ok(), size)
}

/// A message to a run that trains takes no more than its own size allows, whatever numbers are in it.
#[test]
fn a_message_takes_no_more_memory_than_its_size_allows() {
    let count = AllocatedBytes::new();
    count.count_this_thread();
    let good = AtomicU64::new(0);
    check!().with_iterations(10_000).with_type::<(bool, ControlClaims)>().for_each(|(asynchronous, claims)| {
        let mut run = FuzzedRun::training(*asynchronous);
        let ((is_answered, size), bytes) = count.during(|| {
            let sent = run.send(claims);
            run.look();
            sent
        });
        good.fetch_add(u64::from(is_answered), Ordering::Relaxed);
        assert!(bytes <= LEAST + A_BYTE * size, "{bytes} bytes for a message of {size}: {claims:?}");
    });
    let good = good.into_inner();
    assert!(good > 100, "{good} messages were answered");
}

/// The first worker brings the plan of the run. Whatever sizes it states, the plan has a largest size.
#[test]
fn the_first_to_join_makes_no_plan_beyond_the_largest() {
    let count = AllocatedBytes::new();
    count.count_this_thread();
    let planned = AtomicU64::new(0);
    check!().with_iterations(1_000).with_type::<ControlClaims>().for_each(|claims| {
        let mut run = FuzzedRun::empty(false);
        let request = JoinRequest { index: 0, role: Role::DenseWorker as i32, ..claims.join() };
        let (joined, bytes) = count.during(|| run.core.join(run.now, &request));
        planned.fetch_add(u64::from(joined.is_ok()), Ordering::Relaxed);
        let size = request.encoded_len();
        assert!(bytes <= PLAN + A_BYTE * size, "{bytes} bytes for a join of {size}: {claims:?}");
    });
    let planned = planned.into_inner();
    assert!(planned > 10, "{planned} joined");
}

/// One message after another, with pauses in which leases end.
#[test]
fn no_order_of_messages_ends_the_coordinator() {
    check!().with_iterations(500).with_type::<(bool, bool, Vec<(u8, ControlClaims)>)>().for_each(
        |(starts, asynchronous, all)| {
            let mut run = if *starts { FuzzedRun::empty(*asynchronous) } else { FuzzedRun::training(*asynchronous) };
            for (pause, claims) in all {
                run.now += Duration::from_secs(u64::from(*pause) / 8);
                if *pause == u8::MAX {
                    run.core.drain_run(run.now, "the fuzzer asks");
                }
                run.send(claims);
                run.look();
            }
        },
    );
}

/// Bytes that some other program sends.
#[test]
fn noise_is_answered_or_refused() {
    let count = AllocatedBytes::new();
    count.count_this_thread();
    check!().with_type::<Vec<u8>>().for_each(|bytes| {
        let mut run = FuzzedRun::training(false);
        let ((), taken) = count.during(|| feed(&mut run, bytes));
        assert!(taken <= 12 * LEAST + 12 * A_BYTE * bytes.len(), "{taken} bytes for {}", bytes.len());
    });
}

fn feed(run: &mut FuzzedRun, bytes: &[u8]) {
    macro_rules! feed {
        ($($request:ident => $call:ident),* $(,)?) => {
            $(if let Ok(request) = $request::decode(bytes) {
                let _ = run.core.$call(run.now, &request);
            })*
        };
    }
    if let Ok(request) = PositionRequest::decode(bytes) {
        let _ = run.core.view_position(&request);
    }
    feed! {
        JoinRequest => join, HeartbeatRequest => heartbeat, LeaveRequest => leave, GroupRequest => group,
        AssignRequest => assign, CompleteRequest => complete,
        TransformsRequest => transforms, ReportEvaluationRequest => report_evaluation,
        BarrierRequest => barrier, ScaleRequest => scale, ReportMoveRequest => report_move,
    }
}
