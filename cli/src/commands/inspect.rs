//! `zagros inspect`: the content of a saved model's tables; one row; checksums; export.

mod log;
mod model;
mod row;
mod tables;
mod verify;

use std::path::Path;
use std::time::Duration;

use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};
use serde_json::json;
use zagros_scoring::{ExportError, ExportFormat, ExportSource, ExportSummary};
use zagros_shell::{Exit, Failure, err, print_answer};

use self::model::InspectedModel;
use crate::args::InspectModelArgs;
use crate::saved::snapshot_failure;

pub(crate) fn run(args: &InspectModelArgs) -> Result<Exit, Failure> {
    if args.log {
        return log::show(&args.model, args.json);
    }
    let model = InspectedModel::open(&args.model, Duration::from_secs(args.timeout))?;
    if args.verify {
        return verify::verify(&model, args.json);
    }
    if !args.unchecked {
        model.check()?;
    }
    if let Some(to) = &args.export {
        return export(&model, args, to);
    }
    match (&args.table, args.wanted_id()) {
        (Some(table), Some(id)) => row::show(&model, table, id, args.json),
        _ => tables::show(&model, args.table.as_deref(), args.json),
    }
}

/// A bar for reading the files. Drawn on a terminal only.
fn progress(model: &InspectedModel) -> ProgressBar {
    let bar = ProgressBar::new(model.bytes);
    let style = ProgressStyle::with_template("{wide_bar:.cyan/dim} {bytes} of {total_bytes}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸─"))
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

fn export(model: &InspectedModel, args: &InspectModelArgs, to: &Path) -> Result<Exit, Failure> {
    // A wrong format is refused before the first row is read.
    ExportFormat::from_path(to).map_err(not_exported)?;
    let table = args.table.as_deref().unwrap_or_default();
    let source = ExportSource::new(&model.files, table, args.state).map_err(not_exported)?;
    let bar = progress(model);
    let passed = |bytes| {
        bar.inc(bytes);
        Ok(())
    };
    let exported = zagros_scoring::export_table(&source, to, args.force, passed);
    bar.finish_and_clear();
    print_exported(&exported.map_err(not_exported)?, to, args.json)?;
    Ok(Exit::Success)
}

fn not_exported(error: ExportError) -> Failure {
    match error {
        ExportError::Snapshot(error) => snapshot_failure(error),
        ExportError::Write(_) => Failure::from_error(Exit::Storage, error),
        ExportError::Differs { .. } => Failure::from_error(Exit::Data, error),
        ExportError::Format { .. } | ExportError::Exists { .. } => Failure::from_error(Exit::Usage, error),
    }
}

fn print_exported(exported: &ExportSummary, to: &Path, as_json: bool) -> Result<(), Failure> {
    let ExportSummary { rows, columns } = exported;
    let bytes = std::fs::metadata(to).map_or(0, |data| data.len());
    if as_json {
        return print_answer(&json!({ "file": to, "rows": rows, "bytes": bytes, "columns": columns }).to_string());
    }
    err!("{}: {} row(s) of {}, {}", to.display(), HumanCount(*rows), columns.join(", "), HumanBytes(bytes));
    Ok(())
}
