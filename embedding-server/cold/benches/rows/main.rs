//! The cost of a sample as the table outgrows memory: constant memory, more and more rows, the others on disk.
//!
//! `cargo bench -p zagros-cold --bench rows -- [--rows N,N,…] [--memory MIB] [--warm N] [--batches N] [--ahead N] [--order lru|lfu]
//! [--folder PATH] [--store log,log-calls,rocksdb,rocksdb-lz4,rocksdb-zstd] [--quick]`
//!
//! One thread looks up and pushes batches of 4,096 samples with 26 ids each. Ids are Zipf-distributed over all rows. A
//! second thread maintains the table, as in a server. After `--warm` batches, memory has the rows that are used most. With `--ahead`
//! a third thread takes hints of later batches. Wall time is that of lookups and pushes. Costs are those of the whole process with the store's threads, per
//! sample, and relative to the first number of rows. `--quick` uses few rows, for tests that judge no time. In every
//! mode the ledger must be exact at the end: with SGD at learning rate 1 and gradients of 1, each row is minus the
//! number of its pushes.

mod ledger;
#[path = "../rocks/mod.rs"]
mod rocks;
mod run;
mod workload;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ledger::Ledger;
use rocks::{Compression, RocksOptions, RocksStore};
use run::Run;
use workload::SAMPLES;
use zagros_cold::{LogCounts, LogOptions, LogStore, ReadMethod, StoreContent};
use zagros_table::{
    ColdStore, EvictionOrder, EvictionPolicy, Initializer, Optimizer, RequestBuffers, RequestPart, TableConfig,
    TableCounts, TableResources, TableSet,
};

const DIM: usize = 16;

/// The arguments of the command line.
struct Plan {
    rows: Vec<usize>,
    memory: usize,
    /// Batches before the measured ones.
    warm: usize,
    batches: usize,
    /// Batches that are hinted before they are looked up.
    ahead: usize,
    order: EvictionOrder,
    folder: PathBuf,
    /// The stores to measure, one after the other.
    stores: Vec<String>,
}

/// The costs with one number of rows.
#[derive(Default)]
struct Cost {
    wall: f64,
    cpu: f64,
    counts: TableCounts,
    files: LogCounts,
    resident: usize,
    on_disk: u64,
}

