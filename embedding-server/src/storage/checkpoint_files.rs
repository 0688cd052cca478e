//! The files of this server's newest checkpoint, and whether the next checkpoint may add a delta to them.
//!
//! ```text
//! resume-10/   rows-0-of-2.zrows
//! resume-20/   rows-0-of-2.zrows  rows-0-of-2.delta-1.zrows                              the first is a hard link
//! resume-30/   rows-0-of-2.zrows  rows-0-of-2.delta-1.zrows  rows-0-of-2.delta-2.zrows   the first two are
//! resume-40/   rows-0-of-2.zrows                                                         all rows again
//! ```
//!
//! A hard link is another name of the same file. So each folder has all its files, and can be deleted, moved or copied
//! without the others. The file system keeps a file until its last name is gone.
//!
//! An object store has no links, and neither have some file systems. There, the checkpoint names the files of earlier ones:
//!
//! ```text
//! resume-10/   rows-0-of-2.zrows
//! resume-20/   rows-0-of-2.delta-1.zrows     names ../resume-10/rows-0-of-2.zrows
//! resume-30/   rows-0-of-2.delta-2.zrows     names that one, and ../resume-20/rows-0-of-2.delta-1.zrows
//! ```
//!
//! The worker that deletes a checkpoint leaves the files that the manifests of kept checkpoints name.

use std::fs;
use std::io;
use std::path::Path;

use parking_lot::Mutex;
use tracing::info;
use zagros_protocol::control::{FileDigest, SaveRequest, SaveStage};
use zagros_protocol::{Generation, Refusal};
use zagros_rows::snapshot::{FollowedFile, delta_name, file_name};
use zagros_store::{FileName, Folder, hex_digits};
use zagros_table::SnapshotKind;

use super::StorageError;
use crate::datapath::OwnedBuckets;

/// Files of rows that a manifest may name, of all servers together.
const MOST_FILES: usize = 1024;

/// What the next checkpoint may add to.
#[derive(Debug, Default)]
pub(crate) struct CheckpointFiles {
    /// Deltas that may follow a file of all rows.
    most: usize,
    /// `None` also while a checkpoint is written: only its snapshot then knows what has changed since the one before.
    newest: Mutex<Option<NewestCheckpoint>>,
}

#[derive(Clone, Debug)]
struct NewestCheckpoint {
    folder: Folder,
    /// Of the bucket map. With another map the server has rows of other buckets.
    generation: Generation,
    /// That of all rows first.
    files: Vec<FileDigest>,
}

#[derive(Clone, Debug)]
pub(super) enum SavePlan {
    /// All rows. No delta will follow.
    Whole,
    /// All rows. A delta may follow.
    Base,
    /// What has changed since these files, which are in the folder of the save or in folders beside it.
    Delta(Vec<FileDigest>),
}

impl CheckpointFiles {
    /// With this many deltas after a file of all rows at most. 0 for none.
    pub(crate) fn new(most: usize, servers: u32) -> Self {
        let most = most.min((MOST_FILES / servers.max(1) as usize).saturating_sub(1));
        Self { most, newest: Mutex::default() }
    }

    /// The next checkpoint has all rows.
    pub(crate) fn forget_newest(&self) {
        *self.newest.lock() = None;
    }

    /// Decides what a save into `folder` writes. Links the files to which it adds, or names them where they are. `can_note` says whether the tables can note
    /// what changes.
    pub(super) fn plan_save(
        &self,
        can_note: bool,
        request: &SaveRequest,
        placement: &OwnedBuckets,
        folder: &Folder,
    ) -> SavePlan {
        let is_checkpoint = request.stage() == SaveStage::Capture;
        if !is_checkpoint || !can_note || self.most == 0 {
            return SavePlan::Whole;
        }
        let fitting = self.newest.lock().take().filter(|newest| self.may_follow(newest, placement, folder));
        let Some(newest) = fitting else { return SavePlan::Base };
        newest.bring_into(folder).map_or(SavePlan::Base, SavePlan::Delta)
    }

    /// Half of the rows' bytes in deltas: a load then reads at most half as much again.
    fn may_follow(&self, newest: &NewestCheckpoint, placement: &OwnedBuckets, folder: &Folder) -> bool {
        let [base, deltas @ ..] = &newest.files[..] else { return false };
        let changed: u64 = deltas.iter().map(|file| file.bytes).sum();
        let is_short = deltas.len() < self.most && changed <= base.bytes / 2;
        let is_other = newest.folder.to_string() != folder.to_string();
        is_short && newest.generation == placement.generation() && is_other
    }

    pub(super) fn note_written(
        &self,
        plan: &SavePlan,
        placement: &OwnedBuckets,
        folder: &Folder,
        files: &[FileDigest],
    ) {
        if let SavePlan::Base | SavePlan::Delta(_) = plan {
            let (folder, generation) = (folder.clone(), placement.generation());
            *self.newest.lock() = Some(NewestCheckpoint { folder, generation, files: files.to_vec() });
        }
    }
}

impl NewestCheckpoint {
    /// Links the files into a folder, or names them where they are. `None` if neither is possible. No store is asked: training
    /// waits meanwhile.
    fn bring_into(&self, folder: &Folder) -> Option<Vec<FileDigest>> {
        let Some(path) = folder.path() else { return self.named_from(folder) };
        match self.link_into(path) {
            Ok(files) => Some(files),
            Err(error) if has_no_links(&error) => self.named_from(folder),
            Err(error) => {
                let from = &self.folder;
                info!(%error, %from, "files of the checkpoint before cannot be linked: this one has all rows");
                None
            }
        }
    }

