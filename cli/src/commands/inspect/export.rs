//! A table for other programs.

use std::path::Path;

use indicatif::{HumanBytes, HumanCount};
use serde_json::json;
use zagros_export::{ExportError, ExportFormat, ExportSource, ExportSummary};
use zagros_shell::{Exit, Failure, err, print_answer};

use super::model::InspectedModel;
use super::progress;
use crate::args::InspectModelArgs;
use crate::saved::snapshot_failure;

pub(super) fn export(model: &InspectedModel, args: &InspectModelArgs, to: &Path) -> Result<Exit, Failure> {
    // A wrong format is refused before the first row is read.
    ExportFormat::from_path(to).map_err(not_exported)?;
    let table = args.table.as_deref().unwrap_or_default();
    let source = ExportSource::new(&model.files, table, args.state).map_err(not_exported)?;
    let bar = progress(model);
    let passed = |bytes| {
        bar.inc(bytes);
        Ok(())
    };
    let exported = zagros_export::export_table(&source, to, args.force, passed);
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
