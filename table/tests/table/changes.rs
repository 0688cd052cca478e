//! Snapshots of changes: a snapshot of all rows, and what the later ones say, are the table of each moment.

use std::collections::BTreeMap;

use proptest::prelude::*;
use zagros_table::{
    Initializer, Optimizer, RequestBuffers, RowBatch, SnapshotKind, TableConfig, TableResources, TableSet,
    TableSnapshot, TableSnapshotError,
};

use crate::support::{by_id, in_memory, part, train};

const DIM: usize = 2;

#[derive(Clone, Debug)]
enum ChangeEvent {
    Lookup(Vec<u64>),
    Push(Vec<u64>),
    Insert(Vec<u64>),
    Remove(Vec<u64>),
}

fn event() -> impl Strategy<Value = ChangeEvent> {
    let ids = || prop::collection::btree_set(0_u64..60, 0..8).prop_map(|ids| ids.into_iter().collect::<Vec<_>>());
    prop_oneof![
        ids().prop_map(ChangeEvent::Lookup),
        ids().prop_map(ChangeEvent::Push),
        ids().prop_map(ChangeEvent::Insert),
        ids().prop_map(ChangeEvent::Remove)
    ]
}

fn tables(stripes: usize) -> TableSet {
    let init = Initializer::Uniform { bound: 1.0 };
    let optimizer = Optimizer::Adagrad { lr: 0.1, epsilon: 1e-8, initial_accumulator: 0.5, l2: 0.0 };
    let config = TableConfig { dim: DIM, init, optimizer, stripes, ..TableConfig::default() };
    TableSet::new(1, &[config], TableResources::default()).unwrap()
}

fn apply(tables: &TableSet, event: &ChangeEvent, step: u64) {
    let mut buffers = RequestBuffers::new();
    let table = tables.table(0).unwrap();
    match event {
        ChangeEvent::Lookup(ids) => {
            train(tables, ids);
        }
        ChangeEvent::Push(ids) => {
            let gradients: Vec<f32> = (0..ids.len() * DIM).map(|value| value as f32 + step as f32).collect();
            tables.push(&[part(tables, ids)], &gradients, step, &mut buffers).unwrap();
        }
        ChangeEvent::Insert(ids) => {
            let slots = vec![(step as f32).to_bits(); ids.len() * table.stride()];
            table.insert(&RowBatch { ids: ids.clone(), slots, access: Vec::new() }, &mut buffers).unwrap();
        }
        ChangeEvent::Remove(ids) => table.remove_again(ids).unwrap(),
    }
}

type Rows = BTreeMap<u64, Vec<f32>>;

fn now(tables: &TableSet) -> Rows {
    let table = tables.table(0).unwrap();
    by_id(&in_memory(table), table.stride())
}

/// Adds what a snapshot says to the rows of the snapshots before.
fn add(tables: &TableSet, snapshot: &TableSnapshot<'_>, rows: &mut Rows) -> usize {
    let table = tables.table(0).unwrap();
    let mut changed = 0;
    for stripe in 0..table.stripes() {
        snapshot.removed_ids(0, stripe).unwrap().iter().for_each(|id| _ = rows.remove(id));
        let mut batch = RowBatch::default();
        snapshot.read_stripe(0, stripe, &mut batch).unwrap();
        changed += batch.ids.len();
        rows.extend(by_id(&batch, table.stride()));
    }
    changed
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn each_snapshot_of_changes_gives_the_rows_of_its_moment(
        rounds in prop::collection::vec((prop::collection::vec(event(), 0..6), prop::collection::vec(event(), 0..4)), 1..6),
        stripes in prop::sample::select(vec![1_usize, 4]),
    ) {
        let tables = tables(stripes);
        let (mut read, mut step) = (Rows::new(), 0);
        for (number, (before, during)) in rounds.iter().enumerate() {
            let mut run = |events: &[ChangeEvent]| events.iter().for_each(|event| {
                step += 1;
                apply(&tables, event, step);
            });
            run(before);
            let expected = now(&tables);
            let kind = if number == 0 { SnapshotKind::Base } else { SnapshotKind::Changes };
            let snapshot = tables.snapshot_of(kind).unwrap();
            // What happens while it is read belongs to the next.
            run(during);
            prop_assert_eq!(snapshot.row_count(), expected.len() as u64);
            add(&tables, &snapshot, &mut read);
            prop_assert_eq!(&read, &expected);
        }
    }
}

#[test]
fn a_snapshot_of_changes_has_the_changed_rows_alone() {
    let tables = tables(4);
    assert!(tables.can_note_changes());
    apply(&tables, &ChangeEvent::Push((0..1000).collect()), 1);
    assert_eq!(tables.snapshot_of(SnapshotKind::Changes).err(), Some(TableSnapshotError::ChangesUnknown));
    let mut rows = Rows::new();
    assert_eq!(add(&tables, &tables.snapshot_of(SnapshotKind::Base).unwrap(), &mut rows), 1000);
    apply(&tables, &ChangeEvent::Push(vec![3, 5]), 2);
    let bytes = tables.table(0).unwrap().memory_bytes();
    let snapshot = tables.snapshot_of(SnapshotKind::Changes).unwrap();
    // A row that the snapshot does not want is not copied.
    apply(&tables, &ChangeEvent::Push((10..900).collect()), 3);
    assert!(tables.table(0).unwrap().memory_bytes() < bytes + 16_384, "a snapshot of two rows keeps copies of others");
    assert_eq!(add(&tables, &snapshot, &mut rows), 2);
    drop(snapshot);
    // A snapshot of all rows for another purpose keeps the list of changes as it is.
    assert_eq!(add(&tables, &tables.take_snapshot().unwrap(), &mut Rows::new()), 1000);
    assert_eq!(add(&tables, &tables.snapshot_of(SnapshotKind::Changes).unwrap(), &mut rows), 890);
    tables.clear().unwrap();
    assert_eq!(tables.snapshot_of(SnapshotKind::Changes).err(), Some(TableSnapshotError::ChangesUnknown));
}

/// A list of removed ids is bounded: all rows are then the smaller snapshot.
#[test]
fn changes_are_unknown_once_very_many_rows_were_removed() {
    let tables = tables(1);
    apply(&tables, &ChangeEvent::Push((0..10_000).collect()), 1);
    drop(tables.snapshot_of(SnapshotKind::Base).unwrap());
    apply(&tables, &ChangeEvent::Remove((0..4_000).collect()), 2);
    drop(tables.snapshot_of(SnapshotKind::Changes).unwrap());
    apply(&tables, &ChangeEvent::Remove((4_000..9_000).collect()), 3);
    assert_eq!(tables.snapshot_of(SnapshotKind::Changes).err(), Some(TableSnapshotError::ChangesUnknown));
}
