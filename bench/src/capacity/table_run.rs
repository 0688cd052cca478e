//! One number of rows: a table that is filled, used, and compared with the ledger.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use zagros_cold::{LogOptions, LogStore, StoreContent};
use zagros_shell::{Exit, Failure, OrInternal};
use zagros_table::{
    ColdError, ColdStore, Initializer, Optimizer, RequestBuffers, RequestPart, TableConfig, TableError, TableResources,
    TableSet,
};

use super::batches::Batches;
use super::ids::SAMPLES;
use super::ledger::{self, Ledger};

/// Values per row.
pub(super) const DIM: usize = 16;
/// Batches of hints that a server holds beyond `train.lookahead`, while batches are handed over.
const HANDED_OVER: usize = 4;

/// A table to measure.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableCase<'a> {
    pub(super) rows: usize,
    /// Bytes of rows in memory. `None` for all rows.
    pub(super) budget: Option<usize>,
    pub(super) draws: super::ids::IdLaw,
    /// Batches before the measured ones, and the measured ones.
    pub(super) batches: (usize, usize),
    /// Batches that are hinted before they are looked up.
    pub(super) ahead: usize,
    /// Time of the network for a sample.
    pub(super) compute: Duration,
    /// Where rows beyond memory go.
    pub(super) folder: &'a Path,
}

/// What was measured. Counts are of all measured batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct TableFigures {
    pub(super) rows: usize,
    /// Rows that are in memory at the end, and bytes of the table's memory.
    pub(super) rows_in_memory: usize,
    pub(super) memory_bytes: usize,
    pub(super) disk_bytes: u64,
    /// Wall time of lookups, pushes and the network, and CPU time of the whole process without the network and the drawing of ids,
    /// µs a sample.
    pub(super) wall_us: f64,
    pub(super) cpu_us: f64,
    /// Measured batches.
    pub(super) batches: usize,
    /// Distinct ids, and those whose rows were in memory.
    pub(super) ids: u64,
    pub(super) found: u64,
    /// Rows that a lookup had to read from disk itself.
    pub(super) late: u64,
    /// Reads of files, and rows that they brought into memory.
    pub(super) reads: u64,
    pub(super) brought_in: u64,
    /// Rows that left memory.
    pub(super) evicted: u64,
    /// Bytes written to files for each byte of rows that left, since the table was empty. 0 if none left.
    pub(super) write_amplification: f64,
}

pub(super) fn failed(error: TableError) -> Failure {
    Failure::from_error(Exit::Storage, error)
}

fn disk_failed(error: ColdError) -> Failure {
    Failure::from_error(Exit::Storage, error)
}

/// A thread beside the batches ended without a result.
pub(super) fn ended(thread: &str) -> Failure {
    Failure::with_help(Exit::Internal, format!("the thread that {thread} failed"), "its message is above")
}

/// Fills and measures a table, and compares every row with what was pushed to it.
///
/// # Errors
/// When the disk fails, or a row is not what was pushed to it.
pub(super) fn measure(case: &TableCase<'_>) -> Result<TableFigures, Failure> {
    let config = config();
    let folder = tempfile::tempdir_in(case.folder).or_internal()?;
    let store = case
        .budget
        .map(|_| LogStore::open(StoreContent::Scratch, folder.path(), &[config.cold_words()], &LogOptions::default()));
    let store = store.transpose().map_err(disk_failed)?.map(Arc::new);
    let look_ahead = if case.ahead > 0 { case.ahead + HANDED_OVER } else { 0 };
    let cold = store.clone().map(|store| store as Arc<dyn ColdStore>);
    let resources = TableResources { budget: case.budget, cold, look_ahead, ..TableResources::default() };
    let tables = TableSet::new(1, &[config], resources).map_err(failed)?;
    let ledger = tended(&tables, || fill(&tables, case.rows))?;
    let mut batches = Batches { case, tables: &tables, store: store.as_deref(), ledger };
    let figures = tended(&tables, || batches.train())?;
    batches.ledger.check_all(&tables)?;
    Ok(TableFigures {
        rows: case.rows,
        rows_in_memory: tables.iter().map(zagros_table::Table::rows).sum(),
        memory_bytes: tables.iter().map(zagros_table::Table::bytes).sum(),
        disk_bytes: store.as_ref().map_or(0, |store| store.size().bytes),
        write_amplification: store.as_ref().map_or(0.0, |store| store.counts().write_amplification()),
        ..figures
    })
}

/// SGD at learning rate 1 from zero. Momentum 0 gives each row as much state as Adagrad.
fn config() -> TableConfig {
    let optimizer = Optimizer::Momentum { lr: 1.0, momentum: 0.0, l2: 0.0 };
    TableConfig { dim: DIM, init: Initializer::Zero, optimizer, ..TableConfig::default() }
}

/// Runs `work` while a thread maintains the tables, as in a server.
fn tended<T>(tables: &TableSet, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let maintenance = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                if tables.maintain().map_err(disk_failed)?.is_idle() {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            Ok(())
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        match maintenance.join() {
            Ok(maintained) => maintained.and(result),
            Err(_) => Err(ended("maintains the table")),
        }
    })
}

/// Pushes to every row once, like a first pass over new ids.
fn fill(tables: &TableSet, rows: usize) -> Result<Ledger, Failure> {
    let (mut buffers, mut ledger) = (RequestBuffers::new(), Ledger::new(rows));
    for (step, start) in (0..rows).step_by(SAMPLES * 4).enumerate() {
        let numbers: Vec<u32> = (start..rows.min(start + SAMPLES * 4)).map(|number| number as u32).collect();
        push(tables, &numbers, step as u64, &mut ledger, &mut buffers)?;
    }
    Ok(ledger)
}

/// Pushes a gradient of 1 to each of some rows.
pub(super) fn push(
    tables: &TableSet,
    numbers: &[u32],
    step: u64,
    ledger: &mut Ledger,
    buffers: &mut RequestBuffers,
) -> Result<(), Failure> {
    let ids = ledger::ids(numbers);
    let gradients = vec![1.0; ids.len() * DIM];
    tables.tick(step, 0);
    let part = RequestPart { table: 0, dim: DIM as u32, ids: &ids };
    tables.push(&[part], &gradients, step, buffers).map_err(failed)?;
    ledger.pushed(numbers);
    Ok(())
}
