//! The objects of a bucket, to be read: data that other programs have written, under any names.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path as Key;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt};

use crate::StoreError;
use crate::bucket::{ObjectBucket, store_variables};
use crate::download::{ObjectInput, ObjectRange, PiecePlan};
use crate::stores::{Environment, StoreKind};

/// Requests of one call that are under way at once.
const AT_ONCE: usize = 16;

/// The objects of a bucket. All calls block. Clones share one connection.
#[derive(Clone, Debug)]
pub struct Objects {
    bucket: Arc<ObjectBucket>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredObject {
    /// Its key, without the bucket.
    pub key: String,
    pub bytes: u64,
    /// A text that changes with the content.
    pub version: String,
}

impl Objects {
    /// Opens a bucket by its root ([`crate::ObjectUrl`]), with the endpoint and the credentials of the environment.
    /// A request takes at most `timeout`, with retries. Makes no request.
    pub fn open(root: &str, timeout: Duration) -> Result<Self, StoreError> {
        Self::open_in(&store_variables(), root, timeout)
    }

    /// As [`Self::open`], with another environment: names and values of the variables of stores.
    pub fn open_in(environment: &Environment, root: &str, timeout: Duration) -> Result<Self, StoreError> {
        Ok(Self { bucket: Arc::new(ObjectBucket::open(root, timeout, environment)?) })
    }

    /// Whether objects can be listed. A web server has no list.
    pub fn has_list(&self) -> bool {
        StoreKind::split_url(self.bucket.name()).is_none_or(|(kind, _)| kind != StoreKind::Http)
    }

