//! The rows of a run's saved model, in grid units.

use std::fs;
use std::path::Path;

use serde_json::Value;
use zagros_rows::snapshot::{BlockContent, BlockKind, SnapshotError, SnapshotReader, decode_part, slot_parts};
use zagros_shell::{Exit, Failure};

use crate::row::RowId;

/// Gives `take` the id and weights of each row of the tables named `tables`.
pub(crate) fn each(run: &Path, tables: &[String], take: &mut dyn FnMut(RowId, &[f32])) -> Result<(), Failure> {
    let model = run.join("model");
    let manifest = model.join("manifest.json");
    let text = fs::read(&manifest).map_err(|error| {
        let what = format!("the run left no model: {}: {error}", manifest.display());
        Failure::with_help(Exit::Storage, what, "its log lines say why: they are in the folder logs of the run")
    })?;
    let manifest: Value = serde_json::from_slice(&text).map_err(|error| Failure::from_error(Exit::Storage, error))?;
    let files = manifest.get("row_files").and_then(Value::as_array).cloned().unwrap_or_default();
    for file in files.iter().filter_map(Value::as_str) {
        each_of_file(&model.join(file), tables, take).map_err(|error| Failure::from_error(Exit::Storage, error))?;
    }
    Ok(())
}

fn each_of_file(path: &Path, tables: &[String], take: &mut dyn FnMut(RowId, &[f32])) -> Result<(), SnapshotError> {
    let mut reader = SnapshotReader::open(path)?;
    let headers = reader.header().tables.clone();
    let mut weights = Vec::new();
    while let Some(block) = reader.next_block(|head| head.kind == BlockKind::Rows)? {
        let (header, BlockContent::Rows(rows)) = (&headers[block.table], block.content) else { continue };
        let Some(table) = tables.iter().position(|name| *name == header.name) else { continue };
        let part = &slot_parts(header)[0];
        for (at, slot) in rows.slots.chunks_exact(header.width).enumerate() {
            weights.clear();
            decode_part(part, slot, &mut weights);
            take((table as u32, rows.ids[at]), &weights);
        }
    }
    Ok(())
}
