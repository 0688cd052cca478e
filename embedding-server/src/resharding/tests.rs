//! Buckets move back and forth under pushes, while servers die and come back. The oracle: gradients are integers and the learning
//! rate is 1, so each row is its first value minus the sum of all acknowledged pushes.

mod cluster;
mod forged;
mod lookups;
mod pushes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use prometheus::Registry;
use zagros_protocol::control::{
    BucketMove, FreezeMoveResponse, MoveRowsResponse, MoveStage, MoveVerdict, PlacementResponse, ReportMoveResponse,
    ServerEntry, Writer,
};
use zagros_protocol::datapath::PushRequest;
use zagros_protocol::{BucketMap, Generation, Refusal, RefusalKind, RowKey, ServerIndex, TableId};
use zagros_rows::log::{WindowGroup, WindowImage};

use super::incoming::{CopyProgress, MoveSource};
use super::*;
use crate::EmbeddingService;
use crate::testing::{BUCKETS, HeldGate, even_map, job_with, placed, push, push_of, read, service, slots};
use cluster::{Cluster, Dice, TableKind};

/// Seeds in the gate.
const SEEDS: u64 = 40;
/// Seeds in the gate for tables beyond memory, which have many more rows.
const COLD_SEEDS: u64 = 8;
/// Seeds in the gate for each other kind of table.
const FEWER_SEEDS: u64 = 16;
/// Seeds that run at the same time.
const AT_ONCE: u64 = 8;

/// One history: three writers push while servers come, go and, if `kills`, die.
async fn history(seed: u64, kind: TableKind, kills: bool) {
    let cluster = Cluster::start((seed, kind, kills), 2, 3).await;
    let writers: Vec<_> = (0..3)
        .map(|writer| tokio::spawn(pushes::write(Arc::clone(&cluster), writer, Dice::new(seed ^ (writer + 1) << 32))))
        .collect();
    let mut dice = Dice::new(seed);
    for _ in 0..3 {
        let wanted = 1 + dice.below(4) as u32;
        cluster.scale(wanted).await;
        if kills && dice.one_in(2) {
            tokio::time::sleep(Duration::from_millis(dice.below(15))).await;
            cluster.kill_and_recover(&mut dice).await;
        }
        cluster.settle(wanted).await;
    }
    let mut expected = BTreeMap::new();
    for writer in writers {
        for (row, sum) in writer.await.unwrap() {
            *expected.entry(row).or_insert(0.0) += sum;
        }
    }
    cluster.check(&expected).await;
}

/// Runs histories of some seeds, several at the same time.
fn histories(seeds: u64, kind: TableKind, kills: bool) {
    let seeds = std::env::var("ZAGROS_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(seeds);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        for first in (0..seeds).step_by(AT_ONCE as usize) {
            let these = first..seeds.min(first + AT_ONCE);
            let histories = these.map(|seed| (seed, tokio::spawn(history(seed, kind, kills))));
            for (seed, history) in histories.collect::<Vec<_>>() {
                history.await.unwrap_or_else(|error| panic!("{kind:?}, seed {seed}: {error}"));
            }
        }
    });
}

/// Invariants DP-3, DU-1 and PL-3 across moves (ADR 39).
#[test]
fn rows_are_the_sum_of_acknowledged_pushes_whatever_moves_and_dies() {
    histories(SEEDS, TableKind::InMemory, true);
}

/// The same with invariant TI-1: most rows are in the cold tier (ADR 39).
#[test]
fn rows_beyond_memory_are_the_sum_of_acknowledged_pushes_whatever_moves_and_dies() {
    histories(COLD_SEEDS, TableKind::BeyondMemory, true);
}

#[test]
fn rows_of_tables_that_count_are_the_sum_of_acknowledged_pushes_whatever_moves_and_dies() {
    histories(FEWER_SEEDS, TableKind::Counted, true);
    histories(FEWER_SEEDS, TableKind::Sketched, true);
}

/// Exact counts move exactly, and those of a sketch never go down (ADR 39).
#[test]
fn an_id_is_admitted_at_the_same_use_whatever_moves_meanwhile() {
    histories(FEWER_SEEDS, TableKind::Counted, false);
    histories(FEWER_SEEDS, TableKind::Sketched, false);
}

/// A part of a push that comes again, with ids of a bucket that has come since: only those are applied.
#[test]
fn each_window_group_of_a_push_decides_for_itself() {
    let service = placed(1, 0);
    let ids: Vec<u64> = (0..40).collect();
    let first = read(&service, &[(ITEM, &ids)]);
    let buckets: Vec<u32> = (0..BUCKETS).filter(|bucket| bucket % 2 == 0).collect();
    let windows = vec![WindowImage { writer: 9, incarnation: 1, applied: vec![[1, 1], [3, 3]] }];
    service.windows.restore_group(&WindowGroup { group: 1, buckets, windows });
    for seq in 1..=3 {
        assert!(!push(&service, &push_of(&[(ITEM, &ids)], seq, 1.0)).unwrap().duplicate);
        assert!(push(&service, &push_of(&[(ITEM, &ids)], seq, 1.0)).unwrap().duplicate);
    }
    let updated = read(&service, &[(ITEM, &ids)]);
    for (place, id) in ids.iter().enumerate() {
        let key = RowKey { table: TableId(ITEM), id: *id };
        let has = if zagros_protocol::bucket_of(key, BUCKETS).is_multiple_of(2) { 1.0 } else { 3.0 };
        let column = place * crate::testing::DIM as usize;
        assert!((first[column] - updated[column] - has).abs() < 0.01, "id {id}: {} {}", first[column], updated[column]);
    }
}

