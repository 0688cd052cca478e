//! What was removed, for those who have to show it: `forgotten.jsonl`, a line for each id and save.
//!
//! The lines are written before a manifest is replaced, so nothing is removed without a line. `manifest_after` says which
//! manifest is then in place. After a kill in between, the same command writes no line twice.

use serde::Serialize;
use zagros_dense_worker::Manifest;
use zagros_shell::{Failure, OrInternal};
use zagros_store::Folder;

use super::{SavePlan, WantedIds};
use crate::saved::refused;

/// The file, in the folder that the command names.
pub(crate) const AUDIT: &str = "forgotten.jsonl";

#[derive(Serialize)]
struct AuditLine<'a> {
    /// When the line was written, UTC.
    time: String,
    /// Folder of the model or checkpoint.
    save: String,
    table: &'a str,
    /// As text, because programs that read numbers as floats cannot hold 64 bits.
    id: String,
    /// Whether the save had a row of this id.
    row: bool,
    /// Whether the save counted how often this id was seen.
    count: bool,
    /// Names of files that were replaced.
    files: Vec<&'a str>,
    /// SHA-256 of the manifest before.
    manifest_before: &'a str,
    /// SHA-256 of the manifest after.
    manifest_after: &'a str,
}

/// Adds the lines of saves that change.
///
/// # Errors
/// When the file cannot be read or written.
pub(super) fn note(named: &Folder, wanted: &WantedIds, saves: &[(&SavePlan, Manifest)]) -> Result<(), Failure> {
    let before = match named.read(AUDIT) {
        Err(error) if error.is_missing() => Vec::new(),
        before => before.map_err(refused)?,
    };
    let before = String::from_utf8_lossy(&before).into_owned();
    let mut text = before.clone();
    for (save, after) in saves {
        // Lines are written together, so either all of this change are there or none.
        if !before.contains(&after.manifest_sha256) {
            append(&mut text, wanted, save, after)?;
        }
    }
    if text == before { Ok(()) } else { named.write(AUDIT, text.as_bytes()).map_err(refused) }
}

fn append(text: &mut String, wanted: &WantedIds, save: &SavePlan, after: &Manifest) -> Result<(), Failure> {
    let time = jiff::Timestamp::now().to_string();
    for id in wanted.ids.iter().filter(|id| save.traces.contains(id)) {
        let line = AuditLine {
            time: time.clone(),
            save: save.folder.to_string(),
            table: &wanted.table,
            id: id.to_string(),
            row: save.rows.contains(id),
            count: save.counts.contains(id),
            files: save.replaced.keys().map(String::as_str).collect(),
            manifest_before: &save.manifest.manifest_sha256,
            manifest_after: &after.manifest_sha256,
        };
        text.push_str(&serde_json::to_string(&line).or_internal()?);
        text.push('\n');
    }
    Ok(())
}
