//! An object that is read in pieces, like a file.

use std::collections::VecDeque;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

use bytes::Bytes;
use object_store::ObjectStoreExt;
use object_store::path::Path as Key;

use crate::StoreError;
use crate::bucket::{ObjectBucket, PendingRequest};

/// Bytes per request after the expected end: the rest of a line.
const BEYOND: u64 = 64 << 10;

/// How an object is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PiecePlan {
    /// Bytes per request.
    pub(crate) bytes: u64,
    /// Most requests that are ahead of the piece that is read.
    pub(crate) ahead: usize,
}

impl PiecePlan {
    /// For an object that is read from its start to its end.
    pub(crate) const LARGE: Self = Self { bytes: 8 << 20, ahead: 1 };
    /// For parts of an object that are read as fast as possible.
    pub(crate) const MANY: Self = Self { bytes: 1 << 20, ahead: 6 };
}

/// An object, and a position in it. It keeps the current piece and those ahead of it in memory.
pub struct ObjectInput {
    bucket: Arc<ObjectBucket>,
    key: Key,
    bytes: u64,
    position: u64,
    /// The start of the current piece, and the piece.
    piece: (u64, Bytes),
    /// The starts of the pieces that are being fetched ahead, in their order.
    ahead: VecDeque<(u64, PendingRequest<Bytes>)>,
    pieces: PiecePlan,
    /// Where reading is expected to end. Nothing after it is fetched ahead.
    end: u64,
}

impl ObjectInput {
    /// Requests the size of the object.
    pub(crate) fn open(bucket: Arc<ObjectBucket>, key: Key) -> Result<Self, StoreError> {
        let head = bucket.run_request("read", &key, |store, key| async move { store.head(&key).await })?;
        Ok(Self::new(bucket, key, head.size, PiecePlan::LARGE))
    }

    pub(crate) fn new(bucket: Arc<ObjectBucket>, key: Key, bytes: u64, pieces: PiecePlan) -> Self {
        let (piece, ahead) = ((0, Bytes::new()), VecDeque::new());
        Self { bucket, key, bytes, position: 0, piece, ahead, pieces, end: bytes }
    }

    /// Reading will probably end here: little after it is fetched.
    pub fn expect_end(&mut self, end: u64) {
        self.end = end.min(self.bytes);
    }

    pub(crate) fn size(&self) -> u64 {
        self.bytes
    }

    /// Where the piece that starts at `from` ends: after a whole piece, or where reading is expected to end.
    fn end_of_piece(&self, from: u64) -> u64 {
        let most = self.bytes.min(from + self.pieces.bytes);
        if from < self.end { most.min(self.end) } else { most.min(from + BEYOND) }
    }

    fn ask(&self, from: u64) -> PendingRequest<Bytes> {
        let range = from..self.end_of_piece(from);
        self.bucket.begin_request("read", &self.key, |store, key| async move { store.get_range(&key, range).await })
    }

    /// Fetches the piece at the position. While reading is sequential, it also requests the pieces after it.
    fn fetch(&mut self) -> Result<(), StoreError> {
        let in_order = self.position == self.piece.0 + self.piece.1.len() as u64;
        let is_next = self.ahead.front().is_some_and(|(from, _)| *from == self.position);
        if !is_next {
            self.ahead.clear();
        }
        let pending = self.ahead.pop_front().map_or_else(|| self.ask(self.position), |(_, pending)| pending);
        if in_order {
            self.ask_ahead();
        }
        self.piece = (self.position, self.bucket.await_answer(pending)?);
        Ok(())
    }

    /// Requests the pieces after the one that starts at the position.
    fn ask_ahead(&mut self) {
        let mut next = self.ahead.back().map_or(self.position, |(from, _)| *from);
        while self.ahead.len() < self.pieces.ahead {
            next = self.end_of_piece(next);
            if next >= self.end {
                return;
            }
            let pending = self.ask(next);
            self.ahead.push_back((next, pending));
        }
    }

    /// The bytes of the current piece after the position.
    fn at_hand(&self) -> &[u8] {
        let (from, piece) = &self.piece;
        let offset = self.position.checked_sub(*from).and_then(|offset| usize::try_from(offset).ok());
        offset.and_then(|offset| piece.get(offset..)).unwrap_or_default()
    }
}

impl Read for ObjectInput {
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

impl Seek for ObjectInput {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(distance) => self.position.checked_add_signed(distance),
            SeekFrom::End(distance) => self.bytes.checked_add_signed(distance),
        };
        let bad_position = || io::Error::new(io::ErrorKind::InvalidInput, "a position before the start of an object");
        self.position = position.ok_or_else(bad_position)?;
        Ok(self.position)
    }
}