    /// The object of this key, if there is one.
    pub fn find(&self, key: &str) -> Result<Option<StoredObject>, StoreError> {
        let key = self.key(key)?;
        let has_head = self.has_list();
        let found = self.bucket.run_request("read", &key, |store, key| async move {
            if has_head { store.head(&key).await } else { by_range(&*store, &key).await }
        });
        match found {
            Ok(found) => Ok(Some(StoredObject::from_meta(found))),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All objects below a prefix, which ends where a slash is in their keys; ordered by their keys.
    pub fn list_below(&self, prefix: &str) -> Result<Vec<StoredObject>, StoreError> {
        let mut found: Vec<_> =
            self.bucket.list_all(&self.key(prefix)?)?.into_iter().map(StoredObject::from_meta).collect();
        found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }

    /// Reads an object. Pieces after the position are fetched ahead.
    pub fn open_input(&self, object: &StoredObject) -> Result<ObjectInput, StoreError> {
        let key = self.key(&object.key)?;
        Ok(ObjectInput::new(Arc::clone(&self.bucket), key, object.bytes, PiecePlan::MANY))
    }

    /// A part of an object, for several threads. Makes no request.
    pub fn open_range(&self, object: &StoredObject, part: Range<u64>) -> Result<ObjectRange, StoreError> {
        let key = self.key(&object.key)?;
        Ok(ObjectRange::new(Arc::clone(&self.bucket), key, part.start..part.end.min(object.bytes)))
    }

    /// A few bytes of an object, in one request.
    pub fn read_part(&self, object: &StoredObject, part: Range<u64>) -> Result<Bytes, StoreError> {
        let key = self.key(&object.key)?;
        self.bucket.run_request("read", &key, |store, key| async move { store.get_range(&key, part).await })
    }

    /// Several parts of an object, in their order: a request for each, many at once.
    pub fn read_all(&self, object: &StoredObject, parts: Vec<Range<u64>>) -> Result<Vec<Bytes>, StoreError> {
        let key = self.key(&object.key)?;
        self.bucket.run_request("read", &key, |store, key| async move {
            let part = |part| store.get_range(&key, part);
            futures::stream::iter(parts).map(part).buffered(AT_ONCE).try_collect().await
        })
    }

    fn key(&self, key: &str) -> Result<Key, StoreError> {
        Key::parse(key.trim_matches('/')).map_err(|_| StoreError::Place {
            text: format!("{}/{key}", self.bucket.name()),
            reason: "a key has no empty part, and none of . and ..",
        })
    }
}

/// What a web server says of a file with its first byte. A URL that is signed for GET does not allow HEAD, and some servers know no HEAD.
async fn by_range(store: &dyn ObjectStore, key: &Key) -> object_store::Result<ObjectMeta> {
    let first = GetOptions { range: Some(GetRange::Bounded(0..1)), ..GetOptions::default() };
    match store.get_opts(key, first).await {
        Ok(found) => Ok(found.meta),
        // An empty file has no first byte.
        Err(error) if error.to_string().contains("416 Range Not Satisfiable") => store.head(key).await,
        Err(error) => Err(error),
    }
}

impl StoredObject {
    fn from_meta(found: ObjectMeta) -> Self {
        let version = found.e_tag.unwrap_or_else(|| found.last_modified.to_rfc3339());
        Self { key: found.location.to_string(), bytes: found.size, version }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, SeekFrom};

    use proptest::prelude::*;
    use zagros_fakes::s3::{FakeS3, S3Fault};

    use super::*;
    use crate::tests::pattern;

    const TIMEOUT: Duration = Duration::from_secs(20);

    fn store(objects: &[(&str, &[u8])]) -> (FakeS3, Objects) {
        let store = FakeS3::start("logs");
        objects.iter().for_each(|(key, content)| store.put_object(key, *content));
        let objects = Objects::open_in(&store.environment_variables(), "s3://logs", TIMEOUT).unwrap();
        (store, objects)
    }

    #[test]
    fn objects_below_a_prefix_are_listed_in_order_on_any_number_of_pages() {
        let names = ["day/b", "day/a/1", "day/a/2", "day/c", "days/x", "e"];
        let (_store, objects) = store(&names.map(|name| (name, name.as_bytes())));
        let below = |prefix| objects.list_below(prefix).unwrap().into_iter().map(|found| found.key).collect::<Vec<_>>();
        assert_eq!(below("day"), ["day/a/1", "day/a/2", "day/b", "day/c"]);
        assert_eq!(below("/day/a/"), ["day/a/1", "day/a/2"]);
        assert_eq!(below("").len(), 6);
        assert_eq!(below("none"), [""; 0]);
        let found = objects.find("day/a/1").unwrap().unwrap();
        assert_eq!((found.key.as_str(), found.bytes), ("day/a/1", 7));
        assert_eq!(objects.find("day/a").unwrap(), None);
        assert!(objects.find("a/../b").unwrap_err().to_string().contains("none of . and .."));
    }

    #[test]
    fn a_store_that_refuses_is_named() {
        let (store, objects) = store(&[("a", b"x")]);
        store.inject_fault(S3Fault::Denies, "GET /logs", 99);
        let error = objects.list_below("").unwrap_err().to_string();
        assert!(error.contains("cannot list s3://logs/") && error.contains("AccessDenied"), "{error}");
        store.inject_fault(S3Fault::Denies, "HEAD /logs/a", 99);
        assert!(objects.find("a").is_err());
    }

    #[test]
    fn a_part_of_an_object_costs_little_more_than_its_bytes() {
        let content = pattern(5_000_000);
        let (store, objects) = store(&[("a", &content)]);
        let found = objects.find("a").unwrap().unwrap();
        let earlier = store.request_log().len();
        let mut input = objects.open_input(&found).unwrap();
        input.seek(SeekFrom::Start(1_000_000)).unwrap();
        input.expect_end(1_500_000);
        let mut part = vec![0; 500_010];
        input.read_exact(&mut part).unwrap();
        assert_eq!(part, content[1_000_000..1_500_010]);
        assert_eq!(store.request_log().len() - earlier, 2, "the part, and a little for the last line");
        let mut all = Vec::new();
        objects.open_input(&found).unwrap().read_to_end(&mut all).unwrap();
        assert_eq!(all, content);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]

        /// Wherever reading starts, is expected to end, and ends.
        #[test]
        fn any_part_is_that_part(start in 0_u64..3_000_000, expected in 0_u64..3_000_000, bytes in 1_usize..2_500_000) {
            let content = pattern(3_000_000);
            let (_store, objects) = store(&[("a", &content)]);
            let mut input = objects.open_input(&objects.find("a").unwrap().unwrap()).unwrap();
            input.seek(SeekFrom::Start(start)).unwrap();
            input.expect_end(expected);
            let mut part = Vec::new();
            input.by_ref().take(bytes as u64).read_to_end(&mut part).unwrap();
            let end = content.len().min(start as usize + bytes);
            prop_assert!(part == content[start as usize..end]);
        }
    }
}
