//! `zagros-bench capacity`: the cost of a sample as a table outgrows memory, from a million rows to what the disk holds.
//!
//! Each table is used twice: with all rows in memory, if memory has room, and with a share of them there. Batches are of 4,096 samples with
//! 26 ids each.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use zagros_bench::table_load::{DIM, IdLaw, TableFigures, TableLoad, measure_table};
use zagros_plumbing::metrics::DiskSpace;
use zagros_shell::{CommandReport, Exit, Failure, OrFailure, ReportTable, err, out, print_figures};

use crate::args::CapacityArgs;

const SAMPLES: usize = 4096;
const FEATURES: usize = 26;
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

#[derive(Clone, Debug, Serialize)]
struct CapacityFigures {
    ids: IdLaw,
    /// The share of rows in memory.
    share: f64,
    lookahead: u64,
    /// Time of the network for a sample, µs.
    compute_us: f64,
    points: Vec<CapacityPoint>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct CapacityPoint {
    rows: usize,
    /// Bytes of memory for rows and for the index of those on disk, where not all are in memory.
    budget: usize,
    /// `None` where memory or disk have no room.
    in_memory: Option<TableFigures>,
    on_disk: Option<TableFigures>,
}

pub(crate) fn run(args: &CapacityArgs) -> Result<Exit, Failure> {
    let folder = args.folder.clone().unwrap_or_else(std::env::temp_dir);
    let (rows, measured) =
        if args.output.quick { (QUICK.0.to_vec(), QUICK.1) } else { (args.rows.clone(), args.batches) };
    let compute_us = if args.output.quick { 0.0 } else { args.compute };
    let mut points = Vec::new();
    for rows in rows {
        let load = TableLoad {
            rows: usize::try_from(rows).or_internal()?,
            budget: None,
            law: args.ids,
            draws: SAMPLES * FEATURES,
            warm: if args.output.quick { 2 } else { args.warm as usize },
            measured: measured as usize,
            lookahead: args.lookahead as usize,
            pause: Duration::from_secs_f64(compute_us / 1e6) * SAMPLES as u32,
            folder: &folder,
        };
        err!("{rows} rows");
        points.push(measure_both(&load, args.share, &folder)?);
    }
    let figures = CapacityFigures { ids: args.ids, share: args.share, lookahead: args.lookahead, compute_us, points };
    print_figures(&figures, args.output.json, |figures| match args.output.quick {
        true => out!("every row is what was pushed to it"),
        false => figures.print(),
    })
}

/// Measures one number of rows: in memory if there is room, and with a share in memory if the disk has room.
fn measure_both(load: &TableLoad<'_>, share: f64, folder: &Path) -> Result<CapacityPoint, Failure> {
    let rows = load.rows;
    let all = rows * (ROW_BYTES + size_of::<u32>());
    let has_room = free_memory().is_none_or(|free| (all as f64) < free * MEMORY_SHARE);
    let in_memory = if has_room { Some(measure_table(load)?) } else { None };
    let row = in_memory.map_or(ROW_BYTES as f64, |found| found.memory_bytes as f64 / rows as f64);
    let budget = (rows as f64 * (share * row + INDEX_BYTES as f64)) as usize;
    let (wanted, free) = (rows as u64 * DISK_BYTES, DiskSpace::measure(folder).or_internal()?.free);
    let on_disk = if wanted < free {
        Some(measure_table(&TableLoad { budget: Some(budget), ..*load })?)
    } else {
        let (wanted, free) = (wanted / 1_000_000_000, free / 1_000_000_000);
        err!(
            "{rows} rows may take {wanted} GB on disk, and {} has {free} GB free: not measured on disk",
            folder.display()
        );
        None
    };
    Ok(CapacityPoint { rows, budget, in_memory, on_disk })
}

/// Bytes that programs can still have, as the kernel estimates them.
fn free_memory() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok().map(|kib| kib * 1024.0)
}

impl CapacityFigures {
    fn print(&self) {
        const COLUMNS: [&str; 12] = [
            "rows",
            "in memory",
            "memory MB",
            "disk MB",
            "found %",
            "late %",
            "reads",
            "evicted",
            "written ×",
            "wall µs",
            "CPU µs",
            "× memory: wall, CPU",
        ];
        let law = if self.ids == IdLaw::Zipf { "Zipf ids" } else { "uniform ids" };
        let mut report = CommandReport::default();
        report.add_lead(&format!(
            "{law}, dim {DIM} and as much state, f32; {:.0} % of the rows in memory, the others on disk; {} batches ahead; {} µs of network a \
             sample; {SAMPLES} samples a batch",
            self.share * 100.0,
            self.lookahead,
            self.compute_us
        ));
        let rows = self.points.iter().flat_map(CapacityPoint::table_lines).collect();
        report.add_title("Tables").add_table(ReportTable::new(&COLUMNS, rows)).add_note(
            "reads and evicted rows are those of a batch; times are those of a sample; every row is what was pushed to it",
        );
        report.print();
    }
}

impl CapacityPoint {
    /// Wall and CPU time of a sample with rows on disk, over those with all rows in memory.
    fn times_of_memory(&self) -> Option<(f64, f64)> {
        let (few, all) = (self.on_disk?, self.in_memory?);
        Some((few.wall_us / all.wall_us, few.cpu_us / all.cpu_us))
    }

    fn table_lines(&self) -> Vec<Vec<String>> {
        let times = self.times_of_memory().map_or_else(|| "–".to_owned(), |(wall, cpu)| format!("{wall:.2}, {cpu:.2}"));
        let line = |figures: TableFigures, times: String| {
            let share = |part: u64| format!("{:.1}", 100.0 * part as f64 / figures.ids.max(1) as f64);
            let per_batch = |count: u64| format!("{:.0}", count as f64 / figures.batches.max(1) as f64);
            vec![
                self.rows.to_string(),
                figures.rows_in_memory.to_string(),
                format!("{:.0}", figures.memory_bytes as f64 / 1e6),
                format!("{:.0}", figures.disk_bytes as f64 / 1e6),
                share(figures.found),
                share(figures.late),
                per_batch(figures.reads),
                per_batch(figures.evicted),
                format!("{:.2}", figures.write_amplification),
                format!("{:.2}", figures.wall_us / SAMPLES as f64),
                format!("{:.2}", figures.cpu_us / SAMPLES as f64),
                times,
            ]
        };
        let in_memory = self.in_memory.map(|figures| line(figures, "1".to_owned()));
        in_memory.into_iter().chain(self.on_disk.map(|figures| line(figures, times))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_compared_with_those_in_memory() {
        let measured =
            |rows, cpu_us, wall_us| TableFigures { rows, cpu_us, wall_us, ids: 10, batches: 1, ..Default::default() };
        let point = |rows, in_memory: Option<f64>, cpu| CapacityPoint {
            rows,
            budget: 1,
            in_memory: in_memory.map(|cpu| measured(rows, cpu, 2.0 * cpu)),
            on_disk: Some(measured(rows, cpu, 3.0 * cpu)),
        };
        let last = |point: CapacityPoint| point.table_lines().last().and_then(|line| line.last().cloned());
        assert_eq!(last(point(1000, Some(5.0), 10.0)).as_deref(), Some("3.00, 2.00"));
        assert_eq!(last(point(10_000, None, 12.0)).as_deref(), Some("–"));
    }
}
