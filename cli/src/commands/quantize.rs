//! `zagros quantize`: copies a saved model with weights in another number format.

use indicatif::{HumanBytes, HumanCount, ProgressBar};
use serde_json::json;
use zagros_rows::snapshot::{RowConversion, TableHeader};
use zagros_scoring::Manifest;
use zagros_shell::{Exit, Failure, out, print_answer};

use crate::args::QuantizeArgs;
use crate::quantize::{QuantizePlan, apply};

pub(crate) fn run(args: &QuantizeArgs) -> Result<Exit, Failure> {
    let plan = QuantizePlan::prepare(args)?;
    let bar = ProgressBar::new(plan.row_bytes());
    let written = apply(&plan, &|bytes| bar.inc(bytes));
    bar.finish_and_clear();
    print(&plan, &written?, args)?;
    Ok(Exit::Success)
}

fn print(plan: &QuantizePlan, copy: &Manifest, args: &QuantizeArgs) -> Result<(), Failure> {
    let (from, saved) = (&plan.planned.from, &plan.planned.saved);
    let of_rows = copy.files.iter().filter(|file| copy.row_files.contains(&file.name));
    let rows = [plan.row_bytes(), of_rows.map(|file| file.bytes).sum()];
    let model = [saved, copy].map(|saved| saved.files.iter().map(|file| file.bytes).sum::<u64>());
    if args.json {
        let report = json!({
            "model": from.to_string(),
            "output": plan.target.to_string(),
            "rows": saved.rows,
            "tables": plan.tables.iter().map(in_json).collect::<Vec<_>>(),
            "row_bytes": {"before": rows[0], "after": rows[1]},
            "bytes": {"before": model[0], "after": model[1]},
        });
        return print_answer(&report.to_string());
    }
    out!("{from} → {}", plan.target);
    for table in &plan.tables {
        let (before, after) = (table.saved_header(), table.converted_header());
        let [old, new] = [before, after].map(|table| 4 * table.width);
        out!("  table {}: {} → {}, {old} → {new} bytes a row", before.name, before.element, after.element);
    }
    let [before, after] = rows.map(HumanBytes);
    out!("  {} rows: {before} → {after} in files", HumanCount(saved.rows));
    let [before, after] = model.map(HumanBytes);
    out!("  the model: {before} → {after}");
    Ok(())
}

fn in_json(table: &RowConversion) -> serde_json::Value {
    let describe = |table: &TableHeader| json!({"element": table.element, "bytes_a_row": 4 * table.width});
    let (before, after) = (table.saved_header(), table.converted_header());
    json!({"table": before.name, "before": describe(before), "after": describe(after)})
}
