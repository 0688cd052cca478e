//! The files of rows of a save that is rewritten, each with the deltas that follow it.

use zagros_dense_worker::{FileRecord, Manifest};
use zagros_rows::snapshot::{ChainLink, SavedFile, SnapshotError, group_links};
use zagros_shell::Failure;
use zagros_store::Folder;

use crate::saved::{saved_file, snapshot_failure};

#[derive(Clone, Debug)]
pub(crate) struct RowFile {
    /// What the manifest says of it. A name `../FOLDER/NAME` is of a folder beside that of the manifest.
    pub(crate) record: FileRecord,
    pub(crate) folder: Folder,
    /// In its own folder.
    pub(crate) name: String,
    pub(crate) saved: SavedFile,
}

impl RowFile {
    fn open(record: &FileRecord, folder: &Folder) -> Option<Self> {
        let (folder, name) = folder.locate_file(&record.name)?;
        let saved = saved_file(&folder, name);
        Some(Self { record: record.clone(), folder, name: name.to_owned(), saved })
    }

    fn link(&self) -> Result<ChainLink, SnapshotError> {
        let follows = self.saved.open()?.header().follows.clone();
        Ok(ChainLink { path: self.saved.path().to_owned(), sha256: Some(self.record.sha256.clone()), follows })
    }
}

/// The files of each chain, that of all rows first.
pub(crate) fn row_chains(folder: &Folder, manifest: &Manifest) -> Result<Vec<Vec<RowFile>>, Failure> {
    // The manifest was checked: each name has a record, and leads to this folder or to one beside it.
    let record = |name: &String| manifest.files.iter().find(|record| record.name == *name);
    let records = manifest.row_files.iter().filter_map(record);
    let files: Vec<RowFile> = records.filter_map(|record| RowFile::open(record, folder)).collect();
    let links = files.iter().map(RowFile::link).collect::<Result<Vec<_>, _>>().map_err(snapshot_failure)?;
    let chains = group_links(&links).map_err(snapshot_failure)?;
    Ok(chains.iter().map(|chain| chain.iter().map(|file| files[*file].clone()).collect()).collect())
}
