//! Finds the files of a saved model by its run folder, its own folder, or one file of rows.

use std::path::Path;
use std::time::Duration;

use zagros_plumbing::disk;
use zagros_rows::snapshot::{FileChain, SavedFile};
use zagros_scoring::{Manifest, row_file};
use zagros_shell::Failure;
use zagros_store::Folder;

use super::progress;
use crate::resume::failed;
use crate::saved::{self, SavedModel, snapshot_failure};

/// The files of rows, and the model's manifest.
#[derive(Debug)]
pub(super) struct InspectedModel {
    /// `None` if a single file was named.
    pub(super) manifest: Option<Manifest>,
    pub(super) files: Vec<SavedFile>,
    pub(super) folder: Folder,
    /// Of the files of rows.
    pub(super) bytes: u64,
}

impl InspectedModel {
    /// Opens a run folder, a model folder or a file of rows, on a disk or in a store.
    pub(super) fn open(named: &Path, timeout: Duration) -> Result<Self, Failure> {
        if named.is_file() {
            let folder = Folder::on_disk(named.parent().unwrap_or(Path::new("")));
            let path = named.to_owned();
            let open = move || {
                let file = disk::open_file(&path)?;
                let bytes = file.metadata()?.len();
                Ok((file, bytes))
            };
            return Ok(Self::of_files(folder, None, vec![SavedFile::new(named, open)]));
        }
        if let Some((folder, file)) = saved::folder_url(named).and_then(single_file) {
            let folder = saved::open(Path::new(folder), timeout)?;
            let file = row_file(&folder, file);
            return Ok(Self::of_files(folder, None, vec![file]));
        }
        Self::of_folder(SavedModel::find(named, timeout)?.folder)
    }

    fn of_folder(folder: Folder) -> Result<Self, Failure> {
        let help = "name a .zrows file to look at it alone";
        let manifest = Manifest::read(&folder).map_err(|error| failed(error).with_advice(help))?;
        let files = manifest.row_files.iter().map(|file| row_file(&folder, file)).collect();
        Ok(Self::of_files(folder, Some(manifest), files))
    }

    fn of_files(folder: Folder, manifest: Option<Manifest>, files: Vec<SavedFile>) -> Self {
        // A missing file is reported when it is read.
        let bytes = files.iter().map(|file| file.open_input().map_or(0, |(_, bytes)| bytes)).sum();
        Self { manifest, files, folder, bytes }
    }

    /// Compares every file with the manifest. Reads all of them.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let Some(manifest) = &self.manifest else { return Ok(()) };
        let bar = progress(self);
        let mut files = manifest.files.iter();
        let checked = files.try_for_each(|file| manifest.check_file(&self.folder, &file.name, &|bytes| bar.inc(bytes)));
        bar.finish_and_clear();
        checked.map_err(failed)
    }

    /// The files of rows, each with the deltas that follow it.
    pub(super) fn file_chains(&self) -> Result<Vec<FileChain>, Failure> {
        let chains = match &self.manifest {
            Some(manifest) => manifest.row_chains(&self.folder),
            None => FileChain::group_files(&self.files, |_| None),
        };
        chains.map_err(snapshot_failure)
    }
}

/// Folder and name, if one file of rows is named.
fn single_file(url: &str) -> Option<(&str, &str)> {
    url.rsplit_once('/').filter(|(_, file)| file.ends_with(".zrows"))
}
