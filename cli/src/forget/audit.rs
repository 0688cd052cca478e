//! `forgotten.jsonl`: what was removed, for those who have to show it. It has a line for each id and save.
//!
//! The lines are written before a manifest is replaced, so nothing is removed without a line. `manifest_after` says which manifest is then
//! in place. After a kill in between, the same command writes no line twice.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use zagros_rows::snapshot::ForgottenIds;
use zagros_scoring::Manifest;
use zagros_shell::Failure;
use zagros_store::Folder;
use zagros_zip::ZipEq;

use super::SavePlan;
use crate::rewrite::SealedManifest;
use crate::saved::refused;

/// What a line names as its save where the embedding servers of a run that trains removed the row.
const SERVERS: &str = "embedding servers";
/// The file, in the folder that the command names.
pub(crate) const AUDIT: &str = "forgotten.jsonl";

/// `sealed` has the manifest of each save that changes.
pub(super) fn note_removed(
    named: &Folder,
    wanted: &ForgottenIds,
    saves: &[SavePlan],
    sealed: &[Option<SealedManifest>],
) -> Result<(), Failure> {
    let earlier = String::from_utf8_lossy(&earlier_lines(named)?).into_owned();
    let mut text = earlier.clone().into_bytes();
    for (save, sealed) in saves.iter().zip_eq(sealed) {
        // Lines are written together, so either all of this change are there or none.
        if let Some((after, _)) = sealed.as_ref().filter(|(after, _)| !earlier.contains(&after.manifest_sha256)) {
            append_lines(&mut text, wanted, save, after);
        }
    }
    if text == earlier.as_bytes() { Ok(()) } else { named.write(AUDIT, &text).map_err(refused) }
}

fn earlier_lines(named: &Folder) -> Result<Vec<u8>, Failure> {
    match named.read(AUDIT) {
        Err(error) if error.is_missing() => Ok(Vec::new()),
        earlier => earlier.map_err(refused),
    }
}

/// Adds a line for each id that the servers of a run that trains were asked to remove. `removed` had a row.
pub(super) fn note_live(named: &Folder, wanted: &ForgottenIds, removed: &BTreeSet<u64>) -> Result<(), Failure> {
    let mut text = earlier_lines(named)?;
    let time = jiff::Timestamp::now().to_string();
    for id in removed {
        // Whether there was a row or a frequency count.
        add_line(
            &mut text,
            &json!({"time": time, "save": SERVERS, "table": wanted.table, "id": id.to_string(), "row": true}),
        );
    }
    if removed.is_empty() { Ok(()) } else { named.write(AUDIT, &text).map_err(refused) }
}

fn append_lines(text: &mut Vec<u8>, wanted: &ForgottenIds, plan: &SavePlan, after: &Manifest) {
    let time = jiff::Timestamp::now().to_string();
    for id in wanted.ids.iter().filter(|id| plan.mentions(id)) {
        let line = json!({
            "time": time,
            "save": plan.planned.from.to_string(),
            "table": wanted.table,
            // As text, because programs that read numbers as floats cannot hold 64 bits.
            "id": id.to_string(),
            "row": plan.rows.contains(id),
            "count": plan.counts.contains(id),
            "vocabulary": plan.vocabulary.contains(id),
            "files": plan.changed_files(),
            "manifest_before": plan.planned.saved.manifest_sha256,
            "manifest_after": after.manifest_sha256,
        });
        add_line(text, &line);
    }
}

fn add_line(text: &mut Vec<u8>, line: &Value) {
    text.extend(line.to_string().into_bytes());
    text.push(b'\n');
}
