//! The files of rows of a save that is rewritten, each with the deltas that follow it.

use zagros_rows::snapshot::SavedFile;
use zagros_scoring::{FileRecord, Manifest};
use zagros_shell::Failure;
use zagros_store::Folder;

use crate::saved::snapshot_failure;

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
    fn find(folder: &Folder, manifest: &Manifest, saved: &SavedFile) -> Option<Self> {
        let record = manifest.row_record(&saved.path().file_name()?.to_string_lossy())?.clone();
        let (folder, name) = folder.locate_file(&record.name).map(|(folder, name)| (folder, name.to_owned()))?;
        Some(Self { record, folder, name, saved: saved.clone() })
    }
}

/// The files of each chain, that of all rows first.
pub(crate) fn row_chains(folder: &Folder, manifest: &Manifest) -> Result<Vec<Vec<RowFile>>, Failure> {
    let chains = manifest.row_chains(folder).map_err(snapshot_failure)?;
    // The manifest was checked: each name has a record, and leads to this folder or to one beside it.
    let find = |saved| RowFile::find(folder, manifest, saved);
    Ok(chains.iter().map(|chain| chain.files().iter().filter_map(find).collect()).collect())
}
