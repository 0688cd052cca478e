//! Data files where they are: on a disk, in an object store, or standard input.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::OFlags;
use zagros_job::STDIN;
use zagros_store::{ObjectInput, ObjectUrl, Objects, StoreError, StoredObject};
use zagros_zip::ZipEq;

use crate::IngestError;

/// Longest time of a request to a store, with its retries (invariant WT-1).
const TIMEOUT: Duration = Duration::from_secs(60);

/// Unused bytes between two parts of an object that are fetched rather than asked for twice.
const GAP: u64 = 64 << 10;
/// Bytes of parts that are fetched together.
const MOST_MERGED: u64 = 4 << 20;

/// One connection for each bucket, which the threads of all streams share.
static BUCKETS: LazyLock<Mutex<HashMap<String, Objects>>> = LazyLock::new(Mutex::default);

pub(crate) enum InputFile {
    Disk(File),
    Object(Box<ObjectInput>),
    Stdin(StandardInput),
}

/// A data file that is read at any offset.
#[derive(Clone, Debug)]
pub(crate) enum RandomAccess {
    Disk(Arc<File>),
    Object(Objects, StoredObject),
}

impl RandomAccess {
    /// Opens a file. Returns its size as well.
    pub(crate) fn open(path: &Path) -> Result<(Self, u64), IngestError> {
        if let Some(url) = object_url(path) {
            let object = find_object(path, &url)?;
            let bytes = object.bytes;
            return Ok((Self::Object(open_bucket(&url.root)?, object), bytes));
        }
        if is_stdin(path) {
            let reason = "columns are read from several places at once, and standard input has one; give a file";
            return Err(IngestError::bad_file(path, reason));
        }
        let (file, bytes) = open_file(path)?;
        Ok((Self::Disk(Arc::new(file)), bytes))
    }

    /// So many bytes at an offset.
    pub(crate) fn read(&self, path: &Path, at: u64, length: usize) -> Result<Bytes, IngestError> {
        match self {
            Self::Disk(file) => {
                let mut part = vec![0; length];
                file.read_exact_at(&mut part, at).map_err(|source| unreadable(path, source))?;
                Ok(part.into())
            }
            Self::Object(objects, object) => Ok(objects.read_part(object, at..at + length as u64)?),
        }
    }

    /// Several small parts, in their order. Those of a store that are near each other come by one request, and others at once.
    pub(crate) fn read_all(&self, path: &Path, parts: &[Range<u64>]) -> Result<Vec<Bytes>, IngestError> {
        let Self::Object(objects, object) = self else {
            return parts.iter().map(|part| self.read(path, part.start, (part.end - part.start) as usize)).collect();
        };
        let (merged, places) = merge_parts(parts);
        let fetched = objects.read_all(object, merged.clone())?;
        let part = |(part, place): (&Range<u64>, &usize)| {
            let from = (part.start - merged[*place].start) as usize;
            let part = from..from + (part.end - part.start) as usize;
            // A store may answer with less.
            let is_there = part.end <= fetched[*place].len();
            let ends_early = || unreadable(path, io::ErrorKind::UnexpectedEof.into());
            is_there.then(|| fetched[*place].slice(part)).ok_or_else(ends_early)
        };
        parts.iter().zip_eq(&places).map(part).collect()
    }

    /// The bytes at an offset, as many as `out` has. Those of a store come in pieces, the next one ahead.
    pub(crate) fn read_into(&self, path: &Path, at: u64, out: &mut [u8]) -> Result<(), IngestError> {
        let (objects, object) = match self {
            Self::Disk(file) => return file.read_exact_at(out, at).map_err(|source| unreadable(path, source)),
            Self::Object(objects, object) => (objects, object),
        };
        let range = objects.open_range(object, at..at + out.len() as u64)?;
        let mut done = 0;
        while done < out.len() {
            let bytes = range.bytes_at(at + done as u64).map_err(|text| match range.take_failure() {
                Some(source) => IngestError::Store { source },
                None => unreadable(path, io::Error::other(text)),
            })?;
            if bytes.is_empty() {
                return Err(unreadable(path, io::ErrorKind::UnexpectedEof.into()));
            }
            let taken = bytes.len().min(out.len() - done);
            out[done..done + taken].copy_from_slice(&bytes[..taken]);
            done += taken;
        }
        Ok(())
    }
}

