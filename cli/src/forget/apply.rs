//! Does what a plan says. Each step leaves every save whole, and may be done again.
//!
//! `forgotten.jsonl` says what was removed, for those who have to show it. It has a line for each id and save. The lines are written
//! before a manifest is replaced, so nothing is removed without a line. `manifest_after` says which manifest is then in place. After a
//! kill in between, the same command writes no line twice.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use zagros_rows::snapshot::ForgottenIds;
use zagros_scoring::Manifest;
use zagros_shell::Failure;
use zagros_store::Folder;
use zagros_zip::ZipEq;

use super::plan::{clean_run, is_row_file};
use super::{ForgetPlace, ForgetPlan, SavePlan};
use crate::resume::failed;
use crate::rewrite::{Rewrite, SealedManifest};
use crate::saved::refused;

/// What a line names as its save where the embedding servers of a run that trains removed the row.
const SERVERS: &str = "embedding servers";
/// The file, in the folder that the command names.
pub(crate) const AUDIT: &str = "forgotten.jsonl";

/// `progress` is called between two steps, with the bytes of rows that the last one copied. The same command continues after an error.
pub(crate) fn apply(
    place: &ForgetPlace,
    plan: &ForgetPlan,
    wanted: &ForgottenIds,
    progress: &dyn Fn(u64),
) -> Result<(), Failure> {
    let saves = plan.saves.iter().map(|plan| &plan.planned).collect();
    let rewrite = Rewrite { copies: &plan.copies, saves, change: wanted, progress };
    let sealed = rewrite.write_files()?;
    note_removed(&place.named, wanted, &plan.saves, &sealed)?;
    rewrite.replace_manifests(&sealed)?;
    progress(0);
    place.run().map_or(Ok(()), |run| clean_run(run, wanted))?;
    delete_unnamed(place, progress)?;
    place.remove_left();
    Ok(())
}

/// Deletes files of rows that no manifest of the place names: those that were copied, and those that a process left that ended
/// before it was done.
fn delete_unnamed(place: &ForgetPlace, progress: &dyn Fn(u64)) -> Result<(), Failure> {
    let mut named = BTreeSet::new();
    for save in &place.saves {
        let manifest = Manifest::read(save).map_err(failed)?;
        let files = manifest.row_files.iter().filter_map(|file| save.locate_file(file));
        named.extend(files.map(|(folder, name)| (folder.to_string(), name.to_owned())));
    }
    for folder in place.saves.iter().chain(&place.others) {
        for name in folder.file_names().map_err(refused)?.into_iter().filter(|name| is_row_file(name)) {
            if !named.contains(&(folder.to_string(), name.clone())) {
                progress(0);
                folder.delete_file(&name).map_err(refused)?;
            }
        }
    }
    Ok(())
}

/// `sealed` has the manifest of each save that changes.
fn note_removed(
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
