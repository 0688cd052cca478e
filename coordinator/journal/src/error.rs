//! Why a journal cannot be used.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The folder cannot be opened, or read, or written.
    #[error(
        "the coordinator's journal in {} cannot be {doing}: {source}; is the disk full, or does another coordinator hold the \
         folder?", folder.display()
    )]
    Store {
        folder: PathBuf,
        /// `opened`, `read`, `written`.
        doing: &'static str,
        source: rocksdb::Error,
    },
    /// The folder cannot be made or deleted, or the file of its end not be opened or written.
    #[error("the coordinator's journal in {} cannot be {doing}: {source}", folder.display())]
    Folder {
        folder: PathBuf,
        /// `made`, `deleted`, `opened`, `written`.
        doing: &'static str,
        source: std::io::Error,
    },
    /// It was written by another release, or in another format.
    #[error(
        "the coordinator's journal in {} was written by release {found}, and this is {expected}: a coordinator comes back as \
         the same release; delete the folder and start the run again", folder.display()
    )]
    Release {
        folder: PathBuf,
        /// The release and format of the journal.
        found: String,
        /// The release and format of this program.
        expected: String,
    },
    /// An entry is none.
    #[error("the coordinator's journal in {} is damaged at {what}; delete the folder and start the run again", folder.display())]
    Damaged {
        folder: PathBuf,
        /// Which entry, and why.
        what: String,
    },
}
