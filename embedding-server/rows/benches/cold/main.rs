//! Compares the log with a plain file at known offsets.
//!
//! `cargo bench -p zagros-rows --bench cold -- [--rows N] [--dim N] [--folder PATH] [--only NAME] [--quick]`
//!
//! One thread writes rows as eviction does, writes each of them once more on average, and reads rows as misses do. *Warm*
//! reads find files in the page cache, as far as it has room. Before each call of *cold* reads the kernel forgets the files. The limit is one
//! plain file of the same rows, which is read one by one, by a queue of the log's depth, and by such a queue past the page
//! cache. `--quick` uses few rows, for tests that judge no time. In every mode each row must be read as it was written.

mod plain;
mod workload;

use std::path::{Path, PathBuf};
use std::time::Instant;

use plain::{Cache, Plain, forget};
use workload::Workload;
use zagros_rows::cold::{LogOptions, LogStore, ReadMethod, StoreContent};
use zagros_table::{ColdRows, ColdStore};

/// Rows per call: about as many as a batch of a few thousand samples misses.
const AT_ONCE: usize = 4096;
/// Calls per read measurement. Cold reads are slower, so there are fewer.
const CALLS: usize = 100;
const COLD_SHARE: usize = 4;

struct Plan {
    rows: usize,
    dim: usize,
    folder: PathBuf,
    calls: usize,
    /// Of the ways to store rows only those with this in their name.
    only: String,
}

/// Reads a second, and what one costs the processor.
#[derive(Clone, Copy, Default)]
struct Rate {
    rows: f64,
    /// µs of CPU per row.
    cpu: f64,
}

#[derive(Clone, Copy, Default)]
struct Cost {
    /// MB of rows per second, with what the store does in the background meanwhile.
    write: f64,
    warm: Rate,
    cold: Rate,
    absent: Rate,
    /// Bytes on disk per byte of rows.
    size: f64,
    /// Bytes written to files per byte of rows, when each row is overwritten once on average.
    amplification: f64,
    /// MB in memory.
    memory: f64,
}

fn main() {
    let plan = plan(std::env::args().skip(1));
    let workload = Workload::new(plan.rows, plan.dim);
    let megabytes = workload.bytes() as f64 / 1e6;
    println!("{} rows of {} weights and as many accumulators, {megabytes:.0} MB, one thread\n", plan.rows, plan.dim);
    println!(
        "                     write     warm reads        cold reads            absent ids        on disk  written  memory"
    );
    println!(
        "                      MB/s  k rows/s     CPU  k rows/s     CPU  queue  k rows/s    CPU  per byte per byte     MB"
    );
    let limit = measure_plain(&plan, &workload);
    let is_wanted = |name: &str| name.contains(&plan.only);
    for (name, reads) in [("log", ReadMethod::Ring), ("log, no io_uring", ReadMethod::Calls)] {
        if is_wanted(name) {
            print(name, &measure_log(&plan, &workload, reads), limit);
        }
    }
}

/// Prints a line. `limit` is the rate of the plain file's queue.
fn print(name: &str, cost: &Cost, limit: f64) {
    let Cost { write, warm, cold, absent, size, amplification, memory } = cost;
    println!(
        "{name:<18} {write:7.0} {:9.0} {:7.2} {:9.1} {:7.2} {:5.0}% {:9.0} {:6.2} {size:9.3} {amplification:8.2} {memory:6.1}",
        warm.rows,
        warm.cpu,
        cold.rows,
        cold.cpu,
        100.0 * cold.rows / limit,
        absent.rows,
        absent.cpu,
    );
}

/// A way to read rows by number. `None` where it cannot be had.
type Way<'a> = dyn Fn(&[usize]) -> Option<Vec<u32>> + 'a;

