//! The folders of a run's checkpoints.

use zagros_store::{Folder, StoreError};

use crate::control::manifest::MANIFEST;

/// Folders of checkpoints begin so; the best states of a run lie beside them under other names.
const PREFIX: &str = "resume-";
/// Steps and folders of the checkpoints that have a manifest, oldest first.
pub(super) fn complete(checkpoints: &Folder) -> Result<Vec<(u64, Folder)>, StoreError> {
    let mut found = Vec::new();
    for (step, folder) in all(checkpoints)? {
        if folder.has(MANIFEST)? {
            found.push((step, folder));
        }
    }
    Ok(found)
}

/// Steps and folders of checkpoints, also of those that are not complete, oldest first.
pub(super) fn all(checkpoints: &Folder) -> Result<Vec<(u64, Folder)>, StoreError> {
    let step = |name: &String| name.strip_prefix(PREFIX).and_then(|step| step.parse::<u64>().ok());
    let mut found: Vec<(u64, String)> =
        checkpoints.folders()?.into_iter().filter_map(|name| Some((step(&name)?, name))).collect();
    found.sort_unstable();
    Ok(found.into_iter().map(|(step, name)| (step, checkpoints.join(&name))).collect())
}

/// Where the checkpoint of a step is.
pub(crate) fn folder_of(checkpoints: &Folder, step: u64) -> Folder {
    checkpoints.join(&format!("{PREFIX}{step:012}"))
}

/// Deletes all but those of the last steps up to the `newest`, each manifest first: half a folder is no checkpoint.
/// Called when none is being written, so one without a manifest is what an earlier process left. One of a later step is
/// damaged, or of training that was given up: it would be in the way of the newest for good.
pub(super) fn retain(checkpoints: &Folder, keep: usize, newest: u64) -> Result<(), StoreError> {
    let mut complete = complete(checkpoints)?;
    complete.retain(|(step, _)| *step <= newest);
    let kept = &complete[complete.len().saturating_sub(keep)..];
    for (step, folder) in all(checkpoints)? {
        if kept.iter().all(|(kept, _)| *kept != step) {
            folder.delete_file(MANIFEST)?;
            folder.delete()?;
        }
    }
    Ok(())
}

/// Deletes every checkpoint.
pub(crate) fn delete_all(checkpoints: &Folder) -> Result<(), StoreError> {
    retain(checkpoints, 0, u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_folders_with_a_manifest_are_checkpoints_and_the_newest_is_last() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Folder::disk(folder.path());
        assert!(complete(&disk.join("nothing")).unwrap().is_empty());
        for (name, is_complete) in
            [("resume-000000000010", true), ("resume-9", true), ("resume-11", false), ("step-000000012", true)]
        {
            let path = folder.path().join(name);
            fs::create_dir(&path).unwrap();
            if is_complete {
                fs::write(path.join(MANIFEST), "{}").unwrap();
            }
        }
        let steps: Vec<u64> = complete(&disk).unwrap().into_iter().map(|(step, _)| step).collect();
        assert_eq!(steps, [9, 10]);
        assert!(folder_of(&disk, 10).has(MANIFEST).unwrap());
    }

    /// As where the newest was damaged, and training went on from the one before.
    #[test]
    fn one_of_a_later_step_takes_no_place_of_the_newest() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Folder::disk(folder.path());
        for step in [600, 620, 800] {
            folder_of(&disk, step).make().unwrap().write(MANIFEST, b"{}").unwrap();
        }
        retain(&disk, 1, 620).unwrap();
        let left: Vec<u64> = all(&disk).unwrap().into_iter().map(|(step, _)| step).collect();
        assert_eq!(left, [620]);
    }

    #[test]
    fn the_newest_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Folder::disk(folder.path());
        for step in [5, 100, 20] {
            let checkpoint = folder_of(&disk, step).make().unwrap();
            checkpoint.write(MANIFEST, b"{}").unwrap();
        }
        folder_of(&disk, 7).make().unwrap();
        fs::create_dir(folder.path().join("step-000000007")).unwrap();
        let left = || all(&disk).unwrap().into_iter().map(|(step, _)| step).collect::<Vec<_>>();
        retain(&disk, 2, 100).unwrap();
        assert_eq!(left(), [20, 100]);
        delete_all(&disk).unwrap();
        assert!(left().is_empty());
        assert!(folder.path().join("step-000000007").is_dir());
    }
}
