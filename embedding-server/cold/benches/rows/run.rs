//! The batches of a run: hinted, looked up, compared with the ledger, and pushed.

use std::collections::VecDeque;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use zagros_cold::LogCounts;
use zagros_table::{LookupMode, RequestBuffers, RequestPart, TableCounts, TableSet};

use crate::ledger::{self, Ledger};
use crate::workload::{SAMPLES, Zipf};
use crate::{Cost, DIM, Plan, Store, push};

/// A table with its rows, most of them on disk.
pub(crate) struct Run<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) rows: usize,
    pub(crate) tables: &'a TableSet,
    pub(crate) store: &'a Store,
    pub(crate) ledger: Ledger,
}

/// The batches to come, the hinted ones first.
struct Coming {
    zipf: Zipf,
    batches: VecDeque<Vec<u32>>,
    hints: SyncSender<Vec<u64>>,
    ahead: usize,
}

impl Coming {
    /// The next batch. Hints a later one.
    fn next(&mut self) -> Vec<u32> {
        while self.batches.len() <= self.ahead {
            let numbers = self.zipf.batch();
            if self.ahead > 0 {
                // Advice: a thread that is behind does not get it.
                let _ = self.hints.try_send(ledger::ids(&numbers));
            }
            self.batches.push_back(numbers);
        }
        self.batches.pop_front().unwrap_or_default()
    }
}

impl Run<'_> {
    /// Costs of the measured batches.
    pub(crate) fn train(&mut self) -> Cost {
        thread::scope(|scope| {
            let (hints, taken) = sync_channel::<Vec<u64>>(self.plan.ahead + 1);
            let tables = self.tables;
            scope.spawn(move || {
                let mut scratch = RequestBuffers::new();
                for ids in taken {
                    let part = RequestPart { table: 0, dim: DIM as u32, ids: &ids };
                    tables.enter().bring_in(&[part], &mut scratch).expect("rows are read");
                }
            });
            let coming = Coming { zipf: Zipf::new(self.rows), batches: VecDeque::new(), hints, ahead: self.plan.ahead };
            self.steps(coming)
        })
    }

    fn steps(&mut self, mut coming: Coming) -> Cost {
        let (mut scratch, mut wall, mut beside) = (RequestBuffers::new(), 0.0, 0.0);
        let (mut counts, mut files, mut used) = (TableCounts::default(), LogCounts::default(), 0.0);
        for step in 0..self.plan.warm + self.plan.batches {
            if step == self.plan.warm {
                (counts, files) = (self.counts(), self.store.counts());
                (used, wall, beside) = (seconds(ClockId::ProcessCPUTime), 0.0, 0.0);
            }
            let own = seconds(ClockId::ThreadCPUTime);
            let numbers = coming.next();
            let ids = ledger::ids(&numbers);
            let mut weights = vec![0.0; ids.len() * DIM];
            beside += seconds(ClockId::ThreadCPUTime) - own;
            let started = Instant::now();
            let parts = [RequestPart { table: 0, dim: DIM as u32, ids: &ids }];
            self.tables.lookup(&parts, LookupMode::Train, &mut weights, &mut scratch).expect("rows are looked up");
            wall += started.elapsed().as_secs_f64();
            let own = seconds(ClockId::ThreadCPUTime);
            assert!(
                self.ledger.agrees(&numbers, &weights),
                "batch {step} read a row that is not what was pushed to it"
            );
            beside += seconds(ClockId::ThreadCPUTime) - own;
            let started = Instant::now();
            push(self.tables, &numbers, (self.rows + step) as u64, &mut self.ledger, &mut scratch);
            wall += started.elapsed().as_secs_f64();
        }
        let per_sample = 1e6 / (self.plan.batches * SAMPLES) as f64;
        let cpu = seconds(ClockId::ProcessCPUTime) - used - beside;
        let counts = since(self.counts(), counts);
        let files = LogCounts { reads: self.store.counts().reads - files.reads, ..files };
        Cost { wall: wall * per_sample, cpu: cpu * per_sample, counts, files, ..Cost::default() }
    }

    fn counts(&self) -> TableCounts {
        self.tables.iter().map(zagros_table::Table::counts).sum()
    }
}

fn since(now: TableCounts, before: TableCounts) -> TableCounts {
    TableCounts {
        hits: now.hits - before.hits,
        misses: now.misses - before.misses,
        promoted: now.promoted - before.promoted,
        late: now.late - before.late,
        evicted: now.evicted - before.evicted,
        ..now
    }
}

/// Seconds of a clock.
fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
