//! A table with some of its rows on disk, under load: batches are drawn, hinted, looked up, compared with a ledger of all pushes, and pushed.
//!
//! One thread looks up and pushes, and sleeps in between for as long as a network would take; a second one maintains the table; a third one
//! takes hints. Every lookup, and at the end every row, is compared with the ledger.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use zagros_plumbing::process::cpu_time;
use zagros_rows::cold::{LogCounts, LogOptions, LogStore, StoreContent};
use zagros_shell::{Exit, Failure, OrFailure};
use zagros_table::{
    ColdStore, Initializer, LookupMode, Optimizer, RequestBuffers, RequestPart, Table, TableConfig, TableCounts,
    TableResources, TableSet,
};
use zagros_zip::ZipEq;

/// Values of a row, with as many of state.
pub const DIM: usize = 16;
/// Rows of a request that fills or reads the whole table.
const CHUNK: usize = 16_384;
/// The Zipf exponent, as in click logs.
const EXPONENT: f64 = 1.05;
/// Batches of hints that a table holds beyond those that are ahead, while batches are handed over.
const HANDED_OVER: usize = 4;

#[derive(Clone, Copy, Debug)]
pub struct TableLoad<'a> {
    pub rows: usize,
    /// Bytes of rows in memory. `None` for all rows.
    pub budget: Option<usize>,
    pub law: IdLaw,
    /// Ids that a batch draws.
    pub draws: usize,
    /// Batches before the measured ones.
    pub warm: usize,
    pub measured: usize,
    /// Batches that are hinted before they are looked up.
    pub lookahead: usize,
    /// Time of the network for a batch.
    pub pause: Duration,
    pub folder: &'a Path,
}

/// How often the ids of a table are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum IdLaw {
    /// By Zipf's law with exponent 1.05, as in click logs.
    Zipf,
    /// All equally often: memory is of least use.
    Uniform,
}

/// Counts are of all measured batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TableFigures {
    pub rows: usize,
    /// Rows that are in memory at the end, and bytes of the table's memory.
    pub rows_in_memory: usize,
    pub memory_bytes: usize,
    pub disk_bytes: u64,
    /// µs a batch: wall time of lookups, pushes and the network, and CPU time of the process without network and drawing of ids.
    pub wall_us: f64,
    pub cpu_us: f64,
    pub batches: usize,
    /// Distinct ids, and those whose rows were in memory.
    pub ids: u64,
    pub found: u64,
    /// Rows that a lookup had to read from disk itself.
    pub late: u64,
    /// Reads of files, and rows that they paged in.
    pub reads: u64,
    pub paged_in: u64,
    /// Rows that left memory.
    pub evicted: u64,
    /// Bytes written to files for each byte of rows that left, since the table was empty. 0 if none left.
    pub write_amplification: f64,
}

/// Fills the table, uses it, and compares every row with the ledger.
pub fn measure_table(load: &TableLoad<'_>) -> Result<TableFigures, Failure> {
    // SGD at learning rate 1 from zero. A momentum that changes nothing gives each row as much state as Adagrad.
    let optimizer = Optimizer::Sgd { lr: 1.0, momentum: 1e-20, l2: 0.0 };
    let config = TableConfig { dim: DIM, init: Initializer::Zero, optimizer, ..TableConfig::default() };
    let folder = tempfile::tempdir_in(load.folder).or_internal()?;
    let store = load.budget.map(|_| open_store(folder.path(), config.cold_words())).transpose()?.map(Arc::new);
    let lookahead_hints = if load.lookahead > 0 { load.lookahead + HANDED_OVER } else { 0 };
    let cold = store.clone().map(|store| store as Arc<dyn ColdStore>);
    let resources = TableResources { budget: load.budget, cold, lookahead_hints, ..TableResources::default() };
    let tables = TableSet::new(1, &[config], resources).or_exit(Exit::Storage)?;
    let mut batches =
        CheckedBatches { load, tables: &tables, store: store.as_deref(), ledger: PushCounts::new(load.rows) };
    let figures = batches.train_maintained()?;
    batches.ledger.check_all(&tables)?;
    Ok(TableFigures {
        rows: load.rows,
        rows_in_memory: tables.iter().map(Table::row_count).sum(),
        memory_bytes: tables.iter().map(Table::memory_bytes).sum(),
        disk_bytes: store.as_ref().map_or(0, |store| store.size().bytes),
        write_amplification: store.as_ref().map_or(0.0, |store| store.io_counts().write_amplification()),
        ..figures
    })
}