fn main() {
    let plan = plan(std::env::args().skip(1));
    let mebibytes = plan.memory >> 20;
    println!(
        "dim {DIM}, f32, {mebibytes} MiB of rows in memory, {} and {} batches of {SAMPLES} samples, {} ahead, {:?}\n",
        plan.warm, plan.batches, plan.ahead, plan.order
    );
    println!(
        "                               on disk   found in                        of a batch      µs a sample    × the first"
    );
    println!(
        "                  rows  memory      MB     memory  reads  brought in   late   evicted    wall     CPU    wall    CPU"
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
    let Cost { wall, cpu, counts, files, resident, on_disk } = cost;
    let hits = 100.0 * counts.hits as f64 / (counts.hits + counts.misses).max(1) as f64;
    let per_batch = |count: u64| count / plan.batches.max(1) as u64;
    println!(
        "{store:<12}{rows:>10} {resident:>7} {:>7.0} {hits:>8.1}% {:>6} {:>11} {:>6} {:>9} {wall:>7.2} {cpu:>7.2} {:>7.2} {:>6.2}",
        *on_disk as f64 / 1e6,
        per_batch(files.reads),
        per_batch(counts.promoted),
        per_batch(counts.late),
        per_batch(counts.evicted),
        wall / first.0,
        cpu / first.1,
    );
}

fn measure(plan: &Plan, rows: usize, store: &str) -> Cost {
    let folder = tempfile::tempdir_in(&plan.folder).expect("a folder for the cold tier");
    let config =
        TableConfig { retention: EvictionPolicy { order: plan.order, ..EvictionPolicy::default() }, ..config() };
    let store = open(plan, store, folder.path(), config.cold_words());
    let cold = Some(Arc::clone(&store.rows));
    // As a server: until a batch is looked up, some more are being handed over.
    let look_ahead = if plan.ahead > 0 { plan.ahead + 4 } else { 0 };
    let capacity = TableResources { budget: Some(plan.memory), cold, look_ahead, ..TableResources::default() };
    let tables = TableSet::new(1, &[config], capacity).expect("a table");
    let ledger = tended(&tables, || fill(&tables, rows));
    let mut run = Run { plan, rows, tables: &tables, store: &store, ledger };
    let cost = tended(&tables, || run.train());
    run.ledger.check(&tables);
    Cost { resident: tables.iter().map(zagros_table::Table::rows).sum(), on_disk: store.rows.size().bytes, ..cost }
}

/// A store, and itself once more if it counts what it reads.
struct Store {
    rows: Arc<dyn ColdStore>,
    log: Option<Arc<LogStore>>,
}

impl Store {
    fn counts(&self) -> LogCounts {
        self.log.as_ref().map(|log| log.counts()).unwrap_or_default()
    }
}

/// An empty store. RocksDB gets an eighth of the memory for its buffers, as much as the log's index takes at a tenth of the
/// rows in memory.
fn open(plan: &Plan, store: &str, folder: &Path, words: usize) -> Store {
    if store.starts_with("log") {
        let reads = if store == "log-calls" { ReadMethod::Calls } else { ReadMethod::Ring };
        let options = LogOptions { reads, ..LogOptions::default() };
        let log = Arc::new(LogStore::open(StoreContent::Scratch, folder, &[words], &options).expect("an empty store"));
        return Store { rows: Arc::clone(&log) as _, log: Some(log) };
    }
    let compression = match store {
        "rocksdb" => Compression::None,
        "rocksdb-lz4" => Compression::Lz4,
        "rocksdb-zstd" => Compression::Zstd,
        other => panic!("no store {other}"),
    };
    let options = RocksOptions { memory: plan.memory / 8, compression, ..RocksOptions::default() };
    Store { rows: Arc::new(RocksStore::open(folder, &[words], &options).expect("an empty store")), log: None }
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

fn push(tables: &TableSet, numbers: &[u32], step: u64, ledger: &mut Ledger, scratch: &mut RequestBuffers) {
    let ids = ledger::ids(numbers);
    let gradients = vec![1.0; ids.len() * DIM];
    tables.tick(step, 0);
    tables
        .push(&[RequestPart { table: 0, dim: DIM as u32, ids: &ids }], &gradients, step, scratch)
        .expect("gradients are applied");
    ledger.pushed(numbers);
}

fn plan(arguments: impl Iterator<Item = String>) -> Plan {
    let rows = vec![1_000_000, 3_000_000, 10_000_000];
    let stores = vec!["log".to_owned(), "rocksdb".to_owned()];
    let (folder, order) = (std::env::temp_dir(), EvictionOrder::Lru);
    let mut plan = Plan { rows, memory: 256 << 20, warm: 60, batches: 40, ahead: 0, order, folder, stores };
    // Cargo passes `--bench`.
    let mut arguments = arguments.filter(|argument| argument != "--bench");
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_else(|| panic!("{argument} needs a value"));
        match argument.as_str() {
            "--quick" => {
                plan = Plan { rows: vec![10_000, 100_000], memory: 4 << 20, warm: 2, batches: 5, ahead: 2, ..plan }
            }
            "--rows" => plan.rows = value().split(',').map(|rows| rows.parse().expect("numbers of rows")).collect(),
            "--memory" => plan.memory = value().parse::<usize>().expect("a number of MiB") << 20,
            "--warm" => plan.warm = value().parse().expect("a number of batches"),
            "--ahead" => plan.ahead = value().parse().expect("a number of batches"),
            "--order" => {
                plan.order = match value().as_str() {
                    "lru" => EvictionOrder::Lru,
                    "lfu" => EvictionOrder::Lfu { half_life: 10_000 },
                    other => panic!("no order {other}"),
                };
            }
            "--batches" => plan.batches = value().parse().expect("a number of batches"),
            "--store" => plan.stores = value().split(',').map(str::to_owned).collect(),
            "--folder" => plan.folder = value().into(),
            other => panic!("no option {other}"),
        }
    }
    plan
}
