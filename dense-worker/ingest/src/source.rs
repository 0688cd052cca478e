//! Data files where they are: on a disk, or in an object store.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::OFlags;
use zagros_store::{ObjectInput, Objects, StoreError, StoredObject, bucket_and_key};

use crate::IngestError;

/// Longest time of a request to a store, with its retries (invariant WT-1).
const TIMEOUT: Duration = Duration::from_secs(60);

/// One connection for each bucket, which the threads of all streams share.
static BUCKETS: LazyLock<Mutex<HashMap<String, Objects>>> = LazyLock::new(Mutex::default);

/// An open data file.
pub(crate) enum Source {
    Disk(File),
    Object(Box<ObjectInput>),
}

/// The bucket and the key of a path that names an object or a prefix of a store.
pub(crate) fn object_of(path: &Path) -> Option<(&str, &str)> {
    path.to_str().and_then(bucket_and_key)
}

/// The objects of a bucket.
pub(crate) fn bucket(name: &str) -> Result<Objects, IngestError> {
    let mut buckets = BUCKETS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = buckets.get(name) {
        return Ok(known.clone());
    }
    let opened = Objects::open(name, TIMEOUT)?;
    buckets.insert(name.to_owned(), opened.clone());
    Ok(opened)
}

/// What the store says of an object.
pub(crate) fn stored(path: &Path, bucket_name: &str, key: &str) -> Result<StoredObject, IngestError> {
    let missing = || {
        let source = io::Error::new(io::ErrorKind::NotFound, "there is no such object");
        IngestError::Unreadable { path: path.into(), source }
    };
    bucket(bucket_name)?.find(key)?.ok_or_else(missing)
}

impl Source {
    /// Opens a file. Returns its size as well.
    ///
    /// # Errors
    /// If it does not exist, is not a file, or cannot be read.
    pub(crate) fn open(path: &Path) -> Result<(Self, u64), IngestError> {
        if let Some((name, key)) = object_of(path) {
            let object = stored(path, name, key)?;
            return Ok((Self::Object(Box::new(bucket(name)?.input(&object)?)), object.bytes));
        }
        let unreadable = |source| IngestError::Unreadable { path: path.into(), source };
        let file = open_file(path).map_err(unreadable)?;
        let file = file.ok_or_else(|| IngestError::NotAFile { path: path.into() })?;
        let bytes = file.metadata().map_err(unreadable)?.len();
        Ok((Self::Disk(file), bytes))
    }

    /// Reading will probably end here.
    pub(crate) fn expect_end(&mut self, end: u64) {
        if let Self::Object(object) = self {
            object.expect_end(end);
        }
    }
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Disk(file) => file.read(buffer),
            Self::Object(object) => object.read(buffer),
        }
    }
}

impl Seek for Source {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self {
            Self::Disk(file) => file.seek(to),
            Self::Object(object) => object.seek(to),
        }
    }
}

/// A failed read of a file. The store's own errors name the object.
pub(crate) fn unreadable(path: &Path, source: io::Error) -> IngestError {
    match source.downcast::<StoreError>() {
        Ok(source) => IngestError::Store { source },
        Err(source) => IngestError::Unreadable { path: path.into(), source },
    }
}

/// `None` for a path that is not a file. Something may have replaced the file since it was checked. Opening a pipe would
/// wait for its other end, for ever (invariant WT-1).
pub(crate) fn open_file(path: &Path) -> io::Result<Option<File>> {
    let nonblock = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(nonblock).open(path)?;
    Ok(file.metadata()?.is_file().then_some(file))
}
