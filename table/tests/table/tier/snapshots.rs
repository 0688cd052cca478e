//! Snapshots, and rows past their time to live.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use zagros_table::{
    ColdStore, EvictionOrder, EvictionPolicy, EvictionTarget, RequestBuffers, RowBatch, TableConfig, TableError,
    TableResources, TableSet, TableSnapshot, TableSnapshotError, Ttl,
};

use crate::support::{by_id, hot, ledger_config, maintain_all, part, push, read, saved, tables_within, tiny, train};

fn content(snapshot: &TableSnapshot<'_>, stripes: usize) -> BTreeMap<u64, Vec<f32>> {
    by_id(&saved(snapshot, 0, stripes), 2)
}

fn unlimited(eviction: EvictionPolicy, stripes: usize) -> TableSet {
    let config = TableConfig { eviction, ..ledger_config(2, stripes) };
    TableSet::new(0, &[config], TableResources::default()).unwrap()
}

fn expect(rows: &[(u64, f32)]) -> BTreeMap<u64, Vec<f32>> {
    rows.iter().map(|(id, value)| (*id, vec![*value; 2])).collect()
}

#[test]
fn there_is_one_snapshot_at_a_time_and_a_stripe_is_read_once() {
    let tables = unlimited(EvictionPolicy::default(), 2);
    let snapshot = tables.take_snapshot().unwrap();
    assert_eq!(tables.take_snapshot().unwrap_err(), TableSnapshotError::Running);
    let mut rows = RowBatch::default();
    snapshot.read_stripe(0, 1, &mut rows).unwrap();
    let again = snapshot.read_stripe(0, 1, &mut rows).unwrap_err();
    assert_eq!(again, TableError::AlreadyRead { table: 0, stripe: 1 });
    assert!(matches!(snapshot.read_stripe(1, 0, &mut rows), Err(TableError::UnknownTable { table: 1, .. })));
    drop(snapshot);
    tables.take_snapshot().unwrap().read_stripe(0, 1, &mut rows).unwrap();
}

/// Everything done under one guard is on one side of a snapshot.
#[test]
fn a_snapshot_waits_for_running_requests() {
    let tables = unlimited(EvictionPolicy::default(), 1);
    let (tell, reported) = mpsc::channel();
    thread::scope(|scope| {
        let entry = tables.enter();
        let part = part(&tables, &[1]);
        entry.push(&[part], &[1.0, 1.0], 0, &mut RequestBuffers::new()).unwrap();
        scope.spawn(|| tell.send(content(&tables.take_snapshot().unwrap(), 1)));
        assert!(reported.recv_timeout(Duration::from_millis(50)).is_err(), "the snapshot came between");
        entry.push(&[part], &[1.0, 1.0], 1, &mut RequestBuffers::new()).unwrap();
        drop(entry);
        assert_eq!(reported.recv_timeout(Duration::from_secs(30)).unwrap(), expect(&[(1, -2.0)]));
    });
}

#[test]
fn rows_past_their_time_to_live_are_removed_from_memory_and_from_the_cold_tier() {
    let eviction = EvictionPolicy { ttl: Some(Ttl::Steps(10)), ..EvictionPolicy::default() };
    let (tables, store) = tiny(&[TableConfig { eviction, ..ledger_config(2, 2) }]);
    let old: Vec<u64> = (0..500).collect();
    push(&tables, &old, 1.0);
    tables.advance_clock(5, 0);
    push(&tables, &[1, 2, 3], 1.0);
    tables.advance_clock(10, 0);
    assert_eq!(read(&tables, &[3, 4]), [-2.0, -2.0, 0.0, 0.0]);
    assert_eq!(content(&tables.take_snapshot().unwrap(), 2), expect(&[(1, -2.0), (2, -2.0), (3, -2.0)]));
    maintain_all(&tables);
    assert!(hot(&tables).iter().all(|id| [1, 2, 3].contains(id)));
    // Copies of rows that are in memory again are void. They may stay.
    assert!(store.size().rows <= 3, "{:?}", store.size());
    let counts = tables.table(0).unwrap().event_counts();
    assert_eq!(counts.expired, 497);
    assert_eq!(train(&tables, &[4]), [0.0, 0.0]);
}

#[test]
fn a_time_to_live_in_seconds_follows_the_clock_and_not_the_steps() {
    let tables = unlimited(EvictionPolicy { ttl: Some(Ttl::Seconds(60)), ..EvictionPolicy::default() }, 1);
    tables.advance_clock(0, 1000);
    push(&tables, &[1], 1.0);
    tables.advance_clock(1_000_000, 1059);
    assert_eq!(read(&tables, &[1]), [-1.0, -1.0]);
    tables.advance_clock(1_000_000, 1060);
    assert_eq!(read(&tables, &[1]), [0.0, 0.0]);
    maintain_all(&tables);
    assert_eq!((hot(&tables), tables.table(0).unwrap().event_counts().expired), (vec![], 1));
    let (ttl, order) = (Some(Ttl::Seconds(60)), EvictionOrder::Lfu { half_life: 10 });
    let eviction = EvictionPolicy { ttl, order, ..EvictionPolicy::default() };
    let config = TableConfig { eviction, ..ledger_config(2, 1) };
    let error = TableSet::new(0, &[config], TableResources::default()).unwrap_err();
    assert!(error.to_string().contains("give it in steps"), "{error}");
}