const ITEM: u32 = 1;

/// Server 0 or 1 of two, to which a move of all buckets of server 0 is announced.
fn announced(index: u32) -> Arc<EmbeddingService> {
    let service = service(2, index);
    adopt_placement(&service, &placement(1, Some(7))).unwrap();
    service
}

/// A placement of two servers at a generation, with the announced move of server 0's buckets to server 1.
fn placement(generation: u64, bucket_move: Option<u64>) -> PlacementResponse {
    let map = BucketMap::split_evenly(Generation(generation), BUCKETS, 2);
    let buckets: Vec<u8> = (0..BUCKETS / 2).flat_map(u32::to_le_bytes).collect();
    let bucket_move = bucket_move.map(|id| BucketMove { id, source: 0, target: 1, buckets: buckets.into() });
    let servers = vec![ServerEntry { index: 0, ..ServerEntry::default() }];
    let (owners, writers) = (map.pack_owners().into(), vec![Writer { member: 9, incarnation: 1 }]);
    PlacementResponse { generation, owners, bucket_move, servers, writers, ..Default::default() }
}

fn logged_job(servers: u32) -> (tempfile::TempDir, zagros_job::Job) {
    let (folder, mut job) = (tempfile::tempdir().unwrap(), job_with(servers, "durability = \"process\""));
    job.output.folder = folder.path().join("runs");
    (folder, job)
}

/// The ids of `item` that a server owns.
fn ids_of(server: u32) -> impl Iterator<Item = u64> {
    let map = even_map(2);
    (0..).filter(move |id| map.row_owner(RowKey { table: TableId(ITEM), id: *id }).0 == server)
}

fn id_of(server: u32) -> u64 {
    ids_of(server).next().unwrap()
}

#[test]
fn a_server_freezes_between_two_requests_and_thaws_when_the_move_is_over() {
    let source = announced(0);
    begin_copy(&source, 7).unwrap();
    let request = source.tables.enter();
    let refused = freeze_source(&source, 7).unwrap_err();
    assert!(refused.kind == RefusalKind::Unavailable && refused.message.contains("does not end"), "{refused}");
    assert!(!source.is_frozen());
    drop(request);
    let of_source = push_of(&[(ITEM, &[id_of(0)])], 1, 1.0);
    assert!(!push(&source, &of_source).unwrap().duplicate);
    let frozen = freeze_source(&source, 7).unwrap();
    assert_eq!((frozen.changed, frozen.groups.len(), frozen.groups[0].windows.len()), (1, 1, 1));
    assert_eq!(freeze_source(&source, 7).unwrap(), frozen, "the answer was lost");
    let refused = push(&source, &of_source).unwrap_err();
    assert!(refused.kind == RefusalKind::Unavailable && refused.message.contains("move 7"), "{refused}");
    // Another server has changed: the move is not decided.
    adopt_placement(&source, &placement(2, Some(7))).unwrap();
    let of_source = PushRequest { generation: 2, ..of_source };
    assert_eq!(push(&source, &of_source).unwrap_err().kind, RefusalKind::Unavailable);
    adopt_placement(&source, &placement(2, None)).unwrap();
    assert!(push(&source, &of_source).unwrap().duplicate);
}

/// Invariant PL-2: a request that was checked under an earlier map, and enters the tables under a later one.
#[test]
fn a_request_that_waited_while_buckets_moved_is_refused() {
    let source = announced(0);
    let held = HeldGate::new(&source);
    let pushing = {
        let source = Arc::clone(&source);
        std::thread::spawn(move || push(&source, &push_of(&[(ITEM, &[id_of(0)])], 5, 1.0)))
    };
    // It has been checked by now, and waits at the gate.
    while source.writers.newest() < 5 {
        std::thread::yield_now();
    }
    adopt_placement(&source, &placement(2, None)).unwrap();
    drop(held);
    assert_eq!(pushing.join().unwrap().unwrap_err().kind, RefusalKind::Moved);
    assert_eq!(source.current_load().rows, 0);
}

