//! An object that is sent in parts while it is written, in bounded memory. It appears when all parts are sent.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;

use object_store::path::Path as Key;
use object_store::{MultipartUpload, ObjectStoreExt};
use tracing::warn;

use crate::bucket::{PendingRequest, S3Bucket};
use crate::{StoreError, StoreProblem};

/// Bytes of one of the first parts. As long as all parts but the last have one size, as R2 requires, an object may have 140 GiB.
pub(crate) const PART: usize = 16 << 20;
/// Parts in flight. Memory is bounded by these and one part more.
const AHEAD: usize = 2;
/// Largest number of parts that S3 allows.
const MOST_PARTS: usize = 10_000;
/// Parts of the first size, and parts of each later size, which is twice the one before.
const FIRST_PARTS: usize = 9_000;
const GROWN_PARTS: usize = 125;

/// Bytes of a part, by its number from 0. Parts grow late: 10,000 of them hold 1.1 TiB, and take memory only when they are needed.
fn part_bytes(number: usize) -> usize {
    let doubled = (number + GROWN_PARTS).saturating_sub(FIRST_PARTS) / GROWN_PARTS;
    PART << doubled.min(8)
}

/// An unfinished object. Dropping it aborts the upload.
pub(crate) struct ObjectUpload {
    bucket: Arc<S3Bucket>,
    key: Key,
    part: Vec<u8>,
    parts: usize,
    upload: Option<Box<dyn MultipartUpload>>,
    under_way: VecDeque<PendingRequest<()>>,
}

impl ObjectUpload {
    pub(crate) fn new(bucket: Arc<S3Bucket>, key: Key) -> Self {
        Self { bucket, key, part: Vec::new(), parts: 0, upload: None, under_way: VecDeque::new() }
    }

    /// Sends the last part and completes the object as a whole (invariant CK-1).
    ///
    /// # Errors
    /// The error of the store. The object is then as it was before.
    pub(crate) fn finish(mut self) -> Result<(), StoreError> {
        if self.upload.is_none() {
            let (store, key, bytes) = (self.bucket.store.clone(), self.key.clone(), std::mem::take(&mut self.part));
            let put = async move { store.put(&key, bytes.into()).await.map(drop) };
            return self.bucket.call("write", &self.key, put);
        }
        if !self.part.is_empty() {
            self.send()?;
        }
        while !self.under_way.is_empty() {
            self.settle()?;
        }
        let Some(mut upload) = self.upload.take() else { return Ok(()) };
        let complete = async move {
            let completed = upload.complete().await.map(drop);
            if completed.is_err() {
                // The cause is reported already. The bucket's own rules remove parts that stay.
                let _ = upload.abort().await;
            }
            completed
        };
        self.bucket.call("write", &self.key, complete)
    }

    /// Sends a part. Waits for the oldest part if enough parts are in flight.
    fn send(&mut self) -> Result<(), StoreError> {
        self.parts += 1;
        if self.parts > MOST_PARTS {
            let reason = format!("more than {MOST_PARTS} parts, the last of {} MiB", part_bytes(MOST_PARTS - 1) >> 20);
            return Err(self.bucket.error("write", &self.key, StoreProblem::TooLarge, reason));
        }
        while self.under_way.len() >= AHEAD {
            self.settle()?;
        }
        let bytes = std::mem::take(&mut self.part);
        let upload = match &mut self.upload {
            Some(upload) => upload,
            none => {
                let (store, key) = (self.bucket.store.clone(), self.key.clone());
                let started = self.bucket.call("write", &self.key, async move { store.put_multipart(&key).await })?;
                none.insert(started)
            }
        };
        let put = upload.put_part(bytes.into());
        self.under_way.push_back(self.bucket.begin("write", &self.key, put));
        Ok(())
    }

    fn settle(&mut self) -> Result<(), StoreError> {
        self.under_way.pop_front().map_or(Ok(()), |part| self.bucket.wait(part))
    }
}

impl Write for ObjectUpload {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.part.len() == part_bytes(self.parts) {
            self.send().map_err(StoreError::into_io)?;
        }
        let taken = bytes.len().min(part_bytes(self.parts) - self.part.len());
        self.part.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for ObjectUpload {
    fn drop(&mut self) {
        let Some(mut upload) = self.upload.take() else { return };
        if let Err(error) = self.bucket.call("take back", &self.key, async move { upload.abort().await }) {
            warn!(%error, "cannot abort an unfinished upload; its parts stay in the bucket");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_grow_so_that_as_many_as_s3_allows_hold_a_tebibyte() {
        let (gib, bytes) =
            (1_u64 << 30, |parts: usize| (0..parts).map(|number| part_bytes(number) as u64).sum::<u64>());
        assert_eq!((part_bytes(0), part_bytes(FIRST_PARTS - 1), part_bytes(FIRST_PARTS)), (PART, PART, 2 * PART));
        assert_eq!(bytes(FIRST_PARTS) / gib, 140);
        assert!(bytes(MOST_PARTS) > 1100 * gib, "{} GiB", bytes(MOST_PARTS) / gib);
        // S3 takes parts of up to 5 GiB. No part is larger than a 60th of what was sent before it.
        assert!(part_bytes(MOST_PARTS - 1) as u64 <= 5 * gib);
        assert!((FIRST_PARTS..MOST_PARTS).all(|number| part_bytes(number) as u64 * 60 <= bytes(number)));
    }
}
