//! Rows are copied while they are trained, evicted and paged in; and rows are removed from both tiers.
//! Everything that may happen between the read of a cold row and its use.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use zagros_table::{
    AdmissionPolicy, ChangeWatcher, ColdStore, FrequencyCounter, LookupMode, RequestBuffers, RequestDeadline,
    RequestPart, RowBatch, Table, TableConfig, TableResources, TableSet,
};
use zagros_zip::ZipEq;

use crate::support::{
    HookedStore, cold_row, crowd, hot, ledger_config, lookup_before, push, read, saved, tables_within, tiny, train,
};

const IDS: u64 = 3000;
const DIM: usize = 2;

#[derive(Debug, Default)]
struct ChangedIds(Mutex<BTreeSet<u64>>);

impl ChangeWatcher for ChangedIds {
    fn changed(&self, _table: u32, _stripe: u32, ids: &[u64]) {
        self.0.lock().unwrap().extend(ids);
    }
}

/// Lists the rows of a stripe as a copy does, with `between` after the list of those in memory.
fn listed(table: &Table, stripe: usize, between: impl FnOnce()) -> Vec<u64> {
    let mut ids = table.ids_in_memory(stripe);
    between();
    let (sent, mut from) = (ids.iter().copied().collect::<HashSet<_>>(), None);
    loop {
        let cold = table.cold_ids(stripe, from, 7).unwrap();
        assert!(cold.ids.len() <= 7);
        ids.extend(cold.ids.into_iter().filter(|id| !sent.contains(id)));
        from = cold.next;
        if from.is_none() {
            return ids;
        }
    }
}

fn copy_into(copied: &mut BTreeMap<u64, f32>, rows: &RowBatch, stride: usize) {
    copied.extend(rows.ids.iter().copied().zip_eq(rows.slots.chunks(stride).map(|slot| f32::from_bits(slot[0]))));
}

