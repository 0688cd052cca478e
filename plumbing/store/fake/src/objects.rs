//! The content of the bucket.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Objects by key, and unfinished uploads.
#[derive(Debug, Default)]
pub(crate) struct StoredObjects {
    whole: BTreeMap<String, Arc<[u8]>>,
    /// By upload number: the key, and the parts by part number.
    uploads: BTreeMap<u64, (String, BTreeMap<u32, Vec<u8>>)>,
    next_upload: u64,
}

/// One page of a list.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ListPage {
    /// Keys and sizes of objects.
    pub(crate) objects: Vec<(String, usize)>,
    /// Common prefixes.
    pub(crate) prefixes: Vec<String>,
    /// The last entry, if there are more.
    pub(crate) more_after: Option<String>,
}

impl StoredObjects {
    pub(crate) fn keys(&self) -> Vec<String> {
        self.whole.keys().cloned().collect()
    }

    pub(crate) fn get(&self, key: &str) -> Option<Arc<[u8]>> {
        self.whole.get(key).cloned()
    }

    pub(crate) fn put(&mut self, key: &str, content: Vec<u8>) {
        self.whole.insert(key.to_owned(), content.into());
    }

    pub(crate) fn delete(&mut self, key: &str) {
        self.whole.remove(key);
    }

    pub(crate) fn open_uploads(&self) -> usize {
        self.uploads.len()
    }

    pub(crate) fn begin_upload(&mut self, key: &str) -> u64 {
        self.next_upload += 1;
        self.uploads.insert(self.next_upload, (key.to_owned(), BTreeMap::new()));
        self.next_upload
    }

    /// Adds a part to an upload. Returns `false` if there is no such upload.
    pub(crate) fn put_part(&mut self, upload: u64, number: u32, content: Vec<u8>) -> bool {
        self.uploads.get_mut(&upload).map(|(_, parts)| parts.insert(number, content)).is_some()
    }

    pub(crate) fn complete(&mut self, upload: u64) -> bool {
        let Some((key, parts)) = self.uploads.remove(&upload) else { return false };
        self.put(&key, parts.into_values().flatten().collect());
        true
    }

    pub(crate) fn abort(&mut self, upload: u64) -> bool {
        self.uploads.remove(&upload).is_some()
    }

    /// Lists at most `most` entries with `prefix` that come after `after`. With a delimiter, keys that share the next
    /// part of their name are one entry.
    pub(crate) fn list(&self, prefix: &str, delimiter: Option<char>, after: &str, most: usize) -> ListPage {
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
        let first = objects.list("a/", Some('/'), "", 1);
        assert_eq!((first.prefixes, first.more_after.as_deref()), (vec!["a/1/".to_owned()], Some("a/1/")));
        let second = objects.list("a/", Some('/'), "a/1/", 1);
        assert_eq!(second, ListPage { objects: vec![("a/2".to_owned(), 3)], ..ListPage::default() });
        assert_eq!(objects.list("", None, "", 10).objects.len(), 4);
    }

    #[test]
    fn parts_become_an_object_in_the_order_of_their_numbers() {
        let mut objects = StoredObjects::default();
        let upload = objects.begin_upload("key");
        assert!(objects.put_part(upload, 2, vec![2]) && objects.put_part(upload, 1, vec![1]));
        assert_eq!(objects.get("key"), None);
        assert!(objects.complete(upload) && !objects.complete(upload) && !objects.abort(upload));
        assert_eq!((&*objects.get("key").unwrap(), objects.open_uploads()), (&[1, 2][..], 0));
    }
}
