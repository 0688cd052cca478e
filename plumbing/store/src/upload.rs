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
            let bytes = std::mem::take(&mut self.part);
            return self.bucket.run_request("write", &self.key, |store, key| async move {
                store.put(&key, bytes.into()).await.map(drop)
            });
        }
        if !self.part.is_empty() {
            self.send()?;
        }
        while !self.under_way.is_empty() {
            self.settle()?;
        }
        let Some(mut upload) = self.upload.take() else { return Ok(()) };
        let tag = self.tag.clone();
        self.bucket.run_request("write", &self.key, |store, key| async move {
            let Err(error) = upload.complete().await else { return Ok(()) };
            // A completion whose answer was lost is asked for again, and there is no such upload any more.
            if is_tagged(&store, &key, &tag).await {
                return Ok(());
            }
            // The cause is reported already. The bucket's own rules remove parts that stay.
            let _ = upload.abort().await;
            Err(error)
        })
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
                let attributes = Attributes::from_iter([(Attribute::Metadata(TAG.into()), self.tag.clone())]);
                let options = PutMultipartOptions { attributes, ..PutMultipartOptions::default() };
                let started = self.bucket.run_request("write", &self.key, |store, key| async move {
                    store.put_multipart_opts(&key, options).await
                });
                none.insert(started?)
            }
        };
        let put = upload.put_part(bytes.into());
        self.under_way.push_back(self.bucket.begin_request("write", &self.key, |_, _| put));
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
        let aborted = self.bucket.run_request("take back", &self.key, |_, _| async move { upload.abort().await });
        if let Err(error) = aborted {
            warn!(%error, "cannot abort an unfinished upload; its parts stay in the bucket");
        }
    }
}

async fn is_tagged(store: &dyn ObjectStore, key: &Key, tag: &str) -> bool {
    let head = GetOptions { head: true, ..GetOptions::default() };
    let found = store.get_opts(key, head).await;
    found.is_ok_and(|found| found.attributes.get(&Attribute::Metadata(TAG.into())).is_some_and(|known| **known == *tag))
}

/// Bytes of a part of an object of up to 140 GiB.
pub(crate) const PART: usize = 16 << 20;
/// Largest number of parts that a store takes.
pub(crate) const MOST_PARTS: usize = 10_000;
/// The largest part that a store takes is 5 GiB: so many of the smallest that this module plans.
const MOST_PER_PART: usize = 320;
/// Parts of one size, and parts of each later size, which is twice the one before.
const EQUAL_PARTS: usize = 9_000;
const GROWN_PARTS: usize = 125;
/// Expected bytes are exceeded by a part in so many without a change: block heads, and rows that come meanwhile.
const SPARE: u64 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartSizes {
    equal: usize,
    most: usize,
}

impl PartSizes {
    /// For an object of about so many bytes; 0 if the writer does not know how many.
    pub(crate) fn for_bytes(expected: u64) -> Self {
        Self::scaled(PART, expected)
    }

    /// As [`Self::for_bytes`], with another smallest part. Tests use smaller ones with the same numbers of parts.
    pub(crate) fn scaled(smallest: usize, expected: u64) -> Self {
        let most = smallest.saturating_mul(MOST_PER_PART);
        // A sixteenth of the smallest part: 1 MiB.
        let grain = (smallest as u64 / SPARE).max(1);
        let share = expected.saturating_add(expected / SPARE).div_ceil(EQUAL_PARTS as u64);
        let equal = usize::try_from(share.div_ceil(grain).saturating_mul(grain)).unwrap_or(usize::MAX);
        Self { equal: equal.clamp(smallest, most), most }
    }

    /// Bytes of a part, by its number from 0.
    pub(crate) fn part_bytes(self, number: usize) -> usize {
        let doubled = (number + GROWN_PARTS).saturating_sub(EQUAL_PARTS) / GROWN_PARTS;
        self.equal.saturating_mul(1 << doubled.min(8)).min(self.most)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1 << 30;
    /// As Amazon publishes them: parts of 5 MiB to 5 GiB, and objects of 5 TiB.
    const SMALLEST: u64 = 5 << 20;
    const LARGEST: u64 = 5 * GIB;
    const OBJECT: u64 = 5 << 40;

    /// Parts of an object, and the largest of them. `None` if it does not fit.
    fn parts(sizes: PartSizes, mut bytes: u64) -> Option<(usize, u64)> {
        let mut largest = 0;
        for number in 0..MOST_PARTS {
            let part = sizes.part_bytes(number) as u64;
            largest = largest.max(part.min(bytes));
            if bytes <= part {
                return Some((number + 1, largest));
            }
            bytes -= part;
        }
        None
    }

    #[test]
    fn an_object_of_known_size_has_equal_parts_at_each_boundary() {
        for (expected, part) in [
            (0, PART as u64),
            (132 * GIB, PART as u64),
            (140 * GIB, 17 << 20),
            (156 * GIB, 19 << 20),
            (10_000 * PART as u64, 19 << 20),
            (10_000 * PART as u64 + 1, 19 << 20),
            (200 * GIB, 25 << 20),
            (1 << 40, 124 << 20),
            (OBJECT, 619 << 20),
        ] {
            let sizes = PartSizes::for_bytes(expected);
            let found = parts(sizes, expected).unwrap();
            assert_eq!(sizes.part_bytes(0) as u64, part, "{expected}");
            assert!(found.0 <= EQUAL_PARTS && (0..EQUAL_PARTS).all(|number| sizes.part_bytes(number) as u64 == part));
        }
    }

    #[test]
    fn an_object_of_unknown_size_may_have_a_tebibyte() {
        let sizes = PartSizes::for_bytes(0);
        let bytes = |parts: usize| (0..parts).map(|number| sizes.part_bytes(number) as u64).sum::<u64>();
        assert_eq!((sizes.part_bytes(EQUAL_PARTS - 1), sizes.part_bytes(EQUAL_PARTS)), (PART, 2 * PART));
        assert_eq!((bytes(EQUAL_PARTS) / GIB, bytes(MOST_PARTS) / GIB), (140, 1136));
        // No part is larger than a 60th of what was sent before it.
        assert!((EQUAL_PARTS..MOST_PARTS).all(|number| sizes.part_bytes(number) as u64 * 60 <= bytes(number)));
    }

    proptest! {
        /// Also where the object is half as large again as expected.
        #[test]
        fn no_object_that_a_store_takes_breaks_its_limits(expected in 0..OBJECT, factor in 0.0_f64..1.5) {
            let sizes = PartSizes::for_bytes(expected);
            let bytes = (expected as f64 * factor) as u64;
            let (count, largest) = parts(sizes, bytes.min(OBJECT)).expect("it fits");
            prop_assert!(count <= MOST_PARTS && largest <= LARGEST);
            prop_assert!((0..MOST_PARTS).all(|number| sizes.part_bytes(number) as u64 >= SMALLEST));
        }
    }
}
