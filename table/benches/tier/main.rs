//! A table larger than memory, and a table under a snapshot. Each is compared with itself without.
//!
//! `cargo bench -p zagros-table --bench tier -- [--rows N] [--snapshot-rows N] [--quick]`
//!
//! Figures are of one training thread, next to a thread that maintains the tables or reads a snapshot. `--quick` uses
//! few rows, for tests that judge no time. In every mode each row must be minus the number of its pushes at the end,
//! and a snapshot must contain a whole number of pushes.

mod budget;
mod snapshot;
#[path = "../table/workload.rs"]
mod workload;

use zagros_table::{Initializer, Optimizer, TableConfig};

pub(crate) const DIM: usize = 16;

struct Plan {
    rows: usize,
    snapshot_rows: usize,
    requests: usize,
}

fn main() {
    let plan = plan(std::env::args().skip(1));
    budget::run(plan.rows, plan.requests);
    snapshot::run(plan.snapshot_rows, plan.requests);
}

fn plan(mut args: impl Iterator<Item = String>) -> Plan {
    let mut plan = Plan { rows: 2_000_000, snapshot_rows: 5_000_000, requests: 64 };
    while let Some(arg) = args.next() {
        let mut number = || {
            let value = args.next().unwrap_or_else(|| panic!("{arg} needs a number"));
            value.parse::<usize>().unwrap_or_else(|_| panic!("{arg} needs a number, not `{value}`"))
        };
        match arg.as_str() {
            "--quick" => plan = Plan { rows: 20_000, snapshot_rows: 50_000, requests: 8 },
            "--rows" => plan.rows = number(),
            "--snapshot-rows" => plan.snapshot_rows = number(),
            "--bench" => {}
            other => panic!("unknown argument `{other}`; expected --rows, --snapshot-rows or --quick"),
        }
    }
    plan
}

/// A row is minus the number of its pushes.
pub(crate) fn ledger() -> TableConfig {
    let optimizer = Optimizer::Sgd { lr: 1.0, momentum: 0.0, l2: 0.0 };
    TableConfig { dim: DIM, init: Initializer::Zero, optimizer, ..TableConfig::default() }
}
