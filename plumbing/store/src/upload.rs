//! An object that is sent in parts while it is written, in bounded memory. It appears when all parts are sent.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;

use object_store::path::Path as Key;
use object_store::{MultipartUpload, ObjectStoreExt};
use tracing::warn;

use crate::bucket::{PendingRequest, S3Bucket};
use crate::{StoreError, StoreProblem};

/// Bytes of a part. All parts but the last have one size, as R2 requires.
pub(crate) const PART: usize = 16 << 20;
/// Parts in flight. Memory is bounded by these and one part more.
const AHEAD: usize = 2;
/// Largest number of parts that S3 allows: 156 GiB with this part size.
const MOST_PARTS: usize = 10_000;

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
            let reason = format!("more than {MOST_PARTS} parts of {} MiB", PART >> 20);
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
        if self.part.len() == PART {
            self.send().map_err(StoreError::into_io)?;
        }
        let taken = bytes.len().min(PART - self.part.len());
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
