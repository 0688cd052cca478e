//! `zagros-bench capacity`: the cost of a sample as a table outgrows memory, from a million rows to what the disk
//! holds.
//!
//! Each table is used twice: with all rows in memory, if memory has room, and with a share of them there. One thread
//! looks up and pushes batches of 4,096 samples with 26 ids each, of 16 weights and as much state, and sleeps in
//! between for as long as a network would take; a second one maintains the table; a third one takes hints. Every
//! lookup, and at the end every row, is compared with a ledger of all pushes.

mod batches;
mod figures;
mod ids;
mod ledger;
mod page;
mod table;
mod table_run;

use std::path::Path;
use std::time::Duration;

use zagros_plumbing::metrics::DiskSpace;
use zagros_shell::{Exit, Failure, OrInternal, err, out, print_answer};

use self::figures::{CapacityFigures, CapacityPoint};
use self::table::TableCase;
use self::table_run::measure_table;
use crate::args::CapacityArgs;
use crate::page_file;

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
        page_file::write_page(path, &page::page(&figures))?;
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
