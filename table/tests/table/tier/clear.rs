//! Clearing: all rows are removed at once.

use zagros_table::{
    AdmissionPolicy, ColdStore, EvictionPolicy, FrequencyCounter, LookupMode, RequestBuffers, RequestDeadline,
    RequestPart, RowBatch, StepClock, TableConfig, TableResources, TableSet, TableTime, Ttl,
};

use crate::support::{hot, ledger_config, lookup_before, maintain_all, push, read, saved, tiny, train};

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

fn expiring(ttl: Ttl) -> TableSet {
    let retention = EvictionPolicy { ttl: Some(ttl), ..EvictionPolicy::default() };
    TableSet::new(0, &[TableConfig { retention, ..ledger_config(2, 2) }], TableResources::default()).unwrap()
}

/// The rows of a snapshot, and the time of its instant.
fn save(tables: &TableSet) -> (RowBatch, TableTime) {
    let cut = tables.take_snapshot().unwrap();
    (saved(&cut, 0, 2), cut.snapshot_time())
}

/// Restores saved rows, as a load that replaces all rows does.
fn restore(tables: &TableSet, rows: &RowBatch, moment: TableTime) {
    tables.clear().unwrap();
    tables.advance_clock(moment.steps, 0);
    let (table, mut rows) = (tables.table(0).unwrap(), rows.clone());
    table.rebase_access(&mut rows, moment, StepClock::GoesOn);
    table.insert(&rows, &mut RequestBuffers::new()).unwrap();
}

/// The best state of a run that continued for longer than the time to live.
#[test]
fn restored_rows_have_the_age_they_had_when_they_were_saved() {
    for ttl in [Ttl::Steps(10), Ttl::Seconds(10)] {
        let tables = expiring(ttl);
        tables.advance_clock(100, 100);
        push(&tables, &[1, 2], 1.0);
        tables.advance_clock(106, 106);
        push(&tables, &[2], 1.0);
        let (rows, moment) = save(&tables);
        tables.advance_clock(500, 500);
        assert_eq!(read(&tables, &[1, 2]), [0.0; 4], "{ttl:?}: training went on without them");
        restore(&tables, &rows, moment);
        assert_eq!(read(&tables, &[1, 2]), [-1.0, -1.0, -2.0, -2.0], "{ttl:?}");
        assert_eq!(save(&tables).0.ids.len(), 2, "{ttl:?}: and a save holds them");
        // From here on the rows age as they would have aged after the save.
        tables.advance_clock(109, 503);
        assert_eq!(read(&tables, &[1, 2]), [-1.0, -1.0, -2.0, -2.0], "{ttl:?}");
        tables.advance_clock(110, 504);
        assert_eq!(read(&tables, &[1, 2]), [0.0, 0.0, -2.0, -2.0], "{ttl:?}");
        // The search for expired rows starts again as well.
        maintain_all(&tables);
        assert_eq!(hot(&tables), [2], "{ttl:?}");
    }
}
