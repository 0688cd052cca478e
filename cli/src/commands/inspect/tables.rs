//! The content of the tables: rows, shapes, sizes, norms.

use indicatif::{HumanBytes, HumanCount};
use owo_colors::OwoColorize;
use serde_json::{Value, json};
use zagros_rows::snapshot::{
    BlockContent, BlockHeader, BlockKind, FileChain, NormStatistics, RowBatch, SnapshotError, TableHeader, decode_part,
    slot_parts,
};
use zagros_shell::{Exit, Failure, ReportTable, out, print_report};

use super::model::InspectedModel;
use super::progress;
use super::row::{bars, number, sparkline};
use crate::saved::snapshot_failure;

/// Bins of the histogram in a line, and of a single table's histogram.
const SMALL: usize = 12;
const LARGE: usize = 16;

struct TableReport {
    header: TableHeader,
    norms: NormStatistics,
    frequency_counts: u64,
}

/// Reads every row and prints one line per table, or everything about one table.
pub(super) fn show(model: &InspectedModel, only: Option<&str>, json: bool) -> Result<Exit, Failure> {
    let reports = read(model, only)?;
    let facts: Vec<Value> = reports.iter().map(TableReport::to_json).collect();
    print_report(&facts, json, |_| {
        print_model(model, &reports);
        print_table_lines(&reports);
        if let (Some(_), Some(report)) = (only, reports.first()) {
            print_histogram(report);
        }
    })
}

fn read(model: &InspectedModel, only: Option<&str>) -> Result<Vec<TableReport>, Failure> {
    let bar = progress(model);
    let mut reports: Vec<TableReport> = Vec::new();
    for chain in model.file_chains()? {
        read_chain(&chain, only, &mut reports, &|bytes| bar.inc(bytes)).map_err(snapshot_failure)?;
    }
    bar.finish_and_clear();
    Ok(reports)
}

/// Adds the rows of a file and its deltas to the reports of their tables. Makes missing reports.
fn read_chain(
    chain: &FileChain,
    only: Option<&str>,
    reports: &mut Vec<TableReport>,
    passed: &dyn Fn(u64),
) -> Result<(), SnapshotError> {
    let Some(first) = chain.files().first() else { return Ok(()) };
    let reader = first.open()?;
    if let Some(only) = only {
        reader.find_table(only)?;
    }
    let tables = reader.header().tables.clone();
    let is_wanted =
        |table: u32| tables.get(table as usize).is_some_and(|table| only.is_none_or(|only| table.name == only));
    for table in tables.iter().filter(|table| only.is_none_or(|only| table.name == only)) {
        if !reports.iter().any(|report| report.header.name == table.name) {
            reports.push(TableReport { header: table.clone(), norms: NormStatistics::default(), frequency_counts: 0 });
        }
    }
    let mut last_position = 0;
    let wanted = |head: &BlockHeader| matches!(head.kind, BlockKind::Rows | BlockKind::Counts) && is_wanted(head.table);
    chain.each_block(wanted, |block, reader| {
        // The position starts again with each file.
        passed(reader.bytes_read().checked_sub(last_position).unwrap_or(reader.bytes_read()));
        last_position = reader.bytes_read();
        let table = &tables[block.table];
        let Some(report) = reports.iter_mut().find(|report| report.header.name == table.name) else { return Ok(()) };
        match block.content {
            BlockContent::Rows(rows) => add_norms(table, &rows, &mut report.norms),
            BlockContent::Counts { ids, .. } => report.frequency_counts += ids.len() as u64,
            BlockContent::Sketch { .. } | BlockContent::Clock(_) | BlockContent::Removed(_) => {}
        }
        Ok(())
    })
}

fn add_norms(table: &TableHeader, rows: &RowBatch, norms: &mut NormStatistics) {
    let weights = &slot_parts(table)[0];
    let mut values = Vec::with_capacity(table.dim);
    for slot in rows.slots.chunks_exact(table.width) {
        decode_part(weights, slot, &mut values);
        norms.add_row(&values);
    }
}

impl TableReport {
    /// Bytes of rows in the files: ids, slots, access metadata.
    fn bytes(&self) -> u64 {
        self.norms.rows * (8 + 4 * self.header.row_words() as u64)
    }

    /// `counted_ids` have no row yet; a bin of the histogram has its lower end, its upper end and its rows.
    fn to_json(&self) -> Value {
        let Self { header, norms, frequency_counts } = self;
        let mean = norms.mean();
        let bins = norms.histogram(LARGE);
        json!({
            "table": header.name,
            "rows": norms.rows,
            "dim": header.dim,
            "element": header.element,
            "state": header.state,
            "bytes": self.bytes(),
            "norm_min": mean.map(|_| norms.min),
            "norm_mean": mean,
            "norm_max": mean.map(|_| norms.max),
            "zero_rows": norms.zero,
            "not_finite_rows": norms.not_finite,
            "norm_histogram": bins.iter().map(|bin| (bin.from, bin.until, bin.rows)).collect::<Vec<_>>(),
            "counted_ids": frequency_counts,
            "marks": header.access,
        })
    }
}

fn print_model(model: &InspectedModel, reports: &[TableReport]) {
    let rows: u64 = reports.iter().map(|report| report.norms.rows).sum();
    if let Some(manifest) = &model.manifest {
        out!("{}  trained {} steps, release {}", manifest.job.bold(), HumanCount(manifest.steps), manifest.release);
    }
    out!(
        "{} row(s) in {} table(s), {} file(s), {}\n",
        HumanCount(rows),
        reports.len(),
        model.files.len(),
        HumanBytes(model.bytes)
    );
}

fn print_table_lines(reports: &[TableReport]) {
    let line = |report: &TableReport| {
        let TableReport { header, norms, .. } = report;
        let measure = |value: f64| norms.mean().map_or_else(|| "-".to_owned(), |_| number(value));
        vec![
            header.name.clone(),
            HumanCount(norms.rows).to_string(),
            header.dim.to_string(),
            header.element.clone(),
            header.state.clone(),
            HumanBytes(report.bytes()).to_string(),
            measure(norms.min),
            measure(norms.mean().unwrap_or_default()),
            measure(norms.max),
            format!("{:.2}", 100.0 * norms.zero as f64 / norms.rows.max(1) as f64),
            sparkline(&norms.histogram(SMALL)),
        ]
    };
    let head = ["table", "rows", "dim", "type", "state", "bytes", "min norm", "mean", "max", "zero %", "norms"];
    ReportTable::new(&head, reports.iter().map(line).collect()).print();
    for TableReport { header, norms, .. } in reports.iter().filter(|report| report.norms.not_finite > 0) {
        let (name, rows) = (&header.name, norms.not_finite);
        out!("{}", format!("  {rows} row(s) of {name} have a weight that is not finite").red());
    }
}

fn print_histogram(report: &TableReport) {
    let TableReport { header, norms, frequency_counts } = report;
    out!("\n{}", format!("{:>10}   {:<10} {:>12}", "norm", "", "rows").dimmed());
    bars(&norms.histogram(LARGE)).iter().for_each(|line| out!("{line}"));
    if let Some(marks) = &header.access {
        out!("\nmarks: {marks}");
    }
    if *frequency_counts > 0 {
        out!("\n{} id(s) were seen and have no row yet", HumanCount(*frequency_counts));
    }
}
