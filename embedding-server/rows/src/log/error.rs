//! What goes wrong with a log.

use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        path: PathBuf,
        /// `read`, `write`, …
        doing: &'static str,
        source: io::Error,
    },
    #[error(
        "the log in {} is in use by another process, of id {holder}; stop that process, or give each run a `cluster.log_folder` of \
         its own",
        folder.display()
    )]
    InUse { folder: PathBuf, holder: String },
    #[error(
        "the log is incomplete: {} is missing: {why}; the rows in it cannot be recovered: restore the file from a copy, or delete \
         the folder of this log and resume the run from its newest checkpoint",
        path.display()
    )]
    Missing {
        path: PathBuf,
        /// What shows that it had been there.
        why: String,
    },
    #[error(
        "the log in {} has version {found}, and this release reads version {expected}; finish its run with the release that \
         began it, or move the folder away and resume the run from its newest checkpoint",
        folder.display()
    )]
    OtherVersion { folder: PathBuf, found: u64, expected: u16 },
    /// Something that was durable cannot be read.
    #[error(
        "the log is damaged: {} at byte {offset}: {problem}; acknowledged pushes behind it cannot be recovered: restore the file \
         from a copy, or delete the folder of this log and resume the run from its newest checkpoint",
        path.display()
    )]
    Damaged { path: PathBuf, offset: u64, problem: String },
}

impl LogError {
    /// What the system refuses to do with a file or folder.
    pub fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, doing, source }
    }

    pub(crate) fn missing(path: PathBuf, why: impl Into<String>) -> Self {
        Self::Missing { path, why: why.into() }
    }

    pub(crate) fn damaged(path: &Path, offset: u64, problem: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), offset, problem: problem.into() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogStopped {
    /// The disk takes nothing at the moment.
    #[error("the log cannot be written: {reason}; it is tried again every second, and pushes are refused until then")]
    Disk { reason: String },
    /// Its files are not this process' any more.
    #[error("this process has ended its log: the run is over, or another process goes on with it")]
    Ended,
}
