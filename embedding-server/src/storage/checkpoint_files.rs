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

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use tracing::info;
use zagros_protocol::Generation;
use zagros_protocol::control::{FileDigest, SaveRequest, SaveStage};
use zagros_snapshot::{FollowedFile, delta_name, file_name};
use zagros_store::{Folder, hexadecimal};
use zagros_table::SnapshotKind;

use crate::datapath::OwnedBuckets;

/// Files of rows that a manifest may name, of all servers together.
const MOST_FILES: usize = 1024;

/// What the next checkpoint may add to.
#[derive(Debug, Default)]
pub(crate) struct CheckpointFiles {
    /// Deltas that may follow a file of all rows.
    most: usize,
    /// `None` also while a checkpoint is written: what has changed since is then known to nobody else.
    newest: Mutex<Option<NewestCheckpoint>>,
}

#[derive(Clone, Debug)]
struct NewestCheckpoint {
    folder: PathBuf,
    /// Of the bucket map. With another map the server has rows of other buckets.
    generation: Generation,
    /// That of all rows first.
    files: Vec<FileDigest>,
}

/// What a save writes.
#[derive(Clone, Debug)]
pub(super) enum SavePlan {
    /// All rows. No delta will follow.
    Whole,
    /// All rows. A delta may follow.
    Base,
    /// What has changed since these files, which are in the folder of the save.
    Delta(Vec<FileDigest>),
}

impl CheckpointFiles {
    /// With this many deltas after a file of all rows at most. 0 for none.
    pub(crate) fn new(most: usize, servers: u32) -> Self {
        let most = most.min((MOST_FILES / servers.max(1) as usize).saturating_sub(1));
        Self { most, newest: Mutex::default() }
    }

    /// The next checkpoint has all rows.
    pub(crate) fn forget(&self) {
        *self.newest.lock() = None;
    }

    /// Decides what a save into `folder` writes. Links the files to which it adds. `can_note` says whether the tables can note
    /// what changes.
    pub(super) fn plan(
        &self,
        can_note: bool,
        request: &SaveRequest,
        placement: &OwnedBuckets,
        folder: &Folder,
    ) -> SavePlan {
        let is_checkpoint = request.stage() == SaveStage::Capture;
        let Some(path) = folder.path().filter(|_| is_checkpoint && can_note && self.most > 0) else {
            return SavePlan::Whole;
        };
        let fitting = self.newest.lock().take().filter(|newest| self.fits(newest, placement, path));
        let Some(newest) = fitting else { return SavePlan::Base };
        match newest.link_into(path) {
            Ok(()) => SavePlan::Delta(newest.files),
            Err(error) => {
                let from = newest.folder.display();
                info!(%error, %from, "files of the checkpoint before cannot be linked: this one has all rows");
                SavePlan::Base
            }
        }
    }

    /// Half of the rows' bytes in deltas: a load then reads at most half as much again.
    fn fits(&self, newest: &NewestCheckpoint, placement: &OwnedBuckets, folder: &Path) -> bool {
        let [base, deltas @ ..] = &newest.files[..] else { return false };
        let changed: u64 = deltas.iter().map(|file| file.bytes).sum();
        let is_short = deltas.len() < self.most && changed <= base.bytes / 2;
        is_short && newest.generation == placement.generation() && newest.folder != folder
    }

    /// A save has written its files.
    pub(super) fn written(&self, plan: &SavePlan, placement: &OwnedBuckets, folder: &Folder, files: &[FileDigest]) {
        if let (SavePlan::Base | SavePlan::Delta(_), Some(path)) = (plan, folder.path()) {
            let (folder, generation) = (path.to_owned(), placement.generation());
            *self.newest.lock() = Some(NewestCheckpoint { folder, generation, files: files.to_vec() });
        }
    }
}

impl NewestCheckpoint {
    fn link_into(&self, folder: &Path) -> io::Result<()> {
        for FileDigest { name, .. } in &self.files {
            let to = folder.join(name);
            // An earlier try may have left one.
            match fs::remove_file(&to) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => fs::hard_link(self.folder.join(name), &to)?,
            }
        }
        Ok(())
    }
}

impl SavePlan {
    pub(super) fn kind(&self) -> SnapshotKind {
        match self {
            Self::Whole => SnapshotKind::Whole,
            Self::Base => SnapshotKind::Base,
            Self::Delta(_) => SnapshotKind::Changes,
        }
    }

    /// Name of the file that is written.
    pub(super) fn file_name(&self, server: u32, servers: u32) -> String {
        match self {
            Self::Whole | Self::Base => file_name(server, servers),
            Self::Delta(before) => delta_name(server, servers, before.len()),
        }
    }

    /// The files that are in the folder already.
    pub(super) fn files_before(&self) -> &[FileDigest] {
        if let Self::Delta(before) = self { before } else { &[] }
    }

    /// The file to which the new one adds.
    pub(super) fn follows(&self) -> Option<FollowedFile> {
        let FileDigest { name, sha256, .. } = self.files_before().last()?;
        Some(FollowedFile { name: name.clone(), sha256: hexadecimal(sha256) })
    }
}