pub(crate) fn open_store(folder: &Path, words: usize) -> Result<LogStore, Failure> {
    LogStore::open(StoreContent::Scratch, folder, &[words], &LogOptions::default()).or_exit(Exit::Storage)
}

struct CheckedBatches<'a> {
    load: &'a TableLoad<'a>,
    tables: &'a TableSet,
    store: Option<&'a LogStore>,
    ledger: PushCounts,
}

/// What was spent until now, in seconds, and what has happened.
#[derive(Clone, Copy, Default)]
struct LoadReading {
    cpu: f64,
    wall: f64,
    /// CPU time of the drawing of ids and of the comparison with the ledger.
    beside: f64,
    counts: TableCounts,
    files: LogCounts,
}

impl CheckedBatches<'_> {
    fn train_maintained(&mut self) -> Result<TableFigures, Failure> {
        let (tables, done) = (self.tables, AtomicBool::new(false));
        thread::scope(|scope| {
            let maintenance = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    if tables.maintain().or_exit(Exit::Storage)?.is_idle() {
                        thread::sleep(Duration::from_millis(1));
                    }
                }
                Ok(())
            });
            let figures = self.fill().and_then(|()| self.train_hinted());
            done.store(true, Ordering::Relaxed);
            join_helper(maintenance, figures)
        })
    }

    /// Pushes to every row once, like a first pass over new ids.
    fn fill(&mut self) -> Result<(), Failure> {
        let (rows, mut buffers) = (self.load.rows as u32, RequestBuffers::new());
        for (step, start) in (0..rows).step_by(CHUNK).enumerate() {
            let numbers: Vec<u32> = (start..rows.min(start.saturating_add(CHUNK as u32))).collect();
            self.ledger.push_ones(self.tables, &numbers, step as u64, &mut buffers)?;
        }
        Ok(())
    }

    /// Figures of the measured batches. Fails when a row is not what was pushed to it.
    fn train_hinted(&mut self) -> Result<TableFigures, Failure> {
        thread::scope(|scope| {
            let (hints, taken) = sync_channel::<Vec<u64>>(self.load.lookahead + 1);
            let tables = self.tables;
            let hinting = scope.spawn(move || {
                let mut buffers = RequestBuffers::new();
                for ids in taken {
                    let part = RequestPart { table: 0, dim: DIM as u32, ids: &ids };
                    tables.enter().page_in_hinted(&[part], &mut buffers).or_exit(Exit::Storage)?;
                }
                Ok(())
            });
            let draws = RowDraws { law: self.load.law, rows: self.load.rows, draws: self.load.draws, state: 1 };
            let coming = UpcomingBatches { draws, batches: VecDeque::new(), hints, lookahead: self.load.lookahead };
            let figures = self.steps(coming);
            join_helper(hinting, figures)
        })
    }

    fn steps(&mut self, mut coming: UpcomingBatches) -> Result<TableFigures, Failure> {
        let (mut buffers, mut spent, mut start) =
            (RequestBuffers::new(), LoadReading::default(), LoadReading::default());
        for step in 0..self.load.warm + self.load.measured {
            if step == self.load.warm {
                start = self.reading(spent);
            }
            let own = thread_cpu();
            let numbers = coming.next();
            let ids = row_ids(&numbers);
            let mut weights = vec![0.0; ids.len() * DIM];
            spent.beside += thread_cpu() - own;
            let started = Instant::now();
            let parts = [RequestPart { table: 0, dim: DIM as u32, ids: &ids }];
            self.tables.lookup(&parts, LookupMode::Train, &mut weights, &mut buffers).or_exit(Exit::Storage)?;
            spent.wall += started.elapsed().as_secs_f64();
            let own = thread_cpu();
            self.ledger.check_weights(&numbers, &weights)?;
            spent.beside += thread_cpu() - own;
            let started = Instant::now();
            thread::sleep(self.load.pause);
            self.ledger.push_ones(self.tables, &numbers, (self.load.rows + step) as u64, &mut buffers)?;
            spent.wall += started.elapsed().as_secs_f64();
        }
        Ok(self.reading(spent).figures_since(&start, self.load.measured))
    }

    fn reading(&self, spent: LoadReading) -> LoadReading {
        LoadReading {
            cpu: cpu_time().as_secs_f64(),
            counts: self.tables.iter().map(Table::event_counts).sum(),
            files: self.store.map(LogStore::io_counts).unwrap_or_default(),
            ..spent
        }
    }
}

