//! Folders of durable files: on a disk, or below a prefix of a bucket in an S3-compatible object store.
//!
//! ```text
//! Folder ─┬─ a path    ─► plumbing::durable: temporary name, fsync, rename
//!         └─ s3://…    ─► Bucket ─► object_store, on a runtime of its own
//!                          ├─ Upload: sends the content in parts; the object appears when all parts are sent
//!                          └─ Download: fetches a piece when it is read, and the next piece ahead
//! ```
//!
//! All calls block, so they run on threads that may block. Every request to a store has a deadline (invariant WT-1).
//! Credentials and endpoint come from the environment variables of AWS, and are never reported.

mod allowed;
mod bucket;
mod digest;
mod disk;
mod download;
mod error;
mod file_name;
mod folder;
mod part_sizes;
mod upload;
mod url;

pub use allowed::{AllowedFolders, FolderNotAllowed};
pub use digest::{ContentDigest, hexadecimal};
pub use error::{StoreError, StoreFault, StoreProblem};
pub use file_name::FileName;
pub use folder::{FileInput, Folder};

#[cfg(test)]
mod tests;
