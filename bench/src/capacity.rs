//! `zagros-bench capacity`: the cost of a sample as a table outgrows memory, from a million rows to what the disk
//! holds.
//!
//! Each table is used twice: with all rows in memory, if memory has room, and with a share of them there. One thread
//! looks up and pushes batches of 4,096 samples with 26 ids each, of 16 weights and as much state, and sleeps in
//! between for as long as a network would take; a second one maintains the table; a third one takes hints. Every
//! lookup, and at the end every row, is compared with a ledger of all pushes.

mod batches;
mod figures;
mod table;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use zagros_plumbing::metrics::DiskSpace;
use zagros_rows::cold::{LogOptions, LogStore, StoreContent};
use zagros_shell::{Exit, Failure, OrFailure, err, out, print_answer, write_file};
use zagros_table::{ColdStore, Initializer, Optimizer, RequestBuffers, TableConfig, TableResources, TableSet};

use self::batches::{CheckedBatches, PushCounts, SAMPLES};
use self::figures::{CapacityFigures, CapacityPoint};
use self::table::{DIM, TableCase, TableFigures, thread_failure};
use crate::args::CapacityArgs;

/// Rows and batches of `--quick`.
const QUICK: (&[u64], u64) = (&[20_000, 100_000], 3);
/// Bytes of a row in memory: 128 of weights and state, and the index and free room of slabs around them.
const ROW_BYTES: usize = 150;
/// Bytes that the index of rows on disk takes for each of them.
const INDEX_BYTES: usize = 12;
/// Bytes that a row takes on disk at most, while segments that are half empty wait for compaction.
const DISK_BYTES: u64 = 300;
/// The share of the machine's free memory that a table may have.
const MEMORY_SHARE: f64 = 0.6;

pub(crate) fn run(args: &CapacityArgs) -> Result<Exit, Failure> {
    let folder = args.folder.clone().unwrap_or_else(std::env::temp_dir);
    let (rows, batches) = if args.quick { (QUICK.0.to_vec(), QUICK.1) } else { (args.rows.clone(), args.batches) };
    let warm = if args.quick { 2 } else { args.warm };
    let mut figures = CapacityFigures::new(args, (warm, batches));
    if !args.json {
        figures.print_head();
    }
    for rows in rows {
        let case = TableCase {
            rows: usize::try_from(rows).or_internal()?,
            budget: None,
            draws: args.ids,
            batches: (warm as usize, batches as usize),
            ahead: args.ahead as usize,
            compute: if args.quick { Duration::ZERO } else { Duration::from_secs_f64(args.compute / 1e6) },
            folder: &folder,
        };
        let point = measure_both(&case, args.share, &folder)?;
        if !args.json {
            point.print_lines();
        }
        figures.points.push(point);
    }
    if let Some(path) = &args.page {
        write_file(path, figures::render_page(&figures))?;
    }
    match (args.json, args.quick) {
        (true, _) => print_answer(&serde_json::to_string(&figures).or_internal()?)?,
        (false, true) => out!("\nevery row is what was pushed to it"),
        (false, false) => figures.print_summary(),
    }
    Ok(Exit::Success)
}

/// Measures one number of rows: in memory if there is room, and with a share in memory if the disk has room.
fn measure_both(case: &TableCase<'_>, share: f64, folder: &Path) -> Result<CapacityPoint, Failure> {
    let all = case.rows * (ROW_BYTES + size_of::<u32>());
    let has_room = free_memory().is_none_or(|free| (all as f64) < free * MEMORY_SHARE);
    let in_memory = if has_room { Some(measure_table(case)?) } else { None };
    let row = in_memory.map_or(ROW_BYTES as f64, |found| found.memory_bytes as f64 / case.rows as f64);
    let budget = (case.rows as f64 * (share * row + INDEX_BYTES as f64)) as usize;
    let (wanted, free) = (case.rows as u64 * DISK_BYTES, DiskSpace::measure(folder).or_internal()?.free);
    let on_disk = if wanted < free {
        Some(measure_table(&TableCase { budget: Some(budget), ..*case })?)
    } else {
        let (wanted, free) = (wanted / 1_000_000_000, free / 1_000_000_000);
        err!(
            "{} rows may take {wanted} GB on disk, and {} has {free} GB free: not measured on disk",
            case.rows,
            folder.display()
        );
        None
    };
    Ok(CapacityPoint { rows: case.rows, budget, in_memory, on_disk })
}

/// Bytes that programs can still have, as the kernel estimates them.
fn free_memory() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok().map(|kib| kib * 1024.0)
}

/// Batches of hints that a server holds beyond those of `--ahead`, while batches are handed over.
const HANDED_OVER: usize = 4;

/// One number of rows: a table that is filled, used, and compared with the ledger.
fn measure_table(case: &TableCase<'_>) -> Result<TableFigures, Failure> {
    let config = config();
    let folder = tempfile::tempdir_in(case.folder).or_internal()?;
    let store = case
        .budget
        .map(|_| LogStore::open(StoreContent::Scratch, folder.path(), &[config.cold_words()], &LogOptions::default()));
    let store = store.transpose().or_exit(Exit::Storage)?.map(Arc::new);
    let look_ahead = if case.ahead > 0 { case.ahead + HANDED_OVER } else { 0 };
    let cold = store.clone().map(|store| store as Arc<dyn ColdStore>);
    let resources = TableResources { budget: case.budget, cold, look_ahead, ..TableResources::default() };
    let tables = TableSet::new(1, &[config], resources).or_exit(Exit::Storage)?;
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

/// SGD at learning rate 1 from zero. A momentum that changes nothing gives each row as much state as Adagrad.
fn config() -> TableConfig {
    let optimizer = Optimizer::Sgd { lr: 1.0, momentum: 1e-20, l2: 0.0 };
    TableConfig { dim: DIM, init: Initializer::Zero, optimizer, ..TableConfig::default() }
}

fn tended<T>(tables: &TableSet, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let maintenance = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                if tables.maintain().or_exit(Exit::Storage)?.is_idle() {
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
