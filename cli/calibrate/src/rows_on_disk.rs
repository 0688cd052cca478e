//! Rows that do not fit into memory: a real table with a tenth of its rows in memory, and the real log of rows in the temporary folder.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};
use zagros_cost::ColdRates;
use zagros_plumbing::process::cpu_time;
use zagros_rows::cold::{LogOptions, LogStore, StoreContent};
use zagros_shell::{Failure, OrFailure};
use zagros_table::{
    ColdRows, ColdStore, Initializer, LookupMode, Optimizer, RequestBuffers, RequestPart, TableConfig, TableResources,
    TableSet,
};

const DIM: usize = 16;
/// Rows of the table: 150 MB. With few, many rows of a batch would be neighbours on disk and come in one read.
const ROWS: u64 = 1_000_000;
/// Bytes of memory of a tenth of them, and of the index of all.
const BUDGET: usize = ROWS as usize * (15 + 12);
const BATCH: usize = 4096;
/// Batches after which as many rows leave as come, and those that are measured.
const BATCHES: (usize, usize) = (30, 60);
/// Rows of a read of forgotten files, and such reads.
const AT_ONCE: usize = 4096;
const READS: usize = 8;
/// Spreads numbers over all ids.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

pub(crate) fn rates() -> Result<ColdRates, Failure> {
    let (in_memory, _) = batches(None)?;
    let (on_disk, read) = batches(Some(BUDGET))?;
    let more = on_disk.saturating_sub(in_memory).as_secs_f64() * 1e9;
    Ok(ColdRates { row_ns: more / read.max(1) as f64, reads_per_second: reads_per_second()? })
}

/// CPU time of the measured batches of a table with so much memory, and the rows that they brought into memory.
fn batches(budget: Option<usize>) -> Result<(Duration, u64), Failure> {
    let optimizer = Optimizer::Adagrad { lr: 0.01, epsilon: 1e-10, initial_accumulator: 0.1, l2: 0.0 };
    let config = TableConfig { dim: DIM, init: Initializer::Zero, optimizer, ..TableConfig::default() };
    let folder = tempfile::tempdir().or_internal()?;
    let cold: Option<Arc<dyn ColdStore>> = match budget {
        None => None,
        Some(_) => Some(Arc::new(store(folder.path(), config.cold_words())?)),
    };
    let resources = TableResources { budget, cold, ..TableResources::default() };
    let tables = TableSet::new(1, &[config], resources).or_internal()?;
    let mut buffers = RequestBuffers::new();
    let mut step = 0;
    let mut train = |ids: &[u64]| {
        step += 1;
        tables.advance_clock(step, 0);
        let parts = [RequestPart { table: 0, dim: DIM as u32, ids }];
        let (mut weights, gradients) = (vec![0.0; ids.len() * DIM], vec![0.01; ids.len() * DIM]);
        tables.lookup(&parts, LookupMode::Train, &mut weights, &mut buffers).or_internal()?;
        tables.push(&parts, &gradients, step, &mut buffers).or_internal()?;
        tables.maintain().or_internal().map(|_| ())
    };
    let all: Vec<u64> = (0..ROWS).map(|number| number.wrapping_mul(SPREAD)).collect();
    all.chunks(BATCH).try_for_each(&mut train)?;
    let (warm, measured) = BATCHES;
    (0..warm).try_for_each(|batch| train(&picked(batch, BATCH)))?;
    let brought = || tables.iter().map(|table| table.event_counts().promoted).sum::<u64>();
    let (before, brought_before) = (cpu_time(), brought());
    (warm..warm + measured).try_for_each(|batch| train(&picked(batch, BATCH)))?;
    Ok((cpu_time() - before, brought() - brought_before))
}

/// Rows read each second that are nowhere in memory.
fn reads_per_second() -> Result<f64, Failure> {
    let folder = tempfile::tempdir().or_internal()?;
    let width = 2 * DIM + 1;
    let store = store(folder.path(), width)?;
    let all: Vec<u64> = (0..ROWS).map(|number| number.wrapping_mul(SPREAD)).collect();
    let words = vec![1; AT_ONCE * width];
    all.chunks(AT_ONCE).try_for_each(|keys| store.write(0, keys, &words[..keys.len() * width])).or_internal()?;
    store.flush().or_internal()?;
    let (mut time, mut rows) = (Duration::ZERO, ColdRows::default());
    for read in 0..READS {
        let keys = picked(read, AT_ONCE);
        forget(folder.path())?;
        let started = Instant::now();
        store.read(0, &keys, &mut rows).or_internal()?;
        time += started.elapsed();
    }
    Ok((READS * AT_ONCE) as f64 / time.as_secs_f64().max(1e-9))
}

fn store(folder: &Path, width: usize) -> Result<LogStore, Failure> {
    LogStore::open(StoreContent::Scratch, folder, &[width], &LogOptions::default()).or_internal()
}

/// The distinct ids of a batch, all equally likely.
fn picked(batch: usize, count: usize) -> Vec<u64> {
    // A step that has no divisor in common with the number of rows meets each of them once.
    let first = (batch as u64 + 1) * 104_729;
    (0..count as u64).map(|at| ((first + at * 78_901) % ROWS).wrapping_mul(SPREAD)).collect()
}

/// Asks the system to forget files. Where it does not, the rate is that of memory.
fn forget(folder: &Path) -> Result<(), Failure> {
    for entry in std::fs::read_dir(folder).or_internal()? {
        let path = entry.or_internal()?.path();
        let Ok(file) = File::open(&path) else { continue };
        file.sync_all().or_internal()?;
        let _ = fadvise(&file, 0, None, Advice::DontNeed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn most_rows_of_a_batch_come_from_disk() {
        let (_, read) = batches(Some(BUDGET)).unwrap();
        let looked_up = (BATCHES.1 * BATCH) as u64;
        assert!((looked_up / 2..=looked_up).contains(&read), "{read} of {looked_up}");
        assert_eq!(batches(None).unwrap().1, 0);
    }

    #[test]
    fn rows_on_disk_have_rates_and_a_batch_has_each_row_once() {
        assert!(reads_per_second().unwrap() > 0.0);
        let ids = picked(3, BATCH);
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), BATCH);
        let all: HashSet<u64> = (0..ROWS).map(|number| number.wrapping_mul(SPREAD)).collect();
        assert!(ids.iter().all(|id| all.contains(id)));
    }
}
