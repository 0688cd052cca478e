//! Resuming an interrupted run: what a checkpoint holds, where it lies and how it is found and written.
//!
//! A checkpoint is a saved model (`super::save`) with `optimizer.safetensors`, `training.json` and the resolved
//! `job.toml` beside it. All of it is of one moment between two steps: every push before it is acknowledged, none
//! after it is in the rows (invariant CK-2).

mod make;
mod point;
mod position;
mod writer;

use std::collections::{BTreeMap, BTreeSet};

use zagros_job::Job;
use zagros_scoring::{MANIFEST, Manifest, ScoringError, checkpoint_name, checkpoint_step};
use zagros_store::{Folder, StoreError};

use crate::error::WorkerError;
use crate::report::RunFolder;

pub use point::{EarlierRun, LastRun, ResumePoint};
pub(crate) use position::{FileSize, ResumeCursor, TrainingPosition};
pub(crate) use writer::CheckpointWriter;

/// Steps and folders of the checkpoints that have a manifest, oldest first.
pub(crate) fn complete(checkpoints: &Folder) -> Result<Vec<(u64, Folder)>, StoreError> {
    let mut found = Vec::new();
    for (step, folder) in all(checkpoints)? {
        if folder.has_file(MANIFEST)? {
            found.push((step, folder));
        }
    }
    Ok(found)
}

/// Steps and folders of checkpoints, also of those that are not complete, oldest first.
pub(crate) fn all(checkpoints: &Folder) -> Result<Vec<(u64, Folder)>, StoreError> {
    let names = checkpoints.folder_names()?.into_iter();
    let mut found: Vec<(u64, String)> = names.filter_map(|name| Some((checkpoint_step(&name)?, name))).collect();
    found.sort_unstable();
    Ok(found.into_iter().map(|(step, name)| (step, checkpoints.join(&name))).collect())
}

pub(crate) fn folder_of(checkpoints: &Folder, step: u64) -> Folder {
    checkpoints.join(&checkpoint_name(step))
}

/// Deletes all but those of the last steps up to the `newest`, each manifest first: half a folder is no checkpoint.
/// Called when none is being written, so one without a manifest is what an earlier process left. One of a later step is
/// damaged, or of training that was given up: it would be in the way of the newest for good.
///
/// Files that the kept ones need stay where they are, in folders without a manifest. The manifests are the only count of who
/// needs a file, so a process that ends half-way leaves nothing that the next call does not see. The newest goes first: no
/// manifest names files that are gone already.
pub(super) fn retain_newest(checkpoints: &Folder, keep: usize, newest: u64) -> Result<(), WorkerError> {
    let mut complete = complete(checkpoints)?;
    complete.retain(|(step, _)| *step <= newest);
    let kept = &complete[complete.len().saturating_sub(keep)..];
    let needed = needed_by(kept)?;
    for (step, folder) in all(checkpoints)?.into_iter().rev() {
        if kept.iter().any(|(kept, _)| *kept == step) {
            continue;
        }
        folder.delete_file(MANIFEST)?;
        match folder.name().and_then(|name| needed.get(name)) {
            Some(files) => folder.delete_except(files)?,
            None => folder.delete()?,
        }
    }
    Ok(())
}

fn needed_by(kept: &[(u64, Folder)]) -> Result<BTreeMap<String, BTreeSet<String>>, WorkerError> {
    let mut needed: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (_, folder) in kept {
        let manifest = match Manifest::read(folder) {
            // No run can go on from it, whatever it names.
            Err(ScoringError::SavedModel { .. }) => continue,
            manifest => manifest?,
        };
        for (folder, file) in manifest.files_elsewhere() {
            needed.entry(folder.to_owned()).or_default().insert(file.to_owned());
        }
    }
    Ok(needed)
}

pub(crate) fn delete_all(checkpoints: &Folder) -> Result<(), WorkerError> {
    retain_newest(checkpoints, 0, u64::MAX)
}

/// Parent of the checkpoints of all runs, where the job names one.
#[derive(Debug)]
pub(crate) struct CheckpointRoot {
    parent: Option<Folder>,
}

impl CheckpointRoot {
    /// As the job has it. Requests to a store take as long as the job is patient.
    pub(crate) fn new(job: &Job) -> Result<Self, WorkerError> {
        let open = |text: &String| Folder::open(text, job.cluster.timeout);
        Ok(Self { parent: job.checkpoint.folder.as_ref().map(open).transpose()? })
    }

    pub(crate) fn of_run(&self, run: &RunFolder) -> Folder {
        match &self.parent {
            Some(parent) => parent.join(&run.name()),
            None => Folder::on_disk(run.checkpoints_folder()),
        }
    }

