//! The ledger. With SGD at learning rate 1 and integer gradients, a row is its first value minus the sum of all its
//! gradients, whatever the threads do. One lost or doubled update is visible.

use std::sync::Barrier;
use std::thread;

use zagros_table::{LookupMode, RequestBuffers, Table};

use crate::support::ledger_config;

const THREADS: u64 = 8;
const ROUNDS: u64 = 200;
const IDS: u64 = 97;
const DIM: usize = 3;

/// The ids of one request. Each thread and round has its own ids in its own order.
fn ids_of(thread: u64, round: u64) -> Vec<u64> {
    (0..IDS)
        .map(|step| (step * (thread + 2) + round) % IDS)
        .filter(|id| !(id + thread + round).is_multiple_of(3))
        .collect()
}

fn gradient(thread: u64, round: u64, id: u64) -> f32 {
    ((thread * 7 + round * 3 + id) % 11) as f32 - 5.0
}

fn work(table: &Table, thread: u64) {
    let mut scratch = RequestBuffers::new();
    for round in 0..ROUNDS {
        let ids = ids_of(thread, round);
        let mut rows = vec![f32::NAN; ids.len() * DIM];
        let access = if round % 2 == 0 { LookupMode::Train } else { LookupMode::Read };
        table.lookup(&ids, access, &mut rows, &mut scratch).unwrap();
        // All values of a row change together. In a half-updated row they would differ.
        assert!(rows.chunks(DIM).all(|row| row.iter().all(|value| *value == row[0])), "a torn row");
        let gradients: Vec<f32> = ids.iter().flat_map(|id| [gradient(thread, round, *id); DIM]).collect();
        table.push(&ids, &gradients, round, &mut scratch).unwrap();
    }
}

#[test]
fn every_push_of_every_thread_counts_once() {
    let table = Table::new(0, 0, &ledger_config(DIM, 4)).unwrap();
    let start = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (table, start) = (&table, &start);
            scope.spawn(move || {
                start.wait();
                work(table, thread);
            });
        }
    });
    let all: Vec<u64> = (0..IDS).collect();
    let mut rows = vec![0.0; all.len() * DIM];
    table.lookup(&all, LookupMode::Read, &mut rows, &mut RequestBuffers::new()).unwrap();
    for id in all {
        let pushes = (0..THREADS).flat_map(|thread| (0..ROUNDS).map(move |round| (thread, round)));
        let of_id = pushes.filter(|(thread, round)| ids_of(*thread, *round).contains(&id));
        let sum: f32 = of_id.map(|(thread, round)| gradient(thread, round, id)).sum();
        assert_eq!(rows[id as usize * DIM..][..DIM], [-sum; DIM], "id {id}");
    }
}
