//! Memory for a tenth of the rows, with the other rows in a cold tier in memory: the remaining speed, and the share of
//! rows found in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use zagros_fakes::MemoryColdStore;
use zagros_table::{ColdStore, LookupMode, RequestBuffers, RequestPart, TableCounts, TableResources, TableSet};
use zagros_zip::ZipEq;

use crate::workload::{Ids, RequestShape, Requests, id_of};
use crate::{DIM, ledger};

/// Pause of the maintenance thread when there was nothing to do.
const PAUSE: Duration = Duration::from_millis(1);

struct Measured {
    /// Million rows per second, looked up and pushed.
    rate: f64,
    /// Counters of the timed part.
    counts: TableCounts,
    bytes: usize,
}

pub(crate) fn run(rows: usize, requests: usize) {
    println!("{rows} rows of dim {DIM}, {requests} requests of Zipf ids: looked up, then pushed\n");
    let requests = Requests::new(Ids::Zipf, rows, RequestShape::new(requests));
    let ids = requests.ids();
    let all: Vec<u64> = (0..rows).map(id_of).collect();
    let unbounded = measure(&all, &requests, &ids, None);
    let budget = unbounded.bytes / 10;
    let bounded = measure(&all, &requests, &ids, Some(budget));
    println!("                       unbounded   a tenth of that");
    println!("memory, MB            {:10.1} {:17.1}", unbounded.bytes as f64 / 1e6, bounded.bytes as f64 / 1e6);
    println!("million rows a second {:10.2} {:17.2}", unbounded.rate, bounded.rate);
    println!("of unbounded                     {:16.0} %", 100.0 * bounded.rate / unbounded.rate);
    let TableCounts { hits, misses, cold_reads, evicted, .. } = bounded.counts;
    println!("found in memory                  {:16.1} %", 100.0 * hits as f64 / (hits + misses) as f64);
    println!("read from the cold tier {cold_reads}, evicted {evicted}; every push counted once\n");
}

fn measure(all: &[u64], requests: &Requests, ids: &[Vec<u64>], budget: Option<usize>) -> Measured {
    let cold: Arc<dyn ColdStore> = Arc::new(MemoryColdStore::new(&[ledger().cold_words()]));
    let cold = budget.map(|_| cold);
    let tables = TableSet::new(0, &[ledger()], TableResources { budget, cold, ..TableResources::default() })
        .expect("good settings");
    let mut scratch = RequestBuffers::new();
    all.chunks(crate::workload::BATCH).for_each(|ids| step(&tables, ids, 0.0, 0, &mut scratch));
    let table = tables.table(0).expect("it is there");
    let old_counts = table.event_counts();
    let done = AtomicBool::new(false);
    let seconds = thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                if tables.maintain().expect("memory does not fail").is_idle() {
                    thread::sleep(PAUSE);
                }
            }
        });
        let start = Instant::now();
        for (number, ids) in ids.iter().enumerate() {
            step(&tables, ids, 1.0, number as u64 + 1, &mut scratch);
        }
        done.store(true, Ordering::Relaxed);
        start.elapsed().as_secs_f64()
    });
    let rows: usize = ids.iter().map(Vec::len).sum();
    let bytes = tables.memory_budget().map_or(table.memory_bytes(), |(used, _)| used);
    let measured =
        Measured { rate: rows as f64 / seconds / 1e6, counts: since(old_counts, table.event_counts()), bytes };
    check(&tables, all, requests);
    measured
}

/// Looks up rows, then pushes one number to each value of each row.
fn step(tables: &TableSet, ids: &[u64], amount: f32, step: u64, scratch: &mut RequestBuffers) {
    let part = [RequestPart { table: 0, dim: DIM as u32, ids }];
    let mut rows = vec![0.0; ids.len() * DIM];
    tables.lookup(&part, LookupMode::Train, &mut rows, scratch).expect("rows can be read");
    rows.fill(amount);
    tables.push(&part, &rows, step, scratch).expect("rows can be changed");
    tables.advance_clock(step, 0);
}

fn since(before: TableCounts, after: TableCounts) -> TableCounts {
    TableCounts {
        hits: after.hits - before.hits,
        misses: after.misses - before.misses,
        cold_reads: after.cold_reads - before.cold_reads,
        evicted: after.evicted - before.evicted,
        ..after
    }
}

fn check(tables: &TableSet, all: &[u64], requests: &Requests) {
    let mut pushes = vec![0.0_f32; all.len()];
    requests.rows.iter().flatten().for_each(|row| pushes[*row] += 1.0);
    let mut rows = vec![f32::NAN; all.len() * DIM];
    let part = [RequestPart { table: 0, dim: DIM as u32, ids: all }];
    tables.lookup(&part, LookupMode::Read, &mut rows, &mut RequestBuffers::new()).expect("rows can be read");
    for (row, pushes) in rows.chunks(DIM).zip_eq(&pushes) {
        assert!(row.iter().all(|value| *value == -pushes), "{row:?} after {pushes} pushes");
    }
}
