//! The batches of a table: drawn, hinted, looked up, compared with the ledger, and pushed.

use std::collections::VecDeque;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use zagros_rows::cold::{LogCounts, LogStore};
use zagros_shell::{Exit, Failure, OrFailure};
use zagros_table::{LookupMode, RequestBuffers, RequestPart, TableCounts, TableSet};
use zagros_zip::ZipEq;

use super::table::{DIM, TableCase, TableFigures, thread_failure};
use crate::args::IdLaw;

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
                let _ = self.hints.try_send(row_ids(&numbers));
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
                    tables.enter().bring_in(&[part], &mut buffers).or_exit(Exit::Storage)?;
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
            let ids = row_ids(&numbers);
            let mut weights = vec![0.0; ids.len() * DIM];
            spent.beside += seconds(ClockId::ThreadCPUTime) - own;
            let started = Instant::now();
            let parts = [RequestPart { table: 0, dim: DIM as u32, ids: &ids }];
            self.tables.lookup(&parts, LookupMode::Train, &mut weights, &mut buffers).or_exit(Exit::Storage)?;
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

pub(super) const SAMPLES: usize = 4096;
const FEATURES: usize = 26;
/// The Zipf exponent, as in click logs.
const EXPONENT: f64 = 1.05;

/// Draws the rows of batches, the same ones in each run.
pub(super) struct RowDraws {
    law: IdLaw,
    rows: usize,
    state: u64,
}

impl RowDraws {
    pub(super) fn new(law: IdLaw, rows: usize) -> Self {
        Self { law, rows, state: 1 }
    }

    /// The numbers of the distinct rows of one batch, in arbitrary order.
    pub(super) fn next_batch(&mut self) -> Vec<u32> {
        let mut numbers: Vec<u32> = (0..SAMPLES * FEATURES).map(|_| self.next()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    fn next(&mut self) -> u32 {
        let uniform = self.uniform();
        let rank = match self.law {
            IdLaw::Uniform => return (uniform * self.rows as f64) as u32,
            // The inverse of the continuous Zipf distribution.
            IdLaw::Zipf => {
                let last = (self.rows as f64 + 1.0).powf(1.0 - EXPONENT);
                (1.0 + uniform * (last - 1.0)).powf(1.0 / (1.0 - EXPONENT)) as u64
            }
        };
        // The most popular rows are not the first rows. The map is one-to-one unless `rows` is a multiple of the prime.
        (rank.clamp(1, self.rows as u64).wrapping_mul(2_654_435_761) % self.rows as u64) as u32
    }

    /// From 0, below 1 (SplitMix64).
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

const CHUNK: usize = 16_384;

/// A ledger of all pushes. With SGD at learning rate 1 from zero and gradients of 1, a weight is minus its row's pushes.
pub(super) struct PushCounts {
    pushes: Vec<u32>,
}

/// The ids of rows. They are one-to-one and spread over all 64 bits, like hashed ids.
fn row_ids(numbers: &[u32]) -> Vec<u64> {
    numbers.iter().map(|number| u64::from(*number).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect()
}

impl PushCounts {
    pub(super) fn new(rows: usize) -> Self {
        Self { pushes: vec![0; rows] }
    }

    pub(super) fn push_ones(
        &mut self,
        tables: &TableSet,
        numbers: &[u32],
        step: u64,
        buffers: &mut RequestBuffers,
    ) -> Result<(), Failure> {
        let ids = row_ids(numbers);
        let gradients = vec![1.0; ids.len() * DIM];
        tables.advance_clock(step, 0);
        let part = RequestPart { table: 0, dim: DIM as u32, ids: &ids };
        tables.push(&[part], &gradients, step, buffers).or_exit(Exit::Storage)?;
        numbers.iter().for_each(|number| self.pushes[*number as usize] += 1);
        Ok(())
    }

    /// `weights` is `[numbers, DIM]`. Fails with the first row that is not what was pushed to it.
    pub(super) fn check_weights(&self, numbers: &[u32], weights: &[f32]) -> Result<(), Failure> {
        for (number, weights) in numbers.iter().zip_eq(weights.chunks_exact(DIM)) {
            let pushes = self.pushes[*number as usize];
            if weights.iter().any(|weight| *weight != -(pushes as f32)) {
                let what = format!("row {number} was pushed {pushes} times and holds {weights:?}: rows were lost");
                let next = "this is a bug of the table or of its cold tier, or the disk is damaged";
                return Err(Failure::with_help(Exit::Internal, what, next));
            }
        }
        Ok(())
    }

    /// Compares every row, in memory and on disk.
    pub(super) fn check_all(&self, tables: &TableSet) -> Result<(), Failure> {
        let (mut buffers, all) = (RequestBuffers::new(), (0..self.pushes.len() as u32).collect::<Vec<_>>());
        for numbers in all.chunks(CHUNK) {
            let mut weights = vec![f32::NAN; numbers.len() * DIM];
            let parts = [RequestPart { table: 0, dim: DIM as u32, ids: &row_ids(numbers) }];
            tables.lookup(&parts, LookupMode::Read, &mut weights, &mut buffers).or_exit(Exit::Storage)?;
            self.check_weights(numbers, &weights)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_have_distinct_rows_of_the_table_and_zipf_repeats_more_than_uniform() {
        let rows = |law| {
            let mut draws = RowDraws::new(law, 50_000);
            let batch = draws.next_batch();
            assert!(batch.is_sorted_by(|one, other| one < other) && batch.iter().all(|row| *row < 50_000));
            assert_ne!(draws.next_batch(), batch);
            batch.len()
        };
        // 50,000 × (1 − e^(−106,496 ÷ 50,000)) rows are expected.
        assert!((43_700..44_400).contains(&rows(IdLaw::Uniform)));
        assert!(rows(IdLaw::Zipf) < 25_000);
    }
}
