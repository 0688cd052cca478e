//! The checkpoints that a run has made, and the rows of its saved model in grid units.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use zagros_plumbing::Shutdown;
use zagros_rows::snapshot::{BlockContent, BlockKind, SnapshotError, SnapshotReader, decode_part, slot_parts};
use zagros_shell::{Exit, Failure, OrFailure};

use crate::ledger::RowId;
use crate::recorder::RoundRecorder;

const LOOK: Duration = Duration::from_millis(100);

/// Tells the ledger of each new checkpoint, until the run is over: the run goes back no further.
pub(crate) async fn settle(run: &Path, recorder: &RoundRecorder, over: &Shutdown) {
    while tokio::time::timeout(LOOK, over.requested()).await.is_err() {
        if let Some(step) = newest(run) {
            recorder.record().ledger.history.settle(step);
        }
    }
}

fn newest(run: &Path) -> Option<u64> {
    let entries = fs::read_dir(run.join("checkpoints")).ok()?;
    let step = |entry: &fs::DirEntry| entry.file_name().to_str()?.strip_prefix("resume-")?.parse::<u64>().ok();
    let whole = entries.flatten().filter(|entry| entry.path().join("manifest.json").is_file());
    whole.filter_map(|entry| step(&entry)).max()
}

/// Gives `take` the id and weights of each row of the tables named `tables`.
pub(crate) fn each_saved_row(
    run: &Path,
    tables: &[String],
    take: &mut dyn FnMut(RowId, &[f32]),
) -> Result<(), Failure> {
    let model = run.join("model");
    let manifest = model.join("manifest.json");
    let text = fs::read(&manifest).map_err(|error| {
        let what = format!("the run left no model: {}: {error}", manifest.display());
        Failure::with_help(Exit::Storage, what, "its log lines say why: they are in the folder logs of the run")
    })?;
    let manifest: Value = serde_json::from_slice(&text).or_exit(Exit::Storage)?;
    let files = manifest.get("row_files").and_then(Value::as_array).cloned().unwrap_or_default();
    for file in files.iter().filter_map(Value::as_str) {
        each_of_file(&model.join(file), tables, take).or_exit(Exit::Storage)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_counts_once_it_is_whole() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(newest(run.path()), None);
        for (name, is_whole) in [("resume-000000000020", true), ("resume-000000000040", false), ("best-60", true)] {
            let folder = run.path().join("checkpoints").join(name);
            fs::create_dir_all(&folder).unwrap();
            if is_whole {
                fs::write(folder.join("manifest.json"), "{}").unwrap();
            }
        }
        assert_eq!(newest(run.path()), Some(20));
    }
}
