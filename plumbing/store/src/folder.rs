//! A folder on a disk or in an object store.
//!
//! The digest of a file: size and SHA-256.

use std::collections::BTreeSet;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, fs};

use object_store::path::Path as Key;
use object_store::{ListResult, ObjectStore, ObjectStoreExt};
use sha2::{Digest as _, Sha256};
use zagros_plumbing::{disk, durable};

use crate::bucket::{ObjectBucket, store_variables};
use crate::download::ObjectInput;
use crate::error::StoreError;
use crate::upload::{ObjectUpload, PartSizes};
use crate::url::{FileName, FolderLocation};

/// Name of the file that a check writes and deletes.
const PROBE: &str = ".may-write";

pub trait FileInput: Read + Seek + Send {}

impl<T: Read + Seek + Send> FileInput for T {}

/// A folder of files, on a disk or below a prefix of a bucket. All calls block.
#[derive(Clone, Debug)]
pub struct Folder {
    place: FolderKind,
}

#[derive(Clone, Debug)]
enum FolderKind {
    Disk(PathBuf),
    Bucket { bucket: Arc<ObjectBucket>, prefix: Key },
}

impl Folder {
    pub fn on_disk(path: impl Into<PathBuf>) -> Self {
        Self { place: FolderKind::Disk(path.into()) }
    }

    fn in_bucket(bucket: &Arc<ObjectBucket>, prefix: Key) -> Self {
        Self { place: FolderKind::Bucket { bucket: Arc::clone(bucket), prefix } }
    }

    /// Opens a path, `file:///path` or `s3://bucket/prefix`. A request to a bucket takes at most `timeout`, with
    /// retries. The call reads the environment only. [`Self::check_writable`] asks the store.
    pub fn open(text: &str, timeout: Duration) -> Result<Self, StoreError> {
        Self::open_in(&store_variables(), text, timeout)
    }

    /// As [`Self::open`], with another environment: names and values of variables that begin with `AWS_`.
    pub fn open_in(environment: &[(String, String)], text: &str, timeout: Duration) -> Result<Self, StoreError> {
        Ok(match FolderLocation::parse(text)? {
            FolderLocation::Disk(path) => Self::on_disk(path),
            FolderLocation::Bucket { bucket, prefix } => {
                let bucket = ObjectBucket::open(&format!("s3://{bucket}"), timeout, environment)?;
                Self::in_bucket(&Arc::new(bucket), Key::from(prefix))
            }
        })
    }

    /// Path of the folder. `None` for a bucket.
    pub fn path(&self) -> Option<&Path> {
        if let FolderKind::Disk(path) = &self.place { Some(path) } else { None }
    }

    pub fn join(&self, name: &str) -> Self {
        match &self.place {
            FolderKind::Disk(path) => Self::on_disk(path.join(name)),
            FolderKind::Bucket { bucket, prefix } => Self::in_bucket(bucket, prefix.clone().join(name)),
        }
    }

    /// Its own name. `None` for a whole bucket, and for the root of a disk.
    pub fn name(&self) -> Option<&str> {
        match &self.place {
            FolderKind::Disk(path) => path.file_name()?.to_str(),
            FolderKind::Bucket { prefix, .. } => prefix.filename(),
        }
    }

    pub fn parent(&self) -> Option<Self> {
        Some(match &self.place {
            FolderKind::Disk(path) => Self::on_disk(path.parent()?),
            FolderKind::Bucket { bucket, prefix } => {
                let parts: Vec<_> = prefix.parts().collect();
                Self::in_bucket(bucket, Key::from_iter(parts.split_last()?.1.iter().cloned()))
            }
        })
    }

