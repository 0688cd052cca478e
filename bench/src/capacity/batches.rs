//! The batches of a table: hinted, looked up, compared with the ledger, and pushed.

use std::collections::VecDeque;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use zagros_rows::cold::{LogCounts, LogStore};
use zagros_shell::Failure;
use zagros_table::{LookupMode, RequestBuffers, RequestPart, TableCounts, TableSet};

use super::ids::{RowDraws, SAMPLES};
use super::ledger::{self, PushCounts};
use super::table::{DIM, TableCase, TableFigures, table_failure, thread_failure};

pub(super) struct CheckedBatches<'a> {
    pub(super) case: &'a TableCase<'a>,
    pub(super) tables: &'a TableSet,
    pub(super) store: Option<&'a LogStore>,
    pub(super) ledger: PushCounts,
}

struct UpcomingBatches {
    draws: RowDraws,
    batches: VecDeque<Vec<u32>>,
    hints: SyncSender<Vec<u64>>,
    ahead: usize,
}

#[derive(Clone, Copy, Default)]
struct SpentBefore {
    cpu: f64,
    wall: f64,
    /// CPU time of the drawing of ids and of the comparison with the ledger.
    beside: f64,
    counts: TableCounts,
    files: LogCounts,
}

impl UpcomingBatches {
    /// The next batch. Hints a later one.
    fn next(&mut self) -> Vec<u32> {
        while self.batches.len() <= self.ahead {
            let numbers = self.draws.next_batch();
            if self.ahead > 0 {
                // Advice: a thread that is behind does not get it.
                let _ = self.hints.try_send(ledger::row_ids(&numbers));
            }
            self.batches.push_back(numbers);
        }
        self.batches.pop_front().unwrap_or_default()
    }
}

impl CheckedBatches<'_> {
    /// Figures of the measured batches. Fails when a row is not what was pushed to it.
    pub(super) fn train_batches(&mut self) -> Result<TableFigures, Failure> {
        thread::scope(|scope| {
            let (hints, taken) = sync_channel::<Vec<u64>>(self.case.ahead + 1);
            let tables = self.tables;
            let hinting = scope.spawn(move || {
                let mut buffers = RequestBuffers::new();
                for ids in taken {
                    let part = RequestPart { table: 0, dim: DIM as u32, ids: &ids };
                    tables.enter().bring_in(&[part], &mut buffers).map_err(table_failure)?;
                }
                Ok(())
            });
            let draws = RowDraws::new(self.case.draws, self.case.rows);
            let coming = UpcomingBatches { draws, batches: VecDeque::new(), hints, ahead: self.case.ahead };
            let figures = self.steps(coming);
            match hinting.join() {
                Ok(hinted) => hinted.and(figures),
                Err(_) => Err(thread_failure("takes hints")),
            }
        })
    }

    fn steps(&mut self, mut coming: UpcomingBatches) -> Result<TableFigures, Failure> {
        let (mut buffers, mut spent) = (RequestBuffers::new(), SpentBefore::default());
        let (warm, measured) = self.case.batches;
        let mut start = SpentBefore::default();
        for step in 0..warm + measured {
            if step == warm {
                start = SpentBefore { counts: self.counts(), files: self.files(), cpu: process_cpu(), ..spent };
            }
            let own = seconds(ClockId::ThreadCPUTime);
            let numbers = coming.next();
            let ids = ledger::row_ids(&numbers);
            let mut weights = vec![0.0; ids.len() * DIM];
            spent.beside += seconds(ClockId::ThreadCPUTime) - own;
            let started = Instant::now();
            let parts = [RequestPart { table: 0, dim: DIM as u32, ids: &ids }];
            self.tables.lookup(&parts, LookupMode::Train, &mut weights, &mut buffers).map_err(table_failure)?;
            spent.wall += started.elapsed().as_secs_f64();
            let own = seconds(ClockId::ThreadCPUTime);
            self.ledger.check_weights(&numbers, &weights)?;
            spent.beside += seconds(ClockId::ThreadCPUTime) - own;
            let started = Instant::now();
            thread::sleep(self.case.compute * SAMPLES as u32);
            self.ledger.push_ones(self.tables, &numbers, (self.case.rows + step) as u64, &mut buffers)?;
            spent.wall += started.elapsed().as_secs_f64();
        }
        let end = SpentBefore { counts: self.counts(), files: self.files(), cpu: process_cpu(), ..spent };
        Ok(end.since(&start).figures(measured))
    }

    fn counts(&self) -> TableCounts {
        self.tables.iter().map(zagros_table::Table::event_counts).sum()
    }

    fn files(&self) -> LogCounts {
        self.store.map(LogStore::io_counts).unwrap_or_default()
    }
}

impl SpentBefore {
    fn since(self, before: &Self) -> Self {
        let (now, then) = (self.counts, before.counts);
        let counts = TableCounts {
            hits: now.hits - then.hits,
            misses: now.misses - then.misses,
            promoted: now.promoted - then.promoted,
            late: now.late - then.late,
            evicted: now.evicted - then.evicted,
            ..now
        };
        Self {
            cpu: self.cpu - before.cpu,
            wall: self.wall - before.wall,
            beside: self.beside - before.beside,
            counts,
            files: LogCounts { reads: self.files.reads - before.files.reads, ..self.files },
        }
    }

    fn figures(self, batches: usize) -> TableFigures {
        let per_sample = 1e6 / (batches * SAMPLES).max(1) as f64;
        let Self { cpu, wall, beside, counts, files } = self;
        TableFigures {
            wall_us: wall * per_sample,
            cpu_us: (cpu - beside) * per_sample,
            batches,
            ids: counts.hits + counts.misses,
            found: counts.hits,
            late: counts.late,
            reads: files.reads,
            brought_in: counts.promoted,
            evicted: counts.evicted,
            ..TableFigures::default()
        }
    }
}

fn process_cpu() -> f64 {
    seconds(ClockId::ProcessCPUTime)
}

fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