/// Parts that are near each other as one, and in which of these each part is.
pub(crate) fn merge_parts(parts: &[Range<u64>]) -> (Vec<Range<u64>>, Vec<usize>) {
    let mut whole: Vec<Range<u64>> = Vec::new();
    let mut places = Vec::with_capacity(parts.len());
    for part in parts {
        match whole.last_mut() {
            Some(last)
                if part.start >= last.start
                    && part.start <= last.end.saturating_add(GAP)
                    && part.end - last.start <= MOST_MERGED =>
            {
                last.end = last.end.max(part.end);
            }
            _ => whole.push(part.clone()),
        }
        places.push(whole.len() - 1);
    }
    (whole, places)
}

/// The store and the key of a path that names an object or a prefix of a store.
pub(crate) fn object_url(path: &Path) -> Option<ObjectUrl> {
    path.to_str().and_then(ObjectUrl::parse)
}

pub(crate) fn open_bucket(root: &str) -> Result<Objects, IngestError> {
    let mut buckets = BUCKETS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = buckets.get(root) {
        return Ok(known.clone());
    }
    let opened = Objects::open(root, TIMEOUT)?;
    buckets.insert(root.to_owned(), opened.clone());
    Ok(opened)
}

pub(crate) fn find_object(path: &Path, url: &ObjectUrl) -> Result<StoredObject, IngestError> {
    let missing = || unreadable(path, io::Error::new(io::ErrorKind::NotFound, "there is no such object"));
    open_bucket(&url.root)?.find(&url.key)?.ok_or_else(missing)
}

impl InputFile {
    /// Opens a file. Returns its size as well.
    pub(crate) fn open(path: &Path) -> Result<(Self, u64), IngestError> {
        if let Some(url) = object_url(path) {
            let object = find_object(path, &url)?;
            return Ok((Self::Object(Box::new(open_bucket(&url.root)?.open_input(&object)?)), object.bytes));
        }
        if is_stdin(path) {
            return Ok((Self::Stdin(StandardInput::default()), UNKNOWN_BYTES));
        }
        let (file, bytes) = open_file(path)?;
        Ok((Self::Disk(file), bytes))
    }

    /// Reading will probably end here.
    pub(crate) fn expect_end(&mut self, end: u64) {
        if let Self::Object(object) = self {
            object.expect_end(end);
        }
    }
}

impl Read for InputFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Disk(file) => file.read(buffer),
            Self::Object(object) => object.read(buffer),
            Self::Stdin(input) => input.read(buffer),
        }
    }
}

impl Seek for InputFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self {
            Self::Disk(file) => file.seek(to),
            Self::Object(object) => object.seek(to),
            Self::Stdin(input) => input.seek(to),
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

/// A file of a disk, and its size. Something may have replaced the file since it was checked. Opening a pipe would
/// wait for its other end, for ever (invariant WT-1).
pub(crate) fn open_file(path: &Path) -> Result<(File, u64), IngestError> {
    let nonblock = OFlags::NONBLOCK.bits().cast_signed();
    let opened = File::options().read(true).custom_flags(nonblock).open(path);
    let described = opened.and_then(|file| Ok((file.metadata()?, file)));
    let (metadata, file) = described.map_err(|source| unreadable(path, source))?;
    if !metadata.is_file() {
        let reason = "it is neither a file nor a folder; name files, folders or patterns in data.train, data.validation and data.test";
        return Err(IngestError::bad_file(path, reason));
    }
    Ok((file, metadata.len()))
}

/// From now on, this store has the objects below `root`.
#[cfg(test)]
pub(crate) fn use_store(root: &str, store: &zagros_fakes::s3::FakeS3) {
    let objects = Objects::open_in(&store.environment_variables(), root, Duration::from_secs(5)).unwrap();
    BUCKETS.lock().unwrap_or_else(PoisonError::into_inner).insert(root.to_owned(), objects);
}

/// Bytes that can be read again: more than is looked at before the rows.
const KEPT: usize = 4 << 20;

/// The size that an input of unknown size is given, larger than any file.
pub(crate) const UNKNOWN_BYTES: u64 = 1 << 50;

static INPUT: LazyLock<Mutex<OneInput<io::Stdin>>> = LazyLock::new(|| Mutex::new(OneInput::new(io::stdin())));

pub(crate) fn is_stdin(path: &Path) -> bool {
    path == Path::new(STDIN)
}

#[derive(Debug, Default)]
pub(crate) struct StandardInput {
    at: u64,
}

/// An input that can be read once, and its first bytes. Before the rows are read, a file is opened several times: for its compression,
/// its header and its first rows. So the first bytes are kept until a reader goes on behind them. From then on only this reader can read.
#[derive(Debug)]
struct OneInput<R> {
    input: R,
    kept: Vec<u8>,
    at: u64,
    is_over: bool,
}

impl<R: Read> OneInput<R> {
    fn new(input: R) -> Self {
        Self { input, kept: Vec::new(), at: 0, is_over: false }
    }