/// An earlier process of the target had copied a part.
#[tokio::test]
async fn a_target_begins_without_a_row_of_the_buckets() {
    struct NoSource;
    impl MoveSource for NoSource {
        fn begin_copy(&self) -> BoxFuture<'_, Result<(), Refusal>> {
            Box::pin(async { Err(Refusal::invalid("it has gone")) })
        }
        fn next_rows(&self, _: u64) -> BoxFuture<'_, Result<MoveRowsResponse, Refusal>> {
            unreachable!("the copy has not begun")
        }
        fn freeze(&self) -> BoxFuture<'_, Result<FreezeMoveResponse, Refusal>> {
            unreachable!("the copy has not begun")
        }
    }

    struct Verdict(Arc<EmbeddingService>);
    impl MoveReports for Verdict {
        fn report(
            &self,
            stage: MoveStage,
            _: CopyProgress,
            _: String,
        ) -> BoxFuture<'_, Result<ReportMoveResponse, Refusal>> {
            // While the target copies, it has the rows of its own buckets alone.
            assert_eq!(self.0.current_load().rows, 1);
            let verdict = if stage == MoveStage::Failed { MoveVerdict::Abandoned } else { MoveVerdict::Continue };
            Box::pin(async move { Ok(ReportMoveResponse { verdict: verdict.into(), ..Default::default() }) })
        }
    }
    let target = announced(1);
    let rows = zagros_table::RowBatch { ids: vec![id_of(0), id_of(1)], slots: vec![0; 8], access: Vec::new() };
    let table = target.tables.table(ITEM).unwrap();
    table.insert(&rows, &mut zagros_table::RequestBuffers::new()).unwrap();
    let (plan, _) = adopt_placement(&target, &placement(1, Some(7))).unwrap().unwrap().incoming.unwrap();
    let ended =
        copy_buckets(Arc::clone(&target), plan, Arc::new(NoSource), Arc::new(Verdict(Arc::clone(&target)))).await;
    assert_eq!(ended, CopyEnd::Abandoned(String::new()));
    assert!(target.moves.begin_load(target.index).is_ok(), "the move is over");
}

/// Its retry would find a part of its rows at the source's log, and the rest at the target.
#[test]
fn a_push_that_died_half_way_is_waited_for_before_the_freeze() {
    let (_folder, job) = logged_job(2);
    let source = EmbeddingService::open(&job, ServerIndex(0), &Registry::new()).unwrap();
    adopt_placement(&source, &placement(1, Some(7))).unwrap();
    begin_copy(&source, 7).unwrap();
    let (id, origin) = (id_of(0), zagros_table::PushOrigin { writer: 9, incarnation: 1, seq: 1 });
    let applied = [(origin, [(ITEM, id)].into())].into();
    source.log.as_ref().unwrap().partial.restore_rows(applied);
    let refused = freeze_source(&source, 7).unwrap_err();
    assert!(refused.message.contains("waits for push 1 of writer 9 (incarnation 1)"), "{refused}");
    push(&source, &push_of(&[(ITEM, &[id])], 1, 1.0)).unwrap();
    freeze_source(&source, 7).unwrap();
}

/// Windows of groups are in the base and in the log behind it.
#[test]
fn window_groups_survive_the_process() {
    let (_folder, job) = logged_job(1);
    let start = || {
        let service = EmbeddingService::open(&job, ServerIndex(0), &Registry::new()).unwrap();
        service.set_placement(even_map(1));
        service
    };
    let ids: Vec<u64> = (0..30).collect();
    let add = |service: &EmbeddingService, group: u32, seq: u64| {
        let buckets = (0..BUCKETS).filter(|bucket| bucket % 3 == group).collect();
        let windows = vec![WindowImage { writer: 9, incarnation: 1, applied: vec![[seq, seq]] }];
        let group = WindowGroup { group, buckets, windows };
        service.log.as_ref().unwrap().writer.append_window_group(&group);
        service.windows.restore_group(&group);
    };
    let service = start();
    add(&service, 1, 100);
    push(&service, &push_of(&[(ITEM, &ids)], 1, 1.0)).unwrap();
    service.log.as_ref().unwrap().write_base(&service.tables, &service.windows).unwrap();
    add(&service, 2, 101);
    push(&service, &push_of(&[(ITEM, &ids)], 2, 1.0)).unwrap();
    let sorted = |service: &EmbeddingService| {
        let mut images = service.windows.group_images();
        images.iter_mut().for_each(|group| group.windows.sort_by_key(|window| window.writer));
        images
    };
    let expected = sorted(&service);
    assert_eq!(expected.iter().map(|group| group.windows.len()).collect::<Vec<_>>(), [1, 1, 1]);
    drop(service);
    let service = start();
    assert_eq!(sorted(&service), expected);
    assert!(push(&service, &push_of(&[(ITEM, &ids)], 2, 1.0)).unwrap().duplicate);
}

#[test]
fn loads_and_moves_exclude_each_other() {
    let service = placed(2, 0);
    let turn = service.moves.begin_load(service.index).unwrap();
    let refused = service.moves.begin_load(service.index).unwrap_err();
    assert!(refused.kind == RefusalKind::Unavailable && refused.message.contains("rows are being loaded"), "{refused}");
    drop(turn);
    assert!(service.moves.begin_load(service.index).is_ok());
    let unknown = begin_copy(&service, 7).unwrap_err();
    assert!(unknown.kind == RefusalKind::Unavailable && unknown.message.contains("move 7"), "{unknown}");
}