    /// The folder of a file, and the name of the file in it. `None` if the text is not a [`FileName`], or there is no folder
    /// beside this one.
    pub fn locate_file<'a>(&self, file: &'a str) -> Option<(Self, &'a str)> {
        let FileName { beside, name } = FileName::parse(file)?;
        match beside {
            None => Some((self.clone(), name)),
            Some(beside) => Some((self.parent()?.join(beside), name)),
        }
    }

    /// Checks that files can be written and deleted. Wrong names or credentials are thus found before the work starts.
    pub fn check_writable(&self) -> Result<(), StoreError> {
        match &self.place {
            FolderKind::Disk(path) => make_folder(path).map(drop),
            FolderKind::Bucket { .. } => {
                self.write(PROBE, b"")?;
                self.delete_file(PROBE)
            }
        }
    }

    /// Makes the folder. Returns it with a name that is the same for every process.
    pub fn make(&self) -> Result<Self, StoreError> {
        match &self.place {
            FolderKind::Disk(path) => make_folder(path).map(Self::on_disk),
            FolderKind::Bucket { .. } => Ok(self.clone()),
        }
    }

    /// Names of the folders inside, in arbitrary order. None if the folder does not exist.
    pub fn folder_names(&self) -> Result<Vec<String>, StoreError> {
        match &self.place {
            FolderKind::Disk(path) => entries(path, true),
            FolderKind::Bucket { bucket, prefix } => {
                let found = list_folder(bucket, prefix)?;
                Ok(found.common_prefixes.iter().filter_map(Key::filename).map(ToOwned::to_owned).collect())
            }
        }
    }

    /// Names of the files inside, in arbitrary order. None if the folder does not exist.
    pub fn file_names(&self) -> Result<Vec<String>, StoreError> {
        match &self.place {
            FolderKind::Disk(path) => entries(path, false),
            FolderKind::Bucket { bucket, prefix } => {
                let found = list_folder(bucket, prefix)?.objects;
                Ok(found.iter().filter_map(|object| object.location.filename()).map(ToOwned::to_owned).collect())
            }
        }
    }

    pub fn has_file(&self, file: &str) -> Result<bool, StoreError> {
        match &self.place {
            FolderKind::Disk(path) => Ok(path.join(file).is_file()),
            FolderKind::Bucket { bucket, prefix } => {
                match ObjectInput::open(Arc::clone(bucket), prefix.clone().join(file)) {
                    Err(error) if error.is_missing() => Ok(false),
                    found => found.map(|_| true),
                }
            }
        }
    }

    pub fn read(&self, file: &str) -> Result<Vec<u8>, StoreError> {
        self.read_at_most(file, u64::MAX)
    }

    /// The content of a file with at most `most` bytes. Nothing is read of a larger file.
    pub fn read_at_most(&self, file: &str, most: u64) -> Result<Vec<u8>, StoreError> {
        let refused = |error| self.cause("read", file, error);
        let (input, size) = self.open_file(file).map_err(refused)?;
        if size > most {
            let reported = format!("it has {size} bytes, but may have {most} at most");
            return Err(refused(io::Error::new(io::ErrorKind::FileTooLarge, reported)));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
        input.take(most).read_to_end(&mut bytes).map_err(refused)?;
        Ok(bytes)
    }

    /// The digest of a file. Reads all of it in bounded memory. `passed` gets the number of bytes read so far.
    pub fn file_digest(&self, file: &str, passed: &dyn Fn(u64)) -> Result<ContentDigest, StoreError> {
        let digest = self.open_file(file).and_then(|(input, _)| ContentDigest::read(input, passed));
        digest.map_err(|error| self.cause("read", file, error))
    }

    /// Opens a regular file for reading in bounded memory. Returns its size as well.
    pub fn open_file(&self, file: &str) -> io::Result<(Box<dyn FileInput>, u64)> {
        match &self.place {
            FolderKind::Disk(path) => {
                let file = disk::open_file(&path.join(file))?;
                let bytes = file.metadata()?.len();
                Ok((Box::new(file), bytes))
            }
            FolderKind::Bucket { bucket, prefix } => {
                let download = ObjectInput::open(Arc::clone(bucket), prefix.clone().join(file));
                let download = download.map_err(StoreError::into_io)?;
                let bytes = download.size();
                Ok((Box::new(download), bytes))
            }
        }
    }

    /// Writes a file, whole or not at all (invariant CK-1).
    pub fn write(&self, file: &str, content: &[u8]) -> Result<(), StoreError> {
        match &self.place {
            FolderKind::Disk(path) => {
                let path = path.join(file);
                durable::write(&path, content).map_err(disk_error("write", &path))
            }
            FolderKind::Bucket { bucket, prefix } => {
                let sizes = PartSizes::for_bytes(content.len() as u64);
                let mut upload = ObjectUpload::new(Arc::clone(bucket), prefix.clone().join(file), sizes);
                upload.write_all(content).map_err(|error| self.cause("write", file, error))?;
                upload.finish()
            }
        }
    }

    /// As [`Self::write`], with content of about `expected` bytes that `fill` streams in bounded memory. An inner error also
    /// leaves the file as it was.
    pub fn write_unless<T, E>(
        &self,
        file: &str,
        expected: u64,
        fill: impl FnOnce(&mut dyn Write) -> io::Result<Result<T, E>>,
    ) -> io::Result<Result<T, E>> {
        match &self.place {
            FolderKind::Disk(path) => {
                let path = path.join(file);
                durable::write_unless(&path, |file| fill(file)).map_err(durable::add_path(&path))
            }
            FolderKind::Bucket { bucket, prefix } => {
                let sizes = PartSizes::for_bytes(expected);
                let mut upload = ObjectUpload::new(Arc::clone(bucket), prefix.clone().join(file), sizes);
                let filled = fill(&mut upload)?;
                if filled.is_ok() {
                    upload.finish().map_err(StoreError::into_io)?;
                }
                Ok(filled)
            }
        }
    }

    /// A file that does not exist is no error.
    pub fn delete_file(&self, file: &str) -> Result<(), StoreError> {
        match &self.place {
            FolderKind::Disk(path) => deleted(&path.join(file), fs::remove_file(path.join(file))),
            FolderKind::Bucket { bucket, prefix } => delete_object(bucket, &prefix.clone().join(file)),
        }
    }

    /// Deletes the folder with its content. Does nothing if it does not exist.
    pub fn delete(&self) -> Result<(), StoreError> {
        match &self.place {
            FolderKind::Disk(path) => deleted(path, fs::remove_dir_all(path)),
            FolderKind::Bucket { bucket, prefix } => {
                bucket.list_all(prefix)?.into_iter().try_for_each(|object| delete_object(bucket, &object.location))
            }
        }
    }

    pub fn delete_except(&self, kept: &BTreeSet<String>) -> Result<(), StoreError> {
        self.file_names()?.iter().filter(|name| !kept.contains(*name)).try_for_each(|name| self.delete_file(name))
    }

    /// The cause inside an I/O error that [`StoreError::into_io`] made.
    fn cause(&self, what: &'static str, file: &str, error: io::Error) -> StoreError {
        let path = || PathBuf::from(format!("{self}/{file}"));
        error.downcast().unwrap_or_else(|source| StoreError::Disk { what, path: path(), source })
    }
}