    fn read_at(&mut self, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if at < self.kept.len() as u64 {
            let kept = &self.kept[at as usize..];
            let taken = kept.len().min(buffer.len());
            buffer[..taken].copy_from_slice(&kept[..taken]);
            return Ok(taken);
        }
        if at != self.at {
            let reason = "standard input was read already and can be read only once; give the rows as a file";
            return Err(io::Error::other(reason));
        }
        if self.is_over {
            return Ok(0);
        }
        let read = self.input.read(buffer)?;
        self.is_over = read == 0 && !buffer.is_empty();
        if self.at < KEPT as u64 {
            self.kept.extend_from_slice(&buffer[..read]);
        } else {
            self.kept = Vec::new();
        }
        self.at += read as u64;
        Ok(read)
    }
}

impl Read for StandardInput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = INPUT.lock().unwrap_or_else(PoisonError::into_inner).read_at(self.at, buffer)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for StandardInput {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match to {
            SeekFrom::Start(at) => self.at = at,
            SeekFrom::Current(0) => {}
            SeekFrom::Current(_) | SeekFrom::End(_) => return Err(io::ErrorKind::NotSeekable.into()),
        }
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_parts_are_fetched_together() {
        let far = 10 << 20;
        let parts = [0..10, 10..20, GAP + 20..GAP + 30, far..far + 5, far + MOST_MERGED..far + MOST_MERGED + 1, 3..4];
        let (whole, places) = merge_parts(&parts);
        assert_eq!(places, [0, 0, 0, 1, 2, 3]);
        assert_eq!(whole[0], 0..GAP + 30);
        assert_eq!(whole[3], 3..4);
        assert_eq!(merge_parts(&[]), (Vec::new(), Vec::new()));
    }

    fn read_from<R: Read>(input: &mut OneInput<R>, mut at: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let (mut all, mut buffer) = (Vec::new(), vec![0; 10_000]);
        while all.len() < bytes {
            let wanted = buffer.len().min(bytes - all.len());
            let read = input.read_at(at, &mut buffer[..wanted])?;
            if read == 0 {
                break;
            }
            all.extend_from_slice(&buffer[..read]);
            at += read as u64;
        }
        Ok(all)
    }

    #[test]
    fn the_start_can_be_read_again_and_the_rest_cannot() {
        let text: Vec<u8> = (0..3 * KEPT as u32).map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        let mut input = OneInput::new(&text[..]);
        assert!(read_from(&mut input, 0, 70_000).unwrap() == text[..70_000]);
        assert!(read_from(&mut input, 10, 100_000).unwrap() == text[10..100_010]);
        assert!(read_from(&mut input, 0, usize::MAX).unwrap() == text);
        assert_eq!(input.read_at(text.len() as u64, &mut [0]).unwrap(), 0);
        let error = input.read_at(0, &mut [0]).unwrap_err().to_string();
        assert!(error.contains("can be read only once"), "{error}");
        let mut small = OneInput::new(&b"a,b\n"[..]);
        for _ in 0..2 {
            assert_eq!(read_from(&mut small, 0, usize::MAX).unwrap(), b"a,b\n");
        }
    }
}
