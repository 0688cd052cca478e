//! An object that is read in pieces, like a file.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

use bytes::Bytes;
use object_store::ObjectStoreExt;
use object_store::path::Path as Key;

use crate::StoreError;
use crate::bucket::{PendingRequest, S3Bucket};

/// Bytes per request.
const PIECE: u64 = 8 << 20;

/// An object, and a position in it. It keeps at most two pieces in memory.
pub(crate) struct ObjectDownload {
    bucket: Arc<S3Bucket>,
    key: Key,
    bytes: u64,
    position: u64,
    /// The start of the current piece, and the piece.
    piece: (u64, Bytes),
    /// The start of the piece that is being fetched ahead.
    ahead: Option<(u64, PendingRequest<Bytes>)>,
}

impl ObjectDownload {
    /// Requests the size of the object.
    ///
    /// # Errors
    /// If the object does not exist, or the store does not answer.
    pub(crate) fn open(bucket: Arc<S3Bucket>, key: Key) -> Result<Self, StoreError> {
        let (store, object) = (bucket.store.clone(), key.clone());
        let head = bucket.call("read", &key, async move { store.head(&object).await })?;
        Ok(Self { bucket, key, bytes: head.size, position: 0, piece: (0, Bytes::new()), ahead: None })
    }

    /// Size of the object in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.bytes
    }

    fn ask(&self, from: u64) -> PendingRequest<Bytes> {
        let (store, key) = (self.bucket.store.clone(), self.key.clone());
        let range = from..self.bytes.min(from + PIECE);
        self.bucket.begin("read", &self.key, async move { store.get_range(&key, range).await })
    }

    /// Fetches the piece at the position. While reading is sequential, it also requests the next piece.
    fn fetch(&mut self) -> Result<(), StoreError> {
        let in_order = self.position == self.piece.0 + self.piece.1.len() as u64;
        let asked = self.ahead.take().filter(|(from, _)| *from == self.position);
        let pending = asked.map_or_else(|| self.ask(self.position), |(_, pending)| pending);
        self.piece = (self.position, self.bucket.wait(pending)?);
        let next = self.position + PIECE;
        if in_order && next < self.bytes {
            self.ahead = Some((next, self.ask(next)));
        }
        Ok(())
    }

    /// The bytes of the current piece after the position.
    fn at_hand(&self) -> &[u8] {
        let (from, piece) = &self.piece;
        let offset = self.position.checked_sub(*from).and_then(|offset| usize::try_from(offset).ok());
        offset.and_then(|offset| piece.get(offset..)).unwrap_or_default()
    }
}

impl Read for ObjectDownload {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.position >= self.bytes || to.is_empty() {
            return Ok(0);
        }
        if self.at_hand().is_empty() {
            self.fetch().map_err(StoreError::into_io)?;
        }
        let from = self.at_hand();
        let taken = from.len().min(to.len());
        to[..taken].copy_from_slice(&from[..taken]);
        self.position += taken as u64;
        Ok(taken)
    }
}

impl Seek for ObjectDownload {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(distance) => self.position.checked_add_signed(distance),
            SeekFrom::End(distance) => self.bytes.checked_add_signed(distance),
        };
        let before = || io::Error::new(io::ErrorKind::InvalidInput, "a position before the start of an object");
        self.position = position.ok_or_else(before)?;
        Ok(self.position)
    }
}
