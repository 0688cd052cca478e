//! Compares ways of packing rows on disk with each other and with a plain file.
//!
//! `cargo bench -p zagros-cold --bench cold -- [--rows N] [--dim N] [--folder PATH] [--quick]`
//!
//! One thread writes rows as eviction does, and reads rows as misses do. The limit is one plain file with the same
//! rows, written sequentially and read at known offsets. Both use the page cache. `--quick` uses few rows, for tests
//! that judge no time. In every mode each row must be read as it was written.

mod plain;
mod workload;

use std::path::PathBuf;
use std::time::Instant;

use plain::Plain;
use workload::Workload;
use zagros_cold::{Compression, RocksOptions, RocksStore};
use zagros_table::{ColdRows, ColdStore};

/// Rows per call: about as many as a batch of a few thousand samples misses.
const AT_ONCE: usize = 4096;
/// Calls per read measurement.
const CALLS: usize = 100;

/// The arguments of the command line.
struct Plan {
    rows: usize,
    dim: usize,
    folder: PathBuf,
    calls: usize,
}

/// The costs of one way of storing rows.
#[derive(Clone, Copy)]
struct Cost {
    /// MB of rows per second.
    write: f64,
    /// Million existing rows per second.
    read: f64,
    /// Million missing rows per second.
    absent: f64,
    /// Bytes on disk per byte of rows.
    size: f64,
}

fn main() {
    let plan = plan(std::env::args().skip(1));
    let workload = Workload::new(plan.rows, plan.dim);
    let megabytes = workload.bytes() as f64 / 1e6;
    println!("{} rows of {} weights and as many accumulators, {megabytes:.0} MB, one thread\n", plan.rows, plan.dim);
    println!("            write          read           absent       bytes on disk");
    println!("            MB/s  of file  M rows/s  of file  M rows/s    per byte");
    let limit = measure_plain(&plan, &workload);
    print("plain file", &limit, &limit);
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
        let cost = measure_store(&plan, &workload, compression);
        print(&format!("{compression:?}").to_lowercase(), &cost, &limit);
    }
}

fn print(name: &str, cost: &Cost, limit: &Cost) {
    let (write, read) = (100.0 * cost.write / limit.write, 100.0 * cost.read / limit.read);
    println!(
        "{name:<11} {:5.0}  {write:5.0} %  {:8.3}  {read:5.0} %  {:8.3}    {:6.3}",
        cost.write, cost.read, cost.absent, cost.size
    );
}

fn measure_plain(plan: &Plan, workload: &Workload) -> Cost {
    let folder = tempfile::tempdir_in(&plan.folder).expect("a folder for the plain file");
    let mut file = Plain::create(folder.path(), workload.width());
    let started = Instant::now();
    workload.in_order(AT_ONCE).for_each(|rows| file.append(rows));
    let write = workload.bytes() as f64 / 1e6 / started.elapsed().as_secs_f64();
    let read = per_second(plan, |call| {
        let picked = workload.pick(call, AT_ONCE);
        let rows = file.read(&picked);
        assert_eq!(rows, workload.rows(&picked));
    });
    Cost { write, read, absent: f64::INFINITY, size: 1.0 }
}

fn measure_store(plan: &Plan, workload: &Workload, compression: Compression) -> Cost {
    let folder = tempfile::tempdir_in(&plan.folder).expect("a folder for the store");
    let options = RocksOptions { compression, ..RocksOptions::default() };
    let store = RocksStore::open(folder.path(), &[workload.width()], &options).expect("an empty store");
    let batches: Vec<_> = workload.batches(AT_ONCE).collect();
    let started = Instant::now();
    for batch in &batches {
        store.write(0, &batch.cold_keys, &batch.rows).expect("rows are written");
    }
    let write = workload.bytes() as f64 / 1e6 / started.elapsed().as_secs_f64();
    let mut found = ColdRows::default();
    let read = per_second(plan, |call| {
        let picked = workload.pick(call, AT_ONCE);
        store.read(0, &workload.cold_keys(&picked), &mut found).expect("rows are read");
        assert!(found.rows == workload.rows(&picked), "a row came back as another");
    });
    let absent = per_second(plan, |call| {
        store.read(0, &workload.absent(call, AT_ONCE), &mut found).expect("rows are read");
        assert!(found.found.iter().all(|found| !found), "a row that was never written is there");
    });
    Cost { write, read, absent, size: store.size().bytes as f64 / workload.bytes() as f64 }
}

/// Million rows per second of calls with [`AT_ONCE`] rows.
fn per_second(plan: &Plan, mut call: impl FnMut(usize)) -> f64 {
    let started = Instant::now();
    (0..plan.calls).for_each(&mut call);
    (plan.calls * AT_ONCE) as f64 / 1e6 / started.elapsed().as_secs_f64()
}

fn plan(arguments: impl Iterator<Item = String>) -> Plan {
    let mut plan = Plan { rows: 2_000_000, dim: 16, folder: std::env::temp_dir(), calls: CALLS };
    // Cargo passes `--bench`.
    let mut arguments = arguments.filter(|argument| argument != "--bench");
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_else(|| panic!("{argument} needs a value"));
        match argument.as_str() {
            "--quick" => plan = Plan { rows: 20_000, calls: 2, ..plan },
            "--rows" => plan.rows = value().parse().expect("a number of rows"),
            "--dim" => plan.dim = value().parse().expect("a number of weights"),
            "--folder" => plan.folder = value().into(),
            other => panic!("no option {other}"),
        }
    }
    plan
}