/// The table has no access metadata: the small norm is its only eviction rule.
#[test]
fn rows_of_small_norm_are_evicted() {
    let eviction = EvictionPolicy { small_norm: 2.0, target: EvictionTarget::Drop, ..EvictionPolicy::default() };
    let tables = unlimited(eviction, 4);
    let ids: Vec<u64> = (0..5000).collect();
    push(&tables, &ids, 1.0);
    let large: Vec<u64> = (0..100).collect();
    push(&tables, &large, 1.0);
    maintain_all(&tables);
    assert_eq!(tables.table(0).unwrap().row_count(), 5000, "no sweep is due");
    // A sweep may miss a row that moves in the index during the sweep. The next sweep finds it.
    for sweep in 1..4 {
        tables.advance_clock(1000 * sweep, 0);
        maintain_all(&tables);
    }
    let mut left = hot(&tables);
    left.sort_unstable();
    assert_eq!((left, tables.table(0).unwrap().event_counts().dropped), (large, 4900));
    assert_eq!(read(&tables, &[0, 100]), [-2.0, -2.0, 0.0, 0.0]);
}

/// Rows in memory and in the cold tier, some of which change during the read. Each part has the requested size. The
/// order depends on the content alone, not on where a row lies.
#[test]
fn a_stripe_is_read_in_parts_of_one_instant() {
    let ids: Vec<u64> = (0..3000).collect();
    let order = |budget: usize, changes: bool| {
        let (tables, store) = tables_within(&[ledger_config(2, 1)], budget);
        ids.chunks(100).for_each(|ids| push(&tables, ids, 1.0));
        assert_eq!(store.size().rows > 0, budget < 1 << 30);
        let snapshot = tables.take_snapshot().unwrap();
        let (mut parts, mut all, mut seed) = (snapshot.open_stripe(0, 0).unwrap(), RowBatch::default(), 1_u64);
        loop {
            let mut rows = RowBatch::default();
            let is_more = parts.read(70, &mut rows).unwrap();
            assert!(rows.ids.len() == 70 || !is_more && rows.ids.len() < 70);
            all.ids.extend(rows.ids);
            all.slots.extend(rows.slots);
            all.access.extend(rows.access);
            if !is_more {
                break;
            }
            if changes {
                // Some of these rows have been read and some have not. Rows in memory are evicted and paged in.
                let some: Vec<u64> = (0..50)
                    .map(|_| {
                        seed = seed.wrapping_mul(6_364_136_223_846_793_005) + 1;
                        (seed >> 33) % 3500
                    })
                    .collect();
                push(&tables, &some, 1.0);
            }
        }
        assert!(snapshot.open_stripe(0, 0).is_err(), "it keeps nothing any more");
        assert!(by_id(&all, 2).values().all(|row| row == &[-1.0, -1.0]) && all.access.len() == 3000);
        all.ids
    };
    let plain = order(1 << 30, false);
    assert_eq!(plain.len(), 3000);
    for (budget, changes) in [(1 << 30, true), (1, false), (1, true), (30_000, true)] {
        assert!(order(budget, changes) == plain, "{budget} {changes}");
    }
}

/// A row that changes before it is read exists twice. The budget counts the copy, and rows are evicted for it.
#[test]
fn copies_for_a_snapshot_count_against_the_budget() {
    let (tables, _) = tables_within(&[ledger_config(62, 1)], 1 << 30);
    let ids: Vec<u64> = (0..2000).collect();
    push(&tables, &ids, 1.0);
    let used = || tables.memory_budget().unwrap().0;
    let old_used = used();
    let snapshot = tables.take_snapshot().unwrap();
    push(&tables, &ids, 1.0);
    assert!(used() >= old_used + 2000 * 63 * 4, "{} bytes, {old_used} before", used());
    // Rows that have not changed are read in their slots.
    drop(snapshot);
    assert_eq!(used(), old_used);
    let snapshot = tables.take_snapshot().unwrap();
    let (mut parts, mut rows) = (snapshot.open_stripe(0, 0).unwrap(), RowBatch::default());
    while parts.read(100, &mut rows).unwrap() {
        rows = RowBatch::default();
        push(&tables, &[1], 0.0);
        assert!(used() <= old_used + 16 * 1024, "{} bytes, {old_used} before", used());
    }
}