    /// Names of the runs that have some there; none where each run has its own folder.
    pub(super) fn run_names(&self) -> Result<Vec<String>, WorkerError> {
        Ok(self.parent.as_ref().map_or_else(|| Ok(Vec::new()), Folder::folder_names)?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use zagros_scoring::FileRecord;

    use super::*;
    use crate::testing::small_job;

    fn steps(folders: Vec<(u64, Folder)>) -> Vec<u64> {
        folders.into_iter().map(|(step, _)| step).collect()
    }

    #[test]
    fn only_folders_with_a_manifest_are_checkpoints_and_the_newest_is_last() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Folder::on_disk(folder.path());
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
        assert_eq!(steps(complete(&disk).unwrap()), [9, 10]);
        assert!(folder_of(&disk, 10).has_file(MANIFEST).unwrap());
    }

    #[test]
    fn the_newest_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Folder::on_disk(folder.path());
        for step in [5, 100, 20] {
            folder_of(&disk, step).make().unwrap().write(MANIFEST, b"{}").unwrap();
        }
        folder_of(&disk, 7).make().unwrap();
        fs::create_dir(folder.path().join("step-000000007")).unwrap();
        retain_newest(&disk, 2, 100).unwrap();
        assert_eq!(steps(all(&disk).unwrap()), [20, 100]);
        // The newest was damaged, and training went on from the one before.
        folder_of(&disk, 600).make().unwrap().write(MANIFEST, b"{}").unwrap();
        retain_newest(&disk, 1, 100).unwrap();
        assert_eq!(steps(all(&disk).unwrap()), [100]);
        delete_all(&disk).unwrap();
        assert!(all(&disk).unwrap().is_empty());
        assert!(folder.path().join("step-000000007").is_dir());
    }

    fn manifest(row_files: &[&str]) -> Vec<u8> {
        let dense = "dense.safetensors";
        let files = row_files.iter().chain([&dense]).map(|name| FileRecord::new(name, b"rows")).collect();
        let row_files = row_files.iter().map(|name| (*name).to_owned()).collect();
        let empty = serde_json::from_str::<Manifest>(&zagros_fakes::jobs::empty_manifest(dense)).unwrap();
        let manifest = Manifest { row_files, files, ..empty };
        manifest.into_sealed().1
    }

    /// Invariant CK-6: a process may end after any of the deletions. Each checkpoint with a manifest then has its files.
    #[test]
    fn files_that_a_younger_checkpoint_needs_stay_and_go_with_it() {
        let (disk, store) = (tempfile::tempdir().unwrap(), zagros_fakes::s3::FakeS3::start("models"));
        let limit = std::time::Duration::from_secs(20);
        let open = || Folder::open_in(&store.environment_variables(), "s3://models/run", limit).unwrap();
        for root in [Folder::on_disk(disk.path()), open()] {
            let write = |step: u64, own: &str, row_files: &[&str]| {
                let folder = folder_of(&root, step).make().unwrap();
                folder.write(own, b"rows").unwrap();
                folder.write("training.json", b"{}").unwrap();
                folder.write(MANIFEST, &manifest(row_files)).unwrap();
            };
            let a = "../resume-000000000010/a.zrows";
            write(10, "a.zrows", &["a.zrows"]);
            write(20, "a.delta-1.zrows", &[a, "a.delta-1.zrows"]);
            // Of a save that was given up; its server went on from there.
            folder_of(&root, 25).make().unwrap().write("a.delta-2.zrows", b"rows").unwrap();
            let all_files = [a, "../resume-000000000020/a.delta-1.zrows", "../resume-000000000025/a.delta-2.zrows"];
            write(30, "a.delta-3.zrows", &[&all_files[..], &["a.delta-3.zrows"]].concat());
            let steps = || steps(all(&root).unwrap());
            let whole = |step: u64| complete(&root).unwrap().iter().any(|(found, _)| *found == step);
            let has = |step: u64, file: &str| folder_of(&root, step).has_file(file).unwrap();
            for keep in [2, 1, 1] {
                retain_newest(&root, keep, 30).unwrap();
                assert_eq!(steps(), [10, 20, 25, 30]);
                assert!(has(10, "a.zrows") && has(20, "a.delta-1.zrows") && has(25, "a.delta-2.zrows"));
                assert!(!whole(10) && !has(10, "training.json") && whole(20) == (keep == 2));
            }
            // All rows again.
            write(40, "a.zrows", &["a.zrows"]);
            retain_newest(&root, 1, 40).unwrap();
            assert_eq!(steps(), [40]);
            // A manifest that is damaged needs nothing, and stops no deletion.
            write(50, "a.zrows", &["a.zrows"]);
            folder_of(&root, 40).write(MANIFEST, b"{").unwrap();
            retain_newest(&root, 2, 50).unwrap();
            assert_eq!(steps(), [40, 50]);
            delete_all(&root).unwrap();
            assert_eq!(steps(), [0; 0]);
        }
        // A store that is away deletes nothing that may be needed.
        let root = open();
        folder_of(&root, 10).write(MANIFEST, &manifest(&["a.zrows"])).unwrap();
        folder_of(&root, 20).write(MANIFEST, &manifest(&["a.zrows"])).unwrap();
        store.inject_fault(zagros_fakes::s3::S3Fault::Denies, "GET /models/run/resume-000000000020/", usize::MAX);
        assert!(retain_newest(&root, 1, 20).is_err());
        assert!(store.object_keys().contains(&"run/resume-000000000010/manifest.json".to_owned()));
    }

    #[test]
    fn checkpoints_are_in_the_run_or_below_the_folder_that_the_job_names() {
        let folder = tempfile::tempdir().unwrap();
        let mut job = small_job();
        job.output.folder = folder.path().join("runs");
        let run = RunFolder::create(&job, &[]).unwrap();
        let own = CheckpointRoot::new(&job).unwrap();
        assert_eq!(own.of_run(&run).path(), Some(run.checkpoints_folder().as_path()));
        assert_eq!(own.run_names().unwrap(), [""; 0]);
        let shared = folder.path().join("shared");
        job.checkpoint.folder = Some(shared.display().to_string());
        let root = CheckpointRoot::new(&job).unwrap();
        root.of_run(&run).make().unwrap();
        assert_eq!(root.run_names().unwrap(), [run.name()]);
        assert!(shared.join(run.name()).is_dir());
    }
}
