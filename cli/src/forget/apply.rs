//! Does what a plan says. Each step leaves every save whole, and may be done again.
//!
//! What was removed is in `forgotten.jsonl` for those who have to show it, a line for each id and save. The lines are written before a
//! manifest is replaced, so nothing is removed without a line. `manifest_after` says which manifest is then in place. After a kill in
//! between, the same command writes no line twice.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Serialize;
use zagros_plumbing::durable;
use zagros_rows::snapshot::{FollowedFile, copy_without};
use zagros_scoring::{FileRecord, JOB, MANIFEST, Manifest, row_file};
use zagros_shell::{Failure, OrFailure};
use zagros_store::{Folder, hex_digits};

use super::plan::{ChangedJob, PlannedCopy, clean_run, is_row_file};
use super::{ForgetPlace, ForgetPlan, SavePlan, WantedIds};
use crate::resume::failed;
use crate::saved::{not_written, refused, snapshot_failure};

/// `passed` gets the number of bytes of each file that was copied. Returns how many files were deleted. The same command
/// continues after an error.
pub(crate) fn apply(
    place: &ForgetPlace,
    plan: &ForgetPlan,
    wanted: &WantedIds,
    passed: &dyn Fn(u64),
) -> Result<usize, Failure> {
    check_files(plan)?;
    let mut copies: Vec<FileRecord> = Vec::new();
    let mut linked: BTreeMap<&str, usize> = BTreeMap::new();
    for (number, planned) in plan.copies.iter().enumerate() {
        let same = linked.get(planned.sha256.as_str()).map(|same| (&plan.copies[*same], &copies[*same]));
        let record = match same.filter(|(same, _)| link(same, planned)) {
            Some((_, record)) => FileRecord { name: planned.copy.clone(), ..record.clone() },
            None => copy(planned, &copies, wanted)?,
        };
        passed(planned.bytes);
        copies.push(record);
        linked.entry(&planned.sha256).or_insert(number);
    }
    // What an earlier process left is first done with, or a second change would be read for the first.
    plan.saves.iter().try_for_each(|save| save.manifest.finish_replacement(&save.folder, JOB).map_err(failed))?;
    let mut changed = Vec::new();
    for save in &plan.saves {
        let next = |job: &ChangedJob| FileRecord::write_next(&save.folder, JOB, &job.text).map_err(refused);
        let job = save.job.as_ref().map(next).transpose()?;
        changed.extend(save.changed_manifest(&copies, job.as_ref()).map(|manifest| (save, manifest)));
    }
    let manifests: Vec<(_, Manifest)> = changed.iter().map(|(save, (manifest, _))| (*save, manifest.clone())).collect();
    note(&place.named, wanted, &manifests)?;
    for (save, (manifest, text)) in &changed {
        save.folder.write(MANIFEST, text).map_err(refused)?;
        manifest.finish_replacement(&save.folder, JOB).map_err(failed)?;
    }
    place.run().map_or(Ok(()), |run| clean_run(run, wanted))?;
    let deleted = delete_unnamed(place)?;
    place.remove_left();
    Ok(deleted)
}

/// Compares the files with the manifests that name them, before any of them is copied (invariant CK-4).
fn check_files(plan: &ForgetPlan) -> Result<(), Failure> {
    let mut checked = BTreeSet::new();
    for save in &plan.saves {
        for (name, copy) in &save.replaced {
            if checked.insert(copy) {
                save.manifest.check_file(&save.folder, name, &|_| ()).map_err(failed)?;
            }
        }
    }
    Ok(())
}

fn copy(planned: &PlannedCopy, copies: &[FileRecord], wanted: &WantedIds) -> Result<FileRecord, Failure> {
    let PlannedCopy { folder, name, copy, bytes, follows, .. } = planned;
    let follows = follows.map(|before| {
        let FileRecord { name, sha256, .. } = copies[before].clone();
        FollowedFile { name, sha256 }
    });
    let file = row_file(folder, name);
    let written = folder
        .write_unless(copy, *bytes, |to| copy_without(&file, (&wanted.table, &wanted.ids), follows, to))
        .map_err(|error| not_written((folder, copy), error, "nothing is removed yet"))?
        .map_err(snapshot_failure)?;
    Ok(FileRecord { name: copy.clone(), bytes: written.bytes, sha256: hex_digits(&written.sha256) })
}

/// Gives the copy of the same file in another folder a second name, as its file had. `false` where that is not possible.
fn link(same: &PlannedCopy, planned: &PlannedCopy) -> bool {
    let place = |folder: &Folder, name: &str| folder.path().map(|path| path.join(name));
    let Some((from, to)) = place(&same.folder, &same.copy).zip(place(&planned.folder, &planned.copy)) else {
        return false;
    };
    // Files that were not linked stay alone: damage to one is then not damage to both.
    let files = place(&same.folder, &same.name).zip(place(&planned.folder, &planned.name));
    let was_linked = files.is_some_and(|(one, other)| is_same_file(&one, &other));
    let temporary = to.with_extension("zrows.link.tmp");
    let _ = std::fs::remove_file(&temporary);
    was_linked && std::fs::hard_link(&from, &temporary).and_then(|()| durable::rename(&temporary, &to)).is_ok()
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |path: &Path| path.metadata().ok().map(|file| (file.dev(), file.ino()));
    id(one).is_some_and(|one| id(other) == Some(one))
}

/// Deletes files of rows that no manifest of the place names: those that were copied, and those that a process left that ended
/// before it was done.
fn delete_unnamed(place: &ForgetPlace) -> Result<usize, Failure> {
    let mut named = BTreeSet::new();
    for save in &place.saves {
        let manifest = Manifest::read(save).map_err(failed)?;
        let files = manifest.row_files.iter().filter_map(|file| save.locate_file(file));
        named.extend(files.map(|(folder, name)| (folder.to_string(), name.to_owned())));
    }
    let mut deleted = 0;
    for folder in place.saves.iter().chain(&place.others) {
        for name in folder.file_names().map_err(refused)?.into_iter().filter(|name| is_row_file(name)) {
            if !named.contains(&(folder.to_string(), name.clone())) {
                folder.delete_file(&name).map_err(refused)?;
                deleted += 1;
            }
        }
    }
    Ok(deleted)
}

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

fn note(named: &Folder, wanted: &WantedIds, saves: &[(&SavePlan, Manifest)]) -> Result<(), Failure> {
    let earlier = String::from_utf8_lossy(&earlier_lines(named)?).into_owned();
    let mut text = earlier.clone();
    for (save, after) in saves {
        // Lines are written together, so either all of this change are there or none.
        if !earlier.contains(&after.manifest_sha256) {
            append(&mut text, wanted, save, after)?;
        }
    }
    if text == earlier { Ok(()) } else { named.write(AUDIT, text.as_bytes()).map_err(refused) }
}

fn earlier_lines(named: &Folder) -> Result<Vec<u8>, Failure> {
    match named.read(AUDIT) {
        Err(error) if error.is_missing() => Ok(Vec::new()),
        earlier => earlier.map_err(refused),
    }
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
    let mut text = earlier_lines(named)?;
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
