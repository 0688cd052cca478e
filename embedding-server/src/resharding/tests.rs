//! Buckets move back and forth under pushes, while servers die and come back. The oracle: gradients are integers and the learning
//! rate is 1, so each row is its first value minus the sum of all acknowledged pushes.

mod cluster;
mod pushes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use zagros_protocol::RefusalKind;

use super::*;
use crate::testing::{job, placed, push, push_of, read};
use cluster::{Cluster, Dice};

/// Seeds in the gate.
const SEEDS: u64 = 40;
/// Seeds that run at the same time.
const AT_ONCE: u64 = 8;

/// One history: three writers push while servers come, go and die.
async fn history(seed: u64) {
    let cluster = Cluster::start(seed, 2, 3).await;
    let writers: Vec<_> = (0..3)
        .map(|writer| tokio::spawn(pushes::write(Arc::clone(&cluster), writer, Dice::new(seed ^ (writer + 1) << 32))))
        .collect();
    let mut dice = Dice::new(seed);
    for _ in 0..3 {
        let wanted = 1 + dice.below(4) as u32;
        cluster.scale(wanted).await;
        if dice.one_in(2) {
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

/// Invariants DP-3 and DU-1 across moves (ADR 39).
#[test]
fn rows_are_the_sum_of_acknowledged_pushes_whatever_moves_and_dies() {
    let seeds = std::env::var("ZAGROS_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        for first in (0..seeds).step_by(AT_ONCE as usize) {
            let histories = (first..seeds.min(first + AT_ONCE)).map(|seed| (seed, tokio::spawn(history(seed))));
            for (seed, history) in histories.collect::<Vec<_>>() {
                history.await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            }
        }
    });
}

/// A part of a push that comes again, with ids of a bucket that has come since: only those are applied.
#[test]
fn each_window_group_of_a_push_decides_for_itself() {
    const ITEM: u32 = 1;
    let service = placed(1, 0);
    let ids: Vec<u64> = (0..40).collect();
    let first = read(&service, &[(ITEM, &ids)]);
    let buckets: Vec<u32> = (0..crate::testing::BUCKETS).filter(|bucket| bucket % 2 == 0).collect();
    let windows = vec![zagros_log::WindowImage { writer: 9, incarnation: 1, applied: vec![[1, 1], [3, 3]] }];
    service.windows.restore(&zagros_log::WindowGroup { group: 1, buckets, windows });
    for seq in 1..=3 {
        assert!(!push(&service, &push_of(&[(ITEM, &ids)], seq, 1.0)).unwrap().duplicate);
        assert!(push(&service, &push_of(&[(ITEM, &ids)], seq, 1.0)).unwrap().duplicate);
    }
    let after = read(&service, &[(ITEM, &ids)]);
    for (place, id) in ids.iter().enumerate() {
        let key = zagros_protocol::RowKey { table: zagros_protocol::TableId(ITEM), id: *id };
        let has = if zagros_protocol::bucket_of(key, crate::testing::BUCKETS).is_multiple_of(2) { 1.0 } else { 3.0 };
        let column = place * crate::testing::DIM as usize;
        assert!((first[column] - after[column] - has).abs() < 0.01, "id {id}: {} {}", first[column], after[column]);
    }
}

#[test]
fn loads_and_moves_exclude_each_other() {
    let service = placed(2, 0);
    let turn = service.moves.begin_load(service.index).unwrap();
    let refused = service.moves.begin_load(service.index).unwrap_err();
    assert!(refused.kind == RefusalKind::Unavailable && refused.message.contains("rows are being loaded"), "{refused}");
    drop(turn);
    assert!(service.moves.begin_load(service.index).is_ok());
    assert!(job(1).cluster.buckets > 0);
    let unknown = begin(&service, 7).unwrap_err();
    assert!(unknown.kind == RefusalKind::Unavailable && unknown.message.contains("move 7"), "{unknown}");
    assert_eq!(rows(&service, 7, 0).unwrap_err().kind, RefusalKind::Invalid);
    assert_eq!(freeze(&service, 7).unwrap_err().kind, RefusalKind::Invalid);
}
