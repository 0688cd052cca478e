//! All rows forgotten at once.

use zagros_table::{Access, Admission, ColdStore, Counter, Part, Rows, Scratch, TableConfig, TableSet};

use crate::support::{hot, ledger_config, push, read, tiny, train};

/// Rows in memory and in the cold tier, of two tables.
#[test]
fn cleared_tables_are_as_they_were_made() {
    let (tables, store) = tiny(&[ledger_config(2, 4), ledger_config(2, 2)]);
    let ids: Vec<u64> = (0..3000).collect();
    push(&tables, &ids, 1.0);
    let other = Part { table: 1, dim: 2, ids: &[7] };
    tables.push(&[other], &[1.0, 1.0], 0, &mut Scratch::new()).unwrap();
    assert!(store.size().rows > 0 && !hot(&tables).is_empty());
    tables.clear().unwrap();
    assert_eq!((store.size().rows, hot(&tables)), (0, vec![]));
    assert!(tables.iter().all(|table| table.rows() == 0));
    assert_eq!(read(&tables, &ids), vec![0.0; 6000]);
    // They learn as new ones do.
    push(&tables, &[5], 1.0);
    assert_eq!(read(&tables, &[5, 6]), [-1.0, -1.0, 0.0, 0.0]);
    let mut rows = Rows::default();
    let cut = tables.cut().unwrap();
    (0..4).for_each(|stripe| cut.read_stripe(0, stripe, &mut rows).unwrap());
    assert_eq!(rows.ids, [5]);
}

#[test]
fn sightings_are_forgotten_too() {
    for counter in [Counter::Exact, Counter::CountMin { error: 0.01, failure: 0.01 }] {
        let config = TableConfig { admission: Admission::Count { sightings: 2, counter }, ..ledger_config(2, 1) };
        let tables = TableSet::new(0, &[config], zagros_table::Capacity::default()).unwrap();
        train(&tables, &[1]);
        tables.clear().unwrap();
        let part = Part { table: 0, dim: 2, ids: &[1] };
        let look = || tables.lookup(&[part], Access::Train, &mut [0.0; 2], &mut Scratch::new()).unwrap().created;
        assert_eq!((look(), look()), (0, 1), "{counter:?}");
    }
}
