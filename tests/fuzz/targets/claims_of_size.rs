//! Short messages that claim to be large: each is refused, or answered within what its own bytes allow. The last test
//! compares the bounds of docs/security.md with the messages.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use zagros_embedding_client::Shard;
use zagros_embedding_server::{LocalMove, LocalShard};
use zagros_plumbing::Deadline;
use zagros_protocol::control::{
    AssignRequest, BucketMove, CompleteRequest, DataFile, FreezeMoveResponse, HeartbeatRequest, JoinRequest, LongWait,
    MoveRowsRequest, MoveRowsResponse, MovedWindow, MovedWindows, PlacementResponse, Position, ResumeCursor, Role,
    ServerEntry, ServerWait, Split, Transform, TransformsRequest,
};
use zagros_protocol::datapath::{LookupRequest, PushRequest};
use zagros_protocol::{BucketMap, Generation, PROTOCOL_VERSION, RefusalKind, RowKey, Segments, TableId, bucket_of};

use crate::allocations::AllocatedBytes;
use crate::coordinator::{FINGERPRINT, FuzzedRun, LEAST, PLAN};
use crate::messages::service;

fn counted<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let count = AllocatedBytes::new();
    count.count_this_thread();
    count.during(work)
}

fn join(files: Vec<DataFile>, position: Option<Position>) -> JoinRequest {
    JoinRequest {
        role: Role::DenseWorker as i32,
        instance: 1,
        job_fingerprint: FINGERPRINT,
        protocol_version: PROTOCOL_VERSION,
        files,
        position,
        ..JoinRequest::default()
    }
}

/// A join of 46 bytes once asked for 3 TB: a file of 2^64 bytes has that many splits.
#[test]
fn a_join_with_files_of_any_size_makes_a_plan_of_a_limited_size() {
    let file = DataFile { path: "a".to_owned(), bytes: u64::MAX, splittable: true, fingerprint: 1 };
    for files in [vec![file.clone()], vec![file; 3]] {
        let (mut run, request) = (FuzzedRun::empty(false), join(files, None));
        assert!(request.encoded_len() < 100);
        let (joined, bytes) = counted(|| run.core.join(run.now, &request));
        assert!(joined.is_ok() && bytes <= PLAN, "{bytes} bytes: {joined:?}");
    }
}

/// A resume cursor that skips 2^64 windows, and a plan whose splits are numbered from 2^64 down.
#[test]
fn a_position_with_any_numbers_takes_no_more_than_its_bytes() {
    let file = DataFile { path: "a".to_owned(), bytes: 1000, splittable: true, fingerprint: 1 };
    let split = Split { id: u64::MAX, file: 0, start: 0, end: 1000 };
    let cursor =
        ResumeCursor { reader: u32::MAX, splits: vec![split], drop: u64::MAX, windows: u64::MAX, skip: u64::MAX };
    let position = Position {
        epoch: u32::MAX,
        plan: vec![split],
        done: vec![u64::MAX, 1 << 40],
        resume_cursors: vec![cursor],
        bad_rows: u64::MAX,
    };
    let mut run = FuzzedRun::empty(false);
    let (_, bytes) = counted(|| run.core.join(run.now, &join(vec![file], Some(position))));
    assert!(bytes <= LEAST, "{bytes} bytes");
}

