//! Folders of files that matter: on a disk, or below a prefix of a bucket in an S3-compatible object store.
//!
//! ```text
//! Folder ─┬─ a path    ─► plumbing::durable: temporary name, fsync, rename
//!         └─ s3://…    ─► Bucket ─► object_store, on a runtime of its own
//!                          ├─ Upload: what is written goes off in parts; the object appears when all are there
//!                          └─ Download: pieces that are fetched when they are read, and one ahead
//! ```
//!
//! Everything here blocks, as files do, and is called where that is allowed. Every request to a store has a deadline
//! (invariant WT-1). Credentials and endpoint come from the environment, under the names that AWS gave them, and are
//! never reported.

mod allowed;
mod bucket;
mod digest;
mod disk;
mod download;
mod error;
mod folder;
mod upload;
mod url;

pub use allowed::{AllowedFolders, FolderNotAllowed};
pub use digest::{Digest, hexadecimal};
pub use error::{Fault, StoreError, StoreProblem};
pub use folder::{Folder, Input};

#[cfg(test)]
mod tests;
