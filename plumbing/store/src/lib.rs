//! Folders of durable files: on a disk, or below a prefix of a bucket in an S3-compatible object store; and data files in any
//! object store or on a web server.
//!
//! ```text
//! Folder ─┬─ a path    ─► plumbing::durable: temporary name, fsync, rename
//!         └─ s3://…    ─► Bucket ─► object_store, on a runtime of its own
//!                          ├─ Upload: sends the content in parts; the object appears when all parts are sent
//!                          └─ ObjectInput: fetches a piece when it is read, and the next pieces ahead
//! ```
//!
//! [`Objects`] are those of a bucket, only to be read: data that other programs have written, under any names.
//!
//! All calls block, so they run on threads that may block. Every request to a store has a deadline (invariant WT-1).
//! Credentials and endpoint come from the environment variables of AWS, and are never reported.

mod allowed;
mod bucket;
mod download;
mod error;
mod folder;
mod objects;
mod stores;
mod upload;
mod url;

#[cfg(test)]
mod tests;

pub use allowed::{AllowedFolders, FolderNotAllowed};
pub use download::{ObjectInput, ObjectRange};
pub use error::{StoreError, StoreFault, StoreProblem};
pub use folder::{ContentDigest, FileInput, Folder, hex_digits};
pub use objects::{Objects, StoredObject};
pub use url::{FileName, ObjectUrl, hide_secrets};