/// Measures the plain file, and answers the rate of cold reads by its queue.
fn measure_plain(plan: &Plan, workload: &Workload) -> f64 {
    let folder = tempfile::tempdir_in(&plan.folder).expect("a folder for the plain file");
    let mut file = Plain::create(folder.path(), workload.width());
    let started = Instant::now();
    workload.in_order(AT_ONCE).for_each(|rows| file.append(rows));
    let write = workload.bytes() as f64 / 1e6 / started.elapsed().as_secs_f64();
    let one_by_one = |numbers: &[usize]| Some(file.read(numbers));
    let queue = |numbers: &[usize]| file.read_queued(numbers, Cache::Used);
    let past = |numbers: &[usize]| file.read_queued(numbers, Cache::Bypassed);
    let ways: [(&str, &Way<'_>); 3] =
        [("plain, one by one", &one_by_one), ("plain, queue", &queue), ("plain, direct", &past)];
    let mut limit = 0.0;
    for (name, way) in ways {
        let read = |call: usize| {
            // In the order of offsets, as the log reads them.
            let mut picked = workload.pick(call, AT_ONCE);
            picked.sort_unstable();
            way(&picked).map(|rows| assert!(rows == workload.rows(&picked), "a row came back as another"))
        };
        if read(0).is_none() {
            println!("{name:<18} cannot be measured here");
            continue;
        }
        let warm = rate(plan.calls, || {}, |call| _ = read(call));
        let cold = rate(plan.cold_calls(), || forget(folder.path()), |call| _ = read(call));
        limit = if name == "plain, direct" { limit } else { cold.rows };
        let cost = Cost { write, warm, cold, size: 1.0, amplification: 1.0, ..Cost::default() };
        print(name, &cost, limit);
    }
    limit
}

fn measure_log(plan: &Plan, workload: &Workload, reads: ReadMethod) -> Cost {
    let folder = tempfile::tempdir_in(&plan.folder).expect("a folder for the store");
    let options = LogOptions { reads, ..LogOptions::default() };
    let store =
        LogStore::open(StoreContent::Scratch, folder.path(), &[workload.width()], &options).expect("an empty store");
    let mut cost = measure_store(plan, workload, &store, folder.path());
    cost.memory = store.memory() as f64 / 1e6;
    cost
}

fn measure_store(plan: &Plan, workload: &Workload, store: &dyn ColdStore, folder: &Path) -> Cost {
    let (mut seconds, mut rows, before) = (0.0, 0, bytes_written());
    let mut write = |batch: &workload::Batch| {
        let started = Instant::now();
        store.write(0, &batch.cold_keys, &batch.rows).expect("rows are written");
        seconds += started.elapsed().as_secs_f64();
        rows += batch.rows.len() * 4;
    };
    workload.batches(AT_ONCE).for_each(|batch| write(&batch));
    // Random rows again: some twice, some never.
    (0..plan.rows.div_ceil(AT_ONCE)).for_each(|call| write(&workload.again(call, AT_ONCE)));
    let started = Instant::now();
    store.flush().expect("rows are flushed");
    seconds += started.elapsed().as_secs_f64();
    let amplification = (bytes_written() - before) as f64 / rows as f64;
    let size = store.size().bytes as f64 / workload.bytes() as f64;
    let mut found = ColdRows::default();
    let mut read = |call: usize| {
        let picked = workload.pick(call, AT_ONCE);
        store.read(0, &workload.cold_keys(&picked), &mut found).expect("rows are read");
        assert!(found.rows == workload.rows(&picked), "a row came back as another");
    };
    let warm = rate(plan.calls, || {}, &mut read);
    let cold = rate(plan.cold_calls(), || forget(folder), &mut read);
    let mut miss = |call: usize| {
        store.read(0, &workload.absent(call, AT_ONCE), &mut found).expect("rows are read");
        assert!(found.found.iter().all(|found| !found), "a row that was never written is there");
    };
    let absent = rate(plan.calls, || {}, &mut miss);
    Cost { write: rows as f64 / 1e6 / seconds, warm, cold, absent, size, amplification, memory: 0.0 }
}

/// The rate of calls with [`AT_ONCE`] rows. `before` comes before each call and is not measured.
fn rate(calls: usize, before: impl Fn(), mut call: impl FnMut(usize)) -> Rate {
    let (mut seconds, mut cpu) = (0.0, 0.0);
    for number in 0..calls {
        before();
        let (started, used) = (Instant::now(), cpu_seconds());
        call(number);
        seconds += started.elapsed().as_secs_f64();
        cpu += cpu_seconds() - used;
    }
    let rows = (calls * AT_ONCE) as f64;
    Rate { rows: rows / 1e3 / seconds, cpu: 1e6 * cpu / rows }
}

fn cpu_seconds() -> f64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

fn bytes_written() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("wchar: ")?.parse().ok()).unwrap_or(0)
}

impl Plan {
    fn cold_calls(&self) -> usize {
        self.calls.div_ceil(COLD_SHARE)
    }
}

fn plan(arguments: impl Iterator<Item = String>) -> Plan {
    let mut plan = Plan { rows: 2_000_000, dim: 16, folder: std::env::temp_dir(), calls: CALLS, only: String::new() };
    // Cargo passes `--bench`.
    let mut arguments = arguments.filter(|argument| argument != "--bench");
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_else(|| panic!("{argument} needs a value"));
        match argument.as_str() {
            "--quick" => plan = Plan { rows: 20_000, calls: 2, ..plan },
            "--rows" => plan.rows = value().parse().expect("a number of rows"),
            "--dim" => plan.dim = value().parse().expect("a number of weights"),
            "--folder" => plan.folder = value().into(),
            "--only" => plan.only = value(),
            other => panic!("no option {other}"),
        }
    }
    plan
}
