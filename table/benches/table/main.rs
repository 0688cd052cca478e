//! Compares the table with the limit of the memory: batched lookup and Adagrad push, next to plain arrays, in one run.
//!
//! `cargo bench -p zagros-table --bench table -- [--rows N] [--dim 16|64] [--passes N] [--batch N] [--order any|stripes] [--quick]
//! [--only PART]`
//!
//! Parts: `limits`, `formats` (of weights), `threads` (one table, several threads). The default is all parts. All parts but `threads` use one thread. `--quick` uses few rows, for
//! tests that judge no time. `--batch` is the number of rows of a request, `--order` the order of its ids: that of their stripes
//! (`stripes`, which is served soonest) or any. In every mode the table's rows must equal the plain array's at the end, bit for bit.

mod formats;
mod limits;
mod threads;
mod workload;

use limits::{EPSILON, LR};
use workload::{Order, RequestShape, id_of};
use zagros_table::{LookupMode, Optimizer, RequestBuffers, Table, TableConfig, WeightType};
use zagros_zip::ZipEq;

/// Requests in one pass over the workload. The memory of their rows is many times larger than the caches.
const REQUESTS: usize = 64;

/// As the parts follow each other.
const PARTS: [&str; 3] = ["limits", "formats", "threads"];

/// The arguments of the command line.
struct Plan {
    rows: usize,
    dims: Vec<usize>,
    passes: usize,
    shape: RequestShape,
    only: Option<String>,
}

fn main() {
    let plan = plan(std::env::args().skip(1));
    let runs = [limits::run, formats::run, threads::run];
    for (part, run) in PARTS.iter().zip_eq(runs) {
        if plan.only.as_deref().is_none_or(|only| only == *part) {
            run(&plan);
        }
    }
}

/// A table with a row for each of the first `rows` ids.
fn filled(rows: usize, dim: usize, element: WeightType, scratch: &mut RequestBuffers) -> Table {
    let optimizer = Optimizer::Adagrad { lr: LR, epsilon: EPSILON, initial_accumulator: 0.0, l2: 0.0 };
    let config = TableConfig { dim, optimizer, element, ..TableConfig::default() };
    let table = Table::new(1, 0, &config).expect("settings are in range");
    let mut out = vec![0.0; workload::BATCH * dim];
    for start in (0..rows).step_by(workload::BATCH) {
        let ids: Vec<u64> = (start..rows.min(start + workload::BATCH)).map(id_of).collect();
        table.lookup(&ids, LookupMode::Train, &mut out[..ids.len() * dim], scratch).expect("lengths agree");
    }
    table
}

/// Small numbers of both signs, never zero.
fn gradients(len: usize) -> Vec<f32> {
    (0..len).map(|index| ((index % 13) as f32 - 6.5) * 1e-3).collect()
}

fn plan(args: impl Iterator<Item = String>) -> Plan {
    let mut plan =
        Plan { rows: 2_000_000, dims: vec![16, 64], passes: 5, shape: RequestShape::new(REQUESTS), only: None };
    let mut args = args;
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|value| value.parse().ok()).unwrap_or_else(|| usage(&arg));
        match arg.as_str() {
            "--rows" => plan.rows = number(),
            "--passes" => plan.passes = number(),
            "--batch" => plan.shape.batch = number(),
            "--order" => {
                plan.shape.order = match args.next().as_deref() {
                    Some("any") => Order::Any,
                    Some("stripes") => Order::Stripes,
                    _ => usage(&arg),
                }
            }
            "--dim" => plan.dims = vec![number()],
            "--quick" => {
                plan = Plan { rows: 20_000, passes: 1, shape: RequestShape { requests: 2, ..plan.shape }, ..plan }
            }
            "--only" => plan.only = args.next().filter(|part| PARTS.contains(&part.as_str())).or_else(|| usage(&arg)),
            // Cargo adds this argument.
            "--bench" => {}
            _ => usage(&arg),
        }
    }
    if plan.rows < 4 || plan.shape.batch == 0 || plan.passes == 0 { usage("rows, batch or passes") } else { plan }
}

fn usage(arg: &str) -> ! {
    panic!(
        "{arg}: expected [--rows N] [--dim 16|64] [--passes N] [--batch N] [--order any|stripes] [--quick] [--only limits|formats|threads]"
    )
}
