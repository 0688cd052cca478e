//! The ledger, also with memory for a tenth of the rows: many threads, eviction, page-in, and snapshots at the same time.
//! With SGD at learning rate 1 from zeros, a row is minus the sum of its gradients.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use zagros_table::{LookupMode, RequestBuffers, RequestPart, TableResources, TableSet, TableSnapshot};

use crate::support::{by_id, hint, ledger_config, lookahead_tables, read, saved};

const THREADS: u64 = 4;
const ROUNDS: u64 = 300;
const IDS: u64 = 4000;
const DIM: usize = 2;
const COUNT: u64 = 60;
/// Memory for about a tenth of two tables with `IDS` rows.
const BUDGET: usize = 40_000;

/// The ids of one request. Each thread and round has its own, all distinct.
fn ids_of(thread: u64, round: u64) -> Vec<u64> {
    let start = (thread * 7919 + round * 104_729) % IDS;
    (0..COUNT).map(|step| (start + step * 61) % IDS).collect()
}

fn amount(thread: u64, round: u64) -> f32 {
    ((thread * 5 + round) % 7 + 1) as f32
}

/// Adds to rows of the first table what it subtracts from the same rows of the second table.
fn transfer(tables: &TableSet, thread: u64, round: u64, scratch: &mut RequestBuffers) {
    let ids = ids_of(thread, round);
    let parts = [0, 1].map(|table| RequestPart { table, dim: DIM as u32, ids: &ids });
    let mut rows = vec![f32::NAN; 2 * ids.len() * DIM];
    let access = if round.is_multiple_of(2) { LookupMode::Train } else { LookupMode::Read };
    tables.lookup(&parts, access, &mut rows, scratch).unwrap();
    assert!(rows.chunks(DIM).all(|row| row[0] == row[1]), "a torn row");
    let amount = amount(thread, round);
    let gradients: Vec<f32> = (0..rows.len()).map(|at| if at < rows.len() / 2 { amount } else { -amount }).collect();
    tables.push(&parts, &gradients, round, scratch).unwrap();
    tables.advance_clock(round, 0);
}

/// What one table lacks, the other table has. So no push is half in the snapshot.
fn check_cut(cut: &TableSnapshot<'_>) {
    let [first, second] = [0, 1].map(|table| by_id(&saved(cut, table, 4), DIM));
    // A training lookup creates a row in one table, then in the other. Both are zero until the push.
    for id in first.keys().chain(second.keys()) {
        let value = |rows: &std::collections::BTreeMap<u64, Vec<f32>>| rows.get(id).map_or(0.0, |row| row[0]);
        assert_eq!(value(&first) + value(&second), 0.0, "id {id}");
    }
}

/// Invariant TI-1, also while rows are hinted, and where all rows are in memory.
#[test]
fn every_push_counts_once_wherever_its_row_lies() {
    let configs = [ledger_config(DIM, 4); 2];
    for lookahead_hints in [0, 4] {
        let tables = lookahead_tables(&configs, BUDGET, lookahead_hints).0;
        run_threads(&tables, lookahead_hints);
        let counts = tables.table(0).unwrap().event_counts();
        assert!(counts.evicted > IDS && counts.promoted > IDS || lookahead_hints > 0, "{counts:?}");
        assert_eq!(counts.ready > 0, lookahead_hints > 0, "{counts:?}");
        let (used, limit) = tables.memory_budget().unwrap();
        // Continuous snapshots may delay eviction.
        assert!(used <= limit / 2 * 3 || lookahead_hints > 0, "{used} of {limit} bytes");
    }
    run_threads(&TableSet::new(0, &configs, TableResources::default()).unwrap(), 0);
}

fn run_threads(tables: &TableSet, lookahead_hints: usize) {
    let (start, done) = (Barrier::new(THREADS as usize + 2), AtomicBool::new(false));
    let mut cuts = 0;
    thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let start = &start;
                scope.spawn(move || {
                    let mut scratch = RequestBuffers::new();
                    start.wait();
                    for round in 0..ROUNDS {
                        if lookahead_hints > 0 {
                            hint(tables, &ids_of(thread, round + 3));
                        }
                        transfer(tables, thread, round, &mut scratch);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            start.wait();
            while !done.load(Ordering::Relaxed) {
                tables.maintain().unwrap();
            }
        });
        start.wait();
        while !workers.iter().all(thread::ScopedJoinHandle::is_finished) {
            check_cut(&tables.take_snapshot().unwrap());
            cuts += 1;
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(cuts > 0);
    check_sums(tables);
}

fn check_sums(tables: &TableSet) {
    let mut sums = vec![0.0; IDS as usize];
    for (thread, round) in (0..THREADS).flat_map(|thread| (0..ROUNDS).map(move |round| (thread, round))) {
        ids_of(thread, round).iter().for_each(|id| sums[*id as usize] += amount(thread, round));
    }
    let ids: Vec<u64> = (0..IDS).collect();
    let rows = read(tables, &ids);
    for id in ids {
        assert_eq!(rows[id as usize * DIM..][..DIM], [-sums[id as usize]; DIM], "id {id}");
    }
}
