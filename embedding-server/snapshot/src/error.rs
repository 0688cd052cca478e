//! Errors of reading a file: which file, which block, at which byte, what was expected and what was found.

use std::io;
use std::path::PathBuf;

/// Why a file could not be read. Offsets count bytes from the start of the file.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The operating system cannot read the file.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file has another format.
    #[error(
        "{} is not a file of rows: it starts with {found:02x?}; files of rows end in .zrows and are in a model folder",
        path.display()
    )]
    Magic {
        path: PathBuf,
        /// Its first bytes.
        found: Vec<u8>,
    },
    /// Another release wrote the file.
    #[error(
        "{} has format version {found}, this release reads versions 2 to {newest}; it was written by release \
         {release}: use that release or a later one",
        path.display()
    )]
    Version {
        path: PathBuf,
        /// Format version of the file.
        found: u32,
        /// The newest version that this release reads.
        newest: u32,
        /// The release that wrote the file, as the file says.
        release: String,
    },
    /// The header is whole, but does not have the expected fields.
    #[error("the header of {} cannot be read: {source}", path.display())]
    Header {
        path: PathBuf,
        /// The position in the JSON.
        source: serde_json::Error,
    },
    /// The file ends too early.
    #[error(
        "{} is cut off: {place} at byte {offset} needs {needed} bytes, but only {left} are left; use another save",
        path.display()
    )]
    Truncated {
        path: PathBuf,
        /// The part of the file.
        place: String,
        /// The start of this part.
        offset: u64,
        /// Bytes that this part needs.
        needed: u64,
        /// Bytes left in the file.
        left: u64,
    },
    /// Bytes have changed since the file was written.
    #[error(
        "{} is damaged: {place} at byte {offset} should have CRC-32 {expected:08x}, but has {found:08x}; use another save",
        path.display()
    )]
    Corrupt {
        path: PathBuf,
        /// The part of the file.
        place: String,
        /// The start of this part.
        offset: u64,
        /// The CRC in the file.
        expected: u32,
        /// The CRC of the bytes in the file.
        found: u32,
    },
    /// The checksums are right, but numbers contradict each other.
    #[error("{} does not fit together: {problem}", path.display())]
    Inconsistent {
        path: PathBuf,
        /// The contradiction and its place.
        problem: String,
    },
    /// The file has no table of this name.
    #[error("{} has no table `{name}`; its tables are {}", path.display(), .known.join(", "))]
    UnknownTable {
        path: PathBuf,
        /// The requested name.
        name: String,
        /// The names in the file.
        known: Vec<String>,
    },
}
