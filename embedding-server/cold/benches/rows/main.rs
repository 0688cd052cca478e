//! The cost of a sample as the table outgrows memory: constant memory, more and more rows, the others on disk.
//!
//! `cargo bench -p zagros-cold --bench rows -- [--rows N,N,…] [--memory MIB] [--batches N] [--folder PATH]
//! [--store log,log-calls,rocksdb,rocksdb-lz4,rocksdb-zstd] [--quick]`
//!
//! One thread looks up and pushes batches of 4,096 samples with 26 ids each. Ids are Zipf-distributed over all rows. A
//! second thread maintains the table, as in a server. Costs are those of the whole process with the store's threads, per
//! sample, and relative to the first number of rows. `--quick` uses few rows, for tests that judge no time. In every
//! mode the ledger must be exact at the end: with SGD at learning rate 1 and gradients of 1, each row is minus the
//! number of its pushes.

mod ledger;
#[path = "../rocks/mod.rs"]
mod rocks;
mod workload;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ledger::Ledger;
use rocks::{Compression, RocksOptions, RocksStore};
use rustix::time::{ClockId, clock_gettime};
use workload::{SAMPLES, Zipf};
use zagros_cold::{LogOptions, LogStore, ReadMethod, StoreContent};
use zagros_table::{
    ColdStore, Initializer, LookupMode, Optimizer, RequestBuffers, RequestPart, TableConfig, TableCounts,
    TableResources, TableSet,
};

const DIM: usize = 16;

/// The arguments of the command line.
struct Plan {
    rows: Vec<usize>,
    memory: usize,
    batches: usize,
    folder: PathBuf,
    /// The stores to measure, one after the other.
    stores: Vec<String>,
}

/// The costs with one number of rows.
struct Cost {
    wall: f64,
    cpu: f64,
    counts: TableCounts,
    resident: usize,
    on_disk: u64,
}

fn main() {
    let plan = plan(std::env::args().skip(1));
    let mebibytes = plan.memory >> 20;
    println!("dim {DIM}, f32, {mebibytes} MiB of rows in memory, {} batches of {SAMPLES} samples\n", plan.batches);
    println!(
        "                                                          of a batch            µs a sample        × the first"
    );
    println!(
        "                  rows  in memory  on disk, MB  hit rate  rows read  brought in     wall     CPU     wall    CPU"
    );
    let mut first = None;
    for rows in &plan.rows {
        for store in &plan.stores {
            let cost = measure(&plan, *rows, store);
            print(&plan, *rows, store, &cost, *first.get_or_insert((cost.wall, cost.cpu)));
        }
    }
}

fn print(plan: &Plan, rows: usize, store: &str, cost: &Cost, first: (f64, f64)) {
    let Cost { wall, cpu, counts, resident, on_disk } = cost;
    let hits = 100.0 * counts.hits as f64 / (counts.hits + counts.misses).max(1) as f64;
    let per_batch = |count: u64| count as f64 / plan.batches as f64;
    println!(
        "{store:<12}{rows:>10} {resident:>10} {:>12.0} {hits:>8.1}% {:>10.0} {:>11.0} {wall:>8.2} {cpu:>7.2} {:>8.2} {:>6.2}",
        *on_disk as f64 / 1e6,
        per_batch(counts.cold_reads),
        per_batch(counts.promoted),
        wall / first.0,
        cpu / first.1,
    );
}

fn measure(plan: &Plan, rows: usize, store: &str) -> Cost {
    let folder = tempfile::tempdir_in(&plan.folder).expect("a folder for the cold tier");
    let config = config();
    let store = open(plan, store, folder.path(), config.cold_words());
    let cold = Some(Arc::clone(&store));
    let capacity = TableResources { budget: Some(plan.memory), cold, ..TableResources::default() };
    let tables = TableSet::new(1, &[config], capacity).expect("a table");
    let ledger = tended(&tables, || fill(&tables, rows));
    let before = counts(&tables);
    let (wall, cpu, ledger) = tended(&tables, || train(&tables, plan.batches, rows, ledger));
    let counts = since(counts(&tables), before);
    ledger.check(&tables);
    let resident = tables.iter().map(zagros_table::Table::rows).sum();
    Cost { wall, cpu, counts, resident, on_disk: store.size().bytes }
}

/// An empty store. RocksDB gets an eighth of the memory for its buffers, as much as the log's index takes at a tenth of the
/// rows in memory.
fn open(plan: &Plan, store: &str, folder: &Path, words: usize) -> Arc<dyn ColdStore> {
    if store.starts_with("log") {
        let reads = if store == "log-calls" { ReadMethod::Calls } else { ReadMethod::Ring };
        let options = LogOptions { reads, ..LogOptions::default() };
        return Arc::new(LogStore::open(StoreContent::Scratch, folder, &[words], &options).expect("an empty store"));
    }
    let compression = match store {
        "rocksdb" => Compression::None,
        "rocksdb-lz4" => Compression::Lz4,
        "rocksdb-zstd" => Compression::Zstd,
        other => panic!("no store {other}"),
    };
    let options = RocksOptions { memory: plan.memory / 8, compression, ..RocksOptions::default() };
    Arc::new(RocksStore::open(folder, &[words], &options).expect("an empty store"))
}