/// Invariant TI-1: each row is listed once, and what is read of it is what a request would read.
#[test]
fn a_copy_has_every_row_while_rows_change_their_tier() {
    let (tables, _) = tables_within(&[ledger_config(DIM, 4)], 40 << 10);
    let ids: Vec<u64> = (0..IDS).collect();
    ids.chunks(100).for_each(|ids| push(&tables, ids, 1.0));
    let (changed, done) = (Arc::<ChangedIds>::default(), AtomicBool::new(false));
    tables.set_watcher(Arc::clone(&changed) as _);
    let (table, mut copied) = (tables.table(0).unwrap(), BTreeMap::new());
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                let some: Vec<u64> = (0..60).map(|id| (id * 37 + round * 11) % IDS).collect();
                if round % 3 == 0 {
                    push(&tables, &some, 1.0)
                } else {
                    drop(train(&tables, &some))
                }
                if done.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        for stripe in 0..table.stripes() {
            let listed = listed(table, stripe, thread::yield_now);
            let unique: BTreeSet<u64> = listed.iter().copied().collect();
            assert_eq!(unique.len(), listed.len(), "a row is listed twice");
            for some in listed.chunks(50) {
                let mut rows = RowBatch::default();
                table.read_rows_anywhere(stripe, some, &mut rows).unwrap();
                let found: BTreeSet<&u64> = rows.ids.iter().collect();
                assert_eq!(found, some.iter().collect(), "a listed row is not found");
                copy_into(&mut copied, &rows, table.stride());
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(copied.len() as u64, IDS);
    // What has changed since it was read is read again.
    for id in changed.0.lock().unwrap().iter() {
        let mut rows = RowBatch::default();
        let stripe = (0..table.stripes()).find(|stripe| listed(table, *stripe, || ()).contains(id)).unwrap();
        table.read_rows_anywhere(stripe, &[*id], &mut rows).unwrap();
        copy_into(&mut copied, &rows, table.stride());
    }
    let expected = read(&tables, &ids);
    for id in ids {
        assert_eq!(copied[&id], expected[id as usize * DIM], "row {id}");
    }
    assert!(table.event_counts().evicted > IDS / 2 && table.event_counts().promoted > 0, "{:?}", table.event_counts());
}

fn copy_of(tables: &TableSet, id: u64) -> Vec<f32> {
    let mut rows = RowBatch::default();
    tables.table(0).unwrap().read_rows_anywhere(0, &[id], &mut rows).unwrap();
    rows.slots.iter().map(|word| f32::from_bits(*word)).collect()
}

/// After the next read the row is changed and evicted; and again after the read that follows, so many times.
fn change_after_read(tables: &Arc<TableSet>, store: &Arc<HookedStore>, times: u64) {
    let (others, hooks) = (Arc::clone(tables), Arc::clone(store));
    store.after_read(move || {
        push(&others, &[1], 1.0);
        crowd(&others, 2000 + 100 * times);
        assert!(!hot(&others).contains(&1));
        if times > 1 {
            change_after_read(&others, &hooks, times - 1);
        }
    });
}

/// Invariant TI-1. The fourth read holds the stripe's lock, so that no request can change the row any more.
#[test]
fn a_row_that_changes_while_its_cold_copy_is_read_is_read_again() {
    let (tables, store) = cold_row(DIM);
    assert_eq!(copy_of(&tables, 1), [-5.0; DIM]);
    let mut changes = 0.0;
    for times in 1..=3 {
        change_after_read(&tables, &store, times);
        changes += times as f32;
        assert_eq!(copy_of(&tables, 1), [-5.0 - changes; DIM], "{times} changes");
        assert!(!store.has_hooks());
    }
}

#[test]
fn removed_rows_are_gone_from_both_tiers_and_others_stay() {
    let (tables, store) = tables_within(&[ledger_config(DIM, 4)], 40 << 10);
    let ids: Vec<u64> = (0..IDS).collect();
    ids.chunks(100).for_each(|ids| push(&tables, ids, 1.0));
    let table = tables.table(0).unwrap();
    assert!(table.row_count() < 2000 && store.size().rows > 1000);
    let removed: usize = (0..4).map(|stripe| table.remove_rows(stripe, |id| id % 3 == 0).unwrap()).sum();
    assert!(removed >= 1000, "{removed}");
    table.remove_ids(&ids[1000..1100]).unwrap();
    let cold: Vec<u64> = (0..4).flat_map(|stripe| table.cold_ids(stripe, None, usize::MAX).unwrap().ids).collect();
    let is_gone = |id: u64| id.is_multiple_of(3) || (1000..1100).contains(&id);
    assert!(!cold.into_iter().chain(hot(&tables)).any(is_gone));
    for (id, row) in ids.iter().zip_eq(read(&tables, &ids).chunks(DIM)) {
        assert_eq!(row, [if is_gone(*id) { 0.0 } else { -1.0 }; DIM], "row {id}");
    }
    store.inner.fail_with(Some("broken".to_owned()));
    assert!(table.remove_rows(0, |_| true).is_err() && table.remove_ids(&[1]).is_err());
}

/// To find the rows of many ids takes one read of the cold tier for each stripe.
#[test]
fn the_rows_of_many_ids_are_found_by_one_read_a_stripe() {
    let (tables, store) = tiny(&[ledger_config(DIM, 4)]);
    let ids: Vec<u64> = (0..IDS).collect();
    ids.chunks(100).for_each(|ids| push(&tables, ids, 1.0));
    let (table, reads) = (tables.table(0).unwrap(), Arc::new(AtomicUsize::new(0)));
    for _ in 0..IDS {
        let reads = Arc::clone(&reads);
        store.after_read(move || _ = reads.fetch_add(1, Ordering::Relaxed));
    }
    let asked: Vec<u64> = (0..2 * IDS).rev().chain([3, 3]).collect();
    assert_eq!(table.known_ids(&asked).unwrap(), ids);
    assert_eq!(reads.load(Ordering::Relaxed), 4);
    table.remove_ids(&asked).unwrap();
    assert_eq!(table.known_ids(&asked).unwrap(), [] as [u64; 0]);
}

/// Invariant TI-1: a copy is void if the row was paged in, changed and evicted after the copy was read.
#[test]
fn a_stale_copy_is_read_again() {
    let (tables, store) = cold_row(2);
    let others = Arc::clone(&tables);
    store.after_read(move || {
        push(&others, &[1], 2.0);
        crowd(&others, 2000);
        assert!(!hot(&others).contains(&1));
    });
    assert_eq!(train(&tables, &[1]), [-7.0, -7.0]);
    let others = Arc::clone(&tables);
    crowd(&tables, 3000);
    store.after_read(move || {
        push(&others, &[1], 1.0);
        crowd(&others, 2000);
    });
    push(&tables, &[1], 10.0);
    assert_eq!(read(&tables, &[1]), [-18.0, -18.0]);
}

#[test]
fn a_row_that_was_paged_in_meanwhile_is_used_in_memory() {
    let (tables, store) = cold_row(2);
    let others = Arc::clone(&tables);
    store.after_read(move || push(&others, &[1], 2.0));
    assert_eq!(train(&tables, &[1]), [-7.0, -7.0]);
}

#[test]
fn a_row_that_was_created_and_evicted_meanwhile_is_not_created_again() {
    let (tables, store) = tiny(&[ledger_config(2, 1)]);
    let tables = Arc::new(tables);
    let others = Arc::clone(&tables);
    store.after_read(move || {
        push(&others, &[1], 3.0);
        crowd(&others, 2000);
    });
    assert_eq!(train(&tables, &[1]), [-3.0, -3.0]);
}

/// A request whose copies are stale in every round still ends: its last read holds the lock.
#[test]
fn a_request_ends_however_often_its_copies_are_stale() {
    let (tables, store) = cold_row(2);
    for round in 0..3 {
        let others = Arc::clone(&tables);
        store.after_read(move || {
            push(&others, &[1], 1.0);
            crowd(&others, 2000 + 100 * round);
        });
        // The reads that the hook makes have no hook themselves.
        store.after_read(|| {});
        store.after_read(|| {});
    }
    push(&tables, &[1], 100.0);
    while store.has_hooks() {
        train(&tables, &[9]);
        crowd(&tables, 5000);
        crowd(&tables, 6000);
    }
    let overtaken = train(&tables, &[1])[0];
    assert!(overtaken <= -106.0, "{overtaken}");
    assert_eq!(overtaken, read(&tables, &[1])[0]);
}

#[test]
fn cleared_tables_are_as_they_were_made() {
    let (tables, store) = tiny(&[ledger_config(2, 4), ledger_config(2, 2)]);
    let ids: Vec<u64> = (0..3000).collect();
    push(&tables, &ids, 1.0);
    let other = RequestPart { table: 1, dim: 2, ids: &[7] };
    tables.push(&[other], &[1.0, 1.0], 0, &mut RequestBuffers::new()).unwrap();
    assert!(store.size().rows > 0 && !hot(&tables).is_empty());
    tables.clear().unwrap();
    assert_eq!((store.size().rows, hot(&tables)), (0, vec![]));
    assert!(tables.iter().all(|table| table.row_count() == 0));
    assert_eq!(read(&tables, &ids), vec![0.0; 6000]);
    // Cleared tables learn like new ones.
    push(&tables, &[5], 1.0);
    assert_eq!(read(&tables, &[5, 6]), [-1.0, -1.0, 0.0, 0.0]);
    assert_eq!(saved(&tables.take_snapshot().unwrap(), 0, 4).ids, [5]);
}

#[test]
fn frequency_counts_are_removed_too() {
    for counter in [FrequencyCounter::Exact, FrequencyCounter::CountMin { error: 0.01, failure: 0.01 }] {
        let config = TableConfig { admission: AdmissionPolicy::Count { threshold: 2, counter }, ..ledger_config(2, 1) };
        let tables = TableSet::new(0, &[config], TableResources::default()).unwrap();
        train(&tables, &[1]);
        tables.clear().unwrap();
        let look = || lookup_before(&tables, &[1], LookupMode::Train, RequestDeadline::NONE).unwrap().1.created;
        assert_eq!((look(), look()), (0, 1), "{counter:?}");
    }
}
