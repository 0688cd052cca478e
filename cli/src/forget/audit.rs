//! What was removed, for those who have to show it: `forgotten.jsonl`, a line for each id and save.
//!
//! The lines are written before a manifest is replaced, so nothing is removed without a line. `manifest_after` says which
//! manifest is then in place. After a kill in between, the same command writes no line twice.

use std::collections::BTreeSet;

use serde::Serialize;
use zagros_dense_worker::Manifest;
use zagros_shell::{Failure, OrInternal};
use zagros_store::Folder;

use super::{SavePlan, WantedIds};
use crate::saved::refused;

/// What a line names as its save where the embedding servers of a run that trains removed the row.
const SERVERS: &str = "embedding servers";
/// The file, in the folder that the command names.
pub(crate) const AUDIT: &str = "forgotten.jsonl";

#[derive(Serialize)]
struct AuditLine<'a> {
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
    /// Whether a fitted vocabulary of the save's job had this id.
    vocabulary: bool,
    files: Vec<&'a str>,
    /// SHA-256, as `manifest_after`.
    manifest_before: &'a str,
    manifest_after: &'a str,
}

pub(super) fn note(named: &Folder, wanted: &WantedIds, saves: &[(&SavePlan, Manifest)]) -> Result<(), Failure> {
    let earlier = match named.read(AUDIT) {
        Err(error) if error.is_missing() => Vec::new(),
        earlier => earlier.map_err(refused)?,
    };
    let earlier = String::from_utf8_lossy(&earlier).into_owned();
    let mut text = earlier.clone();
    for (save, after) in saves {
        // Lines are written together, so either all of this change are there or none.
        if !earlier.contains(&after.manifest_sha256) {
            append(&mut text, wanted, save, after)?;
        }
    }
    if text == earlier { Ok(()) } else { named.write(AUDIT, text.as_bytes()).map_err(refused) }
}

#[derive(Serialize)]
struct LiveLine<'a> {
    time: &'a str,
    save: &'static str,
    table: &'a str,
    id: String,
    /// Whether there was a row or a frequency count.
    row: bool,
}

/// Adds a line for each id that the servers of a run that trains were asked to remove. `removed` had a row.
pub(super) fn note_live(named: &Folder, wanted: &WantedIds, removed: &BTreeSet<u64>) -> Result<(), Failure> {
    let mut text = match named.read(AUDIT) {
        Err(error) if error.is_missing() => Vec::new(),
        before => before.map_err(refused)?,
    };
    let time = jiff::Timestamp::now().to_string();
    for id in removed {
        let (table, row) = (wanted.table.as_str(), true);
        let line = LiveLine { time: &time, save: SERVERS, table, id: id.to_string(), row };
        serde_json::to_writer(&mut text, &line).or_internal()?;
        text.push(b'\n');
    }
    if removed.is_empty() { Ok(()) } else { named.write(AUDIT, &text).map_err(refused) }
}

fn append(text: &mut String, wanted: &WantedIds, save: &SavePlan, after: &Manifest) -> Result<(), Failure> {
    let time = jiff::Timestamp::now().to_string();
    for id in wanted.ids.iter().filter(|id| save.traces.contains(id) || save.has_in_vocabulary(id)) {
        let line = AuditLine {
            time: time.clone(),
            save: save.folder.to_string(),
            table: &wanted.table,
            id: id.to_string(),
            row: save.rows.contains(id),
            count: save.counts.contains(id),
            vocabulary: save.has_in_vocabulary(id),
            files: save.changed_files(),
            manifest_before: &save.manifest.manifest_sha256,
            manifest_after: &after.manifest_sha256,
        };
        text.push_str(&serde_json::to_string(&line).or_internal()?);
        text.push('\n');
    }
    Ok(())
}
