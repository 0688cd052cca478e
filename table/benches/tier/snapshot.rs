//! Pushes before and during a snapshot.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use zagros_table::{LookupMode, RequestBuffers, RequestPart, RowBatch, TableResources, TableSet};

use crate::workload::{Ids, RequestShape, Requests, id_of};
use crate::{DIM, ledger};

/// Rows of a push: the rows of one table in a batch.
const BATCH: usize = 4096;

#[derive(Default)]
struct Pushes(Vec<Duration>);

pub(crate) fn run(rows: usize, requests: usize) {
    let tables = TableSet::new(0, &[ledger()], TableResources::default()).expect("good settings");
    let mut scratch = RequestBuffers::new();
    let all: Vec<u64> = (0..rows).map(id_of).collect();
    for ids in all.chunks(crate::workload::BATCH) {
        let mut out = vec![0.0; ids.len() * DIM];
        tables.lookup(&[part(ids)], LookupMode::Train, &mut out, &mut scratch).expect("memory suffices");
    }
    let requests = Requests::new(Ids::Uniform, rows, RequestShape::new(requests.min(16)));
    let ids = requests.ids();
    let batches: Vec<&[u64]> = ids.iter().flat_map(|ids| ids.chunks_exact(BATCH.min(rows / 8))).collect();
    let (before, during, pause, reading) = measure(&tables, &batches, rows);
    println!("{rows} rows, pushes of {} rows each\n", batches[0].len());
    println!("                        before    during   during ÷ before");
    let line = |what: &str, before: f64, during: f64| {
        println!("{what:22} {before:8.2}  {during:8.2}  {:16.2}", during / before);
    };
    line("million rows a second", before.rate(batches[0].len()), during.rate(batches[0].len()));
    line("push, median, ms", before.quantile(0.5), during.quantile(0.5));
    line("push, p99, ms", before.quantile(0.99), during.quantile(0.99));
    println!("the instant took {:.2} ms, reading {:.2} s; the snapshot is whole", pause * 1e3, reading);
}

fn part(ids: &[u64]) -> RequestPart<'_> {
    RequestPart { table: 0, dim: DIM as u32, ids }
}

/// Pushes for a while, then until a snapshot is read. Returns the durations of both, and the seconds of the instant and
/// of the read.
fn measure(tables: &TableSet, batches: &[&[u64]], rows: usize) -> (Pushes, Pushes, f64, f64) {
    let (started, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let (mut before, mut during) = (Pushes::default(), Pushes::default());
    let (pause, reading) = thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !started.load(Ordering::Acquire) {
                thread::sleep(Duration::from_millis(1));
            }
            let times = read_snapshot(tables, rows, batches[0].len());
            done.store(true, Ordering::Release);
            times
        });
        let (mut scratch, gradients) = (RequestBuffers::new(), vec![1.0; batches[0].len() * DIM]);
        let mut push = |turn: usize, pushes: &mut Pushes| {
            let start = Instant::now();
            let part = part(batches[turn % batches.len()]);
            tables.push(&[part], &gradients, turn as u64, &mut scratch).expect("memory suffices");
            pushes.0.push(start.elapsed());
        };
        // First a push over all rows, so that no measured push touches memory for the first time.
        (0..batches.len()).for_each(|turn| push(turn, &mut Pushes::default()));
        (0..4 * batches.len()).for_each(|turn| push(turn, &mut before));
        started.store(true, Ordering::Release);
        let mut turn = 0;
        while !done.load(Ordering::Acquire) {
            push(turn, &mut during);
            turn += 1;
        }
        reader.join().expect("the snapshot is whole")
    });
    (before, during, pause, reading)
}

/// Reads all rows of an instant. Each push subtracts 1 from each of `batch` rows.
fn read_snapshot(tables: &TableSet, rows: usize, batch: usize) -> (f64, f64) {
    let start = Instant::now();
    let cut = tables.take_snapshot().expect("there is none yet");
    let pause = start.elapsed().as_secs_f64();
    let (mut found, mut sum) = (0, 0.0);
    for stripe in 0..tables.table(0).expect("it is there").stripes() {
        let mut read = RowBatch::default();
        cut.read_stripe(0, stripe, &mut read).expect("it is read once");
        found += read.ids.len();
        for slot in read.slots.chunks(DIM) {
            assert!(slot.iter().all(|word| *word == slot[0]), "a torn row");
            sum += f64::from(f32::from_bits(slot[0]));
        }
    }
    assert_eq!(found, rows);
    assert!((-sum as u64).is_multiple_of(batch as u64), "{sum} is not a whole number of pushes of {batch}");
    (pause, start.elapsed().as_secs_f64())
}

impl Pushes {
    fn rate(&self, batch: usize) -> f64 {
        (self.0.len() * batch) as f64 / self.0.iter().sum::<Duration>().as_secs_f64() / 1e6
    }

    fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        sorted.get((sorted.len() as f64 * share) as usize).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
    }
}
