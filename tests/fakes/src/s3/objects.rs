//! The content of the bucket.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::s3::S3Limits;

/// Metadata of a user, by the names of the headers.
pub(crate) type Metadata = Vec<(String, String)>;

/// Objects by key, and unfinished uploads.
#[derive(Debug, Default)]
pub(crate) struct StoredObjects {
    pub(crate) whole: BTreeMap<String, Arc<[u8]>>,
    pub(crate) metadata: BTreeMap<String, Metadata>,
    /// By upload number.
    pub(crate) uploads: BTreeMap<u64, OpenUpload>,
    next_upload: u64,
    pub(crate) limits: S3Limits,
}

#[derive(Debug, Default)]
pub(crate) struct OpenUpload {
    key: String,
    metadata: Metadata,
    parts: BTreeMap<u32, Vec<u8>>,
}

/// What became of a part or a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UploadOutcome {
    Done,
    /// There is no such upload.
    Unknown,
    /// A limit of the store, by its error code.
    Refused(&'static str),
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ListPage {
    /// Keys and sizes of objects.
    pub(crate) objects: Vec<(String, usize)>,
    pub(crate) prefixes: Vec<String>,
    /// The last entry, if there are more.
    pub(crate) more_after: Option<String>,
}

impl StoredObjects {
    pub(crate) fn get(&self, key: &str) -> Option<Arc<[u8]>> {
        self.whole.get(key).cloned()
    }

    pub(crate) fn put(&mut self, key: &str, content: Vec<u8>) {
        self.metadata.remove(key);
        self.whole.insert(key.to_owned(), content.into());
    }

    pub(crate) fn delete(&mut self, key: &str) {
        self.metadata.remove(key);
        self.whole.remove(key);
    }

    pub(crate) fn begin_upload(&mut self, key: &str, metadata: Metadata) -> u64 {
        self.next_upload += 1;
        let upload = OpenUpload { key: key.to_owned(), metadata, parts: BTreeMap::new() };
        self.uploads.insert(self.next_upload, upload);
        self.next_upload
    }

    pub(crate) fn put_part(&mut self, upload: u64, number: u32, content: Vec<u8>) -> UploadOutcome {
        if !(1..=self.limits.parts).contains(&number) {
            return UploadOutcome::Refused("InvalidArgument");
        }
        if content.len() > self.limits.largest_part {
            return UploadOutcome::Refused("EntityTooLarge");
        }
        let Some(upload) = self.uploads.get_mut(&upload) else { return UploadOutcome::Unknown };
        upload.parts.insert(number, content);
        UploadOutcome::Done
    }

    pub(crate) fn complete_upload(&mut self, upload: u64) -> UploadOutcome {
        let Some(OpenUpload { key, metadata, parts }) = self.uploads.remove(&upload) else {
            return UploadOutcome::Unknown;
        };
        let sizes: Vec<usize> = parts.values().map(Vec::len).collect();
        let [before @ .., last] = &sizes[..] else { return UploadOutcome::Refused("MalformedXML") };
        if before.iter().any(|bytes| *bytes < self.limits.smallest_part) {
            return UploadOutcome::Refused("EntityTooSmall");
        }
        let first = before.first().unwrap_or(last);
        if self.limits.equal_parts && (before.iter().any(|bytes| bytes != first) || last > first) {
            return UploadOutcome::Refused("InvalidPart");
        }
        self.put(&key, parts.into_values().flatten().collect());
        self.metadata.insert(key, metadata);
        UploadOutcome::Done
    }

    pub(crate) fn abort_upload(&mut self, upload: u64) -> bool {
        self.uploads.remove(&upload).is_some()
    }

    /// Lists at most `most` entries with `prefix` that come after `after`. With a delimiter, keys that share the next
    /// part of their name are one entry.
    pub(crate) fn list_page(&self, prefix: &str, delimiter: Option<char>, after: &str, most: usize) -> ListPage {
        let mut entries = BTreeSet::new();
        for (key, content) in &self.whole {
            let Some(rest) = key.strip_prefix(prefix) else { continue };
            match delimiter.and_then(|delimiter| rest.find(delimiter)) {
                Some(end) => entries.insert((format!("{prefix}{}", &rest[..=end]), None)),
                None => entries.insert((key.clone(), Some(content.len()))),
            };
        }
        let mut page = ListPage::default();
        let mut last = None;
        for (name, bytes) in entries.into_iter().filter(|(name, _)| name.as_str() > after) {
            if page.objects.len() + page.prefixes.len() == most {
                page.more_after = last;
                break;
            }
            last = Some(name.clone());
            match bytes {
                Some(bytes) => page.objects.push((name, bytes)),
                None => page.prefixes.push(name),
            }
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_pages_and_fold_deeper_keys() {
        let mut objects = StoredObjects::default();
        for key in ["a/1/x", "a/1/y", "a/2", "b"] {
            objects.put(key, vec![0; 3]);
        }
        let first = objects.list_page("a/", Some('/'), "", 1);
        assert_eq!((first.prefixes, first.more_after.as_deref()), (vec!["a/1/".to_owned()], Some("a/1/")));
        let second = objects.list_page("a/", Some('/'), "a/1/", 1);
        assert_eq!(second, ListPage { objects: vec![("a/2".to_owned(), 3)], ..ListPage::default() });
        assert_eq!(objects.list_page("", None, "", 10).objects.len(), 4);
    }

    #[test]
    fn parts_become_an_object_in_the_order_of_their_numbers() {
        let mut objects = StoredObjects::default();
        use UploadOutcome::{Done, Unknown};
        let upload = objects.begin_upload("key", Metadata::new());
        assert_eq!([2, 1].map(|number| objects.put_part(upload, number, vec![number as u8])), [Done; 2]);
        assert_eq!(objects.get("key"), None);
        assert_eq!([(); 2].map(|()| objects.complete_upload(upload)), [Done, Unknown]);
        assert!(!objects.abort_upload(upload));
        assert_eq!((&*objects.get("key").unwrap(), objects.uploads.len()), (&[1, 2][..], 0));
    }

    #[test]
    fn uploads_keep_to_the_limits() {
        use UploadOutcome::{Done, Refused};
        let limits = S3Limits { parts: 3, smallest_part: 2, largest_part: 3, equal_parts: true };
        let mut objects = StoredObjects { limits, ..StoredObjects::default() };
        let mut upload = |parts: &[usize]| {
            let upload = objects.begin_upload("key", Metadata::new());
            for (before, part) in parts.iter().enumerate() {
                match objects.put_part(upload, before as u32 + 1, vec![0; *part]) {
                    Done => {}
                    refused => return refused,
                }
            }
            objects.complete_upload(upload)
        };
        assert_eq!([&[2, 2, 1][..], &[3, 3, 3], &[1]].map(&mut upload), [Done; 3]);
        assert_eq!(upload(&[2, 2, 2, 2]), Refused("InvalidArgument"));
        assert_eq!(upload(&[4]), Refused("EntityTooLarge"));
        assert_eq!(upload(&[1, 2]), Refused("EntityTooSmall"));
        assert_eq!([upload(&[2, 3, 2]), upload(&[2, 3])], [Refused("InvalidPart"); 2]);
    }
}
