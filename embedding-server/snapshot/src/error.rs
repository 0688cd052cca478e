//! Why a file could not be read: which file, which block, where in it, what was expected and what was found.

use std::io;
use std::path::PathBuf;

/// Why a file could not be read. Offsets count bytes from the start of the file.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The operating system refused.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// Another kind of file.
    #[error(
        "{} is not a file of rows: it starts with {found:02x?}; files of rows end in .zrows and lie in a model folder",
        path.display()
    )]
    Magic {
        /// The file.
        path: PathBuf,
        /// Its first bytes.
        found: Vec<u8>,
    },
    /// A file of a later release.
    #[error(
        "{} has format version {found}, this release reads versions 1 to {newest}; it was written by release \
         {release}: use that one or a later one",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest version that can be read here.
        newest: u32,
        /// What the file says of its writer.
        release: String,
    },
    /// The header is whole but says something else.
    #[error("the header of {} cannot be read: {source}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// Where in the JSON.
        source: serde_json::Error,
    },
    /// The file ends too early.
    #[error(
        "{} is cut off: {place} at byte {offset} needs {needed} bytes, {left} are left; use another save",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Which part of it.
        place: String,
        /// Where that part starts.
        offset: u64,
        /// Bytes that it needs from here on.
        needed: u64,
        /// Bytes until the end of the file.
        left: u64,
    },
    /// Bytes have changed since they were written.
    #[error(
        "{} is damaged: {place} at byte {offset} should have CRC-32 {expected:08x} and has {found:08x}; use another save",
        path.display()
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Which part of it.
        place: String,
        /// Where that part starts.
        offset: u64,
        /// As written.
        expected: u32,
        /// As computed from what is there.
        found: u32,
    },
    /// Checksums agree and numbers do not.
    #[error("{} does not fit together: {problem}", path.display())]
    Inconsistent {
        /// The file.
        path: PathBuf,
        /// What does not fit, and where.
        problem: String,
    },
    /// The file has no such table.
    #[error("{} has no table `{name}`; its tables are {}", path.display(), .known.join(", "))]
    UnknownTable {
        /// The file.
        path: PathBuf,
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
}