#[test]
fn epochs_splits_and_waits_beyond_all_bounds_are_refused_or_cost_nothing() {
    let mut run = FuzzedRun::training(false);
    let (core, now, member) = (&mut run.core, run.now, run.members[1]);
    let assign = AssignRequest { member, incarnation: 1, epoch: u32::MAX, continuing: true, question: u64::MAX };
    let splits = vec![u64::MAX; 8];
    let complete =
        CompleteRequest { member, incarnation: 1, epoch: u32::MAX, splits: splits.clone(), bad_rows: splits };
    let measured = vec![Transform::default(); (1 << 16) + 1];
    let transforms = TransformsRequest { member, incarnation: 1, measured, bytes: u64::MAX };
    let waits = |count| HeartbeatRequest {
        member,
        incarnation: 1,
        waits: vec![ServerWait { server: u32::MAX, oldest_ms: u64::MAX, ..ServerWait::default() }; count],
        long_waits: vec![LongWait { age_ms: u64::MAX, ..LongWait::default() }; count],
        ..HeartbeatRequest::default()
    };
    let (answers, bytes) = counted(|| {
        [
            core.assign(now, &assign).is_ok(),
            core.complete(now, &complete).is_ok(),
            core.transforms(now, &transforms).is_ok(),
            core.heartbeat(now, &waits(17)).is_ok(),
        ]
    });
    assert_eq!(answers[1..], [false; 3], "{answers:?}");
    assert!(bytes <= LEAST, "{bytes} bytes");
    core.heartbeat(now + Duration::from_secs(1), &waits(1)).expect("the worker is no worse off");
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// 12 bytes that claim 2^32 rows of 2^32 values, and bags that claim as many members.
#[test]
fn segments_and_bags_that_claim_more_than_they_bring_are_refused_before_anything_is_made() {
    let claims = [words(&[0, u32::MAX, 2]), words(&[0, 1, u32::MAX]), words(&[0, u32::MAX, u32::MAX].repeat(9))];
    let bags = [Vec::new(), words(&[1, 0, 0, u32::MAX, u32::MAX]), words(&[u32::MAX])];
    let (service, count) = (service(), AllocatedBytes::new());
    let shard = LocalShard::new(Arc::clone(&service));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    count.count_this_thread();
    let later = || Deadline::from_now(Duration::from_secs(3600));
    let requests = claims.iter().flat_map(|segments| bags.iter().map(move |bags| (segments, bags)));
    for (segments, bags) in requests.chain([(&words(&[0, 1, 2]), &bags[1]), (&words(&[0, 1, 2]), &bags[2])]) {
        let (segments, ids, bags) = (segments.clone(), vec![7; 8], bags.clone());
        let lookup = LookupRequest {
            generation: 1,
            segments: segments.clone().into(),
            ids: ids.clone().into(),
            access: 1,
            encoding: 1,
            bags: bags.clone().into(),
            ..LookupRequest::default()
        };
        let push = PushRequest {
            generation: 1,
            writer: 1,
            incarnation: u32::MAX,
            seq: u64::MAX,
            segments: segments.into(),
            ids: ids.into(),
            gradients: vec![0; 8].into(),
            encoding: 1,
            bags: bags.into(),
            step: u64::MAX,
            ..PushRequest::default()
        };
        let (refused, bytes) = count.during(|| {
            let lookup = runtime.block_on(shard.lookup(lookup, later())).err().map(|refusal| refusal.kind);
            let push = runtime.block_on(shard.push(push, later())).err().map(|refusal| refusal.kind);
            [lookup, push]
        });
        assert_eq!(refused, [Some(RefusalKind::Invalid); 2]);
        assert!(bytes <= LEAST, "{bytes} bytes");
    }
    assert_eq!(service.current_load().rows, 0);
    assert!(Segments::unpack(&words(&[0, u32::MAX, 1]), &[]).is_err());
}

/// A copy of a row of 8 bytes that claims what is not there, and windows of 2^64 pushes, which were once noted one by
/// one. A source has proven its role, and may be damaged all the same.
#[test]
fn rows_and_windows_of_a_move_that_claim_more_than_they_bring_are_refused_before_anything_is_made() {
    let service = service();
    let buckets: Vec<u32> = (0..8).collect();
    let bucket_move = BucketMove { id: 7, source: 1, target: 0, buckets: words(&buckets).into() };
    let placement = PlacementResponse {
        generation: 2,
        owners: words(&[[1; 8], [0; 8]].concat()).into(),
        servers: vec![ServerEntry { index: 1, ..ServerEntry::default() }],
        bucket_move: Some(bucket_move),
        ..PlacementResponse::default()
    };
    let target = LocalMove::from_placement(Arc::clone(&service), &placement).expect("the placement makes sense");
    let id = (0_u64..).find(|id| buckets.contains(&bucket_of(RowKey { table: TableId(0), id: *id }, 16)));
    let id = id.expect("some id moves").to_le_bytes().to_vec();
    let row = MoveRowsResponse { ids: id.clone().into(), ..MoveRowsResponse::default() };
    let rows = [
        MoveRowsResponse { table: u32::MAX, ..row.clone() },
        MoveRowsResponse { slots: vec![0; 4].into(), ..row.clone() },
        MoveRowsResponse { step_ids: id.clone().into(), step: u64::MAX, ..MoveRowsResponse::default() },
        MoveRowsResponse { counted: id.into(), counts: words(&[u32::MAX]).into(), ..row.clone() },
        MoveRowsResponse { sketch: vec![0; 4].into(), sketch_stripe: u32::MAX, sketch_from: u32::MAX, ..row },
        MoveRowsResponse { steps: u64::MAX, seconds: u64::MAX, ..MoveRowsResponse::default() },
    ];
    for sent in rows {
        assert!(sent.encoded_len() < 100);
        let (refused, bytes) = counted(|| target.put_rows(&sent).is_err());
        assert!(refused && bytes <= LEAST, "{bytes} bytes: {sent:?}");
    }
    let numbers = [0, u64::MAX].iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
    let window = MovedWindow { writer: 1, incarnation: 1, applied: numbers.into() };
    for (buckets, windows) in [(8, vec![window]), (9, Vec::new()), (8, vec![MovedWindow::default(); (1 << 16) + 1])] {
        let groups = vec![MovedWindows { buckets: words(&(0..buckets).collect::<Vec<_>>()).into(), windows }];
        let sent = FreezeMoveResponse { changed: u64::MAX, groups };
        let (refused, bytes) = counted(|| target.put_windows(&sent).is_err());
        assert!(refused && bytes <= LEAST, "{bytes} bytes");
    }
    for (bucket_move, number) in [(7, u64::MAX), (u64::MAX, 0)] {
        let (refused, bytes) = counted(|| target.next_rows(&MoveRowsRequest { bucket_move, number }).is_err());
        assert!(refused && bytes <= LEAST, "{bytes} bytes");
    }
    assert_eq!((service.current_load().rows, target.put_rows(&MoveRowsResponse::default())), (0, Ok(())));
}

/// A map of 2^31 buckets is a message of 8 GiB, which no receiver reads. A map of one bucket of server 2^32 - 1 is short.
#[test]
fn a_map_names_no_server_that_no_run_can_have() {
    let (map, bytes) = counted(|| BucketMap::unpack_owners(Generation(1), &words(&[0, u32::MAX])));
    let refused = map.expect_err("no run has so many servers").to_string();
    assert!(refused.contains("4294967295") && bytes <= LEAST, "{refused}: {bytes} bytes");
}

/// The fields of a message that have no size of their own: lists, bytes and texts.
fn fields_of(proto: &str) -> BTreeSet<String> {
    let (mut fields, mut message) = (BTreeSet::new(), String::new());
    for line in proto.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("message ") {
            message = name.split([' ', '{']).next().unwrap_or_default().to_owned();
        }
        let mut parts = line.split_whitespace();
        let name = match parts.next() {
            Some("repeated") => parts.nth(1),
            Some("bytes" | "string") => parts.next(),
            _ => None,
        };
        fields.extend(name.map(|name| format!("{message}.{name}")));
    }
    fields
}

/// A new field without a bound is noticed here.
#[test]
fn every_field_without_a_size_of_its_own_is_in_the_table_of_bounds() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("it is in the repository");
    let protos = ["control/v1/coordinator", "control/v1/storage", "control/v1/migration", "datapath/v1/embedding"];
    let fields: BTreeSet<String> =
        protos.iter().flat_map(|name| fields_of(&read(&format!("protocol/proto/zagros/{name}.proto")))).collect();
    assert!(fields.len() > 60, "the check finds what is there: {fields:?}");
    let page = read("docs/security.md");
    let missing: Vec<_> = fields.iter().filter(|field| !page.contains(&format!("`{field}`"))).collect();
    assert!(missing.is_empty(), "docs/security.md, \"Bounds of messages\", does not say what bounds: {missing:?}");
}
