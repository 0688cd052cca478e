//! One row by its id: weights, optimiser state, access metadata.

use owo_colors::OwoColorize;
use serde::Serialize;
use zagros_rows::snapshot::{
    FoundRow, NormBin, SnapshotHeader, TableHeader, decode_part, may_hold_bucket, row_bucket, slot_parts,
};
use zagros_shell::{Exit, Failure, out, print_report};

use super::file_name;
use super::model::InspectedModel;
use crate::saved::snapshot_failure;

/// Numbers per line.
const COLUMNS: usize = 8;

#[derive(Serialize)]
struct RowReport {
    table: String,
    /// As text, because programs that read numbers as floats cannot hold 64 bits.
    id: String,
    file: String,
    block: u64,
    bucket: u32,
    element: String,
    norm: f64,
    /// First `weights`, then the optimiser's state by name.
    #[serde(serialize_with = "as_object")]
    parts: Vec<(&'static str, Vec<f32>)>,
    mark: Option<u32>,
}

/// Prints the row, or says where it would be.
pub(super) fn show(model: &InspectedModel, table: &str, id: u64, json: bool) -> Result<Exit, Failure> {
    let mut would_be = Vec::new();
    for chain in model.file_chains()? {
        let Some(file) = chain.files().last() else { continue };
        let reader = file.open().map_err(snapshot_failure)?;
        let header = reader.header().clone();
        let saved = reader.find_table(table).map_err(snapshot_failure)?.1.clone();
        let bucket = row_bucket(&header, &saved, id);
        if !may_hold_bucket(&header, bucket) {
            continue;
        }
        if let Some((found, file)) = chain.find_row(table, id).map_err(snapshot_failure)? {
            let report = RowReport::new(&saved, id, file_name(file.path()), bucket, &found);
            return print_report(&report, json, |report| print(report, &saved));
        }
        would_be.push(place(&header, file_name(file.path()), bucket));
    }
    Err(missing(table, id, &would_be))
}

fn place(header: &SnapshotHeader, file: String, bucket: u32) -> String {
    format!("{file}, bucket {bucket} of {}", header.buckets)
}

fn missing(table: &str, id: u64, would_be: &[String]) -> Failure {
    let place = match would_be {
        [] => "it belongs to a server whose file is not among these".to_owned(),
        places => format!("it would be in {}", places.join(" or ")),
    };
    let what = format!("table `{table}` has no row of id {id}: {place}");
    let help = "only ids that occurred in training have rows; an id is the hash of a value in the data: --value TEXT computes it";
    Failure::with_help(Exit::Data, what, help)
}

impl RowReport {
    fn new(table: &TableHeader, id: u64, file: String, bucket: u32, found: &FoundRow) -> Self {
        let mut values = Vec::new();
        let mut numbers = |part: &zagros_rows::snapshot::SlotPart| {
            decode_part(part, &found.slot, &mut values);
            (part.name, values.clone())
        };
        let parts: Vec<_> = slot_parts(table).iter().map(&mut numbers).collect();
        let square = |weight: &f32| f64::from(*weight).powi(2);
        let norm = parts.first().map_or(0.0, |part| part.1.iter().map(square).sum::<f64>().sqrt());
        let (element, block, mark) = (table.element.clone(), found.block, found.access);
        Self { table: table.name.clone(), id: id.to_string(), file, block, bucket, element, norm, parts, mark }
    }
}

fn as_object<S: serde::Serializer>(parts: &[(&'static str, Vec<f32>)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(parts.iter().map(|(name, values)| (name, values)))
}

fn print(report: &RowReport, table: &TableHeader) {
    let RowReport { id, file, block, bucket, element, norm, parts, mark, .. } = report;
    out!("{} id {id}  {}", report.table.bold(), format!("{file}, block {block}, bucket {bucket}").dimmed());
    out!("{:<16} {}", "norm", number(*norm));
    if let (Some(mark), Some(marks)) = (mark, &table.access) {
        out!("{:<16} {mark} ({marks})", "mark");
    }
    for (name, values) in parts {
        let title = if *name == "weights" { format!("weights ({element})") } else { (*name).to_owned() };
        for (line, values) in values.chunks(COLUMNS).enumerate() {
            let title = if line == 0 { title.as_str() } else { "" };
            let values: String = values.iter().map(|value| format!(" {value:>13.6e}")).collect();
            out!("{title:<16}{values}");
        }
    }
}

/// Eighths of a character cell, upwards.
const UP: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const WIDTH: usize = 40;

/// One character per bin. A bin without rows is a space; a bin with any row is visible.
pub(super) fn sparkline(bins: &[NormBin]) -> String {
    let most = most(bins);
    let cell = |rows: u64| match rows {
        0 => ' ',
        rows => UP[((rows as f64 / most * 8.0).ceil() as usize).clamp(1, 8) - 1],
    };
    bins.iter().map(|bin| cell(bin.rows)).collect()
}

/// One line per bin: its range, its rows, its bar.
pub(super) fn bars(bins: &[NormBin]) -> Vec<String> {
    let most = most(bins);
    let line = |bin: &NormBin| {
        let length = (bin.rows as f64 / most * WIDTH as f64).ceil() as usize;
        let range = format!("{:>10} … {:<10} {:>12}", number(bin.from), number(bin.until), bin.rows);
        format!("{range}  {}", "█".repeat(length)).trim_end().to_owned()
    };
    bins.iter().map(line).collect()
}

/// Four significant digits. With many zeros, a power of ten.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-3..1e5).contains(&size) {
        return format!("{value:.2e}");
    }
    let digits = (3 - size.max(1e-3).log10().floor() as i32).clamp(0, 6) as usize;
    format!("{value:.digits$}")
}

fn most(bins: &[NormBin]) -> f64 {
    bins.iter().map(|bin| bin.rows).max().unwrap_or(1).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bins(rows: &[u64]) -> Vec<NormBin> {
        rows.iter().map(|rows| NormBin { from: 0.5, until: 1.0, rows: *rows }).collect()
    }

    #[test]
    fn a_single_row_among_many_is_seen_and_none_is_not() {
        assert_eq!(sparkline(&bins(&[1, 0, 1000, 500])), "▁ █▄");
        assert_eq!(sparkline(&[]), "");
        let bars = bars(&bins(&[1, 0, 1000]));
        assert!(bars[0].ends_with('█') && !bars[1].contains('█'), "{bars:?}");
        assert_eq!(bars[2].matches('█').count(), WIDTH);
    }

    #[test]
    fn numbers_keep_four_digits() {
        let shown = [0.0, 0.012_345, 1.0, -123.456, 99_999.0, 1e-7, 3e9].map(number);
        assert_eq!(shown, ["0.000000", "0.01235", "1.000", "-123.5", "99999", "1.00e-7", "3.00e9"]);
    }
}
