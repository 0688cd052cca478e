//! An object that is read in pieces, like a file.
//!
//! A part of an object that several threads read at the same time.
//!
//! Readers of one column of a Parquet file go over it at about the same place. So a piece is fetched once for all of them,
//! the piece after it is fetched ahead, and older pieces are dropped.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use object_store::ObjectStoreExt;
use object_store::path::Path as Key;

use crate::StoreError;
use crate::bucket::{ObjectBucket, PendingRequest};

/// Bytes per request after the expected end: the rest of a line.
const BEYOND: u64 = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PiecePlan {
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

const PIECE: u64 = 1 << 20;
/// Pieces in memory: the one that is read, one ahead, and one for readers that are behind.
const HELD: usize = 3;

/// A part of an object. All calls may block.
pub struct ObjectRange {
    bucket: Arc<ObjectBucket>,
    key: Key,
    range: Range<u64>,
    /// The newest pieces by their numbers.
    held: Mutex<VecDeque<(u64, Arc<ObjectPiece>)>>,
    /// The first failure that was not taken.
    failure: Mutex<Option<StoreError>>,
}

struct ObjectPiece(Mutex<PieceState>);

enum PieceState {
    Pending(PendingRequest<Bytes>),
    Fetched(Bytes),
    Failed,
}

impl ObjectRange {
    pub(crate) fn new(bucket: Arc<ObjectBucket>, key: Key, range: Range<u64>) -> Self {
        Self { bucket, key, range, held: Mutex::default(), failure: Mutex::default() }
    }

    pub fn byte_range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Requests the first bytes, and does not wait for them.
    pub fn begin_fetch(&self) {
        if !self.range.is_empty() {
            drop(self.piece(&mut lock(&self.held), 0));
        }
    }

    /// The bytes at offset `at` of the object: one or more, none at the end of the part.
    ///
    /// # Errors
    /// The error of the store. It is kept for [`Self::take_failure`], because decoders replace it by theirs: the text of the
    /// error that is returned says the same.
    pub fn bytes_at(&self, at: u64) -> Result<Bytes, String> {
        if !self.range.contains(&at) {
            return Ok(Bytes::new());
        }
        let number = (at - self.range.start) / PIECE;
        let piece = {
            let mut held = lock(&self.held);
            let piece = self.piece(&mut held, number);
            if self.start_of(number + 1) < self.range.end {
                drop(self.piece(&mut held, number + 1));
            }
            piece
        };
        let bytes = self.fetched(number, &piece).map_err(|error| {
            let text = error.to_string();
            lock(&self.failure).get_or_insert(error);
            text
        })?;
        Ok(bytes.slice((at - self.start_of(number)) as usize..))
    }

    pub fn take_failure(&self) -> Option<StoreError> {
        lock(&self.failure).take()
    }

    fn start_of(&self, number: u64) -> u64 {
        self.range.start + number * PIECE
    }

    /// The piece, which is requested unless it is held.
    fn piece(&self, held: &mut VecDeque<(u64, Arc<ObjectPiece>)>, number: u64) -> Arc<ObjectPiece> {
        if let Some((_, piece)) = held.iter().find(|(held, _)| *held == number) {
            return Arc::clone(piece);
        }
        let piece = Arc::new(ObjectPiece(Mutex::new(PieceState::Pending(self.ask(number)))));
        held.push_back((number, Arc::clone(&piece)));
        if held.len() > HELD {
            held.pop_front();
        }
        piece
    }

    fn ask(&self, number: u64) -> PendingRequest<Bytes> {
        let start = self.start_of(number);
        let range = start..self.range.end.min(start + PIECE);
        self.bucket.begin_request("read", &self.key, |store, key| async move { store.get_range(&key, range).await })
    }

    /// Waits for a piece. One that failed is requested again by the next reader.
    fn fetched(&self, number: u64, piece: &ObjectPiece) -> Result<Bytes, StoreError> {
        let mut state = lock(&piece.0);
        let pending = match std::mem::replace(&mut *state, PieceState::Failed) {
            PieceState::Fetched(bytes) => {
                *state = PieceState::Fetched(bytes.clone());
                return Ok(bytes);
            }
            PieceState::Pending(pending) => pending,
            PieceState::Failed => self.ask(number),
        };
        let bytes = self.bucket.await_answer(pending)?;
        *state = PieceState::Fetched(bytes.clone());
        Ok(bytes)
    }
}

impl fmt::Debug for ObjectRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.bucket.object_place(&self.key);
        f.debug_struct("ObjectRange").field("place", &place).field("range", &self.range).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use zagros_fakes::s3::{FakeS3, S3Fault};

    use super::*;
    use crate::Objects;
    use crate::tests::pattern;

    fn store(bytes: usize) -> (FakeS3, Objects, Vec<u8>) {
        let content = pattern(bytes);
        let store = FakeS3::start("logs");
        store.put_object("a", content.clone());
        let objects = Objects::open_in(&store.environment_variables(), "s3://logs", Duration::from_secs(5)).unwrap();
        (store, objects, content)
    }

    fn read(range: &ObjectRange) -> Vec<u8> {
        let (mut all, mut at) = (Vec::new(), range.byte_range().start);
        loop {
            let bytes = range.bytes_at(at).unwrap();
            if bytes.is_empty() {
                return all;
            }
            at += bytes.len() as u64;
            all.extend_from_slice(&bytes);
        }
    }

    #[test]
    fn threads_share_the_pieces_that_they_read() {
        let (store, objects, content) = store(3_500_000);
        let object = objects.find("a").unwrap().unwrap();
        let range = objects.open_range(&object, 100..3_200_000).unwrap();
        let earlier = store.request_log().len();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert!(read(&range) == content[100..3_200_000]));
            }
        });
        let requests = store.request_log().len() - earlier;
        assert!((4..=8).contains(&requests), "{requests} requests for four pieces");
        assert!(range.bytes_at(3_200_000).unwrap().is_empty() && range.bytes_at(0).unwrap().is_empty());
    }

    #[test]
    fn a_failure_is_kept_and_the_piece_is_requested_again() {
        let (store, objects, content) = store(1_000);
        let object = objects.find("a").unwrap().unwrap();
        let range = objects.open_range(&object, 0..1_000).unwrap();
        store.inject_fault(S3Fault::Denies, "GET /logs/a", 1);
        range.begin_fetch();
        assert!(range.bytes_at(0).unwrap_err().contains("AccessDenied"));
        let failure = range.take_failure().unwrap().to_string();
        assert!(failure.contains("cannot read s3://logs/a") && range.take_failure().is_none(), "{failure}");
        assert_eq!(read(&range), content);
    }
}
