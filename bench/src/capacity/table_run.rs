//! One number of rows: a table that is filled, used, and compared with the ledger.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use zagros_rows::cold::{LogOptions, LogStore, StoreContent};
use zagros_shell::{Failure, OrInternal};
use zagros_table::{ColdStore, Initializer, Optimizer, RequestBuffers, TableConfig, TableResources, TableSet};

use super::batches::CheckedBatches;
use super::ids::SAMPLES;
use super::ledger::PushCounts;
use super::table::{DIM, TableCase, TableFigures, disk_failed, table_failure, thread_failure};

/// Batches of hints that a server holds beyond those of `--ahead`, while batches are handed over.
const HANDED_OVER: usize = 4;

pub(super) fn measure_table(case: &TableCase<'_>) -> Result<TableFigures, Failure> {
    let config = config();
    let folder = tempfile::tempdir_in(case.folder).or_internal()?;
    let store = case
        .budget
        .map(|_| LogStore::open(StoreContent::Scratch, folder.path(), &[config.cold_words()], &LogOptions::default()));
    let store = store.transpose().map_err(disk_failed)?.map(Arc::new);
    let look_ahead = if case.ahead > 0 { case.ahead + HANDED_OVER } else { 0 };
    let cold = store.clone().map(|store| store as Arc<dyn ColdStore>);
    let resources = TableResources { budget: case.budget, cold, look_ahead, ..TableResources::default() };
    let tables = TableSet::new(1, &[config], resources).map_err(table_failure)?;
    let ledger = tended(&tables, || fill(&tables, case.rows))?;
    let mut batches = CheckedBatches { case, tables: &tables, store: store.as_deref(), ledger };
    let figures = tended(&tables, || batches.train_batches())?;
    batches.ledger.check_all(&tables)?;
    Ok(TableFigures {
        rows: case.rows,
        rows_in_memory: tables.iter().map(zagros_table::Table::row_count).sum(),
        memory_bytes: tables.iter().map(zagros_table::Table::memory_bytes).sum(),
        disk_bytes: store.as_ref().map_or(0, |store| store.size().bytes),
        write_amplification: store.as_ref().map_or(0.0, |store| store.io_counts().write_amplification()),
        ..figures
    })
}

/// SGD at learning rate 1 from zero. Momentum 0 gives each row as much state as Adagrad.
fn config() -> TableConfig {
    let optimizer = Optimizer::Momentum { lr: 1.0, momentum: 0.0, l2: 0.0 };
    TableConfig { dim: DIM, init: Initializer::Zero, optimizer, ..TableConfig::default() }
}

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
            Err(_) => Err(thread_failure("maintains the table")),
        }
    })
}

/// Pushes to every row once, like a first pass over new ids.
fn fill(tables: &TableSet, rows: usize) -> Result<PushCounts, Failure> {
    let (mut buffers, mut ledger) = (RequestBuffers::new(), PushCounts::new(rows));
    for (step, start) in (0..rows).step_by(SAMPLES * 4).enumerate() {
        let numbers: Vec<u32> = (start..rows.min(start + SAMPLES * 4)).map(|number| number as u32).collect();
        ledger.push_ones(tables, &numbers, step as u64, &mut buffers)?;
    }
    Ok(ledger)
}