    fn link_into(&self, folder: &Path) -> io::Result<Vec<FileDigest>> {
        let link = |file: &FileDigest| {
            let (from, name) = self.folder.locate_file(&file.name).ok_or(io::ErrorKind::InvalidInput)?;
            let (from, to) = (from.path().ok_or(io::ErrorKind::Unsupported)?.join(name), folder.join(name));
            // An earlier try may have left one.
            match fs::remove_file(&to) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => fs::hard_link(from, &to)?,
            }
            Ok(FileDigest { name: name.to_owned(), ..file.clone() })
        };
        self.files.iter().map(link).collect()
    }

    /// The files by their names for a folder beside their own. `None` if it is not beside it.
    fn named_from(&self, folder: &Folder) -> Option<Vec<FileDigest>> {
        let parents = [folder, &self.folder].map(|folder| folder.parent().map(|parent| parent.to_string()));
        let own = self.folder.name().filter(|_| parents[0].is_some() && parents[0] == parents[1])?;
        let name = |file: &FileDigest| {
            let name = FileName::parse(&file.name)?.from_beside(own);
            Some(FileDigest { name, ..file.clone() })
        };
        self.files.iter().map(name).collect()
    }
}

/// Whether a file system knows no hard links, or takes no more of them.
fn has_no_links(error: &io::Error) -> bool {
    use io::ErrorKind::{CrossesDevices, PermissionDenied, TooManyLinks, Unsupported};
    matches!(error.kind(), CrossesDevices | PermissionDenied | TooManyLinks | Unsupported)
}

impl SavePlan {
    pub(super) fn snapshot_kind(&self) -> SnapshotKind {
        match self {
            Self::Whole => SnapshotKind::Whole,
            Self::Base => SnapshotKind::Base,
            Self::Delta(_) => SnapshotKind::Changes,
        }
    }

    pub(super) fn file_name(&self, server: u32, servers: u32) -> String {
        match self {
            Self::Whole | Self::Base => file_name(server, servers),
            Self::Delta(before) => delta_name(server, servers, before.len()),
        }
    }

    /// The files to which the new one adds.
    pub(super) fn files_before(&self) -> &[FileDigest] {
        if let Self::Delta(before) = self { before } else { &[] }
    }

    pub(super) fn followed_file(&self) -> Option<FollowedFile> {
        let FileDigest { name, sha256, .. } = self.files_before().last()?;
        Some(FollowedFile { name: FileName::parse(name)?.name.to_owned(), sha256: hex_digits(sha256) })
    }

    /// Checks that the files to which the new one adds are still there. Linked files are.
    pub(super) fn check_files_before(&self, folder: &Folder) -> Result<(), StorageError> {
        for FileDigest { name, .. } in self.files_before() {
            let (found, own) = folder.locate_file(name).ok_or(StorageError::FileName { file: name.clone() })?;
            if own != name && !found.has_file(own).map_err(StorageError::Folder)? {
                let gone = "which the changes follow, is gone; this save is given up, and the next one has all rows; delete no files of \
                            checkpoints while their run goes on";
                return Err(Refusal::invalid(format!("{found}/{own}, {gone}")).into());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn file(name: &str) -> FileDigest {
        FileDigest { name: name.to_owned(), bytes: 1, sha256: vec![7; 32].into() }
    }

    fn names(files: &[FileDigest]) -> Vec<&str> {
        files.iter().map(|file| file.name.as_str()).collect()
    }

    /// No call reaches the store while training waits.
    #[test]
    fn an_object_store_has_names_instead_of_links() {
        let store = zagros_fakes::s3::FakeS3::start("models");
        let folder =
            |text: &str| Folder::open_in(&store.environment_variables(), text, Duration::from_secs(20)).unwrap();
        let files = vec![file("../resume-1/a.zrows"), file("a.delta-1.zrows")];
        let newest = NewestCheckpoint { folder: folder("s3://models/run/resume-2"), generation: Generation(1), files };
        let brought = newest.bring_into(&folder("s3://models/run/resume-3")).unwrap();
        assert_eq!(names(&brought), ["../resume-1/a.zrows", "../resume-2/a.delta-1.zrows"]);
        for elsewhere in ["s3://models/other/resume-3", "s3://models/run/a/resume-3", "s3://models"] {
            assert!(newest.bring_into(&folder(elsewhere)).is_none(), "{elsewhere}");
        }
        assert_eq!(store.request_log(), [""; 0]);
        let plan = SavePlan::Delta(brought);
        let here = folder("s3://models/run/resume-3");
        let gone = plan.check_files_before(&here).unwrap_err().to_string();
        assert!(gone.starts_with("s3://models/run/resume-1/a.zrows, which the changes follow, is gone"), "{gone}");
        for key in ["run/resume-1/a.zrows", "run/resume-2/a.delta-1.zrows"] {
            store.put_object(key, "rows");
        }
        plan.check_files_before(&here).unwrap();
        let (name, sha256) = ("a.delta-1.zrows".to_owned(), "07".repeat(32));
        assert_eq!(plan.followed_file(), Some(FollowedFile { name, sha256 }));
    }

    #[test]
    fn a_file_system_without_links_has_names_too() {
        let errors =
            [rustix::io::Errno::XDEV, rustix::io::Errno::PERM, rustix::io::Errno::MLINK, rustix::io::Errno::OPNOTSUPP];
        assert!(errors.into_iter().all(|error| has_no_links(&error.into())));
        assert!(!has_no_links(&rustix::io::Errno::NOENT.into()) && !has_no_links(&rustix::io::Errno::NOSPC.into()));
    }
}