fn list_folder(bucket: &ObjectBucket, prefix: &Key) -> Result<ListResult, StoreError> {
    bucket.run_request("list", prefix, |store, key| async move { store.list_with_delimiter(Some(&key)).await })
}

fn delete_object(bucket: &ObjectBucket, key: &Key) -> Result<(), StoreError> {
    match bucket.run_request("delete", key, |store, key| async move { store.delete(&key).await }) {
        Err(error) if error.is_missing() => Ok(()),
        deleted => deleted,
    }
}

impl fmt::Display for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            FolderKind::Disk(path) => path.display().fmt(f),
            FolderKind::Bucket { bucket, prefix } => f.write_str(&bucket.object_place(prefix)),
        }
    }
}

fn disk_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    move |source| StoreError::Disk { what, path: path.to_owned(), source }
}

fn make_folder(path: &Path) -> Result<PathBuf, StoreError> {
    fs::create_dir_all(path).map_err(disk_error("create", path))?;
    fs::canonicalize(path).map_err(disk_error("open", path))
}

/// Names of the folders inside of a folder, or of its files. Empty if the folder does not exist.
fn entries(path: &Path, folders: bool) -> Result<Vec<String>, StoreError> {
    let entries = match fs::read_dir(path) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        entries => entries.map_err(disk_error("read", path))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(disk_error("read", path))?;
        if entry.path().is_dir() == folders {
            names.extend(entry.file_name().into_string());
        }
    }
    Ok(names)
}

fn deleted(path: &Path, done: io::Result<()>) -> Result<(), StoreError> {
    match done {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(disk_error("delete", path)(error)),
        _ => Ok(()),
    }
}

const PIECE: usize = 1 << 20;

/// Size and SHA-256 of a content. Two contents with one digest are taken as equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentDigest {
    pub bytes: u64,
    pub sha256: [u8; 32],
}

impl ContentDigest {
    pub fn compute(content: &[u8]) -> Self {
        Self { bytes: content.len() as u64, sha256: Sha256::digest(content).into() }
    }

    /// The digest of everything left to read. Now and then `passed` gets the number of bytes read so far.
    pub fn read(mut from: impl Read, passed: &dyn Fn(u64)) -> io::Result<Self> {
        let (mut sha256, mut bytes, mut piece) = (Sha256::new(), 0, vec![0; PIECE]);
        loop {
            let read = match from.read(&mut piece) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            if read == 0 {
                return Ok(Self { bytes, sha256: sha256.finalize().into() });
            }
            sha256.update(&piece[..read]);
            bytes += read as u64;
            passed(read as u64);
        }
    }
}

/// Hexadecimal digits, as `sha256sum` prints them.
pub fn hex_digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_equals_the_one_of_sha256sum_however_it_is_read() {
        // `printf abc | sha256sum`
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex_digits(&ContentDigest::compute(b"abc").sha256), expected);
        let long = vec![7; 3 * PIECE + 5];
        let passed = std::cell::Cell::new(0);
        let read = ContentDigest::read(&long[..], &|bytes| passed.set(passed.get() + bytes)).unwrap();
        assert_eq!((read, passed.get()), (ContentDigest::compute(&long), long.len() as u64));
    }
}
