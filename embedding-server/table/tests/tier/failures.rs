//! A cold tier that fails: serving goes on from memory, nothing acknowledged is lost, and all is well once it is back.

use std::sync::Arc;

use zagros_table::{Access, CutError, Part, Rows, Scratch, TableError, TableSet};

use crate::support::{by_id, hot, ledger_config, push, read, tiny, train, within};

const FULL: &str = "no space left on device";

fn try_train(tables: &TableSet, ids: &[u64]) -> Result<Vec<f32>, TableError> {
    let mut out = vec![0.0; ids.len() * 2];
    let part = Part { table: 0, dim: 2, ids };
    tables.lookup(&[part], Access::Train, &mut out, &mut Scratch::new()).map(|_| out)
}

fn try_push(tables: &TableSet, ids: &[u64], amount: f32) -> Result<(), TableError> {
    let part = Part { table: 0, dim: 2, ids };
    tables.push(&[part], &vec![amount; ids.len() * 2], 0, &mut Scratch::new()).map(|_| ())
}

#[test]
fn pushes_go_on_in_memory_until_it_is_full_beyond_measure_and_nothing_is_lost() {
    const ROWS: u64 = 20_000;
    let (tables, store) = within(&[ledger_config(2, 4)], 100_000);
    let half: Vec<u64> = (0..ROWS / 2).collect();
    push(&tables, &half, 1.0);
    assert_eq!(tables.trouble(), None);
    store.inner.fail_with(Some(FULL.to_owned()));
    let in_memory = hot(&tables);
    push(&tables, &in_memory, 1.0);
    // New rows come while there is room; then the request is refused, with reason.
    let (mut accepted, mut refusal) = (Vec::new(), None);
    for id in ROWS / 2..ROWS {
        match try_push(&tables, &[id], 1.0) {
            Ok(()) => accepted.push(id),
            Err(error) => refusal = Some(error),
        }
    }
    assert_eq!(accepted, [], "a row that may be in the cold tier is not made afresh");
    let refusal = refusal.unwrap();
    assert!(matches!(&refusal, TableError::Cold { source, .. } if source.reason == FULL) && refusal.is_retryable());
    // A cold row is not invented, for training or for reading.
    let cold: Vec<u64> = half.iter().copied().filter(|id| !in_memory.contains(id)).collect();
    assert!(cold.len() > 1000);
    assert!(matches!(try_train(&tables, &cold[..1]), Err(TableError::Cold { .. })));
    assert!(try_push(&tables, &[in_memory[0], cold[0]], 1.0).is_err());
    store.inner.fail_with(None);
    push(&tables, &half, 1.0);
    let expected = |id: &u64| if in_memory.contains(id) { -3.0 } else { -2.0 };
    assert_eq!(
        read(&tables, &half).chunks(2).map(|row| row[0]).collect::<Vec<_>>(),
        half.iter().map(expected).collect::<Vec<_>>()
    );
}
