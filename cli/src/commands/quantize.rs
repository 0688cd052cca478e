//! `zagros quantize`: copies a saved model with weights in another number format.

use indicatif::{HumanBytes, HumanCount, ProgressBar};
use serde_json::json;
use zagros_dense_worker::Manifest;
use zagros_shell::{Exit, Failure, out, print_answer};

use crate::args::QuantizeArgs;
use crate::quantize::{PlannedTable, QuantizePlan, apply};

pub(crate) fn run(args: &QuantizeArgs) -> Result<Exit, Failure> {
    let plan = QuantizePlan::prepare(args)?;
    let bar = ProgressBar::new(plan.row_bytes());
    let written = apply(&plan, &|bytes| bar.inc(bytes));
    bar.finish_and_clear();
    print(&plan, &CopySizes::new(&plan, &written?), args)?;
    Ok(Exit::Success)
}

struct CopySizes {
    rows: [u64; 2],
    model: [u64; 2],
}

impl CopySizes {
    fn new(plan: &QuantizePlan, copy: &Manifest) -> Self {
        let all: u64 = copy.files.iter().map(|file| file.bytes).sum();
        let is_rows = |name: &String| copy.row_files.contains(name);
        let rows = copy.files.iter().filter(|file| is_rows(&file.name)).map(|file| file.bytes).sum();
        let original: u64 = plan.manifest.files.iter().map(|file| file.bytes).sum();
        Self { rows: [plan.row_bytes(), rows], model: [original, all] }
    }
}

fn print(plan: &QuantizePlan, CopySizes { rows, model }: &CopySizes, args: &QuantizeArgs) -> Result<(), Failure> {
    if args.json {
        let report = json!({
            "model": plan.from.to_string(),
            "output": plan.to.to_string(),
            "rows": plan.manifest.rows,
            "tables": plan.tables.iter().map(in_json).collect::<Vec<_>>(),
            "row_bytes": {"before": rows[0], "after": rows[1]},
            "bytes": {"before": model[0], "after": model[1]},
        });
        return print_answer(&report.to_string());
    }
    out!("{} → {}", plan.from, plan.to);
    for PlannedTable { saved, conversion } in &plan.tables {
        let (after, [before, now]) =
            (conversion.converted_header(), [saved, conversion.converted_header()].map(|table| 4 * table.width));
        out!("  table {}: {} → {}, {before} → {now} bytes a row", saved.name, saved.element, after.element);
    }
    let [before, after] = rows.map(HumanBytes);
    out!("  {} rows: {before} → {after} in files", HumanCount(plan.manifest.rows));
    let [before, after] = model.map(HumanBytes);
    out!("  the model: {before} → {after}");
    Ok(())
}

fn in_json(PlannedTable { saved, conversion }: &PlannedTable) -> serde_json::Value {
    let describe =
        |table: &zagros_snapshot::TableHeader| json!({"element": table.element, "bytes_a_row": 4 * table.width});
    json!({"table": saved.name, "before": describe(saved), "after": describe(conversion.converted_header())})
}