impl LoadReading {
    fn figures_since(&self, start: &Self, batches: usize) -> TableFigures {
        let micros = |spent: fn(&Self) -> f64| (spent(self) - spent(start)) * 1e6 / batches.max(1) as f64;
        let count = |counted: fn(&TableCounts) -> u64| counted(&self.counts) - counted(&start.counts);
        TableFigures {
            wall_us: micros(|reading| reading.wall),
            cpu_us: micros(|reading| reading.cpu - reading.beside),
            batches,
            ids: count(|counts| counts.hits + counts.misses),
            found: count(|counts| counts.hits),
            late: count(|counts| counts.late),
            reads: self.files.reads - start.files.reads,
            paged_in: count(|counts| counts.promoted),
            evicted: count(|counts| counts.evicted),
            ..TableFigures::default()
        }
    }
}

/// The result of a piece of work beside which another thread served the table.
fn join_helper<T>(helper: ScopedJoinHandle<'_, Result<(), Failure>>, result: Result<T, Failure>) -> Result<T, Failure> {
    match helper.join() {
        Ok(helped) => helped.and(result),
        Err(_) => {
            Err(Failure::with_help(Exit::Internal, "a thread that serves the table failed", "its message is above"))
        }
    }
}

fn thread_cpu() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

struct UpcomingBatches {
    draws: RowDraws,
    batches: VecDeque<Vec<u32>>,
    hints: SyncSender<Vec<u64>>,
    lookahead: usize,
}

impl UpcomingBatches {
    /// The next batch. Hints a later one.
    fn next(&mut self) -> Vec<u32> {
        while self.batches.len() <= self.lookahead {
            let numbers = self.draws.next_batch();
            if self.lookahead > 0 {
                // Advice: a thread that is behind does not get it.
                let _ = self.hints.try_send(row_ids(&numbers));
            }
            self.batches.push_back(numbers);
        }
        self.batches.pop_front().unwrap_or_default()
    }
}

/// Draws the rows of batches, the same ones in each run.
struct RowDraws {
    law: IdLaw,
    rows: usize,
    draws: usize,
    state: u64,
}

impl RowDraws {
    /// The numbers of the distinct rows of one batch, in arbitrary order.
    fn next_batch(&mut self) -> Vec<u32> {
        let mut numbers: Vec<u32> = (0..self.draws).map(|_| self.next()).collect();
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

/// A ledger of all pushes. With SGD at learning rate 1 from zero and gradients of 1, a weight is minus its row's pushes.
struct PushCounts {
    pushes: Vec<u32>,
}

/// The ids of rows. They are one-to-one and spread over all 64 bits, like hashed ids.
fn row_ids(numbers: &[u32]) -> Vec<u64> {
    numbers.iter().map(|number| u64::from(*number).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect()
}

impl PushCounts {
    fn new(rows: usize) -> Self {
        Self { pushes: vec![0; rows] }
    }

    fn push_ones(
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
    fn check_weights(&self, numbers: &[u32], weights: &[f32]) -> Result<(), Failure> {
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
    fn check_all(&self, tables: &TableSet) -> Result<(), Failure> {
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
            let mut draws = RowDraws { law, rows: 50_000, draws: 4096 * 26, state: 1 };
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