/// SGD at learning rate 1 from zero. Momentum 0 gives each row as much state as Adagrad.
fn config() -> TableConfig {
    let optimizer = Optimizer::Momentum { lr: 1.0, momentum: 0.0, l2: 0.0 };
    TableConfig { dim: DIM, init: Initializer::Zero, optimizer, ..TableConfig::default() }
}

/// Runs `work` while a thread maintains the tables.
fn tended<T>(tables: &TableSet, work: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                if tables.maintain().expect("the cold tier works").is_idle() {
                    thread::sleep(Duration::from_millis(1));
                }
            }
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        result
    })
}

/// Pushes to every row once, like a first pass over new ids.
fn fill(tables: &TableSet, rows: usize) -> Ledger {
    let (mut scratch, mut ledger) = (RequestBuffers::new(), Ledger::new(rows));
    for (step, start) in (0..rows).step_by(SAMPLES * 4).enumerate() {
        let numbers: Vec<u32> = (start..rows.min(start + SAMPLES * 4)).map(|number| number as u32).collect();
        push(tables, &numbers, step as u64, &mut ledger, &mut scratch);
    }
    ledger
}

/// Wall time and CPU time in µs per sample.
fn train(tables: &TableSet, batches: usize, rows: usize, mut ledger: Ledger) -> (f64, f64, Ledger) {
    let mut zipf = Zipf::new(rows);
    let (mut scratch, mut wall, mut cpu) = (RequestBuffers::new(), 0.0, 0.0);
    for step in 0..batches {
        let numbers = zipf.batch();
        let (ids, started, used) = (ledger::ids(&numbers), Instant::now(), cpu_seconds());
        let parts = [RequestPart { table: 0, dim: DIM as u32, ids: &ids }];
        let mut weights = vec![0.0; ids.len() * DIM];
        tables.lookup(&parts, LookupMode::Train, &mut weights, &mut scratch).expect("rows are looked up");
        assert!(ledger.agrees(&numbers, &weights), "batch {step} read a row that is not what was pushed to it");
        push(tables, &numbers, (rows + step) as u64, &mut ledger, &mut scratch);
        wall += started.elapsed().as_secs_f64();
        cpu += cpu_seconds() - used;
    }
    let per_sample = 1e6 / (batches * SAMPLES) as f64;
    (wall * per_sample, cpu * per_sample, ledger)
}

fn push(tables: &TableSet, numbers: &[u32], step: u64, ledger: &mut Ledger, scratch: &mut RequestBuffers) {
    let ids = ledger::ids(numbers);
    let gradients = vec![1.0; ids.len() * DIM];
    tables.tick(step, 0);
    tables
        .push(&[RequestPart { table: 0, dim: DIM as u32, ids: &ids }], &gradients, step, scratch)
        .expect("gradients are applied");
    ledger.pushed(numbers);
}

fn counts(tables: &TableSet) -> TableCounts {
    tables.iter().map(zagros_table::Table::counts).sum()
}

fn since(now: TableCounts, before: TableCounts) -> TableCounts {
    TableCounts {
        hits: now.hits - before.hits,
        misses: now.misses - before.misses,
        cold_reads: now.cold_reads - before.cold_reads,
        promoted: now.promoted - before.promoted,
        ..now
    }
}

/// CPU seconds of all threads of this process so far.
fn cpu_seconds() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

fn plan(arguments: impl Iterator<Item = String>) -> Plan {
    let rows = vec![1_000_000, 3_000_000, 10_000_000];
    let stores = vec!["log".to_owned(), "rocksdb".to_owned()];
    let mut plan = Plan { rows, memory: 256 << 20, batches: 200, folder: std::env::temp_dir(), stores };
    // Cargo passes `--bench`.
    let mut arguments = arguments.filter(|argument| argument != "--bench");
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_else(|| panic!("{argument} needs a value"));
        match argument.as_str() {
            "--quick" => plan = Plan { rows: vec![10_000, 100_000], memory: 4 << 20, batches: 5, ..plan },
            "--rows" => plan.rows = value().split(',').map(|rows| rows.parse().expect("numbers of rows")).collect(),
            "--memory" => plan.memory = value().parse::<usize>().expect("a number of MiB") << 20,
            "--batches" => plan.batches = value().parse().expect("a number of batches"),
            "--store" => plan.stores = value().split(',').map(str::to_owned).collect(),
            "--folder" => plan.folder = value().into(),
            other => panic!("no option {other}"),
        }
    }
    plan
}
