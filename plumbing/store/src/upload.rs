//! An object that is sent in parts while it is written, in bounded memory. It appears when all parts are sent.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;

use object_store::path::Path as Key;
use object_store::{
    Attribute, Attributes, GetOptions, MultipartUpload, ObjectStore, ObjectStoreExt, PutMultipartOptions,
};
use tracing::warn;

use crate::bucket::{ObjectBucket, PendingRequest};
use crate::part_sizes::{MOST_PARTS, PartSizes};
use crate::{StoreError, StoreProblem};

/// Parts in flight. Memory is bounded by these and one part more.
const AHEAD: usize = 2;
/// The metadata of an object by which the upload that made it knows it again.
const TAG: &str = "zagros-upload";

/// An unfinished object. Dropping it aborts the upload.
pub(crate) struct ObjectUpload {
    bucket: Arc<ObjectBucket>,
    key: Key,
    sizes: PartSizes,
    part: Vec<u8>,
    parts: usize,
    /// A number of its own.
    tag: String,
    upload: Option<Box<dyn MultipartUpload>>,
    under_way: VecDeque<PendingRequest<()>>,
}

impl ObjectUpload {
    pub(crate) fn new(bucket: Arc<ObjectBucket>, key: Key, sizes: PartSizes) -> Self {
        let tag = format!("{:032x}", rand::random::<u128>());
        Self { bucket, key, sizes, part: Vec::new(), parts: 0, tag, upload: None, under_way: VecDeque::new() }
    }

    /// Completes the object as a whole (invariant CK-1). After an error it is as it was before.
    pub(crate) fn finish(mut self) -> Result<(), StoreError> {
        if self.upload.is_none() {
            let (store, key, bytes) = (self.bucket.store.clone(), self.key.clone(), std::mem::take(&mut self.part));
            let put = async move { store.put(&key, bytes.into()).await.map(drop) };
            return self.bucket.run_request("write", &self.key, put);
        }
        if !self.part.is_empty() {
            self.send()?;
        }
        while !self.under_way.is_empty() {
            self.settle()?;
        }
        let Some(mut upload) = self.upload.take() else { return Ok(()) };
        let complete = async move { upload.complete().await.map(drop).map_err(|error| (error, upload)) };
        let (store, key, tag) = (self.bucket.store.clone(), self.key.clone(), self.tag.clone());
        let completed = async move {
            let Err((error, mut upload)) = complete.await else { return Ok(()) };
            // A completion whose answer was lost is asked for again, and there is no such upload any more.
            if is_tagged(&store, &key, &tag).await {
                return Ok(());
            }
            // The cause is reported already. The bucket's own rules remove parts that stay.
            let _ = upload.abort().await;
            Err(error)
        };
        self.bucket.run_request("write", &self.key, completed)
    }

    /// Sends a part. Waits for the oldest part if enough parts are in flight.
    fn send(&mut self) -> Result<(), StoreError> {
        self.parts += 1;
        if self.parts > MOST_PARTS {
            let reason = format!(
                "more than {MOST_PARTS} parts, the last of {} MiB",
                self.sizes.part_bytes(MOST_PARTS - 1) >> 20
            );
            return Err(self.bucket.object_error("write", &self.key, StoreProblem::TooLarge, reason));
        }
        while self.under_way.len() >= AHEAD {
            self.settle()?;
        }
        let bytes = std::mem::take(&mut self.part);
        let upload = match &mut self.upload {
            Some(upload) => upload,
            none => {
                let (store, key) = (self.bucket.store.clone(), self.key.clone());
                let attributes = Attributes::from_iter([(Attribute::Metadata(TAG.into()), self.tag.clone())]);
                let options = PutMultipartOptions { attributes, ..PutMultipartOptions::default() };
                let start = async move { store.put_multipart_opts(&key, options).await };
                let started = self.bucket.run_request("write", &self.key, start)?;
                none.insert(started)
            }
        };
        let put = upload.put_part(bytes.into());
        self.under_way.push_back(self.bucket.begin_request("write", &self.key, put));
        Ok(())
    }

    fn settle(&mut self) -> Result<(), StoreError> {
        self.under_way.pop_front().map_or(Ok(()), |part| self.bucket.await_answer(part))
    }
}

impl Write for ObjectUpload {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.part.len() == self.sizes.part_bytes(self.parts) {
            self.send().map_err(StoreError::into_io)?;
        }
        let taken = bytes.len().min(self.sizes.part_bytes(self.parts) - self.part.len());
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
        if let Err(error) = self.bucket.run_request("take back", &self.key, async move { upload.abort().await }) {
            warn!(%error, "cannot abort an unfinished upload; its parts stay in the bucket");
        }
    }
}

async fn is_tagged(store: &dyn ObjectStore, key: &Key, tag: &str) -> bool {
    let head = GetOptions { head: true, ..GetOptions::default() };
    let found = store.get_opts(key, head).await;
    found.is_ok_and(|found| found.attributes.get(&Attribute::Metadata(TAG.into())).is_some_and(|known| **known == *tag))
}
